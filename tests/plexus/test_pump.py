"""Methods that misbehave: each ends with exactly one terminal and affects no other run."""

from __future__ import annotations

import asyncio
import functools
import logging
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import OpenHub
from hub_calls import call, end_of, follow, happened, ignore, quiet, read, settled, until

from plexus import Activation, Complete, Content, Context, Event, Failed, InvalidParams, Log, method
from plexus.events import Cancelled, ErrorEvent, Result
from plexus.limits import Limits
from plexus.runtime import pump

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

SECRET = "the password is swordfish"
#: Deadlines short enough for a test; the clock that serves them ticks every quarter of a second.
QUICK = Limits(cancel_s=0.3, run_s=0.3)


class Stray(BaseException):
    """An exception that `except Exception` does not catch."""


class Done(Complete):
    """A terminal with something to say."""

    words: str


class Odd(Activation):
    """Everything that a method should not do."""

    namespace = "odd"
    version = "1.0.0"

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.release = asyncio.Event()
        self.cleaned = asyncio.Event()
        self.log: list[str] = []

    @method
    async def well(self, to: int = 2) -> AsyncIterator[Content]:
        """Behave."""
        for number in range(to):
            yield Content(text=str(number))

    @method
    async def value(self, value: int = 1) -> int:
        """Behave, with a value."""
        return value

    @method
    async def refuses(self) -> AsyncIterator[Content]:
        """Yield once, then raise an error of the tree."""
        yield Content(text="before")
        raise Failed("no such planet", code="no_planet", data={"planet": "Vulcan"})

    @method
    async def breaks(self) -> AsyncIterator[Content]:
        """Yield once, then raise something unexpected."""
        yield Content(text="before")
        raise RuntimeError(SECRET)

    @method
    async def breaks_plainly(self) -> int:
        """Raise something unexpected, without a stream."""
        raise RuntimeError(SECRET)

    @method
    async def breaks_in_groups(self) -> int:
        """Raise several exceptions as a group."""
        raise BaseExceptionGroup("several", [RuntimeError(SECRET), SystemExit(1)])

    @method
    async def breaks_attribute(self) -> AsyncIterator[Content]:
        """Raise the error that a value which is not an event would raise."""
        yield Content(text=str(getattr(self, "terminal")))  # noqa: B009

    @method
    async def strays(self) -> AsyncIterator[Content]:
        """Raise a BaseException."""
        yield Content(text="before")
        raise Stray(SECRET)

    @method
    async def exits(self) -> int:
        """Try to end the server."""
        sys.exit(3)

    @method
    async def yields_number(self) -> AsyncIterator[Content]:
        """Yield an undeclared value."""
        yield Content(text="before")
        yield 5  # type: ignore[misc]

    @method
    async def yields_nothing(self) -> AsyncIterator[Content]:
        """Yield None."""
        yield None  # type: ignore[misc]

    @method
    async def goes_on(self) -> AsyncIterator[Content | Done]:
        """Yield after the terminal."""
        try:
            yield Content(text="before")
            yield Done(words="that was all")
            self.log.append("went on")
            yield Content(text="after")
        finally:
            self.cleaned.set()

    @method
    async def formless(self) -> Any:
        """Return a value without a JSON form."""
        return object()

    @method
    async def formless_event(self) -> AsyncIterator[Content]:
        """Yield an event with a field that has no JSON form."""
        yield Content(text="before")
        yield Content(text=object())  # type: ignore[arg-type]

    @method
    async def formless_error(self) -> int:
        """Fail, with data that has no JSON form."""
        raise Failed("no", data=object())

    @method
    async def large(self, size: int) -> AsyncIterator[Content]:
        """Yield one event of about this size."""
        yield Content(text="x" * size)

    @method
    async def large_value(self, size: int) -> str:
        """Return a text of this size."""
        return "x" * size

    @method
    async def never_waits(self) -> AsyncIterator[Content]:
        """Yield until it is cancelled, without suspending."""
        self.started.set()
        while not self.release.is_set():
            yield Content(text="x")

    @method
    async def hangs(self) -> AsyncIterator[Content]:
        """Wait indefinitely."""
        self.started.set()
        yield Content(text="before")
        try:
            await asyncio.Event().wait()
        finally:
            self.cleaned.set()

    @method(deadline_s=None)
    async def waits(self) -> str:
        """Wait until it is released, however long."""
        self.started.set()
        await self.release.wait()
        return "released"

    @method
    async def stubborn(self) -> AsyncIterator[Content]:
        """Ignore the cancellation, and yield more when it is released."""
        yield Content(text="before")
        self.started.set()
        with suppress(asyncio.CancelledError):
            await self.release.wait()
        await self.release.wait()  # the end of the test itself does reach it here
        yield Content(text="after")
        self.cleaned.set()

    @method
    async def tidies(self) -> AsyncIterator[Content]:
        """Clean up with awaits."""
        try:
            yield Content(text="before")
            self.started.set()
            await asyncio.Event().wait()
        finally:
            self.log.append("begin")
            await asyncio.sleep(0.01)
            self.log.append("end")

    @method
    async def tidies_badly(self) -> AsyncIterator[Content]:
        """Fail while cleaning up."""
        try:
            yield Content(text="before")
            self.started.set()
            await asyncio.Event().wait()
        finally:
            raise RuntimeError(SECRET)

    @method
    async def shrugs(self) -> str:
        """Be cancelled, and return a value all the same."""
        self.started.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "all the same"

    @method
    async def cancels_itself(self) -> int:
        """Raise the exception of a cancellation without a request."""
        raise asyncio.CancelledError

    @method
    async def stops_itself(self, *, ctx: Context) -> AsyncIterator[Content]:
        """Cancel its own run, then continue without suspending."""
        ctx.plexus.runs.find(ctx.run_id, ctx.principal).cancel("by itself")
        yield Content(text="after")

    @method
    async def goes_on_talking(self, *, ctx: Context) -> AsyncIterator[Content]:
        """Cancel its own run, and yield once more when it is closed."""
        ctx.plexus.runs.find(ctx.run_id, ctx.principal).cancel("by itself")
        try:
            while True:
                yield Content(text="x")
        except GeneratorExit:
            yield Content(text="no")

    @method
    async def times_out(self) -> str:
        """Use its own timeout, inside its task."""
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            return "timed out"
        return "never"

    @method
    async def logs_later(self, *, ctx: Context) -> int:
        """Leave a task behind that logs after the end."""

        async def later() -> None:
            await self.release.wait()
            with suppress(Exception):
                await ctx.log("info", "too late")
            self.cleaned.set()

        self.task = asyncio.ensure_future(later())
        return 1


