"""The hub's own methods, called like any other."""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Literal

import pytest
from activations_for_tests import Demo
from conftest import OpenHub
from hub_calls import OTHER, call, end_of, happened, quiet, read, settled, until

from plexus import (
    Activation,
    Content,
    InvalidParams,
    NotFound,
    Plexus,
    completer,
    method,
    prompt,
    resource,
)
from plexus.activation import Hints
from plexus.errors import UnknownMethod
from plexus.events import Cancelled, ErrorEvent, Result
from plexus.limits import Limits
from plexus.principal import LOCAL
from plexus.rpc import wire
from plexus.runtime import runs
from plexus.runtime.builtin import PlexusActivation
from plexus.runtime.run import LocalRun
from plexus.runtime.run_watch import RUNS_PER_EVENT, RunsChanged

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]


class Slow(Activation):
    """Waits."""

    namespace = "slow"
    version = "1.0.0"

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.closed = asyncio.Event()

    @method
    async def wait(self) -> AsyncIterator[Content]:
        """Wait until cancelled."""
        yield Content(text="here")
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.closed.set()

    @method
    async def none(self) -> None:
        """Return nothing."""


async def value(hub: Plexus, name: str, params: Any = None) -> Any:
    """Return the value of a plain method, as encoded."""
    end = await end_of(hub, name, params)
    assert isinstance(end, Result), end
    return wire.decode_plain(end.result)


async def failure(hub: Plexus, name: str, params: Any = None) -> ErrorEvent:
    end = await end_of(hub, name, params)
    assert isinstance(end, ErrorEvent), end
    return end


# --- schema and hash -----------------------------------------------------------------------------


async def test_schema_describes_everything(open_hub: OpenHub) -> None:
    hub = open_hub(Demo)
    whole = await value(hub, "plexus.schema")
    assert [one["namespace"] for one in whole["activations"]] == ["demo", "plexus"]
    assert whole["hash"] == hub.hash


async def test_schema_describes_one_activation_however_deep(open_hub: OpenHub) -> None:
    class Inner(Slow):
        """A child."""

        namespace = "inner"

    class Outer(Activation):
        """A parent."""

        namespace = "outer"
        version = "1.0.0"
        children = (Inner,)

    hub = open_hub(Outer, Demo)
    assert (await value(hub, "plexus.schema", ["demo"]))["namespace"] == "demo"
    inner = await value(hub, "plexus.schema", ["outer.inner"])
    assert [one["name"] for one in inner["methods"]] == ["outer.inner.none", "outer.inner.wait"]


@pytest.mark.parametrize("namespace", ["nothing", "demo.nothing", "dem", ""])
async def test_schema_of_nothing_is_not_found(namespace: str, open_hub: OpenHub) -> None:
    assert (await failure(open_hub(Demo), "plexus.schema", [namespace])).code == "not_found"


async def test_hash_changes_when_and_only_when_the_schema_does(open_hub: OpenHub) -> None:
    hub = open_hub(Demo)
    before = await value(hub, "plexus.hash")
    assert await value(hub, "plexus.hash") == before == hub.hash
    hub.register(Slow)
    assert await value(hub, "plexus.hash") != before


# --- call ----------------------------------------------------------------------------------------


async def test_call_returns_all_events_as_one_value(open_hub: OpenHub) -> None:
    answer = await value(open_hub(Demo), "plexus.call", ["demo.count", {"to": 1}])
    assert answer["events"] == [
        {"type": "content", "text": "1 "},
        {"type": "progress", "done": 1, "total": 1},
    ]
    assert answer["terminal"] == {"type": "complete", "total": 1}
    assert isinstance(answer["run"], int)


async def test_call_returns_a_terminal_as_a_stream_would(open_hub: OpenHub) -> None:
    hub = open_hub(Slow)
    answer = await value(hub, "plexus.call", ["slow.none"])
    made = hub.call("slow.none")
    await settled(made.run)
    assert wire.encode(answer["terminal"]) == made.run.log.payloads[-1]


