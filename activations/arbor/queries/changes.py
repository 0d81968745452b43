"""The record of changes: of one tree, or of all."""

from __future__ import annotations

from typing import Final

from activations.arbor.model import ChangeRow, Counts
from activations.arbor.queries.rows import checked_number, checked_page, find_tree
from plexus.errors import Failed
from plexus.storage import Transaction

__all__ = ("counts", "last_number", "of_all", "of_tree", "oldest")

CHANGE: Final = (
    "SELECT changes.seq, trees.principal, trees.id, changes.kind, changes.node, changes.at_ms"
    " FROM changes JOIN trees ON trees.n = changes.tree"
)


def of_tree(tx: Transaction, principal: str, tree: str, after: int, limit: int) -> list[ChangeRow]:
    """A page of what happened to a tree."""
    found = find_tree(tx, principal, tree)
    forgotten = _forgotten(tx, found.n)
    if checked_number(after, "after") < forgotten:
        raise Failed(
            f"changes up to {forgotten} are forgotten: read the tree anew and watch from there",
            code="expired",
            data={"oldest": forgotten},
        )
    rows = tx.all(
        f"{CHANGE} WHERE changes.tree = ? AND changes.seq > ? ORDER BY changes.seq LIMIT ?",
        (found.n, after, checked_page(limit)),
    )
    return [ChangeRow(*row) for row in rows]


def oldest(tx: Transaction, principal: str, tree: str) -> int:
    """The lowest number that a tree's changes can still be read after."""
    return _forgotten(tx, find_tree(tx, principal, tree).n)


def _forgotten(tx: Transaction, tree: int) -> int:
    row = tx.one("SELECT forgotten FROM trees WHERE n = ?", (tree,))
    assert row is not None
    number: int = row[0]
    return number


def of_all(tx: Transaction, after: int, limit: int) -> list[ChangeRow]:
    """A page of what happened to any tree that is there."""
    rows = tx.all(
        f"{CHANGE} WHERE changes.seq > ? ORDER BY changes.seq LIMIT ?",
        (checked_number(after, "after"), checked_page(limit)),
    )
    return [ChangeRow(*row) for row in rows]


def counts(tx: Transaction) -> Counts:
    """How much there is. Nodes that wait to be removed are counted: they take room too."""
    row = tx.one(
        "SELECT (SELECT count(*) FROM trees WHERE state <> 'gone'),"
        " (SELECT count(*) FROM nodes), (SELECT value FROM numbers)"
    )
    assert row is not None
    return Counts(*row)


def last_number(tx: Transaction) -> int:
    """The last number that was handed out: no change has a higher one yet."""
    row = tx.one("SELECT value FROM numbers")
    assert row is not None, "there is one from the beginning"
    number: int = row[0]
    return number
