"""Retention: which recorded runs to delete, and their deletion, as units of work for both engines.

Only finished runs that are not pinned are ever deleted. A deletion is limited to a number of runs,
so that one transaction never blocks other writers for long: repeat it while it returns runs. Select
and delete in one transaction; a run that was pinned in between would be lost otherwise.

Deleted runs are listed in `run_deletions` until they are deleted from the search index as well,
which `substrate.run_store.maintenance` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from plexus.storage import Transaction
from substrate.run_store.deletions import add_deletions

__all__ = ("BATCH", "delete_runs", "expired_runs", "oldest_runs", "prune_runs", "stored_bytes")

#: Runs that one transaction deletes. 200 take a few milliseconds.
BATCH: Final = 200

#: The first state of a finished run.
_DELETABLE: Final = "state >= 3 AND COALESCE(pinned, 0) = 0"
#: The column with the number of the run, for each table. The runs themselves are the last.
_TABLES: Final = (
    ("run_chunks", "run"),
    ("run_questions", "run"),
    ("run_requests", "run"),
    ("runs", "id"),
)


def expired_runs(tx: Transaction, now_ms: int, limit: int = BATCH) -> list[int]:
    """Return runs whose retention has ended, those that ended first in front."""
    rows = tx.all(
        f"SELECT id FROM runs WHERE kept_until < ? AND {_DELETABLE}"
        " ORDER BY kept_until, id LIMIT ?",
        (now_ms, limit),
    )
    return [int(run) for (run,) in rows]


def oldest_runs(tx: Transaction, excess_bytes: int, limit: int = BATCH) -> list[int]:
    """Return the runs that ended first and together have at least `excess_bytes`."""
    if excess_bytes <= 0:
        return []
    found = []
    rows = tx.all(
        f"SELECT id, COALESCE(bytes, 0) FROM runs WHERE ended_ms IS NOT NULL AND {_DELETABLE}"
        " ORDER BY ended_ms, id LIMIT ?",
        (limit,),
    )
    for run, size in rows:
        found.append(int(run))
        excess_bytes -= int(size)
        if excess_bytes <= 0:
            break
    return found


def delete_runs(tx: Transaction, ids: Sequence[int]) -> None:
    """Delete runs with their chunks, questions and requests."""
    tx.many(
        "INSERT INTO run_deletions (run) VALUES (?) ON CONFLICT (run) DO NOTHING",
        [(run,) for run in ids],
    )
    for table, column in _TABLES:
        tx.many(f"DELETE FROM {table} WHERE {column} = ?", [(run,) for run in ids])
    add_deletions(tx, ids)


def stored_bytes(tx: Transaction) -> int:
    """Return the size of all recorded runs."""
    # In two parts, each of which an index has.
    parts = ("ended_ms IS NOT NULL", "state < 3")
    rows = [tx.one(f"SELECT COALESCE(SUM(bytes), 0) FROM runs WHERE {part}") for part in parts]
    return sum(int(row[0]) for row in rows if row is not None)


def prune_runs(tx: Transaction, now_ms: int, max_bytes: int, limit: int = BATCH) -> list[int]:
    """Delete expired runs, or without any the oldest beyond `max_bytes`. Returns those deleted."""
    found = expired_runs(tx, now_ms, limit) or oldest_runs(tx, stored_bytes(tx) - max_bytes, limit)
    delete_runs(tx, found)
    return found