async def test_call_of_a_run_that_fails_fails_with_all_its_events(open_hub: OpenHub) -> None:
    params = {"code": "no_planet", "message": "no Vulcan"}
    end = await failure(open_hub(Demo), "plexus.call", ["demo.fail", params])
    assert (end.code, end.message) == ("no_planet", "no Vulcan")
    data = wire.decode_plain(end.data)
    assert [event["type"] for event in data["events"]] == ["content"]
    assert data["terminal"]["code"] == "no_planet"


@pytest.mark.parametrize(
    ("params", "code"),
    [
        (["no.such"], "unknown_method"),
        (["demo.echo", {"wrong": 1}], "invalid_params"),
    ],
)
async def test_call_of_what_cannot_be_called_fails(
    params: Any, code: str, open_hub: OpenHub
) -> None:
    assert (await failure(open_hub(Demo), "plexus.call", params)).code == code


async def test_call_of_something_too_big_returns_its_head_and_tail(open_hub: OpenHub) -> None:
    hub = open_hub(Demo, limits=Limits(answer_bytes=50_000))
    answer = await value(hub, "plexus.call", ["demo.count", {"to": 2000}])
    assert answer["truncated"] is True
    assert answer["terminal"]["total"] == 2000
    assert answer["events"][0]["type"] == "content"
    [gap] = [event for event in answer["events"] if event["type"] == "gap"]
    assert gap["from"] < gap["to"]
    assert len(wire.encode(answer)) <= 50_000


async def test_cancelling_a_call_cancels_what_it_called(open_hub: OpenHub) -> None:
    slow = Slow()
    hub = open_hub(slow)
    outer = hub.call("plexus.call", ["slow.wait"]).run
    await happened(slow.started)
    outer.cancel("enough")
    assert await settled(outer) == Cancelled("enough")
    await happened(slow.closed)


async def test_calling_attach_does_not_take_a_run_from_its_owner(open_hub: OpenHub) -> None:
    hub = open_hub(Demo, limits=Limits(answer_bytes=50_000))
    made = hub.call("demo.flood")
    owner = made.run.reader(0, lambda _: None, owner=True)
    await until(lambda: made.run.log.last > 0)
    hub.call("plexus.call", ["plexus.attach", {"run": made.run.id}])
    await quiet(200)
    assert made.run.terminal is None
    assert made.run.cancel_reason is None
    assert made.run.owned_by(owner)


async def test_calling_with_a_key_twice_runs_once(open_hub: OpenHub) -> None:
    hub = open_hub(Demo)
    params = ["demo.echo", {"text": "a", "_run": "k"}]
    first = await value(hub, "plexus.call", params)
    assert await value(hub, "plexus.call", params) == first


# --- runs ----------------------------------------------------------------------------------------


async def test_runs_lists_the_callers_own_runs_newest_first(open_hub: OpenHub) -> None:
    slow = Slow()
    hub = open_hub(Demo, slow)
    await settled(hub.call("demo.echo", ["a"]).run)
    waiting = hub.call("slow.wait").run
    await happened(slow.started)
    hub.call("slow.wait", None, OTHER)
    listed = await value(hub, "plexus.runs")
    assert [(one["method"], one["state"]) for one in listed] == [
        ("slow.wait", "running"),
        ("demo.echo", "complete"),
    ]
    assert listed[0]["run"] == waiting.id
    assert listed[0]["last_seq"] == 1
    assert "duration_ms" in listed[1]


async def test_runs_that_only_watch_or_control_the_server_are_listed_on_request_and_marked(
    open_hub: OpenHub,
) -> None:
    hub = open_hub(Demo)
    await settled(hub.call("demo.echo", ["a"]).run)
    watching = hub.call("plexus.watch").run
    assert [one["method"] for one in await value(hub, "plexus.runs")] == ["demo.echo"]
    listed = await value(hub, "plexus.runs", {"system": True})
    assert {(one["method"], one.get("system")) for one in listed} == {
        ("plexus.runs", True),
        ("plexus.watch", True),
        ("demo.echo", None),
    }
    assert hub.runs.counts()["complete"] == 1
    assert "running" not in hub.runs.counts()
    watching.cancel("enough")
    await settled(watching)


