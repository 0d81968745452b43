"""Consistency check of a store's file, independent of the store's code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw

__all__ = ("faults_in", "ids_in")


def _connect(path: Path) -> apsw.Connection:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    connection.set_busy_timeout(10_000)
    return connection


def ids_in(path: Path) -> set[str]:
    """Return the ids of all nodes that are not deleted."""
    connection = _connect(path)
    try:
        return {i for (i,) in connection.execute("SELECT id FROM nodes WHERE deleted_ms IS NULL")}
    finally:
        connection.close()


#: Queries that must return no rows, by the fault that a row means.
WRONG = {
    "a node without a tree": ("SELECT n FROM nodes WHERE tree NOT IN (SELECT n FROM trees)"),
    "a node whose parent is deleted": (
        "SELECT n FROM nodes WHERE parent IS NOT NULL AND deleted_ms IS NULL AND parent NOT IN"
        " (SELECT n FROM nodes WHERE deleted_ms IS NULL)"
    ),
    "a node whose parent is of another tree": (
        "SELECT nodes.n FROM nodes JOIN nodes AS above ON above.n = nodes.parent"
        " WHERE above.tree <> nodes.tree"
    ),
    "a node without parent that is not a root": (
        "SELECT n FROM nodes WHERE parent IS NULL AND n NOT IN (SELECT root FROM trees)"
    ),
    "a tree without its root": (
        "SELECT n FROM trees WHERE state <> 'gone' AND root NOT IN"
        " (SELECT n FROM nodes WHERE parent IS NULL AND deleted_ms IS NULL)"
    ),
    "a node that is not reachable from its root": (
        "WITH RECURSIVE down(n) AS (SELECT root FROM trees UNION SELECT nodes.n FROM down"
        " JOIN nodes ON nodes.parent = down.n) SELECT n FROM nodes WHERE deleted_ms IS NULL"
        " AND n NOT IN (SELECT n FROM down)"
    ),
    "two siblings with one position that are not versions of one node": (
        "SELECT a.n FROM nodes AS a JOIN nodes AS b ON a.parent = b.parent AND a.n < b.n"
        " AND a.position = b.position WHERE a.deleted_ms IS NULL AND b.deleted_ms IS NULL"
        " AND a.replaced_by IS NULL AND b.replaces IS NULL"
    ),
    "a version that its predecessor does not refer to": (
        "SELECT nodes.n FROM nodes JOIN nodes AS old ON old.id = nodes.replaces"
        " WHERE nodes.deleted_ms IS NULL AND old.deleted_ms IS NULL"
        " AND old.replaced_by IS NOT nodes.id"
    ),
    "a head on a node of another tree, or on a deleted node": (
        "SELECT heads.n FROM heads WHERE NOT EXISTS (SELECT 1 FROM nodes JOIN trees"
        " ON trees.n = nodes.tree WHERE nodes.n = heads.node AND nodes.tree = heads.tree"
        " AND nodes.deleted_ms IS NULL AND trees.state <> 'gone'"
        " AND trees.principal = heads.principal)"
    ),
    "a head with a holder and no time, or with a time and no holder": (
        "SELECT n FROM heads WHERE (holder IS NULL) <> (held_ms IS NULL)"
    ),
    "a piece of a head without a holder": (
        "SELECT head FROM pieces WHERE head NOT IN (SELECT n FROM heads WHERE holder IS NOT NULL)"
    ),
    "an active tree without references, or an inactive tree with references": (
        "SELECT n FROM trees WHERE (state = 'active') <>"
        " EXISTS (SELECT 1 FROM tree_refs WHERE tree_refs.tree = trees.n)"
    ),
    "a scheduled tree without a time": (
        "SELECT n FROM trees WHERE (state = 'active') <> (scheduled_ms IS NULL)"
    ),
    "a node without the change that created it": (
        "SELECT nodes.n FROM nodes JOIN trees ON trees.n = nodes.tree"
        " WHERE nodes.n > trees.forgotten AND NOT EXISTS (SELECT 1 FROM changes"
        " WHERE changes.seq = nodes.n AND changes.node = nodes.id AND changes.tree = nodes.tree"
        " AND changes.kind IN ('node_created', 'node_edited'))"
    ),
    "a change of a missing node": (
        "SELECT seq FROM changes WHERE kind IN ('node_created', 'node_edited') AND seq NOT IN"
        " (SELECT n FROM nodes)"
    ),
    "a sequence number that was not allocated": (
        "SELECT seq FROM changes WHERE seq > (SELECT value FROM numbers)"
    ),
    "a tree whose sequence number is not that of its last change": (
        "SELECT n FROM trees WHERE state <> 'gone' AND seq <>"
        " (SELECT max(seq) FROM changes WHERE changes.tree = trees.n)"
    ),
    "a node that is missing in the search index": (
        "SELECT n FROM nodes WHERE content <> '' AND n <= (SELECT indexed FROM numbers)"
        " AND n NOT IN (SELECT rowid FROM search)"
    ),
}


def faults_in(path: Path) -> list[str]:
    """Return all faults of a store's file; none if it is consistent."""
    connection = _connect(path)

    def rows(sql: str) -> list[Any]:
        return connection.execute(sql).fetchall()

    try:
        found = [f"integrity: {row[0]}" for row in rows("PRAGMA integrity_check")]
        found = [fault for fault in found if fault != "integrity: ok"]
        found += [f"foreign key: {row}" for row in rows("PRAGMA foreign_key_check")]
        for what, sql in WRONG.items():
            found += [f"{what}: {row[0]}" for row in rows(f"{sql} LIMIT 3")]
        return found
    finally:
        connection.close()
