"""Worker threads: a bounded queue of jobs, the threads that run them, and their results."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import apsw

from plexus.storage.engine import Transaction
from plexus.storage.errors import queue_full
from plexus.storage.sqlite.file import SqliteTransaction, translate_error

__all__ = ("Job", "WorkerPool")

T = TypeVar("T")

#: Maximum number of unfinished jobs per pool.
MAX_QUEUED: Final = 4_096


class Job:
    """A unit of work, its result, and the future that receives it."""

    __slots__ = ("error", "future", "value", "work")

    def __init__(self, work: Callable[[Transaction], Any], future: asyncio.Future[Any]) -> None:
        self.work = work
        self.future = future
        self.value: Any = None
        self.error: BaseException | None = None

    def run(self, transaction: SqliteTransaction) -> bool:
        """Run the unit of work. Returns whether it succeeded."""
        try:
            self.value = self.work(transaction)
        except apsw.Error as error:
            self.error = translate_error(error)
            self.error.__cause__ = error
        except Exception as error:  # noqa: BLE001 - it is raised to the caller
            self.error = error
        else:
            self.error = None
        return self.error is None

    def settle(self) -> None:
        """Resolve the future. Called on the event loop."""
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.value)
        else:
            self.future.set_exception(self.error)


class WorkerPool:
    """Threads that run the jobs of one queue and return the results to an event loop."""

    def __init__(
        self, name: str, loop: asyncio.AbstractEventLoop, run: Callable[[], None], limit: int
    ) -> None:
        self.jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._name = name
        self._loop = loop
        self._run = run
        self._limit = limit
        self._threads: list[threading.Thread] = []
        #: Number of unfinished jobs. Accessed on the event loop only.
        self._open = 0

    @property
    def busy(self) -> int:
        """The number of threads that run a job."""
        return min(self._open, self._limit)

    def submit(self, work: Callable[[Transaction], T]) -> asyncio.Future[T]:
        """Queue a unit of work and start a thread if needed. Raises Busy if the queue is full."""
        if self._open >= MAX_QUEUED:
            raise queue_full(MAX_QUEUED)
        future: asyncio.Future[T] = self._loop.create_future()
        if self._open >= len(self._threads) and len(self._threads) < self._limit:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._threads.append(thread)
            thread.start()
        self._open += 1
        self.jobs.put(Job(work, future))
        return future

    def settle(self, jobs: Sequence[Job], then: Callable[[], None] | None = None) -> None:
        """Resolve jobs on the event loop, then call `then` there. Called on a worker thread."""

        def settle() -> None:
            self._open -= len(jobs)
            for job in jobs:
                job.settle()
            if then is not None:
                then()

        with contextlib.suppress(RuntimeError):  # the event loop is closed, and no task waits
            self._loop.call_soon_threadsafe(settle)

    def stop(self) -> None:
        """Finish all submitted jobs and join the threads."""
        for _ in self._threads:
            self.jobs.put(None)
        for thread in self._threads:
            thread.join()