async def test_runs_can_be_chosen_by_state_and_number(open_hub: OpenHub) -> None:
    hub = open_hub(Demo)
    for _ in range(3):
        await settled(hub.call("demo.echo", ["a"]).run)
    assert len(await value(hub, "plexus.runs", {"state": "complete"})) == 3
    assert len(await value(hub, "plexus.runs", {"limit": 2})) == 2
    assert await value(hub, "plexus.runs", {"limit": 0}) == []
    assert await value(hub, "plexus.runs", {"limit": -1}) == []
    assert await value(hub, "plexus.runs", {"state": "error"}) == []


# --- watch ---------------------------------------------------------------------------------------


async def test_watch_sends_all_runs_then_changes_and_never_itself(
    open_hub: OpenHub,
) -> None:
    slow = Slow()
    hub = open_hub(slow, Demo)
    await value(hub, "demo.echo", ["x"])
    watching = hub.call("plexus.watch", {"interval_s": 0.1})
    received: list[dict[str, Any]] = []
    async with aclosing(watching.run.batches(0, owner=True)) as batches:

        async def until_told(method: str, state: str) -> None:
            async with asyncio.timeout(30):
                while not any(
                    run["method"] == method and run["state"] == state for run in received
                ):
                    batch = await anext(batches)
                    for event in batch.events:
                        assert isinstance(event, RunsChanged)
                        received.extend(event.runs)

        await until_told("demo.echo", "complete")
        run = hub.call("slow.wait").run
        await until_told("slow.wait", "running")
        run.cancel("enough")
        await until_told("slow.wait", "cancelled")
        assert not any(run["method"] == "plexus.watch" for run in received)
    watching.run.cancel("enough")
    await settled(watching.run)


async def test_watch_sends_evicted_runs_and_none_of_other_principals(open_hub: OpenHub) -> None:
    hub = open_hub(Demo, limits=Limits(finished_runs=1))
    watching = hub.call("plexus.watch", {"interval_s": 0.1})
    first = hub.call("demo.echo", ["x"])
    await read(first)
    await read(hub.call("demo.echo", ["y"], OTHER))  # pushes the first one out
    gone: list[int] = []
    numbers: list[int] = []
    async with aclosing(watching.run.batches(0, owner=True)) as batches, asyncio.timeout(30):
        await read(hub.call("demo.echo", ["z"]))
        while not numbers:
            for event in (await anext(batches)).events:
                assert isinstance(event, RunsChanged)
                gone += event.gone
                numbers += [run["run"] for run in event.runs]
        last = numbers[-1]
        await read(hub.call("demo.echo", ["y"], OTHER))
        while last not in gone:
            for event in (await anext(batches)).events:
                assert isinstance(event, RunsChanged)
                gone += event.gone
    watching.run.cancel("enough")
    await settled(watching.run)


async def test_deadlines_are_checked_soon_although_a_watch_is_open(
    open_hub: OpenHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "WATCH_TICK_S", 60.0)
    hub = open_hub(Demo, limits=Limits(run_s=0.1))
    watching = hub.call("plexus.watch").run
    await asyncio.sleep(2 * runs.TICK_S)  # the next check is far away by then
    terminal = await settled(hub.call("demo.wait").run)
    assert isinstance(terminal, ErrorEvent)
    assert terminal.code == "deadline"
    watching.cancel("enough")
    await settled(watching)


# --- attach, cancel, respond, unsubscribe --------------------------------------------------------


async def test_attach_leads_to_the_run_itself(open_hub: OpenHub) -> None:
    hub = open_hub(Demo)
    first = hub.call("demo.count", {"to": 2})
    events = await read(first)
    again = hub.call("plexus.attach", {"run": first.run.id, "after": 1})
    assert again.run is first.run
    assert not again.owned
    assert await read(again) == events[1:]


async def test_attach_to_nothing_is_not_found_before_anything_happens(open_hub: OpenHub) -> None:
    with pytest.raises(NotFound):
        open_hub(Demo).call("plexus.attach", [1])