def one_terminal(events: list[Event]) -> bool:
    return [event for event in events if event.terminal] == events[-1:]


# --- errors --------------------------------------------------------------------------------------


async def test_a_plexus_error_is_reported_unchanged(open_hub: OpenHub) -> None:
    events = await call(open_hub(Odd), "odd.refuses")
    assert events == [
        Content(text="before"),
        ErrorEvent("no_planet", "no such planet", {"planet": "Vulcan"}),
    ]


@pytest.mark.parametrize("name", ["breaks", "breaks_plainly", "breaks_in_groups", "tidies_badly"])
async def test_the_text_of_an_unexpected_exception_stays_in_the_log(
    name: str, open_hub: OpenHub, caplog: pytest.LogCaptureFixture
) -> None:
    odd = Odd()
    made = open_hub(odd).call(f"odd.{name}")
    if name == "tidies_badly":
        await happened(odd.started)
        made.run.cancel("enough")
    events = await read(made)
    assert one_terminal(events)
    end = events[-1]
    assert isinstance(end, ErrorEvent)
    assert end.code == "internal"
    assert SECRET not in repr(events)
    log_id = end.data["log_id"]
    assert log_id in end.message
    [record] = [r for r in caplog.records if log_id in r.getMessage()]
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert SECRET in caplog.text


async def test_an_attribute_error_of_the_method_is_not_taken_for_a_wrong_event(
    open_hub: OpenHub, caplog: pytest.LogCaptureFixture
) -> None:
    end = await end_of(open_hub(Odd), "odd.breaks_attribute")
    assert isinstance(end, ErrorEvent)
    assert "AttributeError" in end.message
    assert "not an Event" not in caplog.text


