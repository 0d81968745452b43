"""The pump: steps generators, feeds their runs' logs, and makes the one terminal.

How runs get tasks: a batch of new runs is stepped by one task, each in its turn. A run that
never waits is done before the next begins and has cost no task of its own; as soon as one
really waits, a second task takes over the rest. So every run lives in one task from beginning
to end (cancel scopes and timeouts inside a method work), yet a thousand short calls cost a
handful of tasks.

This is the one place where an exception becomes something that a peer can see.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from types import AsyncGeneratorType
from typing import Any

from plexus.errors import Internal, InvalidEvent, PlexusError
from plexus.events import Cancelled, Complete, ErrorEvent, Event, Result, Terminal
from plexus.rpc import wire
from plexus.runtime.log import RunLog
from plexus.runtime.run import LocalRun

__all__ = ("Pump",)

#: How long a generator that never waits may hold the loop before others get their turn.
SLICE_S = 0.001
#: How long one task goes on with short runs before others get their turn.
TURN_S = 0.005
#: How many events come before the first look, unless somebody waits for them.
SHORT = 16
#: How many events of a burst come between two looks at the clock and at the owner.
STRIDE = 64
#: After an event of more bytes there is always a look.
LARGE = 4096

#: What Python raises when a generator yields instead of ending while it is closed.
IGNORED_EXIT = "async generator ignored GeneratorExit"

#: How most streams end, and its bytes.
DONE = Complete()
DONE_RAW = wire.encode_event(DONE)

#: An async generator function, or a function that returns an async iterator, awaited or not.
Stream = Callable[..., AsyncIterable[Event] | Awaitable[AsyncIterable[Event]]]
Plain = Callable[..., Awaitable[Any]]


#: A run, the function that does its work, its arguments, and whether that is a stream.
Work = tuple[LocalRun, Stream | Plain, dict[str, Any], bool]


class Pump:
    """Runs the work of runs. One per hub."""

    def __init__(self) -> None:
        self._ready: deque[Work] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._scheduled = False

    def submit(self, work: Work) -> None:
        """Begin a run."""
        self._ready.append(work)
        if not self._scheduled:
            self._scheduled = True
            # At once, so that the first step comes before whoever was woken to write the reply:
            # a short answer then goes out together with it.
            self._start_task()

    def _start_task(self) -> None:
        if not self._ready:
            self._scheduled = False
            return
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._step_ready())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # This comes round after the task's first step. If runs are left then, the task waits
        # inside one of them, and the others need another.
        loop.call_soon(self._start_task)

    async def _step_ready(self) -> None:
        task = asyncio.current_task()
        turn_end = time.monotonic() + TURN_S
        while self._ready:
            run, function, arguments, streams = self._ready.popleft()
            if run.terminal is not None:  # it was given up before it began
                continue
            run.task = task
            if run.cancel_reason is not None:
                terminal = _stopped(run)
            else:
                try:
                    made: Any = function(**arguments)
                except Exception as error:  # noqa: BLE001 - a decorator of the author's raised
                    terminal = _failure(run, error)
                else:
                    # A plain method is awaited here: a short call is spared one more coroutine.
                    try:
                        terminal = (
                            await _stream_outcome(run, made) if streams else Result(await made)
                        )
                    except BaseException as error:  # the one boundary
                        if _is_closing(run, error):
                            raise
                        terminal = _failure(run, error)
            run.task = None
            if terminal is DONE:
                run.finish(DONE, DONE_RAW)
            else:
                _finish(run, terminal)
            # A cancellation may still be pending in this task and must not reach the next run;
            # and other work wants its turn. Whatever is left gets a new task.
            if run.cancel_reason is not None or time.monotonic() > turn_end:
                break
        if self._ready and not self._scheduled:
            self._scheduled = True
            self._start_task()

    @property
    def tasks(self) -> frozenset[asyncio.Task[None]]:
        """The tasks under way, those of abandoned runs included."""
        return frozenset(self._tasks)


class Pace:
    """How a stream shares the loop: looks at the clock and the owner now and then.

    A look costs as much as an event, so in a burst there is one for every few events only; when
    somebody waits for the next event there is one for each, and so its time is exact.
    """

    __slots__ = ("_log", "_slice_end", "_stride")

    def __init__(self, log: RunLog) -> None:
        self._log = log
        self._slice_end = time.monotonic() + SLICE_S
        self._stride = SHORT

    def check(self) -> int:
        """Wake who waits, and say how many events may come before the next look; 0 to rest."""
        log = self._log
        log.check_newest()
        if log.waiting_readers:
            log.wake_readers()
        now = time.monotonic()
        log.mark(now)
        if now > self._slice_end:
            self._stride = max(self._stride // 2, 1)
            return 0
        log.trim_read()
        self._stride = min(self._stride * 2, STRIDE)
        return self._stride if log.capacity > 0 else 0

    async def pause(self) -> None:
        """Let others have their turn, and wait for an owner that is too far behind."""
        await self._log.wait_for_capacity()
        if time.monotonic() > self._slice_end:
            await asyncio.sleep(0)
        self._slice_end = time.monotonic() + SLICE_S


async def _iterator(run: LocalRun, made: Any) -> AsyncIterator[Event]:
    """Return the async iterator that a method has returned, awaited if it is a coroutine.

    Raises what the coroutine raises, and TypeError if there is no async iterator.
    """
    if not isinstance(made, AsyncIterable) and isinstance(made, Awaitable):
        made = await made
    if not isinstance(made, AsyncIterable):
        raise TypeError(f"{run.method} returned {type(made).__name__}, not an async iterator")
    return aiter(made)


async def _close(stream: AsyncIterator[Event]) -> None:
    """Close an async iterator that can be closed; every generator can."""
    close = getattr(stream, "aclose", None)
    if close is not None:
        await close()


async def _stream_outcome(run: LocalRun, stream: AsyncIterator[Event]) -> Terminal:
    """Move events from the iterator to the log until it ends; return the terminal.

    Closes the iterator whatever happens, and raises only what comes before it is there. The loop
    is written out flat: a stream spends its life here, and a method call for each event would
    double what it costs.
    """
    if stream.__class__ is not AsyncGeneratorType:
        stream = await _iterator(run, stream)
    log, encoders = run.log, wire.event_encoders
    waiting_readers = log.waiting_readers
    add_event, add_raw = log.events.append, log.payloads.append
    pace: Pace | None = None  # a short answer never needs it
    left = SHORT
    event: Event | None = None
    kind: type[Event] | None = None
    try:
        async for event in stream:
            if event.__class__ is not kind:
                kind = event.__class__
                if _ends(kind, run):
                    break
                encode = encoders[kind]
            raw = encode(event)
            add_event(event)
            add_raw(raw)
            left -= 1
            if left <= 0 or waiting_readers or len(raw) > LARGE:
                if pace is None:
                    pace = Pace(log)
                left = pace.check()
                if left <= 0:
                    await pace.pause()
                    if run.terminal is not None:  # it was abandoned meanwhile
                        break
                    left = 1
        else:
            if stream.__class__ is AsyncGeneratorType:
                return DONE  # a generator that ended by itself is closed
        await _close(stream)
    except BaseException as error:  # the one boundary
        if _is_closing(run, error):
            raise
        return await _closed(run, stream, error)
    return event if isinstance(event, Terminal) else DONE


def _is_closing(run: LocalRun, error: BaseException) -> bool:
    """Whether the loop is being closed, so that nothing can be awaited any more.

    A method may raise GeneratorExit itself; then its task is the one that runs.
    """
    if not isinstance(error, GeneratorExit):
        return False
    try:
        return asyncio.current_task() is not run.task
    except RuntimeError:  # no loop runs
        return True


def _ends(kind: type, run: LocalRun) -> bool:
    """Whether such an event ends a run; raises TypeError if it is none at all."""
    if not issubclass(kind, Event):
        raise TypeError(f"{run.method} yielded {kind.__name__}, which is not an Event")
    return kind.terminal


async def _closed(run: LocalRun, stream: AsyncIterator[Event], error: BaseException) -> Terminal:
    """Close an iterator that did not end by itself, and return how the run ended."""
    try:
        await _close(stream)
    except BaseException as another:  # noqa: BLE001 - what its cleanup raised is the news
        if run.cancel_reason is not None and str(another) == IGNORED_EXIT:
            return run.abandoned()  # as if it had been cancelled inside the generator
        return _failure(run, another)
    return _failure(run, error)


def _failure(run: LocalRun, error: BaseException) -> Terminal:
    """What an exception becomes for those who read the run."""
    if isinstance(error, PlexusError):
        return ErrorEvent(error.code, error.message, error.data)
    if isinstance(error, asyncio.CancelledError):
        return _stopped(run) if run.cancel_reason else Cancelled("the method cancelled itself")
    return _defect(run, error)


def _stopped(run: LocalRun) -> Terminal:
    if run.expired_after is not None:
        return ErrorEvent(
            "deadline", f"{run.method}: {run.cancel_reason}", {"limit_s": run.expired_after}
        )
    return Cancelled(run.cancel_reason)


def _defect(run: LocalRun, error: BaseException) -> Terminal:
    internal = Internal.report(f"run {run.id} of {run.method}", error)
    return ErrorEvent(internal.code, internal.message, internal.data)


def _finish(run: LocalRun, terminal: Terminal) -> None:
    try:
        run.finish(terminal)
    except InvalidEvent as error:
        if isinstance(
            terminal, ErrorEvent
        ):  # its data is wrong, but why the run failed matters more
            left_out = {"left_out": ["data"], "reason": error.message}
            run.finish(ErrorEvent(_sendable(terminal.code), _sendable(terminal.message), left_out))
        else:
            run.finish(ErrorEvent(error.code, error.message))
    except PlexusError as error:
        run.finish(ErrorEvent(error.code, error.message, error.data))


def _sendable(text: object) -> str:
    """Return the code or message of an error as a text that has a JSON form."""
    return str(text).encode(errors="replace").decode()
