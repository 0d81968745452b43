"""Queries that read nodes: single nodes, children, paths, subtrees and pages of all nodes."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final

from activations.arbor.model import DrawnNode, Handle, Node, NodeInfo, NodeStub
from activations.arbor.queries.rows import (
    NODE,
    NODES,
    check_number,
    check_page_size,
    check_text,
    decode_metadata,
    decode_node,
    find_node,
    find_tree,
    is_id,
    read_page,
)
from plexus.errors import Failed, InvalidParams
from plexus.storage import Row, Transaction

__all__ = (
    "children",
    "get",
    "leaves",
    "list_by_id",
    "parent",
    "path",
    "path_stubs",
    "path_tail",
    "previews",
    "structure",
    "subtree",
    "walk",
)

#: The columns of a path query. A path is one recursive query, at any depth. Its rows are sorted in
#: Python, which costs nothing because they are already in order.
_NODE_COLUMNS: Final = (
    "id", "parent", "position", "content", "handle", "metadata",
    "created_ms", "replaces", "replaced_by",
)  # fmt: skip
_STUB_COLUMNS: Final = ("id", "parent", "position", "handle IS NOT NULL", "replaced_by IS NOT NULL")


def _path_query(columns: tuple[str, ...], bound: str = "") -> str:
    names = ", ".join(f"c{number}" for number in range(len(columns)))
    plain = ", ".join(columns)
    joined = ", ".join(f"nodes.{column}" for column in columns)
    return (
        f"WITH RECURSIVE up(depth, n, {names}) AS ("
        f"SELECT 0, n, {plain} FROM nodes WHERE n = ?"
        f" UNION ALL SELECT up.depth + 1, nodes.n, {joined}"
        f" FROM up JOIN nodes ON nodes.n = up.c1{bound})"
        " SELECT * FROM up"
    )


_NODE_PATH: Final = _path_query(_NODE_COLUMNS)
_NODE_PATH_TAIL: Final = _path_query(_NODE_COLUMNS, " WHERE up.depth < ?")
_STUB_PATH: Final = _path_query(_STUB_COLUMNS)

#: Maximum number of characters of a text in a drawing, and in a name.
DRAWN_CHARACTERS: Final = 4096
NAME_CHARACTERS: Final = 200
#: Maximum size of an id in a cursor.
CURSOR_BYTES: Final = 1024

_SUBTREE: Final = (
    "WITH RECURSIVE down(n, depth) AS (SELECT nodes.n, 0 FROM nodes WHERE nodes.n = ?"
    " UNION ALL SELECT nodes.n, down.depth + 1 FROM down JOIN nodes ON nodes.parent = down.n"
    " WHERE nodes.deleted_ms IS NULL AND down.depth < ?)"
    " SELECT nodes.n, nodes.id, nodes.parent, nodes.position,"
    f" substr(nodes.content, 1, {DRAWN_CHARACTERS}), nodes.handle, nodes.replaced_by IS NOT NULL,"
    " (SELECT count(*) FROM nodes AS child"
    " WHERE child.parent = nodes.n AND child.deleted_ms IS NULL)"
    " FROM (SELECT n FROM down LIMIT ?) AS seen JOIN nodes ON nodes.n = seen.n"
    " ORDER BY nodes.position, nodes.n"
)

#: The columns of a node with the beginning of its text.
_PREVIEW: Final = NODE.replace("nodes.content", "substr(nodes.content, 1, CAST(? AS integer))")

_LIST_BY_ID: Final = (
    f"SELECT trees.id, nodes.id, substr(nodes.content, 1, {NAME_CHARACTERS}),"
    " nodes.handle, nodes.metadata"
    " FROM trees CROSS JOIN nodes WHERE nodes.tree = trees.n AND trees.principal = ?"
    " AND trees.state IN ('active', 'scheduled_delete') AND nodes.deleted_ms IS NULL"
    " AND trees.id >= ? AND (trees.id > ? OR nodes.id > ?)"
    " ORDER BY trees.id, nodes.id LIMIT ?"
)


def get(tx: Transaction, principal: str, tree: str, node: str) -> Node:
    """Return a node. Raises NotFound."""
    [n] = find_node(tx, find_tree(tx, principal, tree), node)
    return _by_number(tx, tree, n)


def previews(
    tx: Transaction, principal: str, tree: str, nodes: Sequence[str], characters: int
) -> list[tuple[Node, int]]:
    """Return nodes with the beginning of their texts, and the full lengths. Omits unknown ids."""
    found = find_tree(tx, principal, tree)
    ids = [node for node in nodes if is_id(node)]
    if not ids:
        return []
    marks = ", ".join("?" * len(ids))
    rows = tx.all(
        f"SELECT {_PREVIEW}, coalesce(length(nodes.content), 0) FROM {NODES}"
        f" WHERE nodes.tree = ? AND nodes.deleted_ms IS NULL AND nodes.id IN ({marks})",
        (check_number(characters, "The length"), found.n, *ids),
    )
    return [(decode_node(tree, row[:-1]), row[-1]) for row in rows]


def _by_number(tx: Transaction, tree: str, n: int) -> Node:
    row = tx.one(f"SELECT {NODE} FROM {NODES} WHERE nodes.n = ?", (n,))
    assert row is not None
    return decode_node(tree, row)


def parent(tx: Transaction, principal: str, tree: str, node: str) -> Node | None:
    """Return the parent of a node, None for the root."""
    [above] = find_node(tx, find_tree(tx, principal, tree), node, "parent")
    return None if above is None else _by_number(tx, tree, above)


def children(
    tx: Transaction, principal: str, tree: str, node: str, after: int | None, limit: int
) -> list[Node]:
    """Return a page of the children of a node, in order."""
    found = find_tree(tx, principal, tree)
    [n] = find_node(tx, found, node)
    since, place = "", ()
    if after is not None:
        since = " AND (nodes.position, nodes.n) > (?, ?)"
        row = tx.one(
            "SELECT position, n FROM nodes WHERE n = ? AND parent = ?",
            (check_number(after, "`after`"), n),
        )
        if row is None:
            raise Failed(
                f"Cursor {after} has expired: that child was moved or deleted. Start again.",
                code="expired",
            )
        place = row
    rows = tx.each(
        f"SELECT {NODE} FROM {NODES} WHERE nodes.parent = ? AND nodes.deleted_ms IS NULL{since}"
        " ORDER BY nodes.position, nodes.n LIMIT ?",
        (n, *place, check_page_size(limit)),
    )
    return read_page(tree, rows)


def _ancestors(
    tx: Transaction, sql: str, principal: str, tree: str, node: str, *bound: int
) -> list[Row]:
    [n] = find_node(tx, find_tree(tx, principal, tree), node)
    rows = tx.all(sql, (n, *bound))
    rows.sort(key=itemgetter(0), reverse=True)
    return rows


def path(tx: Transaction, principal: str, tree: str, node: str) -> list[Node]:
    """Return the nodes from the root to a node."""
    return _decode_path(tree, None, _ancestors(tx, _NODE_PATH, principal, tree, node))


def path_tail(tx: Transaction, principal: str, tree: str, node: str, limit: int) -> list[Node]:
    """Return the last nodes of the path from the root to a node, without reading the others."""
    if check_number(limit, "The limit") == 0:
        raise InvalidParams("Invalid limit 0. Use 1 or more.")
    rows = _ancestors(tx, _NODE_PATH_TAIL, principal, tree, node, limit - 1)
    # Of the first node only the parent's number is known, not its id.
    above = tx.one("SELECT id FROM nodes WHERE n = ?", (rows[0][3],)) or (None,)
    return _decode_path(tree, above[0], rows)


def _decode_path(tree: str, above: str | None, rows: list[Row]) -> list[Node]:
    """Return the nodes of a path. The first node is a child of `above`."""
    found: list[Node] = []
    for _, n, id_, _, *rest in rows:
        found.append(decode_node(tree, (n, id_, above, *rest)))
        above = id_
    return found


def path_stubs(tx: Transaction, principal: str, tree: str, node: str) -> list[NodeStub]:
    """Return the nodes from the root to a node, without contents."""
    found: list[NodeStub] = []
    above: str | None = None
    for _, n, id_, _, position, external, replaced in _ancestors(
        tx, _STUB_PATH, principal, tree, node
    ):
        found.append(NodeStub(n, id_, above, position, bool(external), bool(replaced)))
        above = id_
    return found


def walk(tx: Transaction, principal: str, tree: str, after: int, limit: int) -> list[Node]:
    """Return a page of all nodes, in insertion order."""
    return _page_by_number(tx, principal, tree, after, limit, "")


def leaves(tx: Transaction, principal: str, tree: str, after: int, limit: int) -> list[Node]:
    """Return a page of the nodes without children, in insertion order."""
    bare = (
        " AND nodes.replaced_by IS NULL AND NOT EXISTS (SELECT 1 FROM nodes AS below"
        " WHERE below.parent = nodes.n AND below.deleted_ms IS NULL)"
    )
    return _page_by_number(tx, principal, tree, after, limit, bare)


def _page_by_number(
    tx: Transaction, principal: str, tree: str, after: int, limit: int, condition: str
) -> list[Node]:
    rows = tx.each(
        f"SELECT {NODE} FROM {NODES}"
        f" WHERE nodes.tree = ? AND nodes.n > ? AND nodes.deleted_ms IS NULL{condition}"
        " ORDER BY nodes.n LIMIT ?",
        _cursor(tx, principal, tree, after, limit),
    )
    return read_page(tree, rows)


def structure(tx: Transaction, principal: str, tree: str, after: int, limit: int) -> list[NodeStub]:
    """Return a page of all nodes, without contents."""
    rows = tx.all(
        "SELECT nodes.n, nodes.id, above.id, nodes.position, nodes.handle IS NOT NULL,"
        f" nodes.replaced_by IS NOT NULL FROM {NODES}"
        " WHERE nodes.tree = ? AND nodes.n > ? AND nodes.deleted_ms IS NULL"
        " ORDER BY nodes.n LIMIT ?",
        _cursor(tx, principal, tree, after, limit),
    )
    return [NodeStub(n, i, above, p, bool(e), bool(r)) for n, i, above, p, e, r in rows]


def _cursor(tx: Transaction, principal: str, tree: str, after: int, limit: int) -> tuple[Any, ...]:
    found = find_tree(tx, principal, tree)
    return found.n, check_number(after, "`after`"), check_page_size(limit)


# --- for drawings and lists of resources ----------------------------------------------------------


def subtree(
    tx: Transaction, principal: str, tree: str, node: str, depth: int, limit: int
) -> list[DrawnNode]:
    """Return up to `limit` nodes of a subtree, level by level, with siblings in order.

    One query, which stops at the limit.
    """
    [n] = find_node(tx, find_tree(tx, principal, tree), node)
    rows = tx.all(_SUBTREE, (n, depth, check_page_size(limit)))
    return [
        DrawnNode(
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


def list_by_id(tx: Transaction, principal: str, tree: str, node: str, limit: int) -> list[NodeInfo]:
    """Return a page of the nodes of all trees, by the ids of tree and node, after these ids."""
    for part in (tree, node):
        check_text(part, "The cursor", CURSOR_BYTES)
    rows = tx.all(_LIST_BY_ID, (principal, tree, tree, node, check_page_size(limit)))
    return [
        NodeInfo(tree_id, node_id, text if handle is None else handle, decode_metadata(metadata))
        for tree_id, node_id, text, handle, metadata in rows
    ]
