"""The purge: archives and deletes expired data, in many small transactions.

Other writers never wait long for it. It can be interrupted at any point: the next purge, in any
process, continues. Each step processes a bounded number of rows and returns how many it processed.
Before each step, a read without a lock checks whether anything is due.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from activations.arbor.model import PurgeResult, Retention
from activations.arbor.queries.rows import record_changes, reserve_numbers
from plexus.errors import PlexusError
from plexus.storage import Engine, Transaction

__all__ = ("PurgeTask", "purge_all")

logger = logging.getLogger("arbor.purge")

#: Maximum number of rows that one step processes: a few milliseconds of the writer's time.
STEP: Final = 500

#: Conditions for expired trees, deleted nodes, and rows of trees that are gone.
_ARCHIVE = "state = 'scheduled_delete' AND scheduled_ms <= ?"
_DELETE = "state = 'archived' AND archived_ms <= ?"
_HIDDEN = "deleted_ms IS NOT NULL AND deleted_ms <= ?"
_OF_GONE = "tree IN (SELECT n FROM trees WHERE state = 'gone')"
_EMPTIED = "state = 'gone' AND NOT EXISTS (SELECT 1 FROM nodes WHERE nodes.tree = trees.n)"


class _Cutoffs(NamedTuple):
    """The times before which data is due, in milliseconds."""

    now: int
    scheduled: int
    archived: int
    changes: int


async def purge_all(engine: Engine, retention: Retention, now: int) -> PurgeResult:
    """Process everything that is due at this time."""

    def before(seconds: float) -> int:
        return now - round(seconds * 1000)

    at = _Cutoffs(
        now,
        before(retention.scheduled_s),
        before(retention.archived_s),
        before(retention.changes_s),
    )

    def due(table: str, condition: str, *params: int) -> Callable[[Transaction], bool]:
        sql = f"SELECT 1 FROM {table} WHERE {condition} LIMIT 1"
        return lambda tx: tx.one(sql, params) is not None

    async def repeat(
        is_due: Callable[[Transaction], bool], step: Callable[[Transaction, _Cutoffs], int]
    ) -> int:
        total = 0
        # A read first, so that a purge with nothing to do acquires no lock.
        while await engine.read(is_due):
            total += await engine.write(lambda tx: step(tx, at))
        return total

    archived = await repeat(due("trees", _ARCHIVE, at.scheduled), _archive_trees)
    removed = await repeat(due("trees", _DELETE, at.archived), _delete_trees)
    # Two queries, so that each uses an index.
    of_gone, hidden = due("nodes", _OF_GONE), due("nodes", _HIDDEN, at.scheduled)
    nodes = await repeat(lambda tx: of_gone(tx) or hidden(tx), _delete_nodes)
    await repeat(due("trees", _EMPTIED), _drop_rows)
    changes = await repeat(lambda tx: _changes_are_due(tx, at), _drop_changes)
    return PurgeResult(archived, removed, nodes, changes)


class PurgeTask:
    """The task that purges immediately, and then periodically until it is stopped."""

    def __init__(self, purge_now: Callable[[], Awaitable[PurgeResult]], every_s: float) -> None:
        self._purge_now = purge_now
        self._every_s = every_s
        self._task = asyncio.get_running_loop().create_task(self._run(), name="arbor purge")

    async def _run(self) -> None:
        while True:
            try:
                done = await self._purge_now()
            except PlexusError as error:
                # A full disk or a locked file is temporary; the next round retries.
                logger.warning("purge failed, will retry: %s", error.message)
            else:
                if any(done):
                    logger.info("purged: %s", done)
            await asyncio.sleep(self._every_s)

    async def stop(self) -> None:
        """Stop the task. The engine finishes a step in progress."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


# --- the steps ------------------------------------------------------------------------------------


def _archive_trees(tx: Transaction, at: _Cutoffs) -> int:
    """Archive trees whose retention as scheduled for deletion has passed."""
    rows = tx.all(f"SELECT n FROM trees WHERE {_ARCHIVE} ORDER BY n LIMIT {STEP}", (at.scheduled,))
    for (n,) in rows:
        tx.run("UPDATE trees SET state = 'archived', archived_ms = ? WHERE n = ?", (at.now, n))
        record_changes(tx, n, at.now, reserve_numbers(tx, 1), [("tree_archived", None)])
    return len(rows)


def _delete_trees(tx: Transaction, at: _Cutoffs) -> int:
    """Mark trees whose retention as archived has passed as gone, and delete their heads.

    The next step removes their nodes.
    """
    count = tx.run(
        "UPDATE trees SET state = 'gone', metadata = NULL"
        f" WHERE n IN (SELECT n FROM trees WHERE {_DELETE} ORDER BY n LIMIT {STEP})",
        (at.archived,),
    )
    tx.run(f"DELETE FROM heads WHERE {_OF_GONE}")
    return count


def _delete_nodes(tx: Transaction, at: _Cutoffs) -> int:
    """Remove the nodes of trees that are gone, or else deleted nodes."""
    return tx.run(
        f"DELETE FROM nodes WHERE n IN (SELECT n FROM nodes WHERE {_OF_GONE} LIMIT {STEP})"
    ) or tx.run(
        f"DELETE FROM nodes WHERE n IN (SELECT n FROM nodes WHERE {_HIDDEN} LIMIT {STEP})",
        (at.scheduled,),
    )


def _drop_rows(tx: Transaction, _at: _Cutoffs) -> int:
    """Remove trees that are gone and have no nodes left, and some of their changes."""
    rows = tx.all(f"SELECT n FROM trees WHERE {_EMPTIED} ORDER BY n LIMIT {STEP}")
    for (n,) in rows:
        left = tx.run(
            "DELETE FROM changes WHERE seq IN"
            f" (SELECT seq FROM changes WHERE tree = ? ORDER BY seq LIMIT {STEP})",
            (n,),
        )
        if left < STEP:
            tx.run("DELETE FROM trees WHERE n = ?", (n,))
        else:
            break  # the next step removes the rest
    return len(rows)


def _changes_are_due(tx: Transaction, at: _Cutoffs) -> bool:
    """Return whether the retention of the oldest change has passed."""
    row = tx.one("SELECT at_ms FROM changes ORDER BY seq LIMIT 1")
    return row is not None and row[0] < at.changes


def _drop_changes(tx: Transaction, at: _Cutoffs) -> int:
    """Remove the oldest changes, and record the last removed number in their trees."""
    oldest = tx.all(f"SELECT seq, tree, at_ms FROM changes ORDER BY seq LIMIT {STEP}")
    last: dict[int, int] = {}
    count = 0
    for seq, tree, at_ms in oldest:
        if at_ms >= at.changes:
            break
        last[tree] = seq
        count += 1
    if count:
        tx.run("DELETE FROM changes WHERE seq <= ?", (oldest[count - 1][0],))
        tx.many("UPDATE trees SET forgotten = ? WHERE n = ?", [(s, t) for t, s in last.items()])
    return count