@pytest.mark.parametrize("params", [{}, {"run": "1"}, {"run": 1, "after": "x"}, {"run": 1.5}])
async def test_attach_checks_its_arguments(params: Any, open_hub: OpenHub) -> None:
    with pytest.raises(InvalidParams):
        open_hub(Demo).call("plexus.attach", params)


async def test_cancel_stops_a_run_once(open_hub: OpenHub) -> None:
    slow = Slow()
    hub = open_hub(slow)
    run = hub.call("slow.wait").run
    await happened(slow.started)
    assert await value(hub, "plexus.cancel", {"run": run.id, "reason": "enough"}) is True
    assert await settled(run) == Cancelled("enough")
    assert await value(hub, "plexus.cancel", {"run": run.id}) is False
    assert (await failure(hub, "plexus.cancel", {"run": 1})).code == "not_found"


async def test_cancel_has_a_default_reason(open_hub: OpenHub) -> None:
    slow = Slow()
    hub = open_hub(slow)
    run = hub.call("slow.wait").run
    await happened(slow.started)
    await value(hub, "plexus.cancel", [run.id])
    assert await settled(run) == Cancelled("cancelled by request")


async def test_respond_to_nothing_is_not_found(open_hub: OpenHub) -> None:
    hub = open_hub(Slow)
    run = hub.call("slow.wait").run
    assert (await failure(hub, "plexus.respond", [run.id, "1", True])).code == "not_found"
    assert (await failure(hub, "plexus.respond", [1, "1", True])).code == "not_found"


async def test_unsubscribe_belongs_to_a_connection(open_hub: OpenHub) -> None:
    end = await failure(open_hub(), "plexus.unsubscribe", [5])
    assert end.code == "invalid_params"
    assert "plexus.cancel" in end.message


# --- complete ------------------------------------------------------------------------------------


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"
    NUMBER = 7


class Picky(Activation):
    """Has arguments that can be suggested."""

    namespace = "picky"
    version = "1.0.0"

    @prompt
    async def write(self, tone: Literal["Warm", "wild", "cold"], place: str) -> str:
        """Write something."""
        return tone + place

    @completer("write", "place")
    async def places(self, value: str, given: dict[str, str]) -> list[str]:
        """Suggest the given arguments."""
        return [f"{value} {given}"]

    @method
    async def choose(self, size: Size, level: int | None = None) -> str:
        """Choose."""
        return f"{size} {level}"

    @resource("item://{number}")
    async def item(self, number: int) -> str:
        """An item."""
        return str(number)

    @completer("item", "number")
    async def numbers(self, value: str, given: dict[str, str]) -> list[str]:  # noqa: ARG002
        """Suggest more values than are shown."""
        return [f"{value}{number}" for number in range(150)]


@pytest.mark.parametrize(
    ("params", "values"),
    [
        (["picky.write", "tone", ""], ["Warm", "wild", "cold"]),
        (["picky.write", "tone", "w"], ["Warm", "wild"]),
        (["picky.write", "tone", "WA"], ["Warm"]),
        (["picky.write", "tone", "x"], []),
        (["picky.write", "place", "P", {"tone": "cold"}], ["P {'tone': 'cold'}"]),
        (["picky_write", "place", "P"], ["P {}"]),
        (["picky.choose", "size", ""], ["small", "large"]),
        (["picky.choose", "size", "L"], ["large"]),
        (["picky.choose", "level", "1"], []),
    ],
)
async def test_complete_suggests_values(
    params: list[Any], values: list[str], open_hub: OpenHub
) -> None:
    suggested = await value(open_hub(Picky), "plexus.complete", params)
    assert suggested == {"values": values, "total": len(values), "has_more": False}


async def test_complete_suggests_at_most_a_hundred(open_hub: OpenHub) -> None:
    suggested = await value(open_hub(Picky), "plexus.complete", ["picky.item", "number", "4"])
    assert suggested["values"] == [f"4{number}" for number in range(100)]
    assert (suggested["total"], suggested["has_more"]) == (150, True)


