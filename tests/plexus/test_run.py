"""A run and its readers: numbers, batches, backpressure, gaps, and exactly one terminal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import msgspec
import pytest
from conftest import OpenHub
from hub_calls import OTHER, call, follow, happened, ignore, local, quiet, read, settled, until
from hypothesis import given, settings
from hypothesis import strategies as st

from plexus import Activation, Complete, Content, Context, Event, NotFound, method
from plexus.events import Cancelled, Gap
from plexus.limits import Limits
from plexus.principal import LOCAL
from plexus.rpc import wire
from plexus.runtime.calls import Call
from plexus.runtime.log import Reader
from plexus.runtime.run import LocalRun, Run
from plexus.runtime.runs import Runs, random_numbers

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

#: Small bounds: twenty small items are at the high-water mark. The pump looks at it only now and
#: then, so it may go past it by some items, but never by as many as the log keeps.
SMALL = Limits(high_water_bytes=20 * 1100, log_items=300, log_bytes=64 * 1024)
HELD = range(10, 150)


def begin(limits: Limits | None = None) -> LocalRun:
    """Return a run that only the test drives."""
    numbers = random_numbers()
    return Runs(limits or Limits(), lambda: next(numbers)).start(
        "test.run", LOCAL, None, None, None
    )


def content(number: int) -> Content:
    return Content(text=str(number))


class Flow(Activation):
    """Streams under the test's control."""

    namespace = "flow"
    version = "1.0.0"

    def __init__(self) -> None:
        self.made = 0
        self.closed = asyncio.Event()
        self.gate = asyncio.Event()

    @method
    async def count(self, to: int) -> AsyncIterator[Content]:
        """Count up to TO as fast as it goes."""
        try:
            for number in range(1, to + 1):
                self.made = number
                yield content(number)
        finally:
            self.closed.set()

    @method
    async def gated(self, before: int, after: int) -> AsyncIterator[Content]:
        """Some items, then wait for the test, then some more."""
        for number in range(1, before + 1):
            yield content(number)
        await self.gate.wait()
        for number in range(before + 1, before + after + 1):
            yield content(number)

    @method
    async def remark(self, times: int, *, ctx: Context) -> int:
        """Log a message `times` times."""
        for number in range(times):
            await ctx.log("info", str(number))
            self.made = number + 1
        return times


# --- numbers and batches -------------------------------------------------------------------------


async def test_items_are_numbered_from_one_without_holes() -> None:
    run = begin()
    reader = run.reader(0, ignore, owner=True)
    for number in range(1, 6):
        run.append(content(number))
    first = reader.take()
    run.append(content(6))
    run.finish(Complete())
    second = reader.take()
    assert (first.first, len(first.events)) == (1, 5)
    assert (second.first, second.events) == (6, [content(6), Complete()])
    assert second.terminal == Complete()
    assert run.log.last == 7


async def test_all_available_items_are_read_in_one_batch() -> None:
    run = begin()
    reader = run.reader(0, ignore, owner=True)
    for number in range(100):
        run.append(content(number))
    batch = reader.take()
    assert batch.events == [content(number) for number in range(100)]
    assert batch.payloads == [b'{"type":"content","text":"%d"}' % number for number in range(100)]
    assert reader.take().events == []


async def test_a_long_log_is_read_in_batches_that_lose_nothing() -> None:
    run = begin(Limits(log_items=100_000))
    for number in range(5000):
        run.append(content(number))
    run.finish(Complete())
    reader = run.reader(0, ignore, owner=False)
    sizes, taken = [], 0
    while True:
        batch = reader.take()
        assert batch.first == taken + 1
        taken += len(batch.events)
        sizes.append(len(batch.events))
        if batch.terminal is not None:
            break
    assert taken == 5001
    assert len(sizes) > 1


async def test_an_item_larger_than_a_batch_is_read_alone() -> None:
    run = begin()
    run.append(Content(text="x" * 900_000))
    run.append(Content(text="y"))
    run.finish(Complete())
    reader = run.reader(0, ignore, owner=False)
    assert len(reader.take().events) == 1
    assert len(reader.take().events) == 2


