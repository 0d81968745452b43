"""Queries of heads, named pointers to nodes: create, find, list, rename, move and delete.

A head keeps its tree alive by a reference whose owner is the head. It always points to a visible
node: deleting that node moves the head to the node above.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from activations.arbor.model import NAME_BYTES, OWNER_BYTES, UNCHANGED, Head, NewNode, Position
from activations.arbor.queries import trees
from activations.arbor.queries.rows import (
    check_page_size,
    check_text,
    decode_metadata,
    encode_metadata,
    find_node,
    find_tree,
    find_writable,
    is_id,
    new_ids,
    record_changes,
    reserve_numbers,
)
from plexus.errors import Busy, Failed, InvalidParams, NotFound
from plexus.storage import Row, Transaction

__all__ = (
    "HeadRow",
    "create",
    "delete",
    "find_by_id",
    "fork",
    "get",
    "held_error",
    "list_heads",
    "move",
    "move_heads_up",
    "rename",
    "set_node",
    "update",
)

#: The columns of a head for `_head_row`, and their tables.
HEAD: Final = (
    "heads.n, heads.tree, heads.node, heads.id, heads.space, heads.name, trees.id, nodes.id,"
    " heads.data, heads.created_ms, heads.updated_ms, heads.holder, heads.held_ms"
)
HEADS: Final = "heads JOIN trees ON trees.n = heads.tree JOIN nodes ON nodes.n = heads.node"


class HeadRow(NamedTuple):
    """A head, and the row numbers of the head, its tree and its node."""

    n: int
    tree: int
    node: int
    head: Head


def _head_row(row: Row) -> HeadRow:
    n, tree, node, id_, space, name, tree_id, node_id, data, *rest = row
    position = Position(tree_id, node_id)
    return HeadRow(n, tree, node, Head(id_, space, name, position, decode_metadata(data), *rest))


# --- reading -------------------------------------------------------------------------------------


def _check_name(text: str, what: str) -> str:
    if not text.strip():
        raise InvalidParams(f"{what} must not be blank.", code="bad_name")
    return check_text(text, what, NAME_BYTES)


def _find(tx: Transaction, principal: str, space: str, name: str) -> HeadRow:
    _check_name(space, "The space")
    _check_name(name, "The name")
    row = tx.one(
        f"SELECT {HEAD} FROM {HEADS}"
        " WHERE heads.principal = ? AND heads.space = ? AND heads.name = ?",
        (principal, space, name),
    )
    if row is None:
        raise NotFound(f"Unknown {space} {name!r}.", data={"name": name})
    return _head_row(row)


def find_by_id(tx: Transaction, principal: str, head: str) -> HeadRow:
    """Return a head of this principal by its id. Raises NotFound."""
    row = None
    if is_id(head):
        row = tx.one(
            f"SELECT {HEAD} FROM {HEADS} WHERE heads.id = ? AND heads.principal = ?",
            (head, principal),
        )
    if row is None:
        raise NotFound(f"Unknown head {head[:64]!r}.", data={"head": head[:64]})
    return _head_row(row)


def get(tx: Transaction, principal: str, space: str, name: str) -> Head:
    """Return a head by its name. Raises NotFound."""
    return _find(tx, principal, space, name).head


def list_heads(
    tx: Transaction, principal: str, space: str, after: str, limit: int, tree: str | None
) -> list[Head]:
    """Return a page of heads by name, of all trees or of one."""
    _check_name(space, "The space")
    check_text(after, "The cursor", OWNER_BYTES)
    column = "principal" if tree is None else "tree"
    value = principal if tree is None else find_tree(tx, principal, tree).n
    rows = tx.all(
        f"SELECT {HEAD} FROM {HEADS}"
        f" WHERE heads.{column} = ? AND heads.space = ? AND heads.name > ?"
        " ORDER BY heads.name LIMIT ?",
        (value, space, after, check_page_size(limit)),
    )
    return [_head_row(row).head for row in rows]


# --- creating ------------------------------------------------------------------------------------


def _require_free(tx: Transaction, principal: str, space: str, name: str) -> None:
    taken = tx.one(
        "SELECT 1 FROM heads WHERE principal = ? AND space = ? AND name = ?",
        (principal, space, name),
    )
    if taken is not None:
        raise Failed(
            f"The {space} {name!r} already exists. Choose another name.",
            code="name_taken",
            data={"name": name},
        )


def _reference_owner(space: str, head: str) -> str:
    """Return the owner of a head's reference to its tree."""
    return f"{space}:{head}"


def create(
    tx: Transaction, now: int, principal: str, space: str, name: str, data: Any, metadata: Any
) -> Head:
    """Create a head at the root of a new tree."""
    _check_name(space, "The space")
    _check_name(name, "The name")
    text = encode_metadata(data, "The data")
    _require_free(tx, principal, space, name)
    [head] = new_ids(1)
    tree = trees.create(tx, now, principal, _reference_owner(space, head), metadata, NewNode(""))
    found = find_tree(tx, principal, tree.id)
    return _insert(tx, now, principal, (head, space, name, found.n, found.root, text), tree.root)