async def test_sys_exit_ends_the_run_and_not_the_server(open_hub: OpenHub) -> None:
    hub = open_hub(Odd)
    end = await end_of(hub, "odd.exits")
    assert isinstance(end, ErrorEvent)
    assert "SystemExit" in end.message
    assert await end_of(hub, "odd.value") == Result(1)


async def test_an_exception_that_is_no_exception_ends_the_run_too(open_hub: OpenHub) -> None:
    hub = open_hub(Odd)
    events = await call(hub, "odd.strays")
    assert one_terminal(events)
    assert isinstance(events[-1], ErrorEvent)
    assert events[-1].code == "internal"
    assert SECRET not in repr(events)
    assert await end_of(hub, "odd.value") == Result(1)


@pytest.mark.parametrize(
    ("name", "kind"), [("odd.yields_number", "int"), ("odd.yields_nothing", "NoneType")]
)
async def test_yielding_an_undeclared_value_ends_the_run_with_both_names(
    name: str, kind: str, open_hub: OpenHub
) -> None:
    end = await end_of(open_hub(Odd), name)
    assert isinstance(end, ErrorEvent)
    assert end.code == "invalid_event"
    assert f"{name} yielded {kind}, but declares" in end.message


async def test_events_after_the_terminal_are_never_created(open_hub: OpenHub) -> None:
    odd = Odd()
    events = await call(open_hub(odd), "odd.goes_on")
    assert events == [Content(text="before"), Done(words="that was all")]
    assert odd.cleaned.is_set()
    assert odd.log == []


@pytest.mark.parametrize(
    ("name", "code", "place"),
    [
        ("formless", "invalid_result", "result"),
        ("formless_event", "invalid_event", "Content.text"),
    ],
)
async def test_a_value_without_a_json_form_is_an_error_that_names_the_place(
    name: str, code: str, place: str, open_hub: OpenHub
) -> None:
    hub = open_hub(Odd)
    end = await end_of(hub, f"odd.{name}")
    assert end == ErrorEvent(code, f"{place} is of the type object, which has no JSON form")
    assert await end_of(hub, "odd.value") == Result(1)


async def test_an_error_whose_data_has_no_json_form_keeps_its_code_and_message(
    open_hub: OpenHub,
) -> None:
    hub = open_hub(Odd)
    end = await end_of(hub, "odd.formless_error")
    assert isinstance(end, ErrorEvent)
    assert (end.code, end.message, end.data["left_out"]) == ("failed", "no", ["data"])
    assert await end_of(hub, "odd.value") == Result(1)


async def test_an_event_at_the_limit_passes_and_one_past_it_names_the_limit(
    open_hub: OpenHub,
) -> None:
    frame = len('{"type":"content","text":""}')
    hub = open_hub(Odd, limits=Limits(event_bytes=10_000))
    assert await end_of(hub, "odd.large", {"size": 10_000 - frame}) == Complete()
    end = await end_of(hub, "odd.large", {"size": 10_001 - frame})
    assert isinstance(end, ErrorEvent)
    assert (end.code, end.data) == ("too_big", {"limit": 10_000})


async def test_a_value_at_the_limit_passes_and_one_past_it_names_the_limit(
    open_hub: OpenHub,
) -> None:
    frame = len('{"type":"complete","result":""}')
    hub = open_hub(Odd, limits=Limits(answer_bytes=10_000))
    assert isinstance(await end_of(hub, "odd.large_value", {"size": 10_000 - frame}), Result)
    end = await end_of(hub, "odd.large_value", {"size": 10_001 - frame})
    assert isinstance(end, ErrorEvent)
    assert (end.code, end.data) == ("too_big", {"limit": 10_000})


# --- time ----------------------------------------------------------------------------------------


async def test_a_generator_that_never_waits_leaves_the_others_their_turn(open_hub: OpenHub) -> None:
    odd = Odd()
    hub = open_hub(odd)
    flood = hub.call("odd.never_waits")  # without a reader and without an owner
    await happened(odd.started)
    for number in range(20):
        assert await end_of(hub, "odd.value", {"value": number}) == Result(number)
    assert flood.run.terminal is None
    odd.release.set()
    assert await settled(flood.run) == Complete()


