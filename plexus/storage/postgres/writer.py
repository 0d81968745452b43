"""The thread that writes: it commits all works that wait as one transaction.

All writers of a component, in every process, take turns by one advisory lock. So nothing that a
work has read changes before its commit, and numbers rise in the order of commits. A turn carries
everything that waits, so taking turns costs little.

Whether a commit happened is never guessed. Each writer has a row with the number of its last
transaction, written in that transaction; after a connection was lost in mid-commit, the row tells
whether the works are stored or have to be run again.
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
#: Works that one transaction commits together, and works that may wait.
MAX_GROUP = 256
MAX_QUEUED = 4_096
#: The shortest time between two notifications of other processes.
NOTIFY_S = 0.02
#: Rows of writers that ended this long ago are removed by the next one that starts.
EXPIRED_MS = 7 * 24 * 3600 * 1000


def lock_key(component: Component) -> int:
    """Return the number of the lock by which a component's writers take turns. It is the same in
    every version; two components that share it would only wait for each other."""
    return int.from_bytes(component.name.encode()[:7])


def channel_name(component: Component) -> str:
    """Return the channel that other processes are notified on."""
    return f"{component.name}_changes"


def retry_delays() -> Iterator[float]:
    """Yield how long to wait before each retry, without end."""
    yield from (0.05, 0.1, 0.2, 0.5)
    yield from itertools.repeat(1.0)


class QueuedWork:
    """A work that waits to be committed, and the future that waits for it."""

    __slots__ = ("deadline", "error", "future", "result", "run")

    def __init__(
        self, run: Callable[[Transaction], Any], future: asyncio.Future[Any], deadline: float
    ) -> None:
        self.run = run
        self.future = future
        #: On the monotonic clock: until then an unavailable server is waited for.
        self.deadline = deadline
        self.result: Any = None
        self.error: Exception | None = None


class PostgresWriter:
    """The thread that commits works, and the queue in front of it."""

    def __init__(
        self,
        url: str,
        component: Component,
        settle: Callable[[Sequence[QueuedWork], bool], None],
    ) -> None:
        self.session = PostgresSession(url)
        #: Identifies this writer in the table of writers and in its notifications.
        self.name = os.urandom(8).hex()
        self._channel = channel_name(component)
        self._begin = f"BEGIN; SELECT pg_advisory_xact_lock({lock_key(component)})"
        #: Called on the writer's thread with works that are done, and whether rows changed.
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
        """Queue a work. Raises Busy if too many wait."""
        with self._wake:
            if len(self._waiting) >= MAX_QUEUED:
                raise queue_full(MAX_QUEUED)
            self._waiting.append(work)
            self._wake.notify()

    def close(self) -> None:
        """Finish what waits, if the server answers; blocks until the thread has ended."""
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
        """Return the works that wait: none when a notification is due first, None at the end."""
        with self._wake:
            if not self._waiting and not self._closing.is_set():
                due = self._notify_at
                self._wake.wait(None if due is None else max(0.0, due - time.monotonic()))
            if not self._waiting and self._closing.is_set():
                return None
            return [self._waiting.popleft() for _ in range(min(MAX_GROUP, len(self._waiting)))]

    def _write(self, group: list[QueuedWork]) -> None:
        """Retry until every work of the group is done, or its deadline has passed."""
        for pause in retry_delays():
            # A work whose caller was cancelled is dropped.
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
                # Queries refuse before they write, so this is rare: a full disk, or a defect.
                for work in () if together else group:
                    self._write([work])
                return
            self._closing.wait(pause)

    def _commit(self, group: Sequence[QueuedWork]) -> bool:
        """Commit the group as one transaction and settle it; False if one of several works made it
        fail for all. Raises ConnectionLost if nothing is stored because the server went away."""
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
                    transaction.wrote = False  # it is rolled back
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
        """Run a work. Returns whether it succeeded."""
        work.error = None
        try:
            work.result = work.run(transaction)
        except ConnectionLost:
            raise
        except Exception as error:  # noqa: BLE001 - it is raised to the caller
            work.error = error
        return work.error is None

    def _commit_and_verify(self, deadline: float) -> None:
        """Commit, and make sure that it happened."""
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
                raise storage_failed("the transaction was undone")

    def _is_committed(self, deadline: float) -> bool:
        """Ask on a new connection whether the last transaction is there."""
        for pause in retry_delays():
            self.session.drop()
            try:
                self.session.connect()
                self.session.execute(
                    self._begin
                )  # which waits for the lost transaction, if it still runs
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
        raise AssertionError  # the delays have no end

    def _fail_expired(self, group: Sequence[QueuedWork], failure: PlexusError) -> list[QueuedWork]:
        """Return the works whose deadline has not passed; the others fail."""
        now = time.monotonic()
        late = [work for work in group if self._closing.is_set() or work.deadline <= now]
        self._fail(late, failure)
        return [work for work in group if work not in late]

    def _fail(self, group: Sequence[QueuedWork], error: PlexusError) -> None:
        for work in group:
            # One each: an exception that several tasks raise would gather the traces of all.
            work.error = type(error)(error.message, code=error.code, data=error.data)
        if group:
            self._settle(group, False)

    def _notify(self) -> None:
        """Notify other processes, outside of any transaction that writes."""
        self._notify_at, self._notified_at = None, time.monotonic()
        try:
            self.session.connect()
            self.session.execute(f"NOTIFY {self._channel}, '{self.name}'")
        except (ConnectionLost, PlexusError):
            self.session.drop()  # listeners poll, so a lost notification is only late
