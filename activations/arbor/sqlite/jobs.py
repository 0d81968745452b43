"""Works on their way through threads: a queue, the threads that take from it, and the outcomes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

import apsw

from activations.arbor.engine import SQLITE, Dialect, Row, Transaction
from activations.arbor.sqlite.file import fault_of
from plexus.errors import Busy

__all__ = ("Job", "ReadTransaction", "SqliteTransaction", "Threads")

T = TypeVar("T")

#: Works that may wait.
WAITING: Final = 4_096
#: Rows after which a reader looks whether somebody writes.
ROWS: Final = 16


class SqliteTransaction:
    """What the queries see of a connection."""

    __slots__ = ("_connection", "_execute")

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._execute = connection.execute

    @property
    def dialect(self) -> Dialect:
        return SQLITE

    def all(self, sql: str, params: Sequence[Any] = ()) -> list[Row]:
        return self._execute(sql, params).fetchall()

    def each(self, sql: str, params: Sequence[Any] = ()) -> Iterator[Row]:
        cursor = self._execute(sql, params)
        try:
            yield from cursor
        finally:
            cursor.close()

    def one(self, sql: str, params: Sequence[Any] = ()) -> Row | None:
        rows = self._execute(sql, params).fetchall()
        return rows[0] if rows else None

    def run(self, sql: str, params: Sequence[Any] = ()) -> int:
        self._execute(sql, params)
        return self._connection.changes()

    def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        self._connection.executemany(sql, rows)


class ReadTransaction(SqliteTransaction):
    """A transaction that reads, and gives way to writers of the same process.

    Every row takes the interpreter's lock anew, and a writer that wants it for each of its few
    statements would come last each time. So who reads pauses now and then while somebody writes.
    """

    __slots__ = ("_pause_s",)

    def __init__(self, connection: apsw.Connection, pause_s: Callable[[], float]) -> None:
        super().__init__(connection)
        #: How long to pause now.
        self._pause_s = pause_s

    def all(self, sql: str, params: Sequence[Any] = ()) -> list[Row]:
        return list(self.each(sql, params))

    def each(self, sql: str, params: Sequence[Any] = ()) -> Iterator[Row]:
        cursor = self._execute(sql, params)
        try:
            while rows := list(itertools.islice(cursor, ROWS)):
                yield from rows
                if len(rows) == ROWS and (pause_s := self._pause_s()):
                    time.sleep(pause_s)
        finally:
            cursor.close()


class Job:
    """A work, who waits for it, and what came of it."""

    __slots__ = ("error", "future", "value", "work")

    def __init__(self, work: Callable[[Transaction], Any], future: asyncio.Future[Any]) -> None:
        self.work = work
        self.future = future
        self.value: Any = None
        self.error: BaseException | None = None

    def run(self, transaction: SqliteTransaction) -> bool:
        """Run it; whether that went well."""
        try:
            self.value = self.work(transaction)
        except apsw.Error as error:
            self.error = fault_of(error)
            self.error.__cause__ = error
        except Exception as error:  # noqa: BLE001 - it is the caller's, who gets it
            self.error = error
        else:
            self.error = None
        return self.error is None

    def settle(self) -> None:
        """Tell whoever waits, on the loop."""
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.value)
        else:
            self.future.set_exception(self.error)


class Threads:
    """Threads that take jobs from one queue, and the loop that their outcomes go to."""

    def __init__(self, loop: asyncio.AbstractEventLoop, run: Callable[[], None], most: int) -> None:
        self.jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._loop = loop
        self._run = run
        self._most = most
        self._threads: list[threading.Thread] = []
        #: Jobs that were given and not settled yet; seen from the loop only.
        self._open = 0

    @property
    def busy(self) -> int:
        """How many threads have something to do."""
        return min(self._open, self._most)

    def submit(self, work: Callable[[Transaction], T]) -> asyncio.Future[T]:
        """Have a work done by a thread that is free, or by a new one while there may be more."""
        if self._open >= WAITING:
            raise Busy(f"{WAITING} operations wait for the store", data={"limit": WAITING})
        future: asyncio.Future[T] = self._loop.create_future()
        if self._open >= len(self._threads) and len(self._threads) < self._most:
            thread = threading.Thread(target=self._run, name="arbor", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._open += 1
        self.jobs.put(Job(work, future))
        return future

    def settle(self, jobs: Sequence[Job], then: Callable[[], None] | None = None) -> None:
        """From a thread: tell the callers of these jobs, and do something more on the loop."""

        def settle() -> None:
            self._open -= len(jobs)
            for job in jobs:
                job.settle()
            if then is not None:
                then()

        with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits any more
            self._loop.call_soon_threadsafe(settle)

    def finish(self) -> None:
        """Wait until everything that was submitted is done, and the threads have ended."""
        for _ in self._threads:
            self.jobs.put(None)
        for thread in self._threads:
            thread.join()
