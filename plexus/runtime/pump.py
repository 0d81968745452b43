"""The pump: steps generators, appends to the logs of their runs, and creates the terminal.

How runs are assigned to tasks: one task steps a batch of new runs in turn. A run that never
suspends is finished before the next one starts and needs no separate task; as soon as a run
suspends, a second task takes over the rest. Every run thus stays in one task from start to end, so
that cancel scopes and timeouts inside a method work, and a thousand short calls cost a few tasks.

This is the only place where an exception is converted for a peer.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from types import AsyncGeneratorType
from typing import Any

from plexus.caller_environment import CALLER
from plexus.errors import Internal, InvalidEvent, PlexusError
from plexus.events import Cancelled, Complete, ErrorEvent, Event, Log, Progress, Result, Terminal
from plexus.rpc import wire
from plexus.runtime.log import RunLog
from plexus.runtime.run import LocalRun
from plexus.values import PLAIN, converter_for, result_of

__all__ = ("Pump",)

#: How long a generator that never suspends may block the event loop, at first and at most. The
#: first slice is short, so that the first event leaves early; each further one is longer by the
#: factor. A short stream ends before the second check, so it needs no second turn of the loop.
FIRST_SLICE_S = 0.00001
SLICE_GROWTH = 4
SLICE_S = 0.001
#: How long one task continues with short runs before it yields to others.
TURN_S = 0.005
#: Number of events before the first check, unless a reader waits.
FIRST_CHECK_EVENTS = 16
#: Maximum number of events of a burst between two checks of the clock and the owner.
MAX_STRIDE = 64
#: An event of more bytes is always followed by a check.
LARGE_EVENT_BYTES = 4096

#: What Python raises when a generator yields while it is closed.
IGNORED_EXIT = "async generator ignored GeneratorExit"

#: Events that a stream may yield without declaring them.
UNDECLARED = (Terminal, Progress, Log)
#: The terminal of most streams, and its bytes.
DONE = Complete()
DONE_RAW = wire.encode_event(DONE)

#: An async generator function, or a function that returns an async iterator, awaited or not.
Stream = Callable[..., AsyncIterable[Event] | Awaitable[AsyncIterable[Event]]]
Plain = Callable[..., Awaitable[Any]]


#: A function that starts a run without a task if it can, and returns whether it has.
Start = Callable[[LocalRun, dict[str, Any]], bool]

#: The classes that a stream may yield, empty for any; None for a method that does not stream.
Declared = tuple[type, ...] | None
#: A run, the function that does its work, its arguments, and the classes that it declares.
Work = tuple[LocalRun, Stream | Plain, dict[str, Any], Declared]


class Pump:
    """Executes runs. One per hub."""

    def __init__(self) -> None:
        self._ready: deque[Work] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._scheduled = False

    def submit(self, work: Work) -> None:
        """Start a run."""
        self._ready.append(work)
        if not self._scheduled:
            self._scheduled = True
            # Immediately, so that the first step precedes the writer that sends the reply: a short
            # answer is then sent together with it.
            self._start_task()

    def _start_task(self) -> None:
        if not self._ready:
            self._scheduled = False
            return
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._step_ready())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # Called after the task's first step. If runs are left then, the task is suspended in one
        # of them, and the others need another task.
        loop.call_soon(self._start_task)

    async def _step_ready(self) -> None:
        task = asyncio.current_task()
        turn_end = time.monotonic() + TURN_S
        while self._ready:
            run, function, arguments, declared = self._ready.popleft()
            if run.terminal is not None:  # abandoned before it started
                continue
            run.task = task
            if run.caller is not CALLER.get():  # the task may have stepped a run of another caller
                CALLER.set(run.caller)
            if run.cancel_reason is not None:
                terminal = _stopped(run)
            else:
                try:
                    made: Any = function(**arguments)
                except Exception as error:  # noqa: BLE001 - an author's decorator may raise
                    terminal = _failure(run, error)
                else:
                    # A plain method is awaited here, which saves a short call one more coroutine.
                    try:
                        if declared is None:
                            value = await made
                            if value is not None and value.__class__ not in PLAIN:
                                value = result_of(value)
                            terminal = Result(value)
                        else:
                            terminal = await _stream_outcome(run, made, declared)
                    except BaseException as error:  # the only boundary
                        if _is_closing(run, error):
                            raise
                        terminal = _failure(run, error)
            run.task = None
            if terminal is DONE:
                run.finish(DONE, DONE_RAW)
            else:
                _finish(run, terminal)
            # A cancellation may still be pending in this task and must not reach the next run,
            # and other work must get its turn. The remaining runs get a new task.
            if run.cancel_reason is not None or time.monotonic() > turn_end:
                break
        if self._ready and not self._scheduled:
            self._scheduled = True
            self._start_task()

    def start_directly(self, run: LocalRun, start: Start, arguments: dict[str, Any]) -> bool:
        """Start a run without a task, if its method can now. Returns whether it needs none."""
        try:
            return start(run, arguments)
        except Exception as error:  # noqa: BLE001 - as for a run with a task
            _finish(run, _failure(run, error))
            return True

    def finish(self, run: LocalRun, make: Callable[[], Terminal]) -> None:
        """End a run that has no task with the terminal that a function returns."""
        try:
            terminal = make()
        except Exception as error:  # noqa: BLE001 - as for a run with a task
            terminal = _failure(run, error)
        _finish(run, terminal)

    @property
    def tasks(self) -> frozenset[asyncio.Task[None]]:
        """The current tasks, including those of abandoned runs."""
        return frozenset(self._tasks)


class Pace:
    """How a stream shares the event loop: it checks the clock and the owner periodically.

    A check costs as much as an event, so in a burst there is one for every few events only; while a
    reader waits for the next event there is one for each, so its time is exact.
    """

    __slots__ = ("_log", "_slice_end", "_slice_s", "_stride")

    def __init__(self, log: RunLog) -> None:
        self._log = log
        self._slice_s = FIRST_SLICE_S
        self._slice_end = time.monotonic() + FIRST_SLICE_S
        self._stride = FIRST_CHECK_EVENTS // 2

    def check(self) -> int:
        """Wake waiting readers; return the number of events until the next check, or 0 to pause."""
        log = self._log
        log.check_newest()
        now = time.monotonic()
        log.mark(now)
        if log.waiting_readers:
            log.wake_readers()
            # A reader waits again, so the event loop has had its turn since the last check. A
            # stream of single events needs no pause after each.
            self._slice_end = now + self._slice_s
        elif now > self._slice_end:
            self._stride = max(self._stride // 2, 1)
            return 0
        log.trim_read()
        self._stride = min(self._stride * 2, MAX_STRIDE)
        return self._stride if log.capacity > 0 else 0

    async def pause(self) -> None:
        """Yield to other tasks, and wait for an owner that is too far behind."""
        await self._log.wait_for_capacity()
        if time.monotonic() > self._slice_end:
            await asyncio.sleep(0)
        self._slice_s = min(self._slice_s * SLICE_GROWTH, SLICE_S)
        self._slice_end = time.monotonic() + self._slice_s


async def _iterator(run: LocalRun, made: Any) -> AsyncIterator[Event]:
    """Return the async iterator of a method, awaiting it if it is a coroutine.

    Raises what the coroutine raises, and TypeError if the result is not an async iterator.
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


