"""Worker threads for methods that block: plain functions and plain generators.

Rules:
- A call has one thread for as long as it runs. Threads are reused, bounded in number and daemons,
  so that a function that never returns cannot keep the process from exiting.
- A thread cannot be interrupted. A cancelled generator is closed at its next `yield`; a cancelled
  function stops at its next use of the context, or when it returns. A function that does neither
  is abandoned by the runtime like any method that ignores cancellation, and its thread is counted
  until it returns.
- Values cross to the event loop in batches: a generator that is ahead of its reader by
  `BUFFERED` values waits.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import queue
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, NamedTuple

from plexus.errors import Busy

__all__ = (
    "ThreadCounts",
    "ThreadIterator",
    "WorkerThreads",
    "sender_of_worker",
    "waiter_of_worker",
)

#: How many values a generator may be ahead of its reader.
BUFFERED: Final = 256
#: How long an idle thread waits for another call, in seconds.
IDLE_S: Final = 30.0

_worker = threading.local()


def sender_of_worker() -> Callable[[Callable[[], None], Any], None] | None:
    """Return the function with which this worker thread sends events; None in other threads.

    It takes a function for the loop that appends the event, and the event. A generator sends its
    events between its values, so that their order is kept.
    """
    return getattr(_worker, "send", None)


#: Starts work on the event loop, after all that was sent before, and waits for its end.
Wait = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]


def waiter_of_worker() -> Wait | None:
    """Return the function with which this worker thread waits for the loop; None in others.

    It takes a coroutine function, and raises what the coroutine raises.
    """
    return getattr(_worker, "wait", None)


class ThreadCounts(NamedTuple):
    """Numbers of threads: those with a call under way, and the abandoned ones among them."""

    busy: int
    abandoned: int


class _Job:
    """One call in a thread. `done` is resolved on the loop when the thread has finished it."""

    __slots__ = ("context", "done", "loop", "stopped", "work")

    def __init__(self, work: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        self.work = work
        self.loop = loop
        self.context = contextvars.copy_context()
        self.done: asyncio.Future[Any] = loop.create_future()
        #: Whether the caller has stopped waiting for the value.
        self.stopped = False

    def send(self, append: Callable[[], None], _: Any) -> None:
        """Append an event on the loop."""
        self.loop.call_soon_threadsafe(append)

    def wait(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do work on the loop, and wait for it in the thread."""
        asyncio.run_coroutine_threadsafe(work(), self.loop).result()


class _Pause:
    """Work for the loop that a generator waits for, in its place among the values."""

    __slots__ = ("done", "work")

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.work = work
        self.done: concurrent.futures.Future[None] = concurrent.futures.Future()

    async def perform(self) -> None:
        """Do the work, and let the thread continue."""
        try:
            await self.work()
        except BaseException as error:  # the thread gets it, and must not wait forever
            self.done.set_exception(error)
            if not isinstance(error, Exception):
                raise  # a cancellation is for the run too
        else:
            self.done.set_result(None)