async def test_a_reader_that_has_everything_is_woken_once_for_the_next_item() -> None:
    run = begin()
    woken: list[Reader] = []
    reader = run.reader(0, woken.append, owner=True)
    assert reader.take().events == []
    run.append(content(1))
    run.append(content(2))
    assert woken == [reader]
    assert len(reader.take().events) == 2


async def test_a_reader_that_left_is_not_woken() -> None:
    run = begin()
    woken: list[Reader] = []
    reader = run.reader(0, woken.append, owner=True)
    reader.take()
    run.leave(reader)
    run.append(content(1))
    assert woken == []


@pytest.mark.parametrize("after", range(6))
async def test_a_run_can_be_attached_to_after_any_item_while_it_runs(
    after: int, open_hub: OpenHub
) -> None:
    flow = Flow()
    hub = open_hub(flow)
    run = hub.call("flow.gated", {"before": 3, "after": 2}).run
    await until(lambda: run.log.last == 3)
    watching = asyncio.ensure_future(follow(run, min(after, 3)))
    await quiet()
    flow.gate.set()
    expected: list[Event] = [content(number) for number in range(min(after, 3) + 1, 6)]
    assert await watching == [*expected, Complete()]


@pytest.mark.parametrize("after", range(5))
async def test_a_finished_run_can_be_attached_to_after_any_item(
    after: int, open_hub: OpenHub
) -> None:
    hub = open_hub(Flow())
    run = hub.call("flow.count", {"to": 4}).run
    await settled(run)
    expected: list[Event] = [content(number) for number in range(after + 1, 5)]
    assert await follow(run, after) == [*expected, Complete()]


@pytest.mark.parametrize("after", [5, 6, 1000])
async def test_a_reader_past_the_end_of_a_finished_run_gets_its_terminal(
    after: int, open_hub: OpenHub
) -> None:
    hub = open_hub(Flow())
    run = hub.call("flow.count", {"to": 4}).run
    await settled(run)
    assert (await follow(run, after))[-1] == Complete()


# --- backpressure --------------------------------------------------------------------------------


async def test_an_owner_that_does_not_read_blocks_the_generator_at_the_high_water_mark(
    open_hub: OpenHub,
) -> None:
    flow = Flow()
    hub = open_hub(flow, limits=SMALL)
    made = hub.call("flow.count", {"to": 1000})
    owner = made.run.reader(0, ignore, owner=True)
    await until(lambda: flow.made > 0)
    await quiet(200)
    held_at = flow.made
    assert held_at in HELD
    await quiet(200)
    assert flow.made == held_at
    # Reading resumes it, and nothing was lost.
    events: list[Event] = []
    while not events or not events[-1].terminal:
        batch = owner.take()
        assert batch.first == len(events) + 1
        events += batch.events
        await quiet(5)
    assert events == [*(content(number) for number in range(1, 1001)), Complete()]


async def test_an_owner_that_leaves_releases_the_generator(open_hub: OpenHub) -> None:
    flow = Flow()
    hub = open_hub(flow, limits=SMALL)
    made = hub.call("flow.count", {"to": 500})
    owner = made.run.reader(0, ignore, owner=True)
    await until(lambda: flow.made > 0)
    await quiet(100)
    assert made.run.terminal is None
    made.run.leave(owner)
    assert await settled(made.run) == Complete()
    assert flow.made == 500


async def test_a_disconnected_owner_blocks_the_run_and_misses_nothing(
    open_hub: OpenHub,
) -> None:
    flow = Flow()
    hub = open_hub(flow, limits=SMALL)
    made = hub.call("flow.count", {"to": 300, "_run": "mine"})
    owner = made.run.reader(0, ignore, owner=True)
    await until(lambda: flow.made > 0)
    taken = owner.take().events
    made.run.detach(owner)
    await quiet(200)
    assert made.run.terminal is None
    again = hub.call("flow.count", {"to": 300, "_run": "mine", "_after": len(taken)})
    assert again.run is made.run
    assert taken + await read(again) == [*(content(n) for n in range(1, 301)), Complete()]