async def _stream_outcome(
    run: LocalRun, stream: AsyncIterator[Any], declared: tuple[type, ...]
) -> Terminal:
    """Move events from the iterator to the log until it ends; return the terminal.

    Always closes the iterator; raises only what happens before it exists. The loop is written flat:
    a stream spends its time here, and a method call for each event would double its cost.
    """
    if stream.__class__ is not AsyncGeneratorType:
        stream = await _iterator(run, stream)
    log, encoders = run.log, wire.event_encoders
    waiting_readers = log.waiting_readers
    add_event, add_raw = log.events.append, log.payloads.append
    pace: Pace | None = None  # a short stream never needs it
    left = FIRST_CHECK_EVENTS
    event: Any = None
    kind: type | None = None
    convert: Callable[[Any], Event] | None = None
    try:
        async for event in stream:
            if event.__class__ is not kind:
                kind = event.__class__
                if _ends(kind, run, declared):
                    break
                convert = converter_for(kind)
                if convert is None:
                    encode = encoders[kind]
            if convert is not None:
                event = convert(event)
                encode = encoders[event.__class__]
            raw = encode(event)
            add_event(event)
            add_raw(raw)
            left -= 1
            if left <= 0 or waiting_readers or len(raw) > LARGE_EVENT_BYTES:
                if pace is None:
                    pace = Pace(log)
                left = pace.check()
                if left <= 0:
                    await pace.pause()
                    if run.terminal is not None:  # abandoned meanwhile
                        break
                    left = 1
        else:
            if stream.__class__ is AsyncGeneratorType:
                return DONE  # an exhausted generator is closed
        await _close(stream)
    except BaseException as error:  # the only boundary
        if _is_closing(run, error):
            raise
        return await _closed(run, stream, error)
    return event if isinstance(event, Terminal) else DONE


