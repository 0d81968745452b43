"""approvals: listing, watching and answering open questions, by their principal only."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
from conftest import OpenHub
from hub_calls import OTHER, WAIT_S, call, follow, quiet, read, settled, until
from pydantic import BaseModel

from activations.approvals import Approvals
from activations.approvals.activation import INPUT_BYTES, PAGE_BYTES
from activations.approvals.events import Answered, ApprovalPending, ApprovalSettled, Pending
from plexus import (
    Activation,
    AskText,
    Confirm,
    Context,
    Event,
    Form,
    OpenUrl,
    Option,
    Plexus,
    Principal,
    Select,
    method,
)
from plexus.events import Cancelled, ErrorEvent, QuestionAnswered, Result
from plexus.limits import Limits
from plexus.principal import LOCAL
from plexus.rpc import wire
from plexus.runtime.calls import Call
from plexus.runtime.log import wall_ms
from plexus.runtime.run import LocalRun, Run

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]


class Address(BaseModel):
    """A destination."""

    street: str
    number: int


QUESTIONS: dict[str, Any] = {
    "confirm": Confirm("Sure?"),
    "prompt": AskText("Name?"),
    "select": Select("Which?", [Option("a", "Apples"), Option("b", "Pears")]),
    "form": Form("Where?", Address),
    "visit": OpenUrl("Sign in", "https://example.org/"),
}


class Asking(Activation):
    """Methods that ask questions."""

    namespace = "asking"
    version = "1.0.0"

    @method
    async def ask(self, kind: str, *, ctx: Context) -> Any:
        """Ask one question."""
        return await ctx.ask(QUESTIONS[kind])

    @method
    async def all(self, *, ctx: Context) -> dict[str, Any]:
        """Ask three questions concurrently."""
        return await ctx.ask_all({each: QUESTIONS[each] for each in ("confirm", "prompt", "form")})

    @method
    async def say(self, message: str, *, ctx: Context) -> Any:
        """Ask a question."""
        return await ctx.ask(Confirm(message))


@pytest.fixture
def hub(open_hub: OpenHub) -> Plexus:
    return open_hub(Asking, Approvals)


async def start_asking(hub: Plexus, name: str, *params: Any, principal: Principal = LOCAL) -> Call:
    begun = hub.call(name, list(params), principal)
    await until(lambda: bool(begun.run.questions))
    return begun


async def value(
    hub: Plexus, name: str, params: dict[str, Any], principal: Principal = LOCAL
) -> Any:
    [end] = await call(hub, name, params, principal)
    assert isinstance(end, Result), end
    return end.result


async def failure(
    hub: Plexus, name: str, params: dict[str, Any], principal: Principal = LOCAL
) -> ErrorEvent:
    [end] = await call(hub, name, params, principal)
    assert isinstance(end, ErrorEvent), end
    return end


async def pending(hub: Plexus, principal: Principal = LOCAL, **params: Any) -> Pending:
    found = await value(hub, "approvals.pending", params, principal)
    assert isinstance(found, Pending)
    return found


async def ids(hub: Plexus, principal: Principal = LOCAL, **params: Any) -> list[str]:
    return [each.approval_id for each in (await pending(hub, principal, **params)).approvals]


# --- pending -------------------------------------------------------------------------------------


async def test_open_questions_are_listed_with_everything_needed_to_answer(hub: Plexus) -> None:
    before = int(time.time() * 1000)
    run = (await start_asking(hub, "asking.ask", "select")).run
    [found] = (await pending(hub)).approvals
    assert wire.decode_plain(found) == {
        "type": "approval_pending",
        "approval_id": f"{run.id}.1",
        "run": run.id,
        "method": "asking.ask",
        "request": "1",
        "kind": "select",
        "message": "Which?",
        "schema": {"type": "string", "enum": ["a", "b"]},
        "options": [{"value": "a", "label": "Apples"}, {"value": "b", "label": "Pears"}],
        "asked_ms": found.asked_ms,
        "expires_ms": found.asked_ms + 300_000,
    }
    assert before - 1000 <= found.asked_ms <= time.time() * 1000 + 1000


async def test_a_question_has_the_client_of_its_run_and_expires_with_the_run(
    open_hub: OpenHub,
) -> None:
    hub = open_hub(Approvals, Asking, limits=Limits(run_s=10))
    run = hub.call("asking.ask", ["select"], client="Claude Code/2.1").run
    await until(lambda: bool(run.questions))
    [found] = (await pending(hub)).approvals
    assert found.client == "Claude Code/2.1"
    assert abs(found.expires_ms - (wall_ms(run.started_at) + 10_000)) < 5


async def test_details_are_listed_if_a_question_has_them(hub: Plexus) -> None:
    await start_asking(hub, "asking.ask", "visit")
    [found] = (await pending(hub)).approvals
    assert found.details == {"url": "https://example.org/"}


async def test_questions_of_all_runs_are_listed_oldest_first(hub: Plexus) -> None:
    first = (await start_asking(hub, "asking.all")).run
    second = (await start_asking(hub, "asking.ask", "confirm")).run
    third = (await start_asking(hub, "asking.ask", "form")).run
    expected = [*(f"{first.id}.{n}" for n in "123"), f"{second.id}.1", f"{third.id}.1"]
    assert await ids(hub) == expected
    assert await ids(hub, run=second.id) == [f"{second.id}.1"]
    assert await ids(hub, run=5) == []


async def test_a_list_reports_the_number_of_omitted_questions(hub: Plexus) -> None:
    await start_asking(hub, "asking.all")
    for limit, more in ((2, 1), (0, 3), (-1, 3), (3, 0)):
        page = await pending(hub, limit=limit)
        assert (len(page.approvals), page.more) == (3 - more, more)
    assert (await pending(hub)).as_line() == "3 open"


async def test_a_list_has_a_maximum_size(hub: Plexus) -> None:
    for _ in range(3):
        await start_asking(hub, "asking.say", "x" * (PAGE_BYTES // 2))
    page = await pending(hub)
    assert (len(page.approvals), page.more) == (1, 2)


async def test_questions_of_other_principals_are_not_listed(hub: Plexus) -> None:
    mine = (await start_asking(hub, "asking.ask", "confirm")).run
    other = (await start_asking(hub, "asking.ask", "confirm", principal=OTHER)).run
    assert await ids(hub) == [f"{mine.id}.1"]
    assert await ids(hub, OTHER) == [f"{other.id}.1"]
    assert await ids(hub, run=other.id) == []


# --- respond -------------------------------------------------------------------------------------


async def respond(hub: Plexus, run: Run, approve: bool, **more: Any) -> Answered:
    params = {"approval_id": f"{run.id}.1", "approve": approve} | more
    answered = await value(hub, "approvals.respond", params)
    assert answered == Answered(f"{run.id}.1", approve)
    assert await ids(hub, run=run.id) == []
    return Answered(f"{run.id}.1", approve)


@pytest.mark.parametrize(
    ("kind", "more", "result"),
    [
        ("confirm", {}, True),
        ("confirm", {"answer": True, "message": "of course"}, True),
        ("visit", {}, True),
        ("prompt", {"answer": "Ada"}, "Ada"),
        ("select", {"answer": "b"}, "b"),
        ("form", {"answer": {"street": "Main", "number": 5}}, Address(street="Main", number=5)),
    ],
)
async def test_an_approved_question_is_answered_with_yes(
    kind: str, more: dict[str, Any], result: Any, hub: Plexus
) -> None:
    begun = await start_asking(hub, "asking.ask", kind)
    await respond(hub, begun.run, True, **more)
    assert (await read(begun))[-1] == Result(result)


async def test_a_question_that_is_not_approved_is_answered_with_no(hub: Plexus) -> None:
    begun = await start_asking(hub, "asking.ask", "confirm")
    await respond(hub, begun.run, False, message="better not")
    assert (await read(begun))[-1] == Result(False)


@pytest.mark.parametrize("kind", ["prompt", "select", "form", "visit"])
async def test_other_questions_that_are_not_approved_are_declined(kind: str, hub: Plexus) -> None:
    begun = await start_asking(hub, "asking.ask", kind)
    await respond(hub, begun.run, False)
    [*_, end] = await read(begun)
    assert isinstance(end, ErrorEvent)
    assert end.code == "declined"
    begun = await start_asking(hub, "asking.ask", kind)
    await respond(hub, begun.run, False, message="not today")
    [*_, end] = await read(begun)
    assert isinstance(end, ErrorEvent)
    assert (end.code, end.message) == ("declined", "declined: not today")


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        ("prompt", {"approve": True}),
        ("prompt", {"approve": True, "answer": 5}),
        ("select", {"approve": True}),
        ("select", {"approve": True, "answer": "c"}),
        ("form", {"approve": True}),
        ("form", {"approve": True, "answer": {"street": "Main"}}),
        ("confirm", {"approve": True, "answer": False}),
        ("confirm", {"approve": True, "answer": {}}),
        ("visit", {"approve": True, "answer": "https://example.org/"}),
        ("prompt", {"approve": False, "answer": "Ada"}),
    ],
)
async def test_a_missing_or_invalid_answer_leaves_the_question_open(
    kind: str, params: dict[str, Any], hub: Plexus
) -> None:
    run = (await start_asking(hub, "asking.ask", kind)).run
    error = await failure(hub, "approvals.respond", {"approval_id": f"{run.id}.1"} | params)
    assert error.code == "invalid_params"
    assert await ids(hub) == [f"{run.id}.1"]


async def test_a_question_is_answered_once_and_only_by_its_principal(hub: Plexus) -> None:
    run = (await start_asking(hub, "asking.ask", "confirm")).run
    params = {"approval_id": f"{run.id}.1", "approve": True}
    assert (await failure(hub, "approvals.respond", params, OTHER)).code == "not_found"
    assert await ids(hub) == [f"{run.id}.1"]
    await value(hub, "approvals.respond", params)
    error = await failure(hub, "approvals.respond", params)
    assert error.code == "not_found"
    assert "approvals.pending" in error.message


@pytest.mark.parametrize("approval_id", ["", ".", "1", "1.1", "x.y", "1.permit", "9" * 5000])
async def test_an_unknown_question_is_not_found(approval_id: str, hub: Plexus) -> None:
    await start_asking(hub, "asking.ask", "confirm")
    params = {"approval_id": approval_id, "approve": True}
    error = await failure(hub, "approvals.respond", params)
    assert error.code == "not_found"
    assert len(error.message) < 300


# --- permit --------------------------------------------------------------------------------------

USE: dict[str, Any] = {"tool_name": "Bash", "input": {"command": "ls"}, "tool_use_id": "toolu_1"}


async def permit(hub: Plexus, use: dict[str, Any] = USE, principal: Principal = LOCAL) -> Run:
    run = hub.call("approvals.permit", use, principal).run
    async with asyncio.timeout(WAIT_S):
        while f"{run.id}.permit" not in await ids(hub, principal):
            await quiet(1)
    return run


async def decision(run: Run) -> dict[str, Any]:
    end = await settled(run)
    assert isinstance(end, Result), end
    decided: dict[str, Any] = json.loads(end.result)
    return decided


async def test_a_permission_request_is_listed_like_other_questions(hub: Plexus) -> None:
    run = await permit(hub)
    [found] = (await pending(hub)).approvals
    assert (found.method, found.request, found.kind) == ("approvals.permit", "permit", "confirm")
    assert found.message == "Allow Bash?"
    assert found.schema == {"type": "boolean"}
    assert found.details == USE
    assert found.expires_ms - found.asked_ms == 300_000
    assert not run.questions  # the caller gets no question


@pytest.mark.parametrize(
    ("params", "decided"),
    [
        ({"approve": True}, {"behavior": "allow", "updatedInput": {"command": "ls"}}),
        (
            {"approve": True, "answer": {"command": "ls -l"}},
            {"behavior": "allow", "updatedInput": {"command": "ls -l"}},
        ),
        ({"approve": False}, {"behavior": "deny", "message": "permission was denied"}),
        (
            {"approve": False, "message": "use another"},
            {"behavior": "deny", "message": "use another"},
        ),
    ],
)
async def test_a_tool_is_allowed_or_denied(
    params: dict[str, Any], decided: dict[str, Any], hub: Plexus
) -> None:
    run = await permit(hub)
    params = {"approval_id": f"{run.id}.permit"} | params
    await value(hub, "approvals.respond", params)
    assert await decision(run) == decided
    assert await ids(hub) == []
    assert (await failure(hub, "approvals.respond", params)).code == "not_found"


@pytest.mark.parametrize("answer", [5, "ls", ["ls"], True, {"command": "x" * INPUT_BYTES}])
async def test_an_invalid_input_leaves_the_question_open(answer: Any, hub: Plexus) -> None:
    run = await permit(hub)
    params = {"approval_id": f"{run.id}.permit", "approve": True, "answer": answer}
    assert (await failure(hub, "approvals.respond", params)).code == "invalid_params"
    assert await ids(hub) == [f"{run.id}.permit"]


async def test_a_large_input_that_is_not_changed_is_not_repeated(hub: Plexus) -> None:
    run = await permit(hub, USE | {"input": {"content": "x" * INPUT_BYTES}})
    await value(hub, "approvals.respond", {"approval_id": f"{run.id}.permit", "approve": True})
    assert await decision(run) == {"behavior": "allow", "updatedInput": {}}


async def test_permission_requests_of_other_principals_cannot_be_answered(hub: Plexus) -> None:
    run = await permit(hub, principal=OTHER)
    params = {"approval_id": f"{run.id}.permit", "approve": True}
    assert await ids(hub) == []
    assert (await failure(hub, "approvals.respond", params)).code == "not_found"
    await value(hub, "approvals.respond", params, OTHER)
    assert (await decision(run))["behavior"] == "allow"


async def test_an_unanswered_permission_request_is_denied(open_hub: OpenHub) -> None:
    hub = open_hub(Approvals, limits=Limits(answer_s=0.2))
    run = await permit(hub)
    assert await decision(run) == {"behavior": "deny", "message": "no answer within 0.2 s"}
    assert await ids(hub) == []


@pytest.mark.parametrize(("approve", "outcome"), [(True, "answered"), (False, "declined")])
async def test_the_run_of_a_permission_records_who_decided(
    hub: Plexus, approve: bool, outcome: str
) -> None:
    run = await permit(hub)
    params = {"approval_id": f"{run.id}.permit", "approve": approve}
    await read(hub.call("approvals.respond", params, client="page 2"))
    event, _ = await follow(run)
    assert event == QuestionAnswered("permit", outcome, True if approve else None, "page 2")  # type: ignore[arg-type]  # one of its outcomes


async def test_a_cancelled_permission_request_is_closed(hub: Plexus) -> None:
    run = await permit(hub)
    run.cancel("the caller left")
    assert await ids(hub) == []
    params = {"approval_id": f"{run.id}.permit", "approve": True}
    assert (await failure(hub, "approvals.respond", params)).code == "not_found"
    assert await settled(run) == Cancelled("the caller left")


# --- closed --------------------------------------------------------------------------------------


async def test_closed_questions_are_listed_with_who_answered_them(open_hub: OpenHub) -> None:
    hub = open_hub(Asking, Approvals)
    await hub.open()
    runs = [(await start_asking(hub, "asking.ask", kind)).run for kind in ("confirm", "prompt")]
    permission = await permit(hub)
    other = await start_asking(hub, "asking.ask", "confirm", principal=OTHER)
    runs[0].answer("1", True, "terminal 1")
    runs[1].answer("1", None, "page 2")
    params = {"approval_id": f"{permission.id}.permit", "approve": True}
    await read(hub.call("approvals.respond", params, client="page 2"))
    other.run.answer("1", True)
    late = (await start_asking(hub, "asking.ask", "select")).run
    assert isinstance(late, LocalRun)
    late.expire_question("1")  # as its timer does
    gone = (await start_asking(hub, "asking.ask", "visit")).run
    gone.cancel("the caller left")
    await settled(gone)
    listed = await value(hub, "approvals.closed", {})
    assert [(each.run, each.outcome, each.answer, each.by) for each in listed.approvals] == [
        (gone.id, "closed", None, None),
        (late.id, "expired", None, None),
        (permission.id, "answered", True, "page 2"),
        (runs[1].id, "declined", None, "page 2"),
        (runs[0].id, "answered", True, "terminal 1"),
    ]
    assert listed.approvals[-1].message == "Sure?"
    assert listed.as_line() == "5 closed"
    assert listed.approvals[-1].as_line().endswith("asked: Sure? (answered by terminal 1)")
    assert (await value(hub, "approvals.closed", {"limit": 2})).approvals == listed.approvals[:2]


async def test_closed_questions_have_a_limit(
    open_hub: OpenHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plexus.runtime.closed_questions.MAX_ENTRIES", 3)
    hub = open_hub(Asking, Approvals)
    await hub.open()
    for _ in range(5):
        run = (await start_asking(hub, "asking.say", "x" * 2000)).run
        run.answer("1", False)
    listed = (await value(hub, "approvals.closed", {})).approvals
    assert len(listed) == 3
    assert listed[0].run == run.id
    assert len(listed[0].message) == 1000


# --- watch ---------------------------------------------------------------------------------------


class Watcher:
    """A call of `watch` and its events so far."""

    def __init__(self, hub: Plexus, principal: Principal = LOCAL) -> None:
        self.run = hub.call("approvals.watch", None, principal).run
        self._reader = self.run.batches()
        self._events: list[Event] = []

    async def next(self) -> Event:
        async with asyncio.timeout(WAIT_S):
            while not self._events:
                self._events += (await anext(self._reader)).events
        return self._events.pop(0)

    async def expect(self, *expected: tuple[type[Event], str]) -> None:
        """Check that exactly these events follow, in this order."""
        events = [await self.next() for _ in expected]
        assert [(type(event), getattr(event, "approval_id", "")) for event in events] == [*expected]

    async def expect_nothing(self) -> None:
        await quiet()
        assert self._events == []
        assert not self.run.log.read(self.run.log.last, 10, 10).events

    async def stop(self) -> None:
        self.run.cancel("enough")
        await settled(self.run)
        await self._reader.aclose()


@pytest.fixture
async def watching(hub: Plexus) -> AsyncIterator[Watcher]:
    watcher = Watcher(hub)
    await quiet()
    yield watcher
    await watcher.stop()


async def test_a_watcher_first_gets_the_questions_that_are_open(hub: Plexus) -> None:
    first = (await start_asking(hub, "asking.all")).run
    second = await permit(hub)
    watcher = Watcher(hub)
    await watcher.expect(
        *((ApprovalPending, f"{first.id}.{n}") for n in "123"),
        (ApprovalPending, f"{second.id}.permit"),
    )
    await watcher.stop()


async def test_a_watcher_is_notified_when_a_question_opens_and_closes(
    hub: Plexus, watching: Watcher
) -> None:
    first = (await start_asking(hub, "asking.ask", "confirm")).run
    await watching.expect((ApprovalPending, f"{first.id}.1"))
    second = await permit(hub)
    await watching.expect((ApprovalPending, f"{second.id}.permit"))
    await value(hub, "approvals.respond", {"approval_id": f"{second.id}.permit", "approve": True})
    await respond(hub, first, False)
    await watching.expect(
        (ApprovalSettled, f"{second.id}.permit"), (ApprovalSettled, f"{first.id}.1")
    )


async def test_a_watcher_is_notified_however_a_question_closes(
    hub: Plexus, watching: Watcher
) -> None:
    run = (await start_asking(hub, "asking.all")).run
    await watching.expect(*((ApprovalPending, f"{run.id}.{n}") for n in "123"))
    await value(hub, "plexus.respond", {"run": run.id, "request": "2", "answer": "Ada"})
    await watching.expect((ApprovalSettled, f"{run.id}.2"))
    run.cancel("enough")
    await watching.expect((ApprovalSettled, f"{run.id}.1"), (ApprovalSettled, f"{run.id}.3"))
    withdrawn = await permit(hub)
    await watching.expect((ApprovalPending, f"{withdrawn.id}.permit"))
    withdrawn.cancel("enough")
    await watching.expect((ApprovalSettled, f"{withdrawn.id}.permit"))


async def test_a_watcher_gets_no_questions_of_other_principals(
    hub: Plexus, watching: Watcher
) -> None:
    run = (await start_asking(hub, "asking.ask", "confirm", principal=OTHER)).run
    await permit(hub, principal=OTHER)
    await value(hub, "approvals.respond", {"approval_id": f"{run.id}.1", "approve": True}, OTHER)
    await watching.expect_nothing()


async def test_a_slow_watcher_gets_the_final_state(hub: Plexus) -> None:
    """Nothing is read until the end, so backpressure suspends the run after a few events."""
    opened = [(await start_asking(hub, "asking.say", "x" * 400_000)).run for _ in range(6)]
    begun = hub.call("approvals.watch")
    held = begun.run.reader(0, lambda _: None, owner=True)
    await until(lambda: begun.run.log.is_blocked)
    reported = begun.run.log.last
    assert reported < len(opened)
    for _ in range(50):
        passing = (await start_asking(hub, "asking.ask", "confirm")).run
        passing.answer("1", True)
    for run in opened[:-1]:
        run.answer("1", True)
    last = (await start_asking(hub, "asking.ask", "prompt")).run
    known: set[str] = set()
    async with asyncio.timeout(WAIT_S):
        while known != {f"{opened[-1].id}.1", f"{last.id}.1"}:
            for event in held.take().events:
                if isinstance(event, ApprovalPending):
                    known.add(event.approval_id)
                elif isinstance(event, ApprovalSettled):
                    known.remove(event.approval_id)
            await quiet(1)
    assert begun.run.log.last == 2 * reported + 2
    begun.run.cancel("enough")


async def test_a_question_too_large_for_an_event_is_shortened(
    open_hub: OpenHub,
) -> None:
    hub = open_hub(Approvals, limits=Limits(event_bytes=20_000))
    watcher = Watcher(hub)
    run = await permit(hub, USE | {"input": {"content": "x" * 30_000}})
    event = await watcher.next()
    assert isinstance(event, ApprovalPending)
    assert (event.approval_id, event.cut, event.details) == (f"{run.id}.permit", True, None)
    assert event.message == "Allow Bash?"
    [whole] = (await pending(hub, run=run.id)).approvals
    assert whole.details is not None
    assert whole.cut is None
    await watcher.stop()


async def test_a_watcher_that_has_left_is_no_longer_notified(hub: Plexus) -> None:
    watcher = Watcher(hub)
    await quiet()
    await watcher.stop()
    assert not hub.questions._on_change  # noqa: SLF001 - nothing else would show it
    assert isinstance((await follow(watcher.run))[-1], Cancelled)


async def test_events_have_a_readable_text() -> None:
    open_ = ApprovalPending("7.1", 7, "a.b", "1", "confirm", "Sure?", {}, 1, 2)
    assert open_.as_line() == "7.1 a.b asks: Sure?"
    assert ApprovalSettled("7.1", 7, "1").as_line() == "7.1 is settled"
    assert Answered("7.1", True).as_line() == "7.1 is approved"
    assert Answered("7.1", False).as_text() == "7.1 is refused\n"
    page = Pending([open_, open_], 3)
    assert page.as_text() == 2 * open_.as_text()
    assert page.as_line() == "5 open"


# --- over MCP ------------------------------------------------------------------------------------


class Peer:
    """A client of a real server over stdio."""

    def __init__(self, stdin: IO[str], stdout: IO[str]) -> None:
        self._stdin = stdin
        self._stdout = stdout
        self._answers: dict[int, Any] = {}
        self._sent = 0

    def begin(self, method: str, params: dict[str, Any]) -> int:
        self._sent += 1
        message = {"jsonrpc": "2.0", "id": self._sent, "method": method, "params": params}
        self._stdin.write(json.dumps(message) + "\n")
        self._stdin.flush()
        return self._sent

    def tool(self, name: str, arguments: dict[str, Any]) -> int:
        return self.begin("tools/call", {"name": name, "arguments": arguments})

    def result(self, number: int) -> Any:
        while number not in self._answers:
            message = json.loads(self._stdout.readline())
            if "id" in message:
                self._answers[message["id"]] = message
        return self._answers.pop(number)["result"]

    def text_of(self, number: int) -> Any:
        result = self.result(number)
        assert result["isError"] is False, result
        return json.loads(result["content"][0]["text"])


@contextmanager
def serve(folder: Path) -> Iterator[Peer]:
    with subprocess.Popen(
        [sys.executable, "-m", "substrate", "--stdio", "--mcp"],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            peer = Peer(process.stdin, process.stdout)
            # The client declares elicitation, like Claude Code, but must not be asked.
            client = {
                "protocolVersion": "2025-11-25",
                "capabilities": {"elicitation": {"form": {}}},
                "clientInfo": {"name": "test", "version": "1"},
            }
            peer.result(peer.begin("initialize", client))
            yield peer
            process.stdin.close()
            assert process.wait(WAIT_S) == 0
        finally:
            process.kill()


@pytest.mark.parametrize("approve", [True, False])
def test_a_waiting_permission_request_is_answered_by_a_second_call(
    approve: bool, tmp_path: Path
) -> None:
    with serve(tmp_path) as peer:
        waiting = peer.tool("approvals_permit", USE)
        approvals: list[Any] = []
        deadline = time.monotonic() + WAIT_S
        while not approvals and time.monotonic() < deadline:
            approvals = peer.text_of(peer.tool("approvals.pending", {}))["approvals"]
        [approval] = approvals
        assert approval["details"] == USE
        answer = {"approval_id": approval["approval_id"], "approve": approve, "message": "no"}
        assert peer.text_of(peer.tool("approvals.respond", answer))["approved"] is approve
        decided = peer.text_of(waiting)
        if approve:
            assert decided == {"behavior": "allow", "updatedInput": USE["input"]}
        else:
            assert decided == {"behavior": "deny", "message": "no"}
        assert peer.text_of(peer.tool("approvals.pending", {}))["approvals"] == []
