"""The writer thread: commits all queued units of work as one transaction.

All writers of a component, in every process, are serialized by one advisory lock. What a unit of
work has read therefore does not change before its commit, and numbers increase in commit order.
Each transaction contains all queued work, so the serialization costs little.

The outcome of a commit is never guessed. Each writer has a row with the number of its last
transaction, written in that transaction. After the connection was lost during a commit, the row
shows whether the work is stored or must be run again.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from plexus.errors import PlexusError
from plexus.storage.engine import Component, Transaction
from plexus.storage.errors import queue_full, storage_failed
from plexus.storage.postgres.session import (
    ConnectionLost,
    PostgresSession,
    PostgresTransaction,
    rollback,
    unknown_outcome,
)

__all__ = (
    "CREATE_WRITERS",
    "PostgresWriter",
    "QueuedWork",
    "channel_name",
    "lock_key",
    "retry_delays",
)

CREATE_WRITERS = (
    "CREATE TABLE writers (name text PRIMARY KEY, last bigint NOT NULL, at_ms bigint NOT NULL)"
)
#: Maximum number of units of work that one transaction commits, and of queued ones.
MAX_GROUP = 256
MAX_QUEUED = 4_096
#: Minimum interval between two notifications of other processes.
NOTIFY_S = 0.01
#: Rows of writers that last wrote this long ago are removed by the next writer that starts.
EXPIRED_MS = 7 * 24 * 3600 * 1000


def lock_key(component: Component) -> int:
    """Return the key of the advisory lock of a component's writers.

    The key must be the same in every version. Two components with the same key would only wait for
    each other.
    """
    return int.from_bytes(component.name.encode()[:7])


def channel_name(component: Component) -> str:
    """Return the name of the channel for notifications of other processes."""
    return f"{component.name}_changes"


def retry_delays() -> Iterator[float]:
    """Yield the delay before each retry, indefinitely."""
    yield from (0.05, 0.1, 0.2, 0.5)
    yield from itertools.repeat(1.0)


class QueuedWork:
    """A queued unit of work, and the future that receives its result."""

    __slots__ = ("deadline", "error", "future", "result", "run")

    def __init__(
        self, run: Callable[[Transaction], Any], future: asyncio.Future[Any], deadline: float
    ) -> None:
        self.run = run
        self.future = future
        #: How long to retry if the server is unavailable, on the monotonic clock.
        self.deadline = deadline
        self.result: Any = None
        self.error: Exception | None = None


class PostgresWriter:
    """The thread that commits units of work, and its queue."""

    def __init__(
        self,
        url: str,
        component: Component,
        settle: Callable[[Sequence[QueuedWork], bool], None],
    ) -> None:
        self.session = PostgresSession(url)
        #: The id of this writer in the table of writers and in its notifications.
        self.name = os.urandom(8).hex()
        self._channel = channel_name(component)
        self._begin = f"BEGIN; SELECT pg_advisory_xact_lock({lock_key(component)})"
        #: Called on the writer thread with finished units of work, and whether rows changed.
        self._settle = settle
        self._waiting: deque[QueuedWork] = deque()
        self._wake = threading.Condition()
        self._closing = threading.Event()
        self._number = 0
        #: When the next notification is due, and when the last one was sent.
        self._notify_at: float | None = None
        self._notified_at = 0.0
        self._thread = threading.Thread(
            target=self._main, name=f"{component.name} writer", daemon=True
        )
        self._thread.start()

    def submit(self, work: QueuedWork) -> None:
        """Queue a unit of work. Raises Busy if the queue is full."""
        with self._wake:
            if len(self._waiting) >= MAX_QUEUED:
                raise queue_full(MAX_QUEUED)
            self._waiting.append(work)
            self._wake.notify()

    def close(self) -> None:
        """Finish queued work if the server responds. Blocks until the thread has ended."""
        with self._wake:
            self._closing.set()
            self._wake.notify()
        self._thread.join()

    def _main(self) -> None:
        while (group := self._next_group()) is not None:
            if group:
                self._write(group)
            if self._notify_at is not None and time.monotonic() >= self._notify_at:
                self._notify()
        if self._notify_at is not None:
            self._notify()
        self.session.drop()

    def _next_group(self) -> list[QueuedWork] | None:
        """Return the queued work: an empty list if a notification is due first, None to stop."""
        with self._wake:
            if not self._waiting and not self._closing.is_set():
                due = self._notify_at
                self._wake.wait(None if due is None else max(0.0, due - time.monotonic()))
            if not self._waiting and self._closing.is_set():
                return None
            return [self._waiting.popleft() for _ in range(min(MAX_GROUP, len(self._waiting)))]

    def _write(self, group: list[QueuedWork]) -> None:
        """Retry until every unit of work is done or its deadline has passed."""
        for pause in retry_delays():
            # Drop units of work whose caller was cancelled.
            group = [work for work in group if not work.future.cancelled()]
            if not group:
                return
            try:
                together = self._commit(group)
            except ConnectionLost as lost:
                self.session.drop()
                group = self._fail_expired(group, lost.failure)
            except PlexusError as error:
                self._fail(group, error)
                return
            else:
                # Queries validate before they write, so this is rare: a full disk or a defect.
                for work in () if together else group:
                    self._write([work])
                return
            self._closing.wait(pause)

    def _commit(self, group: Sequence[QueuedWork]) -> bool:
        """Commit the group as one transaction and resolve its futures.

        Returns False if one unit of work made the transaction fail for all. Raises ConnectionLost
        if the server became unavailable; nothing is stored then.
        """
        self.session.connect()
        done = False
        try:
            self.session.execute(self._begin)
            transaction = PostgresTransaction(self.session)
            for work in group:
                transaction.wrote, wrote = False, transaction.wrote
                if not self._run(work, transaction) and (transaction.wrote or transaction.failed):
                    if len(group) > 1:
                        return False
                    transaction.wrote = False  # rolled back
                transaction.wrote |= wrote
            if transaction.wrote:
                self._commit_and_verify(max(work.deadline for work in group))
                done = True
        finally:
            if not done:
                rollback(self.session)
        self._settle(group, transaction.wrote)
        if transaction.wrote and self._notify_at is None:
            self._notify_at = max(time.monotonic(), self._notified_at + NOTIFY_S)
        return True

    @staticmethod
    def _run(work: QueuedWork, transaction: PostgresTransaction) -> bool:
        """Run a unit of work. Returns whether it succeeded."""
        work.error = None
        try:
            work.result = work.run(transaction)
        except ConnectionLost:
            raise
        except Exception as error:  # noqa: BLE001 - it is raised to the caller
            work.error = error
        return work.error is None

    def _commit_and_verify(self, deadline: float) -> None:
        """Commit, and determine the outcome if the connection is lost."""
        self._number += 1
        now = time.time_ns() // 1_000_000
        expire = f"DELETE FROM writers WHERE at_ms < {now - EXPIRED_MS};"
        mark = (
            f"INSERT INTO writers (name, last, at_ms) VALUES ('{self.name}', {self._number}, {now})"
            " ON CONFLICT (name) DO UPDATE SET last = EXCLUDED.last, at_ms = EXCLUDED.at_ms;"
        )
        try:
            ended = self.session.execute((expire if self._number == 1 else "") + mark + "COMMIT")
        except ConnectionLost:
            if not self._is_committed(deadline):
                raise
        else:
            if ended.statusmessage != "COMMIT":
                raise storage_failed("the server rolled the transaction back")

    def _is_committed(self, deadline: float) -> bool:
        """Query on a new connection whether the last transaction was committed."""
        for pause in retry_delays():
            self.session.drop()
            try:
                self.session.connect()
                # Waits for the lost transaction if it is still running.
                self.session.execute(self._begin)
                last = self.session.execute(f"SELECT last FROM writers WHERE name = '{self.name}'")
                row = last.fetchone()
                self.session.execute("COMMIT")
            except ConnectionLost as lost:
                if self._closing.is_set() or time.monotonic() + pause > deadline:
                    raise unknown_outcome(lost.failure) from lost
            except PlexusError as error:
                rollback(self.session)
                raise unknown_outcome(error) from error
            else:
                return row is not None and row[0] == self._number
            self._closing.wait(pause)
        raise AssertionError  # the delays never end

    def _fail_expired(self, group: Sequence[QueuedWork], failure: PlexusError) -> list[QueuedWork]:
        """Fail the units of work whose deadline has passed. Returns the others."""
        now = time.monotonic()
        late = [work for work in group if self._closing.is_set() or work.deadline <= now]
        self._fail(late, failure)
        return [work for work in group if work not in late]

    def _fail(self, group: Sequence[QueuedWork], error: PlexusError) -> None:
        for work in group:
            # A separate exception each: a shared one would collect the tracebacks of all tasks.
            work.error = type(error)(error.message, code=error.code, data=error.data)
        if group:
            self._settle(group, False)

    def _notify(self) -> None:
        """Notify other processes, outside of write transactions."""
        self._notify_at, self._notified_at = None, time.monotonic()
        try:
            self.session.connect()
            self.session.execute(f"NOTIFY {self._channel}, '{self.name}'")
        except (ConnectionLost, PlexusError):
            self.session.drop()  # listeners also poll, so a lost notification is only a delay