def _is_closing(run: LocalRun, error: BaseException) -> bool:
    """Return whether the event loop is closing, so that nothing can be awaited any more.

    A method may raise GeneratorExit itself; its task is then the current one.
    """
    if not isinstance(error, GeneratorExit):
        return False
    try:
        return asyncio.current_task() is not run.task
    except RuntimeError:  # no running loop
        return True


def _ends(kind: type, run: LocalRun, declared: tuple[type, ...]) -> bool:
    """Return whether a value of this class ends a run. Raises InvalidEvent if it is undeclared."""
    if declared and not issubclass(kind, declared) and not issubclass(kind, UNDECLARED):
        names = " | ".join(each.__name__ for each in declared)
        raise InvalidEvent(
            f"{run.method} yielded {kind.__name__}, but declares {names}; add {kind.__name__} to "
            "its return annotation"
        )
    return issubclass(kind, Terminal)


async def _closed(run: LocalRun, stream: AsyncIterator[Event], error: BaseException) -> Terminal:
    """Close an iterator that was not exhausted, and return the terminal."""
    try:
        await _close(stream)
    except BaseException as another:  # noqa: BLE001 - the error of the cleanup is reported
        if run.cancel_reason is not None and str(another) == IGNORED_EXIT:
            return run.abandoned()  # as if cancelled inside the generator
        return _failure(run, another)
    return _failure(run, error)


def _failure(run: LocalRun, error: BaseException) -> Terminal:
    """Return the terminal for an exception."""
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
    if run.is_moving:
        return ErrorEvent("moved", f"{run.cancel_reason}", {"run": run.id})
    return Cancelled(run.cancel_reason)


def _defect(run: LocalRun, error: BaseException) -> Terminal:
    subject = f"run {run.id} of {run.method}"
    internal = Internal.report(subject, error, shows_text=run.shows_defects)
    return ErrorEvent(internal.code, internal.message, internal.data)


def _finish(run: LocalRun, terminal: Terminal) -> None:
    try:
        run.finish(terminal)
    except InvalidEvent as error:
        # The data of an error is invalid, but the reason of the failure matters more.
        if isinstance(terminal, ErrorEvent):
            left_out = {"left_out": ["data"], "reason": error.message}
            run.finish(ErrorEvent(_sendable(terminal.code), _sendable(terminal.message), left_out))
        else:
            run.finish(ErrorEvent(error.code, error.message))
    except PlexusError as error:
        run.finish(ErrorEvent(error.code, error.message, error.data))


def _sendable(text: object) -> str:
    """Return the code or message of an error as a string with a JSON form."""
    return str(text).encode(errors="replace").decode()