class WorkerThreads:
    """The threads of one hub."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._idle: list[queue.SimpleQueue[_Job]] = []
        self._jobs: set[_Job] = set()

    def counts(self) -> ThreadCounts:
        """Return how many threads are busy, and how many of these were abandoned."""
        with self._lock:
            abandoned = sum(job.stopped for job in self._jobs)
            return ThreadCounts(len(self._jobs), abandoned)

    async def call(self, function: Callable[..., Any], /, **arguments: Any) -> Any:
        """Call a function in a thread and return its value.

        A cancelled caller waits until the thread has ended: the runtime decides how long. Raises
        what the function raises, and Busy when every thread is taken.
        """
        job = self.start(lambda: function(**arguments))
        return await self.wait(job)

    async def wait(self, job: _Job) -> Any:
        """Wait for a job to end and return its value.

        A cancelled caller still waits for the thread; a second cancellation stops that too.
        """
        try:
            return await asyncio.shield(job.done)
        except asyncio.CancelledError:
            job.stopped = True
            await asyncio.wait([job.done])
            raise

    def start(self, work: Callable[[], Any]) -> _Job:
        """Run `work` in a thread. Raises Busy."""
        job = _Job(work, asyncio.get_running_loop())
        with self._lock:
            if len(self._jobs) >= self._limit:
                stuck = sum(each.stopped for each in self._jobs)
                raise Busy(
                    f"all {self._limit} worker threads are busy, {stuck} of them with calls that "
                    "were cancelled and have not returned; raise the limit worker_threads, or "
                    "make the methods `async def`",
                    data={"limit": self._limit, "abandoned": stuck},
                )
            self._jobs.add(job)
            jobs = self._idle.pop() if self._idle else None
        if jobs is None:
            jobs = queue.SimpleQueue()
            threading.Thread(target=self._work, args=(jobs,), name="plexus", daemon=True).start()
        jobs.put(job)
        return job

    def _work(self, jobs: queue.SimpleQueue[_Job]) -> None:
        while True:
            try:
                job = jobs.get(timeout=IDLE_S)
            except queue.Empty:
                with self._lock:
                    if jobs in self._idle:
                        self._idle.remove(jobs)
                        return
                continue  # a job was assigned just now
            _worker.send, _worker.wait = job.send, job.wait
            value: Any = None
            error: BaseException | None = None
            try:
                value = job.context.run(job.work)
            except StopIteration as stopped:  # a future cannot hold it
                error = RuntimeError(f"the method raised {stopped!r}")
            except BaseException as raised:  # noqa: BLE001 - the caller gets it
                error = raised
            _worker.send = _worker.wait = None
            with self._lock:
                self._jobs.discard(job)
                self._idle.append(jobs)
            with contextlib.suppress(RuntimeError):  # the loop was closed: nothing waits
                job.loop.call_soon_threadsafe(_resolve, job.done, value, error)
            del job, value, error


def _resolve(done: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(value)
    else:
        done.set_exception(error)
        done.exception()  # retrieved: a caller that has gone away does not need a warning


class ThreadIterator:
    """The values of an iterable that a function returns, iterated in a worker thread."""

    def __init__(self, threads: WorkerThreads, make: Callable[[], Iterable[Any]]) -> None:
        self._threads = threads
        self._make = make
        self._values: deque[Any] = deque()
        self._job: _Job | None = None
        self._waiter: asyncio.Future[None] | None = None
        #: Set while the thread may produce values.
        self._room = threading.Event()
        self._closed = False

    def __aiter__(self) -> ThreadIterator:
        return self

    async def __anext__(self) -> Any:
        if self._closed:
            raise StopAsyncIteration
        if self._job is None:
            self._job = self._threads.start(self._produce)
            self._job.done.add_done_callback(self._wake)
        while True:
            while not self._values:
                if self._job.done.done():
                    self._closed = True
                    self._job.done.result()  # raises what the generator raised
                    raise StopAsyncIteration
                self._waiter = self._job.loop.create_future()
                # The thread may have added a value before it could see the waiter.
                if not self._values and not self._job.done.done():
                    await self._waiter
                self._waiter = None
            value = self._values.popleft()
            if len(self._values) < BUFFERED // 2:
                self._room.set()
            if value.__class__ is not _Pause:
                return value
            await value.perform()  # the reader has taken all values before it

    async def aclose(self) -> None:
        """Close the generator at its next `yield`, and wait for its cleanup."""
        self._closed = True
        self._room.set()
        if self._job is not None and not self._job.done.done():
            self._job.stopped = True
            for value in tuple(self._values):
                if value.__class__ is _Pause:
                    value.done.cancel()
            await self._threads.wait(self._job)

    def _produce(self) -> None:
        """Fill the buffer; runs in the thread."""
        _worker.send = lambda _, event: self._push(event)
        _worker.wait = self._pause
        values = iter(self._make())
        try:
            for value in values:
                if self._closed:
                    break
                self._push(value)
        finally:
            close = getattr(values, "close", None)
            if close is not None:
                close()

    def _push(self, value: Any) -> None:
        """Add a value, and wait while the reader is too far behind; runs in the thread."""
        self._values.append(value)
        if self._waiter is not None and self._job is not None:
            self._job.loop.call_soon_threadsafe(self._wake)
        if len(self._values) >= BUFFERED:
            self._room.clear()
            # The reader may have caught up before the event was cleared.
            if len(self._values) >= BUFFERED and not self._closed:
                self._room.wait()

    def _pause(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Wait until the loop has done some work in its turn; runs in the thread."""
        pause = _Pause(work)
        self._push(pause)
        if self._closed:
            pause.done.cancel()
        try:
            pause.done.result()
        except concurrent.futures.CancelledError:
            raise asyncio.CancelledError from None

    def _wake(self, _: object = None) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