@pytest.mark.parametrize(
    ("params", "code"),
    [
        (["picky.nothing", "tone", ""], "unknown_method"),
        (["picky.write", "nothing", ""], "invalid_params"),
    ],
)
async def test_complete_of_nothing_fails(params: list[Any], code: str, open_hub: OpenHub) -> None:
    assert (await failure(open_hub(Picky), "plexus.complete", params)).code == code


async def test_complete_suggests_the_callers_own_runs(open_hub: OpenHub) -> None:
    hub = open_hub(Demo)
    mine = hub.call("demo.echo", ["a"]).run
    await settled(mine)
    await settled(hub.call("demo.echo", ["a"], OTHER).run)
    params = ["plexus.transcript", "run", str(mine.id)[:3]]
    assert (await value(hub, "plexus.complete", params))["values"] == [str(mine.id)]
    params = ["plexus.transcript", "run", "x"]
    assert (await value(hub, "plexus.complete", params))["values"] == []


# --- descriptions --------------------------------------------------------------------------------


def test_the_hubs_own_methods_declare_hints() -> None:
    hub = Plexus()
    hub.register(PlexusActivation(hub))
    specs = {spec.name.removeprefix("plexus."): spec for spec in hub.methods()}
    unlisted = {name for name, spec in specs.items() if not spec.listed}
    assert unlisted == {
        "complete",
        "find_runs",
        "items",
        "keep",
        "prompts",
        "release",
        "resources",
        "run_counts",
        "unsubscribe",
        "watch",
    }
    reading = {name for name, spec in specs.items() if spec.hints.read_only}
    assert reading == {
        "schema",
        "hash",
        "runs",
        "search",
        "attach",
        "resources",
        "prompts",
        "complete",
        "transcript",
        "watch",
        "history",
        "find_runs",
        "inspect",
        "items",
        "run_counts",
    }
    assert specs["delete"].hints.destructive
    assert specs["prune"].hints.destructive
    assert specs["cancel"].hints == Hints(None, True, True, False)


async def test_the_old_spelling_works_here_too(open_hub: OpenHub) -> None:
    hub = open_hub(Demo)
    assert await value(hub, "plexus_hash") == hub.hash
    with pytest.raises(UnknownMethod):
        hub.call("plexus.nothing")
    assert (await call(hub, "plexus_runs", None, LOCAL))[-1].terminal


async def test_a_watch_of_ten_thousand_runs_describes_only_what_has_changed(
    open_hub: OpenHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 10_000
    hub = open_hub(Demo, Slow, limits=Limits(finished_runs=2 * count, finished_bytes=2**40))
    for _ in range(count // 500):
        started = [hub.call("demo.echo", ["a"]).run for _ in range(500)]
        await settled(started[-1])
        await until(lambda: not hub.runs.running())
    described = 0
    describe = LocalRun.describe

    def counted(run: LocalRun) -> dict[str, Any]:
        nonlocal described
        described += 1
        return describe(run)

    monkeypatch.setattr(LocalRun, "describe", counted)
    watching = hub.call("plexus.watch", {"interval_s": 0.1}).run
    seen: set[int] = set()
    async with asyncio.timeout(20), aclosing(watching.batches(owner=True)) as batches:
        async for batch in batches:
            for event in batch.events:
                assert isinstance(event, RunsChanged)
                assert len(event.runs) <= RUNS_PER_EVENT
                seen |= {run["run"] for run in event.runs}
            if len(seen) == count:
                break
        assert described == count
        progressing = hub.call("slow.wait").run
        await call(hub, "plexus.hash")
        async for batch in batches:
            event = batch.events[-1]
            assert isinstance(event, RunsChanged)
            assert [run["run"] for run in event.runs] == [progressing.id]
            break
        begun = time.thread_time()
        found = [run.fingerprint() for run in hub.runs.list_for(LOCAL, system=False)]
        # What every interval costs while a run is in progress: 10 ms of processor time.
        assert time.thread_time() - begun < 0.25
        assert len(found) == count + 1
    assert described <= count + 2
    watching.cancel("enough")
    progressing.cancel("enough")
    await settled(watching)
