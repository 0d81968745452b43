"""Runs that survive the loss of their process: checkpoints, and the start under the same number."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from conftest import OpenHub
from hub_calls import WAIT_S, call, end_of, follow, local, until

from plexus import Activation, Context, Plexus, Principal, method
from plexus.errors import (
    Busy,
    Denied,
    Failed,
    InvalidEvent,
    InvalidParams,
    TooBig,
    UnknownMethod,
    Unsupported,
)
from plexus.events import Cancelled, Content, ErrorEvent, Event, Gap, Restarted, Result
from plexus.limits import Limits
from plexus.principal import LOCAL
from plexus.rpc import wire
from plexus.runtime.log import monotonic_at, wall_ms
from plexus.runtime.run import LocalRun
from plexus.runtime.stored_events import read_event
from plexus.testing import expect
from plexus.testing import local as local_hub

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]


class Steps(Activation):
    """Counts, and continues where it was."""

    namespace = "steps"
    version = "1.0.0"

    def __init__(self) -> None:
        self.seen: list[Any] = []

    @method(restart="from_checkpoint")
    async def count(self, to: int, *, stop_at: int = 0, ctx: Context) -> AsyncIterator[Content]:
        """Count to a number, and wait at another."""
        self.seen.append((ctx.epoch, ctx.restored))
        for number in range((ctx.restored or 0) + 1, to + 1):
            yield Content(text=f"{number} ")
            await ctx.checkpoint(number)
            if number == stop_at and ctx.epoch == 0:
                await asyncio.Event().wait()
        self.seen.append((ctx.epoch, ctx.restored))

    @method(restart="from_start")
    async def again(self, text: str, *, caller: Principal, ctx: Context) -> str:
        """Do everything again."""
        return f"{text} {ctx.epoch} {ctx.restored} {caller.name}"

    @method
    async def once(self, ctx: Context) -> None:
        """Store a checkpoint without a declared restart."""
        await ctx.checkpoint(1)

    @method(restart="from_checkpoint")
    async def store(self, value: Any, *, ctx: Context) -> Any:
        """Store a checkpoint."""
        await ctx.checkpoint(float("nan") if value == "nan" else value)
        return ctx.restored

    @method(restart="from_checkpoint", deadline_s=60)
    async def wait(self, ctx: Context) -> None:
        """Wait until it is stopped."""
        await ctx.checkpoint("waiting")
        await asyncio.Event().wait()

    @method(restart="from_checkpoint")
    def in_thread(self, to: int, ctx: Context) -> Iterator[str]:
        """Count in a thread."""
        for number in range((ctx.restored or 0) + 1, to + 1):
            yield f"{number} "
            ctx.checkpoint(number)

    @method(restart="from_checkpoint")
    def function(self, value: Any, ctx: Context) -> Any:
        """Store a checkpoint in a thread, after a log message."""
        ctx.info("before")
        ctx.checkpoint(value)
        return ctx.restored


class Recorder:
    """Keeps checkpoints, each with the number of the item before it."""

    def __init__(self) -> None:
        self.stored: list[tuple[int, bytes]] = []
        self.called = asyncio.Event()
        self.may_return = asyncio.Event()
        self.may_return.set()
        self.error: Exception | None = None

    async def checkpoint(self, run: LocalRun, value: bytes) -> None:
        self.called.set()
        await self.may_return.wait()
        if self.error is not None:
            raise self.error
        self.stored.append((run.log.last, value))

    def attach(self, hub: Plexus) -> None:
        hub.runs.on_start(lambda run, _, __: setattr(run, "recorder", self))


def restart(hub: Plexus, method: str, **changes: Any) -> LocalRun:
    given: dict[str, Any] = {
        "run_id": 7,
        "principal": LOCAL,
        "arguments": {},
        "epoch": 1,
        "checkpoint": None,
        "first_seq": 1,
        "started_at": monotonic_at(1_000_000),
        "parent": None,
        "key": None,
    }
    return hub.restart(method, **given | changes)


def texts(events: list[Event]) -> str:
    return "".join(event.as_text() for event in events if isinstance(event, Content))


# --- restarting -----------------------------------------------------------------------------------


async def test_a_run_continues_from_its_checkpoint_under_its_number(open_hub: OpenHub) -> None:
    steps = Steps()
    hub = open_hub(steps)
    run = restart(
        hub,
        "steps.count",
        run_id=42,
        arguments={"to": 5},
        epoch=2,
        checkpoint=b"3",
        first_seq=10,
        parent=6,
        key="k",
    )
    assert (run.id, run.parent, run.key, run.epoch) == (42, 6, "k", 2)
    assert hub.runs.find(42, LOCAL) is run
    assert hub.runs.find_by_key(LOCAL, "k", "steps.count") is run
    events = await follow(run, 9)
    assert events[0] == Restarted(2)
    assert [event.type for event in events] == ["restarted", "content", "content", "complete"]
    assert texts(events) == "4 5 "
    assert (run.log.first, run.log.last) == (10, 13)
    assert run.describe()["started_ms"] == pytest.approx(1_000_000, abs=1)
    assert steps.seen == [(2, 3), (2, 3)], "what was restored does not change"


async def test_a_reader_of_the_whole_run_learns_which_items_are_not_here(
    open_hub: OpenHub,
) -> None:
    run = restart(open_hub(Steps), "steps.count", arguments={"to": 1}, first_seq=10)
    events = await follow(run, 0, owner=True)
    assert events[:2] == [Gap(1, 9), Restarted(1)]
    assert texts(events) == "1 "


async def test_from_start_the_arguments_are_the_same_and_no_checkpoint_is_passed(
    open_hub: OpenHub,
) -> None:
    run = restart(open_hub(Steps), "steps.again", arguments={"text": "a"}, checkpoint=b"1")
    assert (await follow(run))[-1] == Result("a 1 None local")


async def test_the_timeout_starts_again_and_names_its_own_length(open_hub: OpenHub) -> None:
    hub = open_hub(Steps)
    long_ago = hub.restart(
        hub.resolve("steps.wait"),
        run_id=7,
        principal=LOCAL,
        arguments={},
        epoch=1,
        checkpoint=None,
        first_seq=3,
        started_at=monotonic_at(0),
        parent=None,
        key=None,
    )
    await until(lambda: long_ago.checkpoint is not None)
    assert long_ago.terminal is None
    assert long_ago.deadline is not None
    long_ago.deadline = long_ago.log.started_at  # as if 60 s had passed
    end = (await follow(long_ago))[-1]
    assert isinstance(end, ErrorEvent)
    assert (end.code, end.data) == ("deadline", {"limit_s": 0.0})


async def test_a_restarted_run_has_one_terminal_and_can_be_cancelled(open_hub: OpenHub) -> None:
    run = restart(open_hub(Steps), "steps.wait")
    await until(lambda: run.checkpoint == b'"waiting"')
    run.cancel("enough")
    assert await follow(run) == [Restarted(1), Cancelled("enough")]


async def test_a_restart_is_observed_like_a_start(open_hub: OpenHub) -> None:
    hub = open_hub(Steps)
    started: list[Any] = []
    hub.runs.on_start(
        lambda run, arguments, _: started.append((run.id, local(run).epoch, dict(arguments)))
    )
    run = restart(hub, "steps.count", arguments={"to": 2})
    await follow(run)
    assert started == [(7, 1, {"to": 2})]
    assert hub.runs.counts()["complete"] == 1


async def test_a_run_that_ended_here_can_be_taken_over_again(open_hub: OpenHub) -> None:
    hub = open_hub(Steps)
    first = hub.call("steps.count", {"to": 1, "_run": "k"}).run
    await follow(first)
    again = restart(hub, "steps.count", run_id=first.id, arguments={"to": 2}, first_seq=3, key="k")
    assert hub.runs.find(first.id, LOCAL) is again
    await follow(again, 2)
    assert hub.runs.find(first.id, LOCAL) is again
    assert hub.runs.find_by_key(LOCAL, "k", "steps.count") is again
    assert len(hub.runs.list_for(LOCAL)) == 1


@pytest.mark.parametrize(
    ("method", "changes", "error"),
    [
        ("steps.none", {}, UnknownMethod),
        ("steps.once", {}, Unsupported),
        ("steps.count", {"arguments": {"to": "many"}}, InvalidParams),
        ("steps.count", {"arguments": {}}, InvalidParams),
        (
            "steps.count",
            {"arguments": {"to": 1}, "principal": Principal("p", scopes=frozenset())},
            Denied,
        ),
    ],
)
async def test_a_refused_restart_has_no_effect(
    open_hub: OpenHub, method: str, changes: dict[str, Any], error: type[Exception]
) -> None:
    hub = open_hub(Steps)
    started: list[Any] = []
    hub.runs.on_start(lambda run, _, __: started.append(run))
    with pytest.raises(error):
        restart(hub, method, **changes)
    assert hub.runs.list_for(LOCAL) == started == []


async def test_a_run_in_progress_is_not_restarted_beside_itself(open_hub: OpenHub) -> None:
    hub = open_hub(Steps)
    run = restart(hub, "steps.wait")
    with pytest.raises(Busy, match="Run 7 is in progress"):
        restart(hub, "steps.wait")
    run.cancel("")
    await follow(run)
    restart(hub, "steps.wait").cancel("")


async def test_a_full_pool_and_a_stopping_server_refuse_a_restart(open_hub: OpenHub) -> None:
    hub = open_hub(Steps, limits=Limits(runs_in_flight=1))
    run = restart(hub, "steps.wait")
    with pytest.raises(Busy, match="runs_in_flight"):
        restart(hub, "steps.wait", run_id=8)
    run.cancel("")
    await follow(run)
    hub.draining = True
    with pytest.raises(Busy) as raised:
        restart(hub, "steps.wait", run_id=8)
    assert raised.value.code == "stopping"


def test_the_event_is_the_same_in_every_process_and_reads_as_a_short_line() -> None:
    event = Restarted(3)
    assert wire.decode_plain(event) == {"type": "restarted", "epoch": 3}
    assert read_event(wire.encode_event(event)) == event
    assert (event.as_text(), event.as_line()) == ("[restarted]\n", "[restarted]")


def test_times_convert_both_ways() -> None:
    assert wall_ms(monotonic_at(1_234_567)) == pytest.approx(1_234_567, abs=1)


# --- checkpoints ----------------------------------------------------------------------------------


async def test_without_a_store_a_checkpoint_is_kept_by_the_run(open_hub: OpenHub) -> None:
    hub = open_hub(Steps)
    run = local(hub.call("steps.store", {"value": {"at": [1, None]}}).run)
    assert (await follow(run))[-1] == Result(None)
    assert (run.checkpoint, run.epoch) == (b'{"at":[1,null]}', 0)


async def test_a_checkpoint_returns_when_it_is_durable_after_what_was_yielded(
    open_hub: OpenHub,
) -> None:
    hub, recorder = open_hub(Steps), Recorder()
    recorder.attach(hub)
    recorder.may_return.clear()
    run = local(hub.call("steps.count", {"to": 2}).run)
    async with asyncio.timeout(WAIT_S):
        await recorder.called.wait()
    assert (run.log.last, run.checkpoint) == (1, None)
    recorder.may_return.set()
    await follow(run)
    assert recorder.stored == [(1, b"1"), (2, b"2")]
    assert run.checkpoint == b"2"


async def test_a_checkpoint_that_cannot_be_stored_raises_and_the_last_one_stays(
    open_hub: OpenHub,
) -> None:
    hub, recorder = open_hub(Steps), Recorder()
    recorder.attach(hub)
    recorder.error = Failed("the disk is full")
    for name in ("store", "function"):
        run = local(hub.call(f"steps.{name}", {"value": 1}).run)
        end = (await follow(run))[-1]
        assert isinstance(end, ErrorEvent)
        assert end.message == "the disk is full"
        assert run.checkpoint is None


async def test_a_checkpoint_needs_the_declaration(open_hub: OpenHub) -> None:
    end = await end_of(open_hub(Steps), "steps.once")
    assert isinstance(end, ErrorEvent)
    assert end.code == "unsupported"
    assert 'steps.once does not declare @method(restart="from_checkpoint")' in end.message


async def test_a_method_that_was_unregistered_meanwhile_continues_to_store(
    open_hub: OpenHub,
) -> None:
    hub = open_hub(Steps)
    run = local(hub.call("steps.count", {"to": 3}).run)
    hub.unregister("steps")
    assert texts(await follow(run)) == "1 2 3 "
    assert run.checkpoint == b"3"


async def test_a_value_without_a_json_form_is_refused(open_hub: OpenHub) -> None:
    end = await end_of(open_hub(Steps), "steps.store", {"value": "nan"})
    assert isinstance(end, ErrorEvent)
    assert end.code == InvalidEvent.default_code
    assert "the checkpoint" in end.message


async def test_an_abandoned_run_stores_nothing(open_hub: OpenHub) -> None:
    hub, recorder = open_hub(Steps), Recorder()
    recorder.attach(hub)
    run = local(hub.call("steps.wait").run)
    await until(lambda: run.checkpoint is not None)
    context = Context(hub, run)
    run.finish(Cancelled("abandoned"))
    await context.checkpoint(2)
    assert run.checkpoint == b'"waiting"'
    assert len(recorder.stored) == 1


# --- threads --------------------------------------------------------------------------------------


async def test_a_generator_in_a_thread_stores_after_all_that_it_yielded(
    open_hub: OpenHub,
) -> None:
    hub, recorder = open_hub(Steps), Recorder()
    recorder.attach(hub)
    count = 2000  # more than Python nests calls
    run = local(hub.call("steps.in_thread", {"to": count}).run)
    assert texts(await follow(run)).split() == [str(n) for n in range(1, count + 1)]
    assert recorder.stored == [(n, str(n).encode()) for n in range(1, count + 1)]


async def test_a_generator_in_a_thread_is_restarted(open_hub: OpenHub) -> None:
    run = restart(open_hub(Steps), "steps.in_thread", arguments={"to": 4}, checkpoint=b"2")
    assert texts(await follow(run)) == "3 4 "


async def test_a_function_in_a_thread_stores_after_the_events_before(open_hub: OpenHub) -> None:
    hub, recorder = open_hub(Steps), Recorder()
    recorder.attach(hub)
    events = await call(hub, "steps.function", {"value": [1]})
    assert [event.type for event in events] == ["log", "complete"]
    assert recorder.stored == [(1, b"[1]")]


async def test_a_cancelled_generator_does_not_wait_for_its_checkpoint(open_hub: OpenHub) -> None:
    hub, recorder = open_hub(Steps), Recorder()
    recorder.attach(hub)
    recorder.may_return.clear()
    run = local(hub.call("steps.in_thread", {"to": 3}).run)
    async with asyncio.timeout(WAIT_S):
        await recorder.called.wait()
    run.cancel("enough")
    assert (await follow(run))[-1] == Cancelled("enough")
    assert (recorder.stored, run.checkpoint) == ([], None)
    await until(lambda: hub.threads.counts() == (0, 0))


async def test_a_cancelled_function_stops_at_its_checkpoint(open_hub: OpenHub) -> None:
    entered, leave, reached = threading.Event(), threading.Event(), threading.Event()
    blocked = Activation("blocked", description="Blocks.")

    @blocked.method(restart="from_checkpoint")
    def work(ctx: Context) -> None:
        entered.set()
        leave.wait(WAIT_S)
        ctx.checkpoint(1)
        reached.set()

    hub = open_hub(blocked)
    run = local(hub.call("blocked.work").run)
    assert await asyncio.to_thread(entered.wait, WAIT_S)
    run.cancel("enough")
    leave.set()
    assert (await follow(run))[-1] == Cancelled("enough")
    assert not reached.is_set()
    assert run.checkpoint is None


# --- tests of authors -----------------------------------------------------------------------------


async def test_an_author_can_test_a_restart_without_a_store() -> None:
    async with local_hub(Steps()) as plexus:
        stream = plexus.stream("steps.count", to=4, stop_at=2)
        before = [(await anext(stream)).as_text() for _ in range(2)]
        await until(lambda: local(stream.run).checkpoint == b"2")
        async with await plexus.restart(stream) as again:
            assert again.run.id == stream.run.id
            events = [event async for event in again]
        assert before == ["1 ", "2 "]
        expect(events).types("restarted", "content", "content", "complete").completes()
        assert expect(events).text == "[restarted]\n3 4 "


async def test_a_restart_in_a_test_needs_the_declaration() -> None:
    async with local_hub(Steps()) as plexus:
        stream = plexus.stream("steps.once")
        with pytest.raises(Unsupported, match="cannot be restarted"):
            await plexus.restart(stream)


async def test_a_run_that_has_ended_is_not_restarted_in_a_test() -> None:
    async with local_hub(Steps()) as plexus:
        stream = plexus.stream("steps.count", to=1)
        assert [event.type async for event in stream] == ["content", "complete"]
        with pytest.raises(AssertionError, match="has already ended"):
            await plexus.restart(stream)


async def test_a_checkpoint_that_is_too_large_leaves_the_previous_one() -> None:
    large = Activation("large", description="Large.")

    @large.method(restart="from_checkpoint")
    async def store(ctx: Context) -> str:
        await ctx.checkpoint("small")
        with pytest.raises(TooBig, match=r"ctx\.storage") as raised:
            await ctx.checkpoint("x" * 100)
        assert raised.value.data == {"limit": 50}
        return "done"

    async with local_hub(large, limits=Limits(checkpoint_bytes=50)) as plexus:
        stream = plexus.stream("large.store")
        assert [event.type async for event in stream] == ["complete"]
        assert local(stream.run).checkpoint == b'"small"'
