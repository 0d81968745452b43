"""approvals on runs of other processes: listed, watched and answered in those processes."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest
from conftest import OpenHub
from hub_calls import OTHER, call, read, settled
from stored_runs import MemoryStore, attach_store

from activations.approvals import Approvals
from activations.approvals.events import Answered, ApprovalPending, ApprovalSettled, Pending
from plexus import Content, Event, Plexus, Principal
from plexus.errors import Failed, InvalidParams
from plexus.events import Complete, ErrorEvent, QuestionAsked, Result
from plexus.principal import LOCAL

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

SURE = QuestionAsked("1", "confirm", "Sure?", {"type": "boolean"}, 60.0)
PERMIT = QuestionAsked("permit", "confirm", "Allow Bash?", {"type": "boolean"}, 60.0)
NAME = QuestionAsked("2", "prompt", "Name?", {"type": "string"}, 60.0)


@pytest.fixture
def hub(open_hub: OpenHub) -> Plexus:
    return open_hub(Approvals())


@pytest.fixture
def store(hub: Plexus) -> MemoryStore:
    store = attach_store(hub)
    store.create(7, Content("a"), SURE, scope="bash")
    store.ask(7, SURE)
    store.create(8, SURE, principal=OTHER)
    store.ask(8, SURE)
    return store


async def pending(hub: Plexus) -> list[str]:
    [end] = await call(hub, "approvals.pending")
    assert isinstance(end, Result)
    assert isinstance(end.result, Pending)
    return [each.approval_id for each in end.result.approvals]


async def respond(
    hub: Plexus, approval_id: str, principal: Principal | None = None, **more: Any
) -> Any:
    params = {"approval_id": approval_id, "approve": True} | more
    end = (await call(hub, "approvals.respond", params, principal or LOCAL))[-1]
    return end.result if isinstance(end, Result) else end


async def test_questions_of_other_processes_are_listed_and_answered_there(
    hub: Plexus, store: MemoryStore
) -> None:
    assert await pending(hub) == ["7.1"]
    assert isinstance(await respond(hub, "7.1", approve=False, message="no"), Answered)
    answer = {"approval_id": "7.1", "approve": False, "message": "no", "answer": None}
    assert store.requests == [("approvals.respond", answer)]
    assert await pending(hub) == []  # although the store still has it


async def test_a_permission_for_another_process_is_listed_and_answered_but_not_asked_of_its_caller(
    hub: Plexus, store: MemoryStore
) -> None:
    store.create(9, method="approvals.permit")
    store.ask(9, PERMIT)
    assert await pending(hub) == ["7.1", "9.permit"]
    run = hub.runs.find(9, LOCAL)
    assert not run.questions
    closed: list[tuple[int, str]] = []
    hub.questions.on_change(lambda run, request, _: closed.append((run.id, request)))
    assert isinstance(await respond(hub, "9.permit"), Answered)
    assert store.requests[-1][0] == "approvals.respond"
    assert await pending(hub) == ["7.1"]  # although the store still has it
    assert closed == [(9, "permit")]
    store.create(10, method="approvals.permit")
    store.ask(10, PERMIT)
    assert await pending(hub) == ["7.1", "10.permit"]
    store.append(10, Complete())
    await store.load(10)
    assert await pending(hub) == ["7.1"]
    assert closed[-2:] == [(10, "permit")] * 2  # it has opened and closed
    assert hub.questions.separate == {}


async def test_a_question_that_was_never_listed_is_answered(
    hub: Plexus, store: MemoryStore
) -> None:
    store.answer = lambda *_: InvalidParams("not now")
    end = await respond(hub, "7.1")
    assert isinstance(end, ErrorEvent)
    assert (end.code, end.message) == ("invalid_params", "not now")
    assert await pending(hub) == ["7.1"]


@pytest.mark.parametrize("approval_id", ["8.1", "7.2", "99.1"])
async def test_questions_of_others_and_unknown_ones_are_not_found(
    approval_id: str, hub: Plexus, store: MemoryStore
) -> None:
    end = await respond(hub, approval_id)
    assert isinstance(end, ErrorEvent)
    assert end.code == "not_found"
    assert store.requests == []


async def test_an_answer_needs_the_scope_of_the_stored_run(hub: Plexus, store: MemoryStore) -> None:
    weak = Principal("local", frozenset({"read", "approvals"}))
    end = await respond(hub, "7.1", weak)
    assert isinstance(end, ErrorEvent)
    assert end.code == "denied"
    assert store.requests == []


async def test_a_store_that_fails_hides_no_question_of_this_process(
    hub: Plexus, store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.error = Failed("the disk is full")
    assert await pending(hub) == []
    assert "the disk is full" in caplog.text
    end = await respond(hub, "7.1")
    assert isinstance(end, ErrorEvent)
    assert end.message == "the disk is full"


async def test_watch_reports_questions_of_other_processes(hub: Plexus, store: MemoryStore) -> None:
    watching = hub.call("approvals.watch").run
    received: list[Event] = []
    async with asyncio.timeout(30), aclosing(watching.batches(owner=True)) as batches:

        async def next_event() -> Event:
            while not received:
                received.extend((await anext(batches)).events)
            return received.pop(0)

        first = await next_event()
        assert isinstance(first, ApprovalPending)
        assert (first.approval_id, first.message) == ("7.1", "Sure?")
        assert len(store.listeners) == 1
        store.ask(7, NAME)
        await store.refresh()
        second = await next_event()
        assert isinstance(second, ApprovalPending)
        assert second.approval_id == "7.2"
        store.append(7, Complete())
        await store.load(7)
        closed = [await next_event() for _ in range(2)]
        assert all(isinstance(each, ApprovalSettled) for each in closed)
    watching.cancel("enough")
    await settled(watching)
    assert store.listeners == []


async def test_a_question_of_another_process_has_the_context_of_its_run(
    hub: Plexus, store: MemoryStore
) -> None:
    fields: dict[str, Any] = {
        "arguments": '{"command":"ls"}',
        "summary": "ls",
        "client": "Claude Code/2.1",
    }
    store.create(9, SURE, method="bash.execute", **fields)
    store.ask(9, SURE)
    [end] = await call(hub, "approvals.pending", {"run": 9})
    assert isinstance(end, Result)
    assert isinstance(end.result, Pending)
    [found] = end.result.approvals
    assert (found.method, found.arguments, found.summary, found.client) == (
        "bash.execute",
        {"command": "ls"},
        "ls",
        "Claude Code/2.1",
    )
    [answered] = await read(
        hub.call("approvals.respond", {"approval_id": "9.1", "approve": True}, client="page 2")
    )
    assert isinstance(answered, Result)
    assert store.clients[-1] == "page 2"
