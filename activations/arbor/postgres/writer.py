"""The thread that writes: it takes all works that wait, and commits them as one transaction.

All writers of a database, in every process, take turns by one advisory lock. So a work sees
nothing change under its feet, and the numbers of changes rise in the order of commits. A turn
carries everything that waits, so taking turns costs little.

Whether a commit happened is never guessed. Each writer has a row with the number of its last
transaction, written in that transaction; after a connection was lost in mid-commit, the row says
whether the works are stored or are to be run again.
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

from activations.arbor.engine import Transaction, storage_failed
from activations.arbor.postgres.faults import Gone, unknown_outcome
from activations.arbor.postgres.session import PostgresTransaction, Session, undo
from plexus.errors import Busy, PlexusError

__all__ = ("CHANNEL", "LOCK", "WRITERS", "Work", "Writer", "pauses")

#: The lock by which writers take turns: a number of our own, the same in every version.
LOCK = 0x6172626F72
BEGIN = f"BEGIN; SELECT pg_advisory_xact_lock({LOCK})"
#: Where the bell is rung.
CHANNEL = "arbor_changes"
WRITERS = (
    "CREATE TABLE writers (name text PRIMARY KEY, last bigint NOT NULL, at_ms bigint NOT NULL)"
)
#: Works that one transaction takes together, and works that may wait.
GROUP = 256
WAITING = 4_096
#: Other processes are rung at most this often.
RING_S = 0.02
#: Rows of writers that are long gone are removed by the next one that begins.
FORGOTTEN_MS = 7 * 24 * 3600 * 1000


def pauses() -> Iterator[float]:
    """How long to wait before each further try to reach a server, without end."""
    yield from (0.05, 0.1, 0.2, 0.5)
    yield from itertools.repeat(1.0)


class Work:
    """Something to be written, and who waits for it."""

    __slots__ = ("deadline", "error", "future", "result", "run")

    def __init__(
        self, run: Callable[[Transaction], Any], future: asyncio.Future[Any], deadline: float
    ) -> None:
        self.run = run
        self.future = future
        #: On the monotonic clock: until then a server that is away is waited for.
        self.deadline = deadline
        self.result: Any = None
        self.error: Exception | None = None


class Writer:
    """Owns the thread; works are handed over, and handed back when they are done."""

    def __init__(self, url: str, settle: Callable[[Sequence[Work], bool], None]) -> None:
        self.session = Session(url)
        #: Who we are in the table of writers, and in the rings we send.
        self.name = os.urandom(8).hex()
        #: Called on the writer's thread with works that are done, and whether rows changed.
        self._settle = settle
        self._waiting: deque[Work] = deque()
        self._wake = threading.Condition()
        self._closing = threading.Event()
        self._number = 0
        #: When a ring that is owed is due, and when the last one was.
        self._ring_at: float | None = None
        self._rung_at = 0.0
        self._thread = threading.Thread(target=self._main, name="arbor writer", daemon=True)
        self._thread.start()

    def submit(self, work: Work) -> None:
        """Hand over a work; raises Busy where too many wait."""
        with self._wake:
            if len(self._waiting) >= WAITING:
                raise Busy(f"{WAITING} operations wait for the store", data={"limit": WAITING})
            self._waiting.append(work)
            self._wake.notify()

    def close(self) -> None:
        """Finish what waits, if the server answers; blocks until the thread has ended."""
        with self._wake:
            self._closing.set()
            self._wake.notify()
        self._thread.join()

    def _main(self) -> None:
        while (group := self._take()) is not None:
            if group:
                self._write(group)
            if self._ring_at is not None and time.monotonic() >= self._ring_at:
                self._ring()
        if self._ring_at is not None:
            self._ring()
        self.session.drop()

    def _take(self) -> list[Work] | None:
        """What waits; nothing when a ring is due before that, and None when it is over."""
        with self._wake:
            if not self._waiting and not self._closing.is_set():
                due = self._ring_at
                self._wake.wait(None if due is None else max(0.0, due - time.monotonic()))
            if not self._waiting and self._closing.is_set():
                return None
            return [self._waiting.popleft() for _ in range(min(GROUP, len(self._waiting)))]

    def _write(self, group: list[Work]) -> None:
        """Until every work of the group is done, or has waited long enough for the server."""
        for pause in pauses():
            # Whoever is not waiting any more does not want it.
            group = [work for work in group if not work.future.cancelled()]
            if not group:
                return
            try:
                together = self._commit(group)
            except Gone as gone:
                self.session.drop()
                group = self._in_time(group, gone.failure)
            except PlexusError as error:
                self._fail(group, error)
                return
            else:
                # Queries refuse before they write, so this is rare: a full disk, or a defect.
                for work in () if together else group:
                    self._write([work])
                return
            self._closing.wait(pause)

    def _commit(self, group: Sequence[Work]) -> bool:
        """Run these in one transaction and settle them; False if one of several spoilt it for the
        others. Raises Gone if nothing is stored because the server went away."""
        self.session.connect()
        done = False
        try:
            self.session.say(BEGIN)
            transaction = PostgresTransaction(self.session)
            for work in group:
                transaction.wrote, wrote = False, transaction.wrote
                if not self._run(work, transaction) and (transaction.wrote or transaction.failed):
                    if len(group) > 1:
                        return False
                    transaction.wrote = False  # for it is undone
                transaction.wrote |= wrote
            if transaction.wrote:
                self._finish(max(work.deadline for work in group))
                done = True
        finally:
            if not done:
                undo(self.session)
        self._settle(group, transaction.wrote)
        if transaction.wrote and self._ring_at is None:
            self._ring_at = max(time.monotonic(), self._rung_at + RING_S)
        return True

    @staticmethod
    def _run(work: Work, transaction: PostgresTransaction) -> bool:
        """Run a work; whether that went well."""
        work.error = None
        try:
            work.result = work.run(transaction)
        except Gone:
            raise
        except Exception as error:  # noqa: BLE001 - a defect, too, is told to him who sent it
            work.error = error
        return work.error is None

    def _finish(self, until: float) -> None:
        """Commit, and know that it happened."""
        self._number += 1
        now = time.time_ns() // 1_000_000
        forget = f"DELETE FROM writers WHERE at_ms < {now - FORGOTTEN_MS};"
        mark = (
            f"INSERT INTO writers (name, last, at_ms) VALUES ('{self.name}', {self._number}, {now})"
            " ON CONFLICT (name) DO UPDATE SET last = EXCLUDED.last, at_ms = EXCLUDED.at_ms;"
        )
        try:
            ended = self.session.say((forget if self._number == 1 else "") + mark + "COMMIT")
        except Gone:
            if not self._was_stored(until):
                raise
        else:
            if ended.statusmessage != "COMMIT":
                raise storage_failed("the transaction was undone")

    def _was_stored(self, until: float) -> bool:
        """Ask on a new connection whether the last transaction is there."""
        for pause in pauses():
            self.session.drop()
            try:
                self.session.connect()
                self.session.say(BEGIN)  # which waits for the lost transaction, if it still runs
                last = self.session.say(f"SELECT last FROM writers WHERE name = '{self.name}'")
                row = last.fetchone()
                self.session.say("COMMIT")
            except Gone as gone:
                if self._closing.is_set() or time.monotonic() + pause > until:
                    raise unknown_outcome(gone.failure) from gone
            except PlexusError as error:
                undo(self.session)
                raise unknown_outcome(error) from error
            else:
                return row is not None and row[0] == self._number
            self._closing.wait(pause)
        raise AssertionError  # pauses have no end

    def _in_time(self, group: Sequence[Work], failure: PlexusError) -> list[Work]:
        """Those that may wait longer; the others fail."""
        now = time.monotonic()
        late = [work for work in group if self._closing.is_set() or work.deadline <= now]
        self._fail(late, failure)
        return [work for work in group if work not in late]

    def _fail(self, group: Sequence[Work], error: PlexusError) -> None:
        for work in group:
            # One each: an exception that several tasks raise would gather the traces of all.
            work.error = type(error)(error.message, code=error.code, data=error.data)
        if group:
            self._settle(group, False)

    def _ring(self) -> None:
        """Tell other processes, outside of any transaction that inserts."""
        self._ring_at, self._rung_at = None, time.monotonic()
        try:
            self.session.connect()
            self.session.say(f"NOTIFY {CHANNEL}, '{self.name}'")
        except (Gone, PlexusError):
            self.session.drop()  # a lost ring is made good by those who listen
