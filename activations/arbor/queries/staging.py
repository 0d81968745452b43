"""A tree that is made in several transactions and that nobody sees before it is whole.

Until then it belongs to a principal that nobody is, and nobody holds it: if its maker dies, it is
purged like any other tree that nobody wants.
"""

from __future__ import annotations

from activations.arbor.model import OWNER_BYTES, Tree
from activations.arbor.queries.rows import checked_text, find_tree, numbered, record
from activations.arbor.queries.trees import get
from plexus.storage import Transaction

__all__ = ("adopt", "discard")


def adopt(tx: Transaction, now: int, stage: str, tree: str, principal: str, owner: str) -> Tree:
    """Give a tree that is whole to its principal, held by one reference."""
    checked_text(principal, "the principal", OWNER_BYTES)
    checked_text(owner, "the owner", OWNER_BYTES)
    found = find_tree(tx, stage, tree)
    tx.run(
        "UPDATE trees SET principal = ?, owner = ?, state = 'active', scheduled_ms = NULL"
        " WHERE n = ?",
        (principal, owner, found.n),
    )
    tx.run("INSERT INTO tree_refs (tree, owner, count) VALUES (?, ?, 1)", (found.n, owner))
    record(tx, found.n, now, numbered(tx, 1), [("tree_claimed", None)])
    return get(tx, principal, tree)


def discard(tx: Transaction, stage: str, tree: str) -> None:
    """Be rid of a tree that will never be whole; its nodes are removed by the next purge."""
    found = find_tree(tx, stage, tree)
    tx.run("DELETE FROM tree_refs WHERE tree = ?", (found.n,))
    tx.run("UPDATE trees SET state = 'gone', metadata = NULL WHERE n = ?", (found.n,))