async def test_the_run_of_an_owner_that_never_reconnects_is_cancelled(open_hub: OpenHub) -> None:
    hub = open_hub(Flow(), limits=Limits(orphan_s=0.1))
    made = hub.call("flow.gated", {"before": 1, "after": 1, "_run": "mine"})
    owner = made.run.reader(0, ignore, owner=True)
    await until(lambda: made.run.log.last == 1)
    made.run.detach(owner)
    assert isinstance(await settled(made.run), Cancelled)


async def test_the_time_to_wait_for_a_disconnected_owner_can_be_set(open_hub: OpenHub) -> None:
    hub = open_hub(Flow(), limits=Limits(orphan_s=0.1))
    runs = [hub.call("flow.gated", {"before": 1, "after": 1}).run for _ in range(2)]
    for run, within_s in zip(runs, (60, None), strict=True):
        run.detach(run.reader(0, ignore, owner=True), within_s)
    assert isinstance(await settled(runs[1]), Cancelled)
    assert runs[0].cancel_reason is None


async def test_a_run_that_only_logs_is_blocked_by_its_owner_too(open_hub: OpenHub) -> None:
    flow = Flow()
    hub = open_hub(flow, limits=SMALL)
    made = hub.call("flow.remark", {"times": 300})
    made.run.reader(0, ignore, owner=True)
    await until(lambda: flow.made > 0)
    await quiet(200)
    assert flow.made in HELD


# --- watchers ------------------------------------------------------------------------------------


async def test_watchers_never_slow_a_run(open_hub: OpenHub) -> None:
    flow = Flow()
    hub = open_hub(flow, limits=SMALL)
    made = hub.call("flow.count", {"to": 1000})
    watchers = [made.run.reader(0, ignore, owner=False) for _ in range(5)]
    events = await read(made)
    assert len(events) == 1001
    assert all(watcher.seq == 0 for watcher in watchers)


async def test_a_watcher_that_fell_behind_gets_one_gap_and_then_what_is_kept(
    open_hub: OpenHub,
) -> None:
    hub = open_hub(Flow(), limits=SMALL)
    made = hub.call("flow.count", {"to": 2000})
    watcher = made.run.reader(0, ignore, owner=False)
    await read(made)
    gap = watcher.take()
    assert isinstance(gap.events[0], Gap)
    lost = wire.decode_plain(gap.events[0])
    assert lost["from"] == 1
    assert lost["to"] > 0
    assert gap.first == lost["to"]
    seq = lost["to"]
    while True:
        rest = watcher.take()
        assert rest.first == seq + 1
        assert rest.events[0] in (content(seq + 1), Complete())
        seq += len(rest.events)
        if rest.terminal is not None:
            break
    assert seq == 2001


async def test_a_gap_is_encoded_with_its_first_and_last_item() -> None:
    run = begin(Limits(log_items=5, log_bytes=100))
    watcher = run.reader(0, ignore, owner=False)
    for number in range(2000):
        run.append(content(number))
    run.finish(Complete())
    [raw] = watcher.take().payloads
    assert raw.startswith(b'{"type":"gap","from":1,"to":')


@pytest.mark.parametrize("log_items", [10, 300, 8192])
async def test_the_owner_never_finds_a_gap(log_items: int, open_hub: OpenHub) -> None:
    hub = open_hub(Flow(), limits=msgspec.structs.replace(SMALL, log_items=log_items))
    made = hub.call("flow.count", {"to": 3000})
    events: list[Event] = []
    async with aclosing(made.run.batches(owner=True)) as batches:
        async for batch in batches:
            await quiet(3)
            events += batch.events
    assert not any(isinstance(event, Gap) for event in events)
    assert len(events) == 3001


# --- bounded memory ------------------------------------------------------------------------------


