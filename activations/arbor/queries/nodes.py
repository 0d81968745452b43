"""Queries that change nodes: append, edit, move and delete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from activations.arbor.model import APPEND_ITEMS, NewNode, Node
from activations.arbor.queries.heads import move_heads_up
from activations.arbor.queries.reads import get
from activations.arbor.queries.rows import (
    Body,
    TreeRow,
    decode_metadata,
    encode_body,
    find_node,
    find_writable,
    new_ids,
    record_changes,
    reserve_numbers,
)
from activations.arbor.queries.search import index_new_nodes
from plexus.errors import Failed, InvalidParams, TooBig
from plexus.storage import Transaction

__all__ = ("append", "delete", "edit", "move")

#: The gap between two siblings, so that a node can be inserted without renumbering.
GAP: Final = 1 << 20
#: Maximum position from a caller, far from where adding gaps would overflow.
POSITION_MAX: Final = 1 << 53

INSERT: Final = (
    "INSERT INTO nodes"
    " (n, id, tree, parent, position, content, handle, metadata, created_ms, replaces)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)

#: The numbers of a node and its descendants.
SUBTREE: Final = (
    "WITH RECURSIVE down(n) AS (SELECT nodes.n FROM nodes WHERE nodes.n = ?"
    " UNION ALL SELECT nodes.n FROM down JOIN nodes ON nodes.parent = down.n"
    " WHERE nodes.deleted_ms IS NULL)"
)


def append(
    tx: Transaction,
    now: int,
    principal: str,
    tree: str,
    parent: str | None,
    items: Sequence[NewNode],
) -> list[Node]:
    """Add nodes atomically. Returns them in order."""
    if not 1 <= len(items) <= APPEND_ITEMS:
        raise TooBig(
            f"{len(items)} nodes in one call. Pass 1 to {APPEND_ITEMS}.",
            data={"limit": APPEND_ITEMS},
        )
    bodies = [encode_body(item) for item in items]
    found = find_writable(tx, principal, tree)
    return _insert(tx, now, found, parent, items, bodies)


def _insert(
    tx: Transaction,
    now: int,
    tree: TreeRow,
    parent: str | None,
    items: Sequence[NewNode],
    bodies: Sequence[Body],
) -> list[Node]:
    placement = _Placement(tx, tree, parent, len(items))
    parents = [placement.parent_of(index, item) for index, item in enumerate(items)]
    replaced = {
        index: placement.replaced_by(index, item.replaces)
        for index, item in enumerate(items)
        if item.replaces is not None
    }
    first = reserve_numbers(tx, len(items))
    rows = []
    created = []
    ids = placement.ids
    for index, (item, (content, handle, metadata)) in enumerate(zip(items, bodies, strict=True)):
        above = parents[index]
        above_n = first + above if isinstance(above, int) else placement.known[above]
        position = placement.position_of(above_n, item.position)
        n = first + index
        replaces = replaced.get(index)
        rows.append(
            (n, ids[index], tree.n, above_n, position, content, handle, metadata, now, replaces)
        )
        created.append(
            Node(
                n,
                ids[index],
                tree.id,
                ids[above] if isinstance(above, int) else above,
                position,
                content,
                item.handle,
                decode_metadata(metadata),
                now,
                replaces,
                None,
            )
        )
    if len(rows) == 1:
        tx.run(INSERT, rows[0])
    else:
        tx.many(INSERT, rows)
    for index, old in replaced.items():
        tx.run("UPDATE nodes SET replaced_by = ? WHERE id = ?", (ids[index], old))
    if replaced:
        later = {old: ids[index] for index, old in replaced.items()}
        created = [node._replace(replaced_by=later.get(node.id)) for node in created]
    record_changes(
        tx,
        tree.n,
        now,
        first,
        [("node_edited" if i in replaced else "node_created", id_) for i, id_ in enumerate(ids)],
    )
    index_new_nodes(
        tx, first, first + len(items) - 1, max(len(content or "") for content, _, _ in bodies)
    )
    return created


class _Placement:
    """The positions of the nodes of one append."""

    def __init__(self, tx: Transaction, tree: TreeRow, parent: str | None, count: int) -> None:
        self._tx = tx
        self._tree = tree
        self._last: dict[int, int] = {}
        self._replaced: set[int | str] = set()
        self.ids = new_ids(count)
        #: The numbers of existing nodes that get children, by id.
        self.known: dict[str, int] = {}
        self._default = parent if parent is not None else self._root()
        self._number_of(self._default)

    def _root(self) -> str:
        row = self._tx.one("SELECT id FROM nodes WHERE n = ?", (self._tree.root,))
        assert row is not None
        root: str = row[0]
        self.known[root] = self._tree.root
        return root

    def _number_of(self, node: str) -> None:
        if node not in self.known:
            [self.known[node]] = find_node(self._tx, self._tree, node)

    def parent_of(self, index: int, item: NewNode) -> int | str:
        """Return the parent of an item: the index of an earlier item, or the id of a node."""
        above = item.parent
        if above is None:
            return self._default
        if isinstance(above, int):
            return _check_earlier(index, above, "parent")
        self._number_of(above)
        return above

    def replaced_by(self, index: int, old: int | str) -> str:
        """Return the id of the node that an item replaces. Raises Failed (`replaced`)."""
        if isinstance(old, int):
            place = _check_earlier(index, old, "replaces")
            id_, later = self.ids[place], None
        else:
            id_ = old
            [later] = find_node(self._tx, self._tree, old, "replaced_by")
        if later is not None or id_ in self._replaced:
            raise _already_replaced(id_, later)
        self._replaced.add(id_)
        return id_

    def position_of(self, parent: int, position: int | None) -> int:
        """Return the given position, or a position after all siblings."""
        if parent not in self._last:
            row = self._tx.one(
                "SELECT position FROM nodes WHERE parent = ? ORDER BY position DESC LIMIT 1",
                (parent,),
            )
            self._last[parent] = 0 if row is None else row[0]
        if position is None:
            position = self._last[parent] + GAP
        elif not -POSITION_MAX <= position <= POSITION_MAX:
            raise InvalidParams(
                f"Invalid position {position}. Use -{POSITION_MAX} to {POSITION_MAX}."
            )
        self._last[parent] = max(self._last[parent], position)
        return position


def _check_earlier(index: int, reference: int, what: str) -> int:
    if not 0 <= reference < index:
        raise InvalidParams(
            f"Invalid {what} {reference} of item {index}. Use the index of an earlier item.",
            data={"item": index},
        )
    return reference


def _already_replaced(node: str, later: str | None) -> Failed:
    return Failed(
        f"Node {node} was replaced by a later version. Edit that version instead.",
        code="replaced",
        data={"node": node, "replaced_by": later},
    )


def edit(tx: Transaction, now: int, principal: str, tree: str, node: str, item: NewNode) -> Node:
    """Add a new version of a node at the same position."""
    body = encode_body(item)
    found = find_writable(tx, principal, tree)
    old, above_n, position = find_node(tx, found, node, "n, parent, position")
    if old == found.root:
        raise _is_root("edited")
    above = tx.one("SELECT id FROM nodes WHERE n = ?", (above_n,))
    assert above is not None
    version = item._replace(parent=None, position=position, replaces=node)
    [created] = _insert(tx, now, found, above[0], [version], [body])
    return created


def _is_root(what: str) -> Failed:
    return Failed(f"The root of a tree cannot be {what}.", code="root")


def move(
    tx: Transaction,
    now: int,
    principal: str,
    tree: str,
    node: str,
    parent: str,
    index: int | None,
) -> Node:
    """Move a subtree to another parent. Raises Failed (`cycle`, `root`)."""
    found = find_writable(tx, principal, tree)
    [n] = find_node(tx, found, node)
    [above] = find_node(tx, found, parent)
    if n == found.root:
        raise _is_root("moved")
    if index is not None and index < 0:
        raise InvalidParams(f"Invalid index {index}. Use 0 or more.")
    inside = tx.one(
        "WITH RECURSIVE up(n, parent) AS (SELECT n, parent FROM nodes WHERE n = ?"
        " UNION ALL SELECT nodes.n, nodes.parent FROM up JOIN nodes ON nodes.n = up.parent)"
        " SELECT 1 FROM up WHERE n = ? LIMIT 1",
        (above, n),
    )
    if inside is not None:
        raise Failed(
            f"Node {node} cannot be moved into its own subtree.",
            code="cycle",
            data={"node": node, "parent": parent},
        )
    position = _position_at(tx, above, n, index)
    tx.run("UPDATE nodes SET parent = ?, position = ? WHERE n = ?", (above, position, n))
    record_changes(tx, found.n, now, reserve_numbers(tx, 1), [("node_moved", node)])
    return get(tx, principal, tree, node)


def _position_at(tx: Transaction, parent: int, moved: int, index: int | None) -> int:
    """Return a position before the child at this index. Renumbers siblings if there is no gap."""
    if index is not None:
        siblings = "FROM nodes WHERE parent = ? AND n <> ? AND deleted_ms IS NULL"
        order = "ORDER BY position, n"
        for _ in range(2):
            around = tx.all(
                f"SELECT position {siblings} {order} LIMIT ? OFFSET ?",
                (parent, moved, 2 if index else 1, max(0, min(index, POSITION_MAX) - 1)),
            )
            if len(around) < (2 if index else 1):
                break  # no child at this index, so it becomes the last
            [after] = around[-1]
            before = around[0][0] if index else after - 2 * GAP
            if after - before > 1:
                middle: int = (before + after) // 2
                return middle
            rows = tx.all(f"SELECT n {siblings} {order}", (parent, moved))
            tx.many(
                "UPDATE nodes SET position = ? WHERE n = ?",
                [(place * GAP, n) for place, (n,) in enumerate(rows, 1)],
            )
    row = tx.one("SELECT max(position) FROM nodes WHERE parent = ? AND n <> ?", (parent, moved))
    highest = None if row is None else row[0]
    return GAP if highest is None else highest + GAP


def delete(tx: Transaction, now: int, principal: str, tree: str, node: str) -> int:
    """Mark a subtree as deleted, and move its heads to the node above. Returns the node count."""
    found = find_writable(tx, principal, tree)
    n, above = find_node(tx, found, node, "n, parent")
    if n == found.root:
        raise _is_root("deleted. Delete the tree instead")
    _relink_versions(tx, n)
    count = tx.run(
        f"{SUBTREE} UPDATE nodes SET deleted_ms = ? WHERE n IN (SELECT n FROM down)", (n, now)
    )
    record_changes(tx, found.n, now, reserve_numbers(tx, 1), [("node_deleted", node)])
    move_heads_up(tx, now, found.n, above)
    return count


def _relink_versions(tx: Transaction, top: int) -> None:
    """Link the remaining versions of nodes to each other, past the deleted versions."""
    rows = tx.all(
        # CROSS JOIN, so that SQLite looks up each descendant instead of scanning all nodes.
        f"{SUBTREE} SELECT nodes.id, nodes.replaces, nodes.replaced_by FROM down CROSS JOIN nodes"
        " WHERE nodes.n = down.n"
        " AND (nodes.replaces IS NOT NULL OR nodes.replaced_by IS NOT NULL)",
        (top,),
    )
    earlier = {id_: replaces for id_, replaces, _ in rows}
    later = {id_: replaced_by for id_, _, replaced_by in rows}
    for id_ in earlier:
        old, new = earlier[id_], later[id_]
        while old in earlier:
            old = earlier[old]
        while new in later:
            new = later[new]
        if old is not None:
            tx.run("UPDATE nodes SET replaced_by = ? WHERE id = ?", (new, old))
        if new is not None:
            tx.run("UPDATE nodes SET replaces = ? WHERE id = ?", (old, new))