def fork(
    tx: Transaction,
    now: int,
    principal: str,
    space: str,
    name: str,
    new_name: str,
    node: str | None,
    data: Any,
) -> Head:
    """Create another head of the same tree, at a node or at the position of the first head."""
    _check_name(new_name, "The new name")
    first = _find(tx, principal, space, name)
    position = first.head.position
    text = encode_metadata(first.head.data if data is UNCHANGED else data, "The data")
    _require_free(tx, principal, space, new_name)
    n, node_id = first.node, position.node
    if node is not None:
        [n], node_id = find_node(tx, find_tree(tx, principal, position.tree), node), node
    [head] = new_ids(1)
    trees.claim(tx, now, principal, position.tree, _reference_owner(space, head), 1)
    return _insert(tx, now, principal, (head, space, new_name, first.tree, n, text), node_id)


def _insert(
    tx: Transaction,
    now: int,
    principal: str,
    columns: tuple[str, str, str, int, int, str | None],
    node: str,
) -> Head:
    n = reserve_numbers(tx, 1)
    tx.run(
        "INSERT INTO heads"
        " (n, principal, id, space, name, tree, node, data, created_ms, updated_ms)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (n, principal, *columns, now, now),
    )
    head, _, _, tree, _, _ = columns
    record_changes(tx, tree, now, n, [("head_created", node)])
    return find_by_id(tx, principal, head).head


# --- changing ------------------------------------------------------------------------------------


def rename(tx: Transaction, now: int, principal: str, space: str, name: str, new_name: str) -> Head:
    """Rename a head. Does nothing if the name is unchanged."""
    _check_name(new_name, "The new name")
    found = _find(tx, principal, space, name)
    if new_name == name:
        return found.head
    _require_free(tx, principal, space, new_name)
    tx.run("UPDATE heads SET name = ?, updated_ms = ? WHERE n = ?", (new_name, now, found.n))
    _record_change(tx, now, found, "head_renamed", found.head.position.node)
    return found.head._replace(name=new_name, updated_ms=now)


def _record_change(tx: Transaction, now: int, found: HeadRow, kind: str, node: str) -> None:
    record_changes(tx, found.tree, now, reserve_numbers(tx, 1), [(kind, node)])


def update(tx: Transaction, now: int, principal: str, space: str, name: str, data: Any) -> Head:
    """Replace the data of a head."""
    text = encode_metadata(data, "The data")
    found = _find(tx, principal, space, name)
    tx.run("UPDATE heads SET data = ?, updated_ms = ? WHERE n = ?", (text, now, found.n))
    return found.head._replace(data=decode_metadata(text), updated_ms=now)


def held_error(head: Head) -> Busy:
    """Another holder has the lease."""
    return Busy(
        f"{head.name!r} is in use by another holder. Retry later.",
        code="held",
        data={"holder": head.holder, "held_ms": head.held_ms},
    )


def delete(tx: Transaction, now: int, principal: str, space: str, name: str) -> Head:
    """Delete a head. Returns it as it was. Raises Busy (`held`) if it has a holder."""
    found = _find(tx, principal, space, name)
    head = found.head
    if head.holder is not None:
        raise held_error(head)
    tx.run("DELETE FROM heads WHERE n = ?", (found.n,))
    _record_change(tx, now, found, "head_deleted", head.position.node)
    owner = _reference_owner(space, head.id)
    # Deleting the tree has removed this reference already.
    if owner in trees.get_refs(tx, found.tree).owners:
        trees.release(tx, now, principal, head.position.tree, owner, 1)
    return head


def move(
    tx: Transaction,
    now: int,
    principal: str,
    space: str,
    name: str,
    node: str,
    holder: str | None,
) -> Head:
    """Move a head to another node of its tree. Raises Busy (`held`) for another holder."""
    found = _find(tx, principal, space, name)
    if found.head.holder not in (None, holder):
        raise held_error(found.head)
    [n] = find_node(tx, find_writable(tx, principal, found.head.position.tree), node)
    return set_node(tx, now, found, n, node)


def set_node(tx: Transaction, now: int, found: HeadRow, node: int, node_id: str) -> Head:
    """Move a head to a node of its tree, unless it is there already."""
    head = found.head
    if node == found.node:
        return head
    tx.run("UPDATE heads SET node = ?, updated_ms = ? WHERE n = ?", (node, now, found.n))
    _record_change(tx, now, found, "head_moved", node_id)
    return head._replace(position=Position(head.position.tree, node_id), updated_ms=now)


def move_heads_up(tx: Transaction, now: int, tree: int, node: int) -> None:
    """Move the heads in a deleted subtree to the node above it. Called after the deletion.

    All heads pointed to visible nodes before, so the heads on deleted nodes are those of the
    subtree; it need not be traversed again.
    """
    count = tx.run(
        "UPDATE heads SET node = ?, updated_ms = ? WHERE tree = ? AND EXISTS"
        " (SELECT 1 FROM nodes WHERE nodes.n = heads.node AND nodes.deleted_ms IS NOT NULL)",
        (node, now, tree),
    )
    if count:
        row = tx.one("SELECT id FROM nodes WHERE n = ?", (node,))
        assert row is not None
        record_changes(tx, tree, now, reserve_numbers(tx, count), [("head_moved", row[0])] * count)
