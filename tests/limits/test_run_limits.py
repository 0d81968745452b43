"""Limits of runs, on a separate hub: at the limit, past it, and after it is freed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from conftest import OpenHub
from hub_calls import WAIT_S, end_of, follow, ignore, local, quiet, read, settled, until

from plexus import Activation, Confirm, Content, Context, NotFound, Plexus, method
from plexus.errors import Busy, TooBig
from plexus.events import Cancelled, ErrorEvent, Event, Gap, QuestionAsked, Result
from plexus.limits import Limits
from plexus.principal import LOCAL, Principal
from plexus.rpc import wire
from plexus.runtime.log import ITEM_WEIGHT
from plexus.runtime.run import Run

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

KIB = 1024


class Work(Activation):
    """Does a configurable amount of work."""

    namespace = "work"
    version = "1.0.0"

    def __init__(self) -> None:
        self.made = 0

    @method
    async def stream(self, chars: int, times: int = 1) -> AsyncIterator[Content]:
        """Yield a text of a given length a number of times."""
        for _ in range(times):
            yield Content(text="x" * chars)
            self.made += 1

    @method
    async def text(self, chars: int) -> str:
        """Return a text of a given length."""
        return "x" * chars

    @method
    async def wait(self, seconds: float = 600.0) -> str:
        """Wait for a number of seconds."""
        await asyncio.sleep(seconds)
        return "waited"

    @method(read_only=True, deadline_s=None)
    async def watch(self) -> AsyncIterator[Content]:
        """Watch without end."""
        yield Content(text="watching")
        await asyncio.Event().wait()

    @method(control=True)
    async def control(self, seconds: float, chars: int = 0) -> str:
        """Wait for a time, then return a text of a given length."""
        await asyncio.sleep(seconds)
        return "x" * chars or "steered"

    @method
    async def stop_slowly(self, seconds: float) -> str:
        """Wait until cancelled, then take a number of seconds to stop."""
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(seconds)
        return "never"

    @method
    async def ask(self, *, ctx: Context) -> str:
        """Ask for a confirmation."""
        return "yes" if await ctx.ask(Confirm("Really?")) else "no"

    @method(restart="from_checkpoint")
    async def store(self, lengths: list[int], *, ctx: Context) -> list[str]:
        """Store checkpoints of these lengths and return what is refused, and why."""
        refused = []
        for chars in lengths:
            try:
                await ctx.checkpoint("x" * (chars - 2))
            except TooBig as error:
                refused.append(f"{chars} {error.code} {error.data}")
        return refused

    @method
    async def delegate(self, *, ctx: Context) -> Any:
        """Delegate to another run."""
        return await ctx.call("work.text", chars=3)


def code(event: Event) -> str:
    assert isinstance(event, ErrorEvent), event
    return event.code


def limit_in(event: Event) -> Any:
    assert isinstance(event, ErrorEvent), event
    return event.data["limit"]


def size_of(chars: int) -> int:
    """Return the encoded size of an event with such a text."""
    return len(wire.encode_event(Content(text="x" * chars)))


async def check_works(hub: Plexus) -> None:
    """Check that the next call is answered."""
    assert await end_of(hub, "work.text", [1]) == Result("x")


@pytest.mark.limit("runs_in_flight", "at", "past", "after")
async def test_runs_past_the_limit_are_refused_until_one_has_ended(open_hub: OpenHub) -> None:
    hub = open_hub(Work(), limits=Limits(runs_in_flight=3))
    runs = [hub.call("work.wait").run for _ in range(3)]
    with pytest.raises(Busy) as refused:
        hub.call("work.wait")
    data = {"limit": 3, "name": "runs_in_flight", "held": 3}
    assert (refused.value.code, refused.value.data) == ("busy", data)
    runs[0].cancel("enough")
    await settled(runs[0])
    await check_works(hub)


async def test_a_run_that_is_let_in_can_call_others_at_the_limit(open_hub: OpenHub) -> None:
    hub = open_hub(Work(), limits=Limits(runs_in_flight=1))
    assert await end_of(hub, "work.delegate") == Result("xxx")


@pytest.mark.limit("kept_runs", "at", "past", "after")
async def test_retention_past_the_limit_is_refused_until_one_expires(open_hub: OpenHub) -> None:
    hub = open_hub(Work(), limits=Limits(kept_runs=2))
    first, second, third = (hub.call("work.text", [1]).run for _ in range(3))
    hub.runs.keep(first, 0.05)
    hub.runs.keep(second, 60)
    with pytest.raises(Busy) as refused:
        hub.runs.keep(third, 60)
    assert refused.value.data == {"limit": 2, "name": "kept_runs", "held": 2}
    await until(lambda: hub.runs.list_kept(LOCAL) == [second])
    hub.runs.keep(third, 60)


@pytest.mark.limit("checkpoint_bytes", "at", "past", "after")
async def test_a_checkpoint_past_the_limit_is_refused_and_the_previous_one_stays(
    open_hub: OpenHub,
) -> None:
    hub = open_hub(Work(), limits=Limits(checkpoint_bytes=100))
    run = local(hub.call("work.store", {"lengths": [100, 101]}).run)
    assert (await follow(run))[-1] == Result(["101 too_big {'limit': 100}"])
    assert run.checkpoint is not None
    assert len(run.checkpoint) == 100
    assert await end_of(hub, "work.store", {"lengths": [101, 99]}) == Result(
        ["101 too_big {'limit': 100}"]
    )


@pytest.mark.limit("event_bytes", "at", "past", "after")
async def test_an_event_past_the_limit_ends_its_run_and_no_other(open_hub: OpenHub) -> None:
    hub = open_hub(Work(), limits=Limits(event_bytes=size_of(100)))
    assert (await end_of(hub, "work.stream", [100])).type == "complete"
    past = await end_of(hub, "work.stream", [101])
    assert (code(past), limit_in(past)) == ("too_big", size_of(100))
    await check_works(hub)


@pytest.mark.limit("answer_bytes", "at", "past", "after")
async def test_a_value_past_the_limit_ends_its_run_and_no_other(open_hub: OpenHub) -> None:
    size = len(wire.encode_event(Result("x" * 500)))
    hub = open_hub(Work(), limits=Limits(answer_bytes=size))
    assert await end_of(hub, "work.text", [500]) == Result("x" * 500)
    past = await end_of(hub, "work.text", [501])
    assert (code(past), limit_in(past)) == ("too_big", size)
    await check_works(hub)


@pytest.mark.limit("high_water_bytes", "at", "past", "after")
async def test_a_run_waits_for_its_reader_at_the_high_water_mark(open_hub: OpenHub) -> None:
    each = size_of(10 * KIB) + ITEM_WEIGHT
    work = Work()
    hub = open_hub(work, limits=Limits(high_water_bytes=20 * each))
    near = hub.call("work.stream", {"chars": 10 * KIB, "times": 10}).run
    near.reader(0, ignore, owner=True)
    assert (await settled(near)).type == "complete"
    work.made = 0
    far = hub.call("work.stream", {"chars": 10 * KIB, "times": 200}).run
    reader = far.reader(0, ignore, owner=True)
    await until(lambda: work.made > 0)
    await quiet(500)
    assert far.terminal is None
    assert work.made <= 21
    received: list[Event] = []
    async with asyncio.timeout(WAIT_S):
        while not received or not received[-1].terminal:
            received += reader.take().events
            await asyncio.sleep(0)
    assert len(received) == 201


async def first_seen(run: Run) -> tuple[bool, int]:
    """Return whether a late watcher gets a gap, and how many items it gets."""
    events = await follow(run)
    return isinstance(events[0], Gap), len(events)


@pytest.mark.limit("log_items", "at", "past", "after")
async def test_a_late_watcher_gets_a_gap_when_a_log_has_too_many_items(
    open_hub: OpenHub,
) -> None:
    hub = open_hub(Work(), limits=Limits(log_items=100))
    at = hub.call("work.stream", {"chars": 1, "times": 99}).run
    await settled(at)
    assert await first_seen(at) == (False, 100)
    past = hub.call("work.stream", {"chars": 1, "times": 5000}).run
    await settled(past)
    gap, seen = await first_seen(past)
    assert gap
    assert 100 <= seen < 5000
    after = hub.call("work.stream", {"chars": 1, "times": 99}).run
    await settled(after)
    assert await first_seen(after) == (False, 100)


@pytest.mark.limit("log_bytes", "at", "past", "after")
async def test_a_late_watcher_gets_a_gap_when_a_log_has_too_many_bytes(
    open_hub: OpenHub,
) -> None:
    hub = open_hub(Work(), limits=Limits(log_bytes=20 * size_of(KIB)))
    at = hub.call("work.stream", {"chars": KIB, "times": 19}).run
    await settled(at)
    assert await first_seen(at) == (False, 20)
    past = hub.call("work.stream", {"chars": KIB, "times": 200}).run
    await settled(past)
    gap, seen = await first_seen(past)
    assert gap
    assert seen <= 22  # the gap, the retained items and the terminal
    after = hub.call("work.stream", {"chars": KIB, "times": 19}).run
    await settled(after)
    assert await first_seen(after) == (False, 20)


def is_known(hub: Plexus, run: Run) -> bool:
    try:
        hub.runs.find(run.id, LOCAL)
    except NotFound:
        return False
    return True


async def ended(hub: Plexus, chars: int = 1) -> Run:
    run = hub.call("work.text", [chars]).run
    await settled(run)
    return run


@pytest.mark.limit("finished_runs", "at", "past", "after")
async def test_the_oldest_run_is_forgotten_when_too_many_have_ended(open_hub: OpenHub) -> None:
    hub = open_hub(Work(), limits=Limits(finished_runs=3))
    runs = [await ended(hub) for _ in range(3)]
    assert [is_known(hub, run) for run in runs] == [True, True, True]
    runs.append(await ended(hub))
    assert [is_known(hub, run) for run in runs] == [False, True, True, True]
    runs.append(await ended(hub))
    assert [is_known(hub, run) for run in runs] == [False, False, True, True, True]


@pytest.mark.limit("finished_bytes", "at", "past", "after")
async def test_old_runs_are_evicted_when_they_use_too_much_memory(open_hub: OpenHub) -> None:
    size = len(wire.encode_event(Result("x" * 1000)))
    hub = open_hub(Work(), limits=Limits(finished_bytes=2 * size))
    runs = [await ended(hub, 1000) for _ in range(2)]
    assert [is_known(hub, run) for run in runs] == [True, True]
    runs.append(await ended(hub, 1000))
    assert [is_known(hub, run) for run in runs] == [False, True, True]
    runs.append(await ended(hub, 10))
    assert is_known(hub, runs[-1])


@pytest.mark.limit("finished_s", "at", "past", "after")
async def test_a_run_is_forgotten_when_it_ended_long_ago(open_hub: OpenHub) -> None:
    hub = open_hub(Work(), limits=Limits(finished_s=0.5))
    run = await ended(hub)
    assert is_known(hub, run)
    await until(lambda: not is_known(hub, run))
    assert is_known(hub, await ended(hub))


@pytest.mark.limit("run_s", "at", "past", "after")
async def test_a_run_ends_at_its_deadline(open_hub: OpenHub) -> None:
    hub = open_hub(Work(), limits=Limits(run_s=0.5))
    assert await end_of(hub, "work.wait", [0.1]) == Result("waited")
    past = await end_of(hub, "work.wait")
    assert code(past) == "deadline"
    assert isinstance(past, ErrorEvent)
    assert past.data == {"limit_s": 0.5}
    await check_works(hub)


@pytest.mark.limit("cancel_s", "at", "past", "after")
async def test_a_run_that_does_not_stop_in_time_is_abandoned(open_hub: OpenHub) -> None:
    hub = open_hub(Work(), limits=Limits(cancel_s=0.5))
    at, past = (hub.call("work.stop_slowly", [seconds]).run for seconds in (0.1, 2.0))
    await quiet()
    for run in (at, past):
        run.cancel("enough")
    assert await settled(at) == Cancelled("enough")
    abandoned = await settled(past)
    assert isinstance(abandoned, Cancelled)
    assert "abandoned" in (abandoned.reason or "")
    assert hub.runs.counts()["abandoned"] == 1
    await check_works(hub)


async def question_of(run: Run) -> str:
    await until(lambda: bool(run.questions))
    assert run.questions is not None
    return next(iter(run.questions))


@pytest.mark.limit("answer_s", "at", "past", "after")
async def test_an_unanswered_question_is_closed_after_its_timeout(open_hub: OpenHub) -> None:
    hub = open_hub(Work(), limits=Limits(answer_s=1.0))
    past = hub.call("work.ask").run
    at = hub.call("work.ask").run
    at.answer(await question_of(at), True)
    assert await settled(at) == Result("yes")
    events = await follow(past)
    assert isinstance(events[0], QuestionAsked)
    assert events[0].timeout_s == 1.0
    assert code(events[-1]) == "no_answer"
    after = hub.call("work.ask").run
    after.answer(await question_of(after), False)
    assert await settled(after) == Result("no")


@pytest.mark.limit("orphan_s", "at", "past", "after")
async def test_a_run_whose_caller_does_not_reconnect_in_time_is_stopped(
    open_hub: OpenHub,
) -> None:
    hub = open_hub(Work(), limits=Limits(orphan_s=0.5))
    at, past = (hub.call("work.wait", [seconds]).run for seconds in (1.5, 600.0))
    for run in (at, past):
        run.detach(run.reader(0, ignore, owner=True))
    at.reader(0, ignore, owner=True)
    stopped = await settled(past)
    assert isinstance(stopped, Cancelled)
    assert "did not reconnect" in (stopped.reason or "")
    assert await settled(at) == Result("waited")
    assert (await read(hub.call("work.text", [1])))[-1] == Result("x")


# --- shares --------------------------------------------------------------------------------------

ALICE, BOB = Principal("alice"), Principal("bob")


@pytest.mark.limit("watches_in_flight", "at", "past", "after")
async def test_watches_have_a_separate_limit_and_do_not_count_as_work(
    open_hub: OpenHub,
) -> None:
    hub = open_hub(Work(), limits=Limits(watches_in_flight=3, runs_in_flight=1))
    watches = [hub.call("work.watch").run for _ in range(3)]
    with pytest.raises(Busy) as refused:
        hub.call("work.watch")
    assert refused.value.data == {"limit": 3, "name": "watches_in_flight", "held": 3}
    await check_works(hub)
    watches[0].cancel("enough")
    await settled(watches[0])
    hub.call("work.watch")


@pytest.mark.limit("control_in_flight", "at", "past", "after")
async def test_control_calls_have_a_limit_of_their_own_and_work_when_all_else_is_busy(
    open_hub: OpenHub,
) -> None:
    hub = open_hub(Work(), limits=Limits(control_in_flight=2, runs_in_flight=1))
    busy = hub.call("work.wait").run
    controls = [hub.call("work.control", [600.0]).run for _ in range(2)]
    with pytest.raises(Busy) as refused:
        hub.call("work.control", [0.0])
    assert refused.value.data == {"limit": 2, "name": "control_in_flight", "held": 2}
    for run in (busy, *controls):
        run.cancel("enough")
        await settled(run)
    assert await end_of(hub, "work.control", [0.0]) == Result("steered")


@pytest.mark.parametrize(
    ("method_name", "limit"), [("work.wait", "runs_in_flight"), ("work.watch", "watches_in_flight")]
)
async def test_a_principal_that_uses_its_whole_share_leaves_some_to_others(
    open_hub: OpenHub, method_name: str, limit: str
) -> None:
    hub = open_hub(Work(), limits=Limits(**{limit: 64}))

    def fill(principal: Principal) -> int:
        for started in range(65):
            try:
                hub.call(method_name, {}, principal)
            except Busy:
                return started
        raise AssertionError("there is no limit")

    assert fill(ALICE) >= 50
    assert fill(BOB) > 0
    for number in range(20):
        fill(Principal(f"other{number}"))
    assert fill(LOCAL) == 64 // 16


@pytest.mark.limit("finished_control_runs", "at", "past", "after")
async def test_inspection_runs_evict_only_older_inspection_runs(
    open_hub: OpenHub,
) -> None:
    hub = open_hub(Work(), limits=Limits(finished_control_runs=3, finished_runs=2))
    work = hub.call("work.text", [1]).run
    await settled(work)
    looks = [hub.call("work.control", [0.0]).run for _ in range(3)]
    for run in looks:
        await settled(run)
        assert hub.runs.find(run.id, LOCAL) is run
    for _ in range(10):
        watch = hub.call("work.watch").run
        watch.cancel("enough")
        await settled(watch)
    with pytest.raises(NotFound):
        hub.runs.find(looks[0].id, LOCAL)
    assert hub.runs.find(work.id, LOCAL) is work
    assert len(hub.runs.list_for(LOCAL)) == 4
    await check_works(hub)


@pytest.mark.limit("finished_control_bytes", "at", "past", "after")
async def test_logs_of_control_calls_are_retained_within_their_byte_limit(
    open_hub: OpenHub,
) -> None:
    hub = open_hub(Work(), limits=Limits(finished_control_bytes=10 * KIB))
    at = hub.call("work.control", {"seconds": 0.0, "chars": 5 * KIB}).run
    await settled(at)
    assert hub.runs.find(at.id, LOCAL) is at
    past = hub.call("work.control", {"seconds": 0.0, "chars": 6 * KIB}).run
    await settled(past)
    assert hub.runs.find(past.id, LOCAL) is past
    with pytest.raises(NotFound):
        hub.runs.find(at.id, LOCAL)
    after = hub.call("work.control", [0.0]).run
    await settled(after)
    assert hub.runs.find(after.id, LOCAL) is after


async def test_runs_of_one_principal_do_not_evict_those_of_another(open_hub: OpenHub) -> None:
    hub = open_hub(Work(), limits=Limits(finished_runs=10, finished_bytes=100 * KIB))
    mine = hub.call("work.text", [100], ALICE).run
    await settled(mine)
    for _ in range(30):
        await settled(hub.call("work.text", [20 * KIB], BOB).run)
    assert hub.runs.find(mine.id, ALICE) is mine
    for _ in range(30):
        await settled(hub.call("work.text", [1], BOB).run)
    assert hub.runs.find(mine.id, ALICE) is mine
    assert len(hub.runs.list_for(BOB)) == 9


async def test_retained_runs_of_one_principal_leave_some_to_others(open_hub: OpenHub) -> None:
    hub = open_hub(Work(), limits=Limits(kept_runs=32))

    def keep_all(principal: Principal) -> int:
        for kept in range(33):
            run = hub.call("work.text", [1], principal).run
            try:
                hub.runs.keep(run, 60)
            except Busy:
                return kept
        raise AssertionError("there is no limit")

    assert keep_all(ALICE) >= 24
    assert keep_all(BOB) > 0
    assert keep_all(LOCAL) >= 32 // 16


async def test_a_run_whose_retention_is_extended_counts_once(open_hub: OpenHub) -> None:
    hub = open_hub(Work(), limits=Limits(kept_runs=1))
    run = hub.call("work.text", [1]).run
    for _ in range(3):
        hub.runs.keep(run, 0.02)
    await until(lambda: hub.runs.list_kept(LOCAL) == [])
    hub.runs.keep(run, 60)


async def test_child_runs_neither_use_nor_release_a_place(
    open_hub: OpenHub,
) -> None:
    hub = open_hub(Work(), limits=Limits(runs_in_flight=1))
    for _ in range(3):
        assert await end_of(hub, "work.delegate") == Result("xxx")
    hub.call("work.wait")
    with pytest.raises(Busy):
        hub.call("work.wait")


@pytest.mark.limit("worker_threads", "at", "past", "after")
async def test_plain_functions_past_the_limit_of_threads_are_refused_until_one_returns(
    open_hub: OpenHub,
) -> None:
    release = threading.Event()
    blocking = Activation("blocking")

    @blocking.method
    def wait() -> bool:
        """Wait for the test."""
        return release.wait(WAIT_S)

    hub = open_hub(blocking, limits=Limits(worker_threads=2))
    running = [hub.call("blocking.wait") for _ in range(2)]
    await until(lambda: hub.threads.counts().busy == 2)
    refused = await end_of(hub, "blocking.wait")
    assert isinstance(refused, ErrorEvent)
    assert refused.code == "busy"
    assert refused.data == {"limit": 2, "abandoned": 0}
    release.set()
    assert [(await read(call))[-1] for call in running] == [Result(True), Result(True)]
    assert await end_of(hub, "blocking.wait") == Result(True)
