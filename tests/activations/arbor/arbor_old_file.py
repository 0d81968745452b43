"""Files of earlier versions of this program."""

from __future__ import annotations

from pathlib import Path

import apsw

from activations.arbor.schema import ARBOR
from plexus.storage.migrations import statements
from plexus.storage.sqlite.file import APPLICATION_ID

__all__ = ("TREE", "make_old_file")

TREE = "11111111-1111-4111-8111-111111111111"


def make_old_file(path: Path, version: int = 1) -> list[str]:
    """Create a file of this version with a tree of the principal `me`; return its node ids."""
    ids = [f"22222222-2222-4222-8222-{number:012d}" for number in range(300)]
    connection = apsw.Connection(str(path))
    connection.execute("BEGIN")
    later = statements(ARBOR, "sqlite", version)
    for sql in statements(ARBOR, "sqlite", 0):
        if sql not in later:
            connection.execute(sql)
    connection.execute(
        "INSERT INTO trees (n, id, principal, owner, state, root, created_ms, updated_ms, seq)"
        " VALUES (1, ?, 'me', 'owner', 'active', 2, 5, 5, ?)",
        (TREE, len(ids) + 1),
    )
    connection.execute("INSERT INTO tree_refs VALUES (1, 'owner', 1)")
    connection.execute("INSERT INTO changes VALUES (1, 1, 'tree_created', NULL, 5)")
    for n, id_ in enumerate(ids, 2):
        parent = None if n == 2 else n - 1
        connection.execute(
            "INSERT INTO nodes (n, id, tree, parent, position, content, created_ms)"
            " VALUES (?, ?, 1, ?, 1048576, ?, 5)",
            (n, id_, parent, f"old text {n}"),
        )
        connection.execute("INSERT INTO changes VALUES (?, 1, 'node_created', ?, 5)", (n, id_))
    connection.execute("UPDATE numbers SET value = ?", (len(ids) + 1,))
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {version}")
    connection.execute("COMMIT")
    connection.close()
    return ids