async def test_the_log_of_a_long_stream_stays_within_its_bounds(open_hub: OpenHub) -> None:
    hub = open_hub(Flow(), limits=SMALL)
    made = hub.call("flow.count", {"to": 20_000})
    await settled(made.run)
    assert made.run.log.last == 20_001
    assert len(made.run.log.payloads) < 2000


async def test_the_log_of_large_items_stays_within_its_bytes() -> None:
    run = begin(Limits(log_bytes=100_000))
    for _ in range(50):
        run.append(Content(text="x" * 10_000))
    run.finish(Complete())
    assert sum(map(len, run.log.payloads)) <= 100_000 + 10_100


async def test_the_log_of_a_run_that_only_logs_stays_within_its_bounds(open_hub: OpenHub) -> None:
    flow = Flow()
    hub = open_hub(flow, limits=SMALL)
    made = hub.call("flow.remark", {"times": 5000})
    peak = 0

    def look() -> bool:
        nonlocal peak
        peak = max(peak, len(made.run.log.payloads))
        return made.run.terminal is not None

    await until(look)
    assert max(peak, len(made.run.log.payloads)) < 2000


async def test_finished_runs_are_evicted_by_number(open_hub: OpenHub) -> None:
    hub = open_hub(Flow(), limits=Limits(finished_runs=3))
    runs = [hub.call("flow.count", {"to": 1}).run for _ in range(5)]
    await settled(runs[-1])
    for run in runs[:2]:
        with pytest.raises(NotFound):
            hub.runs.find(run.id, LOCAL)
    assert [hub.runs.find(run.id, LOCAL) for run in runs[2:]] == runs[2:]


async def test_finished_runs_are_evicted_by_size(open_hub: OpenHub) -> None:
    hub = open_hub(Flow(), limits=Limits(finished_bytes=1000))
    first = hub.call("flow.count", {"to": 20}).run
    second = hub.call("flow.count", {"to": 20}).run
    await settled(second)
    with pytest.raises(NotFound):
        hub.runs.find(first.id, LOCAL)
    assert hub.runs.find(second.id, LOCAL) is second


async def test_finished_runs_are_evicted_by_age(open_hub: OpenHub) -> None:
    hub = open_hub(Flow(), limits=Limits(finished_s=0.2))
    run = hub.call("flow.count", {"to": 1}).run
    await settled(run)

    def is_gone() -> bool:
        return not hub.runs.list_for(LOCAL)

    await until(is_gone)


async def test_a_key_is_evicted_with_its_run(open_hub: OpenHub) -> None:
    hub = open_hub(Flow(), limits=Limits(finished_runs=1))
    first = hub.call("flow.count", {"to": 1, "_run": "k"}).run
    await settled(first)
    await settled(hub.call("flow.count", {"to": 1}).run)
    again = hub.call("flow.count", {"to": 1, "_run": "k"})
    assert again.fresh
    assert again.run is not first


# --- descriptions --------------------------------------------------------------------------------


async def test_a_run_has_the_right_state_at_every_stage(open_hub: OpenHub) -> None:
    flow = Flow()
    hub = open_hub(flow)
    run = hub.call("flow.gated", {"before": 1, "after": 0}).run
    assert run.state == "running"
    assert run.describe()["last_seq"] == 0
    await until(lambda: run.log.last == 1)
    run.cancel("enough")
    assert run.state == "cancelling"
    await settled(run)
    assert run.state == "cancelled"
    described = run.describe()
    assert described["run"] == run.id
    assert described["method"] == "flow.gated"
    assert described["last_seq"] == 2
    assert described["duration_ms"] >= 0
    assert "parent" not in described


async def test_run_numbers_are_exact_in_every_json_reader() -> None:
    numbers = random_numbers()
    drawn = [next(numbers) for _ in range(1000)]
    assert all(0 < number < 2**53 for number in drawn)
    assert len(set(drawn)) == 1000


