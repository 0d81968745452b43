"""Looking at nodes from outside: as the branches of a drawing, and as a list of addresses."""

from __future__ import annotations

from typing import Final

from activations.arbor.branches import Branch, Named
from activations.arbor.model import Handle
from activations.arbor.queries.rows import (
    checked_page,
    checked_text,
    decode_metadata,
    find_node,
    find_tree,
)
from plexus.storage import Transaction

__all__ = ("addressed", "below", "last_number")

#: How much of a text somebody sees who looks from outside.
SEEN: Final = 4096
NAME: Final = 200
#: An id, or what stands in its place in a cursor.
CURSOR_BYTES: Final = 1024

_BELOW: Final = (
    "WITH RECURSIVE down(n, depth) AS (SELECT nodes.n, 0 FROM nodes WHERE nodes.n = ?"
    " UNION ALL SELECT nodes.n, down.depth + 1 FROM down JOIN nodes ON nodes.parent = down.n"
    " WHERE nodes.deleted_ms IS NULL AND down.depth < ?)"
    " SELECT nodes.n, nodes.id, nodes.parent, nodes.position,"
    f" substr(nodes.content, 1, {SEEN}), nodes.handle, nodes.replaced_by IS NOT NULL,"
    " (SELECT count(*) FROM nodes AS child"
    " WHERE child.parent = nodes.n AND child.deleted_ms IS NULL)"
    " FROM (SELECT n FROM down LIMIT ?) AS seen JOIN nodes ON nodes.n = seen.n"
    " ORDER BY nodes.position, nodes.n"
)

_ADDRESSED: Final = (
    f"SELECT trees.id, nodes.id, substr(nodes.content, 1, {NAME}), nodes.handle, nodes.metadata"
    " FROM trees CROSS JOIN nodes WHERE nodes.tree = trees.n AND trees.principal = ?"
    " AND trees.state IN ('active', 'scheduled_delete') AND nodes.deleted_ms IS NULL"
    " AND trees.id >= ? AND (trees.id > ? OR nodes.id > ?)"
    " ORDER BY trees.id, nodes.id LIMIT ?"
)


def below(
    tx: Transaction, principal: str, tree: str, node: str, depth: int, limit: int
) -> list[Branch]:
    """A node and what is below it, level by level, until there are enough; siblings in order.

    One query, which stops as soon as it has found enough.
    """
    [n] = find_node(tx, find_tree(tx, principal, tree), node)
    rows = tx.all(_BELOW, (n, depth, checked_page(limit)))
    return [
        Branch(
            number,
            id_,
            None if number == n else parent,
            text,
            None if handle is None else Handle.parse(handle),
            bool(replaced),
            children,
        )
        for number, id_, parent, _, text, handle, replaced, children in rows
    ]


def addressed(tx: Transaction, principal: str, tree: str, node: str, limit: int) -> list[Named]:
    """A page of the nodes of all trees, by the ids of tree and node, after these two."""
    for part in (tree, node):
        checked_text(part, "the cursor", CURSOR_BYTES)
    rows = tx.all(_ADDRESSED, (principal, tree, tree, node, checked_page(limit)))
    return [
        Named(tree_id, node_id, text if handle is None else handle, decode_metadata(metadata))
        for tree_id, node_id, text, handle, metadata in rows
    ]


def last_number(tx: Transaction) -> int:
    """The last number that was handed out: no change has a higher one yet."""
    row = tx.one("SELECT value FROM numbers")
    assert row is not None, "there is one from the beginning"
    number: int = row[0]
    return number