async def test_the_slices_of_a_fast_stream_start_short_and_grow(
    open_hub: OpenHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1.0
    clock = SimpleNamespace(monotonic=lambda: now, time=time.time)
    monkeypatch.setattr(pump, "time", clock)
    produced = 0

    class Fast(Activation):
        """A method that takes 5 microseconds for each event."""

        namespace = "fast"
        version = "1.0.0"

        @method(listed=False)
        async def stream(self) -> AsyncIterator[Content]:
            """Yield without ever waiting."""
            nonlocal now, produced
            for number in range(3000):
                now += 5e-6
                produced += 1
                yield Content(text=str(number))

    run = open_hub(Fast()).call("fast.stream").run
    slices = []
    while run.terminal is None:
        before = produced
        await asyncio.sleep(0)
        slices.append(produced - before)
    turns = [events for events in slices if events]
    assert turns[0] < 64, "the first events are sent at once"
    assert turns[1] < turns[3] < turns[5], "later slices are longer, which costs less"
    assert max(turns) < 400, "no slice is longer than its limit"


async def test_a_stream_whose_events_are_read_one_by_one_does_not_pause(
    open_hub: OpenHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, pauses = 1.0, 0
    clock = SimpleNamespace(monotonic=lambda: now, time=time.time)
    monkeypatch.setattr(pump, "time", clock)
    pause = pump.Pace.pause

    async def count_pauses(pace: pump.Pace) -> None:
        nonlocal pauses
        pauses += 1
        await pause(pace)

    monkeypatch.setattr(pump.Pace, "pause", count_pauses)

    class Slow(Activation):
        """A method that waits before each event."""

        namespace = "slow"
        version = "1.0.0"

        @method(listed=False)
        async def stream(self) -> AsyncIterator[Content]:
            """Yield and let the reader read."""
            nonlocal now
            for number in range(50):
                for _ in range(5):
                    await asyncio.sleep(0)
                now += 0.1
                yield Content(text=str(number))

    run = open_hub(Slow()).call("slow.stream").run
    async with aclosing(run.batches(owner=True)) as batches:
        sizes = [len(batch.events) async for batch in batches]
    assert sizes.count(1) >= 49, "each event is read on its own"
    assert pauses == 0


async def test_a_generator_that_never_waits_can_be_cancelled(open_hub: OpenHub) -> None:
    odd = Odd()
    flood = open_hub(odd).call("odd.never_waits")
    await happened(odd.started)
    flood.run.cancel("enough")
    assert await settled(flood.run) == Cancelled("enough")


async def test_a_run_past_its_deadline_ends_with_an_error_that_names_it(open_hub: OpenHub) -> None:
    odd = Odd()
    events = await call(open_hub(odd, limits=QUICK), "odd.hangs")
    assert one_terminal(events)
    end = events[-1]
    assert isinstance(end, ErrorEvent)
    assert (end.code, end.data) == ("deadline", {"limit_s": 0.3})
    assert odd.cleaned.is_set()


async def test_deadlines_hold_after_a_time_in_which_nothing_ran(open_hub: OpenHub) -> None:
    odd = Odd()
    hub = open_hub(odd, limits=QUICK)
    assert await end_of(hub, "odd.value") == Result(1)
    await asyncio.sleep(0.6)  # the clock of the deadlines has noticed that nothing runs
    end = await end_of(hub, "odd.hangs")
    assert isinstance(end, ErrorEvent)
    assert end.code == "deadline"


async def test_a_method_may_have_no_deadline(open_hub: OpenHub) -> None:
    odd = Odd()
    hub = open_hub(odd, limits=QUICK)
    made = hub.call("odd.waits")
    other = hub.call("odd.hangs")
    assert isinstance(await settled(other.run), ErrorEvent)  # so the deadlines were checked
    assert made.run.terminal is None
    odd.release.set()
    assert await settled(made.run) == Result("released")


async def test_a_run_that_ignores_its_cancellation_is_abandoned_and_reported(
    open_hub: OpenHub, caplog: pytest.LogCaptureFixture
) -> None:
    odd = Odd()
    hub = open_hub(odd, limits=QUICK)
    made = hub.call("odd.stubborn")
    await happened(odd.started)
    made.run.cancel("enough")
    end = await settled(made.run)
    assert isinstance(end, Cancelled)
    assert end.reason is not None
    assert "enough" in end.reason
    assert "abandoned" in end.reason
    assert "odd.stubborn ignores its cancellation" in caplog.text
    assert hub.runs.counts()["abandoned"] == 1
    odd.release.set()
    await until(lambda: not hub.pump.tasks)


async def test_an_abandoned_run_appends_no_more_events(open_hub: OpenHub) -> None:
    odd = Odd()
    hub = open_hub(odd, limits=QUICK)
    made = hub.call("odd.stubborn")
    await happened(odd.started)
    made.run.cancel("enough")
    end = await settled(made.run)
    odd.release.set()
    await until(lambda: not hub.pump.tasks)
    assert made.run.log.events == [Content(text="before"), end]
    assert await follow(made.run) == [Content(text="before"), end]


async def test_closing_a_hub_does_not_wait_for_a_run_that_ignores_it(open_hub: OpenHub) -> None:
    odd = Odd()
    hub = open_hub(odd, limits=QUICK)
    await end_of(hub, "odd.value")
    await asyncio.sleep(0.6)  # as after some quiet minutes
    made = hub.call("odd.stubborn")
    await happened(odd.started)
    async with asyncio.timeout(30):
        await hub.close()
    assert isinstance(made.run.terminal, Cancelled)
    odd.release.set()
    await until(lambda: not hub.pump.tasks)


# --- cancelling ----------------------------------------------------------------------------------


async def test_cleanup_with_awaits_runs_to_its_end_before_the_terminal(open_hub: OpenHub) -> None:
    odd = Odd()
    made = open_hub(odd).call("odd.tidies")
    await happened(odd.started)
    made.run.cancel("enough")
    assert await settled(made.run) == Cancelled("enough")
    assert odd.log == ["begin", "end"]


async def test_a_run_cancelled_before_it_began_never_begins(open_hub: OpenHub) -> None:
    odd = Odd()
    made = open_hub(odd).call("odd.hangs")
    made.run.cancel("too early")
    assert await read(made) == [Cancelled("too early")]
    assert not odd.started.is_set()


async def test_of_two_cancellations_the_first_reason_counts(open_hub: OpenHub) -> None:
    odd = Odd()
    made = open_hub(odd).call("odd.tidies")
    await happened(odd.started)
    made.run.cancel("first")
    made.run.cancel("second")
    await quiet(3)
    made.run.cancel("third")
    assert await settled(made.run) == Cancelled("first")
    assert odd.log == ["begin", "end"]


async def test_a_run_blocked_by_its_owner_can_be_cancelled(open_hub: OpenHub) -> None:
    odd = Odd()
    made = open_hub(odd).call("odd.never_waits")
    made.run.reader(0, ignore, owner=True)
    await happened(odd.started)
    await quiet(100)
    made.run.cancel("enough")
    assert await settled(made.run) == Cancelled("enough")


async def test_a_method_that_finishes_in_spite_of_being_cancelled_has_its_own_terminal(
    open_hub: OpenHub,
) -> None:
    odd = Odd()
    made = open_hub(odd).call("odd.shrugs")
    await happened(odd.started)
    made.run.cancel("enough")
    assert await settled(made.run) == Result("all the same")


async def test_an_unrequested_cancellation_is_a_terminal_too(open_hub: OpenHub) -> None:
    hub = open_hub(Odd)
    assert isinstance(await end_of(hub, "odd.cancels_itself"), Cancelled)
    assert await end_of(hub, "odd.value") == Result(1)


async def test_a_run_that_cancels_itself_ends_once(open_hub: OpenHub) -> None:
    hub = open_hub(Odd)
    assert one_terminal(await call(hub, "odd.stops_itself"))
    assert await end_of(hub, "odd.value") == Result(1)


@pytest.mark.parametrize("name", ["hangs", "shrugs", "stops_itself", "cancels_itself", "tidies"])
async def test_a_cancelled_run_does_not_disturb_those_that_began_with_it(
    name: str, open_hub: OpenHub
) -> None:
    odd = Odd()
    hub = open_hub(odd)
    # All of these are submitted before the first of them begins.
    cancelled = hub.call(f"odd.{name}")
    others = [hub.call("odd.times_out") for _ in range(3)]
    others += [hub.call("odd.value", {"value": 5}) for _ in range(3)]
    await quiet(3)
    cancelled.run.cancel("enough")
    ends = [await settled(made.run) for made in others]
    assert ends == [Result("timed out")] * 3 + [Result(5)] * 3
    assert (await settled(cancelled.run)).terminal


async def test_a_timeout_inside_of_a_method_works(open_hub: OpenHub) -> None:
    assert await end_of(open_hub(Odd), "odd.times_out") == Result("timed out")


async def test_a_task_left_behind_adds_nothing_after_the_terminal(open_hub: OpenHub) -> None:
    odd = Odd()
    made = open_hub(odd).call("odd.logs_later")
    assert await settled(made.run) == Result(1)
    odd.release.set()
    await happened(odd.cleaned)
    assert not any(isinstance(event, Log) for event in made.run.log.events)


# --- tasks ---------------------------------------------------------------------------------------


async def test_a_thousand_short_calls_cost_a_handful_of_tasks(open_hub: OpenHub) -> None:
    hub = open_hub(Odd, limits=Limits(runs_in_flight=2048))
    made_tasks: list[str] = []
    loop = asyncio.get_running_loop()

    def factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **kwargs: Any) -> Any:
        made_tasks.append(coroutine.__qualname__)
        return asyncio.Task(coroutine, loop=loop, **kwargs)

    loop.set_task_factory(factory)
    try:
        runs = [hub.call("odd.value", {"value": number}).run for number in range(1000)]
        await until(lambda: all(run.terminal is not None for run in runs))
    finally:
        loop.set_task_factory(None)
    assert [run.terminal for run in runs] == [Result(number) for number in range(1000)]
    assert len(made_tasks) < 50


async def test_calls_that_wait_do_not_wait_for_each_other(open_hub: OpenHub) -> None:
    odd = Odd()
    hub = open_hub(odd)
    waiting = [hub.call("odd.waits").run for _ in range(50)]
    assert await end_of(hub, "odd.value") == Result(1)
    odd.release.set()
    for run in waiting:
        assert await settled(run) == Result("released")
    await until(lambda: not hub.pump.tasks)


async def test_a_call_that_is_refused_begins_no_run(open_hub: OpenHub) -> None:
    hub = open_hub(Odd)
    with pytest.raises(InvalidParams):
        hub.call("odd.value", {"value": "text"})
    assert hub.runs.running() == []


def defective(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a decorator with a defect")

    return wrapper


class Decorated(Activation):
    """Has a decorator between the method and its caller."""

    namespace = "decorated"
    version = "1.0.0"

    @method
    @defective
    async def stream(self) -> AsyncIterator[Content]:
        """Never get as far as this."""
        yield Content(text="")

    @method
    @defective
    async def value(self) -> str:
        """Never get as far as this either."""
        return ""


@pytest.mark.parametrize("name", ["decorated.stream", "decorated.value"])
async def test_a_decorator_that_raises_ends_the_run_and_the_next_one_works(
    name: str, open_hub: OpenHub
) -> None:
    hub = open_hub(Decorated, Odd)
    broken = await end_of(hub, name)
    assert isinstance(broken, ErrorEvent)
    assert broken.code == "internal"
    assert await end_of(hub, "odd.value") == Result(1)


class Closing(Activation):
    """Raises the exception that closes a generator."""

    namespace = "closing"
    version = "1.0.0"

    @method
    async def plain(self) -> str:
        """Raise it from a coroutine."""
        raise GeneratorExit

    @method
    async def stream(self) -> AsyncIterator[Content]:
        """Raise it from a generator."""
        yield Content("before")
        raise GeneratorExit


@pytest.mark.parametrize("name", ["closing.plain", "closing.stream"])
async def test_a_method_that_raises_generator_exit_ends_as_a_defect(
    open_hub: OpenHub, name: str
) -> None:
    hub = open_hub(Closing)
    end = await end_of(hub, name)
    assert isinstance(end, ErrorEvent)
    assert end.code == "internal"
    assert isinstance(await end_of(hub, "plexus.hash"), Result)


async def test_a_generator_that_ignores_being_closed_ends_a_cancelled_run_as_abandoned(
    open_hub: OpenHub,
) -> None:
    events = await call(open_hub(Odd(), limits=QUICK), "odd.goes_on_talking")
    assert one_terminal(events)
    reason = "by itself; the method ignored the cancellation and was abandoned"
    assert events[-1] == Cancelled(reason)
