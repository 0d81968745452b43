"""Queries of leases: one holder at a time works on a head and adds nodes at its position.

The node in progress is stored in pieces, so that the next holder can recover them if this one dies.
The pieces are dropped when nodes are added or the lease is released.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from activations.arbor.model import CONTENT_BYTES, OWNER_BYTES, UNCHANGED, Head, NewNode, Node
from activations.arbor.queries.heads import HeadRow, find_by_id, get, held_error, set_node
from activations.arbor.queries.nodes import append
from activations.arbor.queries.rows import (
    check_text,
    decode_metadata,
    encode_metadata,
    find_node,
    find_writable,
    is_id,
)
from plexus.errors import Failed, InvalidParams
from plexus.storage import Transaction

__all__ = ("acquire", "advance", "pieces", "release", "renew")


def acquire(
    tx: Transaction,
    now: int,
    principal: str,
    space: str,
    name: str,
    holder: str,
    instead_of: str | None,
) -> Head:
    """Acquire the lease of a head that has no holder, or is held by `holder` or `instead_of`.

    Keeps the pieces. Raises Busy (`held`) for another holder.
    """
    if not holder.strip():
        raise InvalidParams("The holder must not be blank.", code="bad_name")
    check_text(holder, "The holder", OWNER_BYTES)
    head = get(tx, principal, space, name)
    if head.holder not in (None, holder, instead_of):
        raise held_error(head)
    tx.run("UPDATE heads SET holder = ?, held_ms = ? WHERE id = ?", (holder, now, head.id))
    return head._replace(holder=holder, held_ms=now)


def renew(
    tx: Transaction, now: int, principal: str, head: str, holder: str, piece: str | None
) -> None:
    """Renew the lease and store a piece, if any. Raises Failed (`lost_hold`)."""
    if piece is not None:
        check_text(piece, "The piece", CONTENT_BYTES)
    row = None
    if is_id(head):
        row = tx.one(
            "UPDATE heads SET held_ms = ?, last_piece = last_piece + ?"
            " WHERE id = ? AND principal = ? AND holder = ? RETURNING n, last_piece",
            (now, 0 if piece is None else 1, head, principal, holder),
        )
    if row is None:
        raise _lost_lease(find_by_id(tx, principal, head).head)
    if piece is not None:
        tx.run("INSERT INTO pieces (head, place, content) VALUES (?, ?, ?)", (*row, piece))


def _lost_lease(head: Head) -> Failed:
    return Failed(
        f"The lease of {head.name!r} was lost, and nothing was written. Acquire it again.",
        code="lost_hold",
        data={"holder": head.holder},
    )


def advance(
    tx: Transaction,
    now: int,
    principal: str,
    head: str,
    holder: str,
    items: Sequence[NewNode],
    parent: str | None,
    data: Any,
) -> tuple[Head, list[Node]]:
    """Add a chain of nodes and move the head to the last one. Raises Failed (`lost_hold`)."""
    text = None if data is UNCHANGED else encode_metadata(data, "The data")
    found = find_by_id(tx, principal, head)
    if found.head.holder != holder:
        raise _lost_lease(found.head)
    created, n, id_ = _append_chain(tx, now, principal, found, items, parent)
    moved = set_node(tx, now, found, n, id_)._replace(held_ms=now)
    tx.run("UPDATE heads SET held_ms = ? WHERE n = ?", (now, found.n))
    _drop_pieces(tx, found.n)
    if data is not UNCHANGED:
        tx.run("UPDATE heads SET data = ?, updated_ms = ? WHERE n = ?", (text, now, found.n))
        moved = moved._replace(data=decode_metadata(text), updated_ms=now)
    return moved, created


def _append_chain(
    tx: Transaction,
    now: int,
    principal: str,
    found: HeadRow,
    items: Sequence[NewNode],
    parent: str | None,
) -> tuple[list[Node], int, str]:
    """Add the chain. Returns the new nodes, and the number and id of the head's new node."""
    tree, node = found.head.position
    if items:
        chain = [
            item._replace(parent=None if index == 0 else index - 1)
            for index, item in enumerate(items)
        ]
        created = append(tx, now, principal, tree, node if parent is None else parent, chain)
        return created, created[-1].n, created[-1].id
    if parent is None:
        return [], found.node, node
    [n] = find_node(tx, find_writable(tx, principal, tree), parent)
    return [], n, parent


def release(tx: Transaction, principal: str, head: str, holder: str) -> None:
    """Release the lease and drop the pieces, if this holder has it."""
    if not is_id(head):
        return
    row = tx.one(
        "UPDATE heads SET holder = NULL, held_ms = NULL"
        " WHERE id = ? AND principal = ? AND holder = ? RETURNING n",
        (head, principal, holder),
    )
    if row is not None:
        _drop_pieces(tx, row[0])


def _drop_pieces(tx: Transaction, head: int) -> None:
    tx.run("DELETE FROM pieces WHERE head = ?", (head,))


def pieces(tx: Transaction, principal: str, head: str) -> list[str]:
    """Return the stored pieces in order."""
    found = find_by_id(tx, principal, head)
    rows = tx.all("SELECT content FROM pieces WHERE head = ? ORDER BY place", (found.n,))
    return [content for (content,) in rows]
