"""Claiming and releasing trees: a tree is active as long as somebody refers to it."""

from __future__ import annotations

from typing import Final

from activations.arbor.model import OWNER_BYTES, Refs, Tree
from activations.arbor.queries.rows import checked_text, find_writable, numbered, record
from activations.arbor.queries.trees import get, owners_of
from plexus.errors import Failed, InvalidParams
from plexus.storage import Transaction

__all__ = ("claim", "drop", "release")

#: References that one call may add or take; far from where sums would overflow.
COUNT_MAX: Final = 2**31 - 1


def _check(owner: str, count: int) -> None:
    checked_text(owner, "the owner", OWNER_BYTES)
    if not 1 <= count <= COUNT_MAX:
        raise InvalidParams(f"count must be between 1 and {COUNT_MAX}", data={"given": count})


def claim(tx: Transaction, now: int, principal: str, tree: str, owner: str, count: int) -> Refs:
    """More references of this owner."""
    _check(owner, count)
    found = find_writable(tx, principal, tree)
    tx.run(
        "INSERT INTO tree_refs (tree, owner, count) VALUES (?, ?, ?)"
        " ON CONFLICT (tree, owner) DO UPDATE SET count = tree_refs.count + excluded.count",
        (found.n, owner, count),
    )
    if found.state != "active":
        tx.run("UPDATE trees SET state = 'active', scheduled_ms = NULL WHERE n = ?", (found.n,))
    record(tx, found.n, now, numbered(tx, 1), [("tree_claimed", None)])
    return owners_of(tx, found.n)


def release(tx: Transaction, now: int, principal: str, tree: str, owner: str, count: int) -> Refs:
    """Fewer references of this owner; the last of all schedules the tree."""
    _check(owner, count)
    found = find_writable(tx, principal, tree)
    refs = owners_of(tx, found.n)
    held = refs.owners.get(owner, 0)
    if count > held:
        raise Failed(
            f"{owner!r} holds {held} references and cannot release {count}",
            code="over_release",
            data={"owner": owner, "held": held, "count": count},
        )
    if count == held:
        tx.run("DELETE FROM tree_refs WHERE tree = ? AND owner = ?", (found.n, owner))
    else:
        tx.run(
            "UPDATE tree_refs SET count = count - ? WHERE tree = ? AND owner = ?",
            (count, found.n, owner),
        )
    changes: list[tuple[str, str | None]] = [("tree_released", None)]
    if count == refs.total:
        _schedule(tx, found.n, now)
        changes.append(("tree_scheduled", None))
    record(tx, found.n, now, numbered(tx, len(changes)), changes)
    return owners_of(tx, found.n)


def drop(tx: Transaction, now: int, principal: str, tree: str) -> Tree:
    """No references any more."""
    found = find_writable(tx, principal, tree)
    if found.state == "active":
        tx.run("DELETE FROM tree_refs WHERE tree = ?", (found.n,))
        _schedule(tx, found.n, now)
        record(tx, found.n, now, numbered(tx, 1), [("tree_scheduled", None)])
    return get(tx, principal, tree)


def _schedule(tx: Transaction, tree: int, now: int) -> None:
    tx.run("UPDATE trees SET state = 'scheduled_delete', scheduled_ms = ? WHERE n = ?", (now, tree))
