"""The background work of a run store: filling the search index, and deleting what has expired.

Rules:
- Of all processes that share a store, one at a time does this work, for a limited time per claim.
  It does a little at a time and pauses in between, so that recording is never delayed.
- It starts some time after the store was opened, and after runs have ended. Without runs there is
  only a rare check for expired ones. Closing the store ends it: everything can be repeated.
- A deleted run is listed in `run_deletions` until it is deleted from the search index and its bytes
  are erased from the files. What was interrupted is repeated by the next process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from plexus.errors import Busy, PlexusError
from plexus.storage.engine import Engine, Transaction, is_postgres, sqlite_path
from substrate.run_store.leases import database_ms
from substrate.run_store.policy import RetentionPolicy
from substrate.run_store.queries import find_records
from substrate.run_store.retention import expired_runs, prune_runs, stored_bytes
from substrate.run_store.run_texts import run_texts
from substrate.run_store.schema import ENDED
from substrate.run_store.search_index import Entry, SearchIndex

__all__ = ("Maintenance", "search_database")

logger = logging.getLogger("substrate.run_store")

#: Seconds until a check after runs have ended, and otherwise.
ENDED_S: Final = 5.0
IDLE_S: Final = 1800.0
#: Seconds between two searches for expired runs by one process.
PRUNE_S: Final = 300.0
#: How long another process leaves the work to the one that has claimed it.
CLAIM_MS: Final = 60_000
#: Maximum seconds to end the claim when the store is closed.
RELEASE_S: Final = 0.2
#: Runs and characters that are indexed at a time, and characters of one run. The index has a
#: maximum of words for each run. With a tenth as many runs, the event loop spent 5 % of the time of
#: short calls on waiting for the thread that indexes them.
INDEX_RUNS: Final = 500
INDEX_CHARACTERS: Final = 256 * 1024
RUN_CHARACTERS: Final = 64 * 1024 * 1024
#: A pause is this many times as long as the work before it.
PAUSE: Final = 4.0
#: Deleted runs that are removed from the search index at a time.
DELETIONS: Final = 500
#: Pages that one transaction returns to the file system.
VACUUM_PAGES: Final = 500
#: The file of the search index, next to the file of the runs.
SEARCH_FILE: Final = "search.db"


class _Cursor(NamedTuple):
    """How far the runs are indexed, in the order of their numbers."""

    run: int = 0
    seq: int = -1
    #: Characters of this run that are indexed.
    characters: int = 0


class _Batch(NamedTuple):
    """Texts to index, and the runs that are complete with them."""

    entries: list[Entry]
    done: list[int]
    cursor: _Cursor


def search_database(database: str) -> str:
    """Return the database of the search index, for the database of the runs."""
    if is_postgres(database):
        return database
    return str(sqlite_path(database).with_name(SEARCH_FILE))


class Maintenance:
    """The background work of an open store."""

    def __init__(
        self,
        engine: Callable[[], Engine],
        database: str,
        retention: RetentionPolicy,
        process: int,
        on_deleted: Callable[[Sequence[int]], None],
    ) -> None:
        #: Returns the open database, which may be replaced if it is damaged.
        self._find_engine = engine
        self._database = search_database(database)
        self._retention = retention
        self._process = str(process)
        self._on_deleted = on_deleted
        self._loop = asyncio.get_running_loop()
        self._index: SearchIndex | None = None
        self._opening = asyncio.Lock()
        self._deleting = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._pruned_at = -PRUNE_S
        self._has_claim = False
        self._closed = False

    @property
    def _engine(self) -> Engine:
        return self._find_engine()

    def start(self) -> None:
        """Begin the background work."""
        self._schedule(0.0)

    @property
    def is_busy(self) -> bool:
        """Whether the background work is in progress."""
        return self._task is not None

    def on_runs_ended(self) -> None:
        """Index runs that have ended, after a while."""
        if self._task is None and (
            self._timer is None or self._timer.when() > self._loop.time() + ENDED_S
        ):
            self._schedule(ENDED_S)

    async def close(self) -> None:
        """End the background work."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        with contextlib.suppress(PlexusError, TimeoutError):
            async with asyncio.timeout(RELEASE_S):
                await self._release()
        if self._index is not None:
            await self._index.close()

    async def search_index(self) -> SearchIndex:
        """Return the search index, which is opened when it is first needed. Raises PlexusError."""
        async with self._opening:
            if self._index is None:
                self._index = await SearchIndex.open(self._database)
            return self._index

    # --- the clock ----------------------------------------------------------------------------

    def _schedule(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._closed:
            self._timer = self._loop.call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._task = self._loop.create_task(self._work())
        self._task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("the run store could not be maintained: %s", error)
        if not self._closed and self._timer is None:
            self._schedule(IDLE_S)

    async def _work(self) -> None:
        # Prune first: what is deleted needs no index.
        is_due = time.monotonic() - self._pruned_at >= PRUNE_S
        if not is_due and not await self._engine.read(_has_work):
            return
        if not await self.claim():
            self._schedule(CLAIM_MS / 1000)
            return
        if is_due:
            await self.prune(partial(self._pause, 0.0))
        if await self._engine.read(_deletions):
            await self.finish_deletions()
        await self.index_runs()
        await self._release()

    async def claim(self) -> bool:
        """Claim the work for this process; False if another one does it. Raises PlexusError."""
        self._has_claim = await self._engine.write(lambda tx: _claim(tx, self._process))
        return self._has_claim

    async def _release(self) -> None:
        """Leave the work to other processes. Without this, they wait until the claim ends."""
        if self._has_claim:
            self._has_claim = False
            await self._engine.write(lambda tx: _release(tx, self._process))

    async def _pause(self, worked_s: float) -> None:
        await asyncio.sleep(max(worked_s * PAUSE, 0.01))

    # --- deleting -----------------------------------------------------------------------------

    async def prune(
        self, pause: Callable[[], Coroutine[Any, Any, None]] | None = None
    ) -> list[int]:
        """Delete expired runs, and the oldest beyond the maximum size. Returns those deleted."""
        self._pruned_at = time.monotonic()
        limit = self._retention.max_bytes
        pruned: list[int] = []
        while await self._engine.read(lambda tx: _is_prunable(tx, limit)):
            deleted = await self._engine.write(lambda tx: prune_runs(tx, database_ms(tx), limit))
            if not deleted:
                break  # the rest is pinned or in progress
            pruned += deleted
            if pause is not None:
                await pause()
        if pruned:
            await self.finish_deletions()
        return pruned

    async def finish_deletions(self) -> None:
        """Remove deleted runs from the search index, and their bytes from the files.

        If readers prevent that now, it is repeated later.
        """
        async with self._deleting:
            try:
                while runs := await self._engine.read(_deletions):
                    self._on_deleted(runs)
                    index = await self.search_index()
                    await index.delete(runs)
                    while await self._engine.vacuum(VACUUM_PAGES):
                        pass
                    await self._engine.erase()
                    await self._engine.write(partial(_finish_deletions, runs))
            except Busy as error:
                logger.info("deleted runs are erased later: %s", error.message)
                self.on_runs_ended()

    # --- indexing -----------------------------------------------------------------------------

    async def index_runs(self) -> None:
        """Add the words of ended runs to the search index, with pauses. Raises PlexusError."""
        if not await self._engine.read(_has_unindexed):
            return
        index = await self.search_index()
        await self._check_identity(index)
        cursor = _Cursor()
        while True:
            started_at = time.monotonic()
            batch = await self._engine.read(partial(_next_batch, cursor))
            if not batch.entries and not batch.done:
                return
            await index.add(batch.entries)
            deleted = await self._engine.write(partial(_mark_indexed, batch.done))
            if deleted:
                await index.delete(deleted)
            cursor = batch.cursor
            await self._pause(time.monotonic() - started_at)
            if not await self.claim():
                return

    async def _check_identity(self, index: SearchIndex) -> None:
        """Index all runs again if the index is a new one, because the last was damaged or lost."""
        if await self._engine.read(lambda tx: _filled_index(tx)) == index.identity:
            return
        after = 0
        while True:
            last = await self._engine.write(partial(_unmark_indexed, after))
            if last is None:
                break
            after = last
        await self._engine.write(partial(_store_identity, index.identity))


# --- units of work --------------------------------------------------------------------------------


def _claim(tx: Transaction, process: str) -> bool:
    """Claim the maintenance for a process, unless another has it."""
    now = database_ms(tx)
    row = tx.one("SELECT value, until_ms FROM run_maintenance WHERE name = 'process'")
    if row is not None and row[0] != process and now < row[1] <= now + CLAIM_MS:
        return False
    _store_value(tx, "process", process, now + CLAIM_MS)
    return True


def _release(tx: Transaction, process: str) -> None:
    sql = "UPDATE run_maintenance SET until_ms = 0 WHERE name = 'process' AND value = ?"
    tx.run(sql, (process,))


def _store_value(tx: Transaction, name: str, value: str, until_ms: int) -> None:
    tx.run(
        "INSERT INTO run_maintenance (name, value, until_ms) VALUES (?, ?, ?)"
        " ON CONFLICT (name) DO UPDATE SET value = excluded.value, until_ms = excluded.until_ms",
        (name, value, until_ms),
    )


def _filled_index(tx: Transaction) -> str | None:
    row = tx.one("SELECT value FROM run_maintenance WHERE name = 'index'")
    return None if row is None else row[0]


def _store_identity(identity: str, tx: Transaction) -> None:
    _store_value(tx, "index", identity, 0)


def _has_work(tx: Transaction) -> bool:
    return _has_unindexed(tx) or bool(_deletions(tx))


def _has_unindexed(tx: Transaction) -> bool:
    row = tx.one(f"SELECT 1 FROM runs WHERE indexed = 0 AND state >= {ENDED} LIMIT 1")
    return row is not None


def _is_prunable(tx: Transaction, max_bytes: int) -> bool:
    return bool(expired_runs(tx, database_ms(tx), 1)) or stored_bytes(tx) > max_bytes


def _deletions(tx: Transaction) -> list[int]:
    return [run for (run,) in tx.all("SELECT run FROM run_deletions LIMIT ?", (DELETIONS,))]


def _finish_deletions(runs: Sequence[int], tx: Transaction) -> None:
    tx.many("DELETE FROM run_deletions WHERE run = ?", [(run,) for run in runs])


def _next_batch(cursor: _Cursor, tx: Transaction) -> _Batch:
    """Return the next texts to index."""
    rows = tx.all(
        f"SELECT id FROM runs WHERE indexed = 0 AND state >= {ENDED} AND id >= ?"
        " ORDER BY id LIMIT ?",
        (cursor.run, INDEX_RUNS),
    )
    records = find_records(tx, [run for (run,) in rows])
    entries: list[Entry] = []
    done: list[int] = []
    size = 0
    for run, record in sorted(records.items()):
        after, characters = cursor.seq, cursor.characters
        if run != cursor.run:
            after, characters = -1, 0
        for first, text in run_texts(tx, record, after):
            entries.append(
                Entry(run, first, record.started_ms, record.principal, record.project, text)
            )
            size += len(text)
            characters += len(text)
            if characters >= RUN_CHARACTERS:
                break
            if size >= INDEX_CHARACTERS:
                return _Batch(entries, done, _Cursor(run, first, characters))
        done.append(run)
        cursor = _Cursor(run, 2**62, characters)
    return _Batch(entries, done, cursor)


def _mark_indexed(runs: Sequence[int], tx: Transaction) -> list[int]:
    """Mark runs as indexed. Returns those that were deleted in the meantime."""
    tx.many("UPDATE runs SET indexed = 1 WHERE id = ?", [(run,) for run in runs])
    return [run for run in runs if run not in find_records(tx, runs)]


def _unmark_indexed(after: int, tx: Transaction) -> int | None:
    """Mark some runs after this one as not indexed. Returns the last of them."""
    rows = tx.all("SELECT id FROM runs WHERE id > ? ORDER BY id LIMIT ?", (after, DELETIONS))
    if not rows:
        return None
    tx.run(
        "UPDATE runs SET indexed = 0 WHERE id > ? AND id <= ? AND indexed <> 0",
        (after, rows[-1][0]),
    )
    return int(rows[-1][0])