async def test_a_run_is_found_by_its_own_principal_only(open_hub: OpenHub) -> None:
    hub = open_hub(Flow())
    run = hub.call("flow.count", {"to": 1}).run
    assert hub.runs.find(run.id, LOCAL) is run
    with pytest.raises(NotFound):
        hub.runs.find(run.id, OTHER)
    assert hub.runs.list_for(OTHER) == []
    await settled(run)
    with pytest.raises(NotFound):
        hub.runs.find(run.id, OTHER)


# --- exactly one terminal ------------------------------------------------------------------------

STEPS = ("append", "finish", "cancel", "abandon", "expire", "take", "leave", "turn", "orphan")


def one_terminal_at_the_end(run: Run) -> bool:
    terminals = [index for index, event in enumerate(run.log.events) if event.terminal]
    return terminals == [len(run.log.events) - 1]


async def play(steps: list[str]) -> Run:
    run = begin()
    reader = run.reader(0, ignore, owner=True)
    for step in steps:
        match step:
            case "append":
                if run.terminal is None:
                    run.append(content(1))
            case "finish":
                run.finish(Complete())
            case "cancel":
                run.cancel("because")
            case "abandon":
                run.abandon()
            case "expire":
                run.expire(1.0)
            case "take":
                reader.take()
            case "leave":
                run.leave(reader)
            case "orphan":
                run.detach(reader)
            case _:
                await asyncio.sleep(0)
    run.finish(Complete())
    return run


@given(st.lists(st.sampled_from(STEPS), max_size=15))
def test_a_run_has_one_terminal_whatever_is_done_to_it_and_in_whatever_order(
    steps: list[str],
) -> None:
    run = asyncio.run(play(steps))
    assert one_terminal_at_the_end(run)


async def cancelled_at(turn: int, length: int, how: str, times: int) -> tuple[Run, list[Event]]:
    """A real run, stopped in some way after a number of iterations of the loop."""
    from plexus import Plexus  # a separate hub for each example

    hub = Plexus(limits=SMALL)
    hub.register(Flow())
    made: Call = hub.call("flow.count", {"to": length})
    reading = asyncio.ensure_future(read(made))
    for _ in range(turn):
        await asyncio.sleep(0)
    for _ in range(times):
        match how:
            case "cancel":
                made.run.cancel("because")
            case "expire":
                local(made.run).expire(1.0)
            case "abandon":
                local(made.run).abandon()
            case _:
                hub.runs.cancel_all("all")
    async with asyncio.timeout(30):
        events = await reading
    await quiet(20)
    return made.run, events


@settings(max_examples=100)
@given(
    st.integers(0, 12),
    st.integers(0, 60),
    st.sampled_from(["cancel", "expire", "abandon", "all"]),
    st.integers(0, 3),
)
def test_whenever_a_run_is_stopped_its_reader_sees_one_terminal_and_nothing_after(
    turn: int, length: int, how: str, times: int
) -> None:
    run, events = asyncio.run(cancelled_at(turn, length, how, times))
    assert [event for event in events if event.terminal] == events[-1:]
    assert one_terminal_at_the_end(run)


async def test_nothing_is_added_to_a_run_that_has_ended() -> None:
    run = begin()
    run.append(content(1))
    run.finish(Complete())
    run.append(content(2))
    run.finish(Complete())
    run.cancel("late")
    assert run.log.events == [content(1), Complete()]
    assert run.state == "complete"


async def test_cancelling_a_run_that_has_ended_changes_nothing(open_hub: OpenHub) -> None:
    hub = open_hub(Flow())
    made = hub.call("flow.count", {"to": 1})
    assert (await read(made))[-1] == Complete()
    made.run.cancel("late")
    assert made.run.state == "complete"
    assert (await call(hub, "flow.count", {"to": 1}))[-1] == Complete()


async def test_the_generator_is_closed_when_its_run_ends(open_hub: OpenHub) -> None:
    flow = Flow()
    hub = open_hub(flow, limits=SMALL)
    made = hub.call("flow.count", {"to": 1_000_000})
    made.run.reader(0, ignore, owner=True)
    await until(lambda: flow.made > 0)
    made.run.cancel("enough")
    await happened(flow.closed)
    assert await settled(made.run) == Cancelled("enough")
