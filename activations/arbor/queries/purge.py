"""The steps of a purge. Each does a little of what is due, and says how much that was.

Every step has a look that costs nothing and locks nobody: whether there is anything to do.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from activations.arbor.queries.rows import numbered, record
from plexus.storage import Transaction

__all__ = (
    "Cutoffs",
    "archive",
    "archive_due",
    "bury",
    "bury_due",
    "forget",
    "forget_due",
    "retire",
    "retire_due",
    "sweep",
    "sweep_due",
)

#: Rows that one step removes, and trees that it looks at: some milliseconds of the writer.
STEP: Final = 500


class Cutoffs(NamedTuple):
    """What is older than these, in milliseconds, is due."""

    now: int
    scheduled: int
    archived: int
    changes: int


#: What is due: trees, nodes that nobody can see, and whatever is of a tree that is gone.
_ARCHIVE = "state = 'scheduled_delete' AND scheduled_ms <= ?"
_RETIRE = "state = 'archived' AND archived_ms <= ?"
_DELETED = "deleted_ms IS NOT NULL AND deleted_ms <= ?"
_OF_GONE = "tree IN (SELECT n FROM trees WHERE state = 'gone')"
_BURIED = "state = 'gone' AND NOT EXISTS (SELECT 1 FROM nodes WHERE nodes.tree = trees.n)"


def _any(tx: Transaction, table: str, condition: str, *params: Any) -> bool:
    return tx.one(f"SELECT 1 FROM {table} WHERE {condition} LIMIT 1", params) is not None


def archive_due(tx: Transaction, at: Cutoffs) -> bool:
    """Whether a tree has been scheduled for long enough."""
    return _any(tx, "trees", _ARCHIVE, at.scheduled)


def archive(tx: Transaction, at: Cutoffs) -> int:
    """Trees that have been scheduled for long enough are archived."""
    rows = tx.all(f"SELECT n FROM trees WHERE {_ARCHIVE} ORDER BY n LIMIT {STEP}", (at.scheduled,))
    for (n,) in rows:
        tx.run("UPDATE trees SET state = 'archived', archived_ms = ? WHERE n = ?", (at.now, n))
        record(tx, n, at.now, numbered(tx, 1), [("tree_archived", None)])
    return len(rows)


def retire_due(tx: Transaction, at: Cutoffs) -> bool:
    """Whether a tree has been archived for long enough."""
    return _any(tx, "trees", _RETIRE, at.archived)


def retire(tx: Transaction, at: Cutoffs) -> int:
    """Trees that have been archived for long enough are gone at once, whole, with the heads in
    them; their nodes are removed after that."""
    count = tx.run(
        "UPDATE trees SET state = 'gone', metadata = NULL"
        f" WHERE n IN (SELECT n FROM trees WHERE {_RETIRE} ORDER BY n LIMIT {STEP})",
        (at.archived,),
    )
    tx.run(f"DELETE FROM heads WHERE {_OF_GONE}")
    return count


def sweep_due(tx: Transaction, at: Cutoffs) -> bool:
    """Whether there are nodes that nobody can see any more."""
    return _any(tx, "nodes", _OF_GONE) or _any(tx, "nodes", _DELETED, at.scheduled)


def sweep(tx: Transaction, at: Cutoffs) -> int:
    """Nodes that nobody can see are removed."""
    return tx.run(
        f"DELETE FROM nodes WHERE n IN (SELECT n FROM nodes WHERE {_OF_GONE} LIMIT {STEP})"
    ) or tx.run(
        f"DELETE FROM nodes WHERE n IN (SELECT n FROM nodes WHERE {_DELETED} LIMIT {STEP})",
        (at.scheduled,),
    )


def bury_due(tx: Transaction, _at: Cutoffs) -> bool:
    """Whether a tree that is gone has no nodes left."""
    return _any(tx, "trees", _BURIED)


def bury(tx: Transaction, _at: Cutoffs) -> int:
    """Trees that are gone and have no nodes left are removed, with a part of their changes."""
    rows = tx.all(f"SELECT n FROM trees WHERE {_BURIED} ORDER BY n LIMIT {STEP}")
    for (n,) in rows:
        left = tx.run(
            "DELETE FROM changes WHERE seq IN"
            f" (SELECT seq FROM changes WHERE tree = ? ORDER BY seq LIMIT {STEP})",
            (n,),
        )
        if left < STEP:
            tx.run("DELETE FROM trees WHERE n = ?", (n,))
        else:
            break  # the rest is the next step's
    return len(rows)


def forget_due(tx: Transaction, at: Cutoffs) -> bool:
    """Whether the oldest change is old enough."""
    row = tx.one("SELECT at_ms FROM changes ORDER BY seq LIMIT 1")
    return row is not None and row[0] < at.changes


def forget(tx: Transaction, at: Cutoffs) -> int:
    """The oldest changes are forgotten, and their trees remember up to where."""
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
