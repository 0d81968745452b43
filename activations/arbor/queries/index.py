"""The index of words, where the database does not keep it by itself.

Adding to it costs the same for one text as for many, so it follows the nodes by up to
`INDEX_EVERY` numbers; whoever searches first brings it up to date.
"""

from __future__ import annotations

from typing import Final

from activations.arbor.schema import SEARCHED_CHARACTERS
from plexus.storage import Transaction

__all__ = ("catch_up", "is_behind", "keep_up")

#: Numbers after which somebody who writes brings the index up to date.
INDEX_EVERY: Final = 256
#: A text of this length does so at once: a few hundred of those would take long together.
LARGE_CHARACTERS: Final = 4096
#: Nodes that one step adds.
STEP: Final = 2048


def is_behind(tx: Transaction) -> bool:
    """Whether there are nodes that a search would miss."""
    if tx.dialect == "postgres":  # which keeps its own
        return False
    return tx.one("SELECT 1 FROM nodes WHERE n > (SELECT indexed FROM numbers) LIMIT 1") is not None


def catch_up(tx: Transaction) -> int:
    """Add some of the nodes that are missing; returns up to which number."""
    row = tx.one(
        "SELECT indexed, (SELECT max(n) FROM (SELECT n FROM nodes WHERE n > indexed"
        f" ORDER BY n LIMIT {STEP}) AS missing) FROM numbers"
    )
    assert row is not None
    since: int = row[0]
    last: int | None = row[1]
    if last is None:
        return since
    tx.run(
        f"INSERT INTO search (rowid, content) SELECT n, substr(content, 1, {SEARCHED_CHARACTERS})"
        " FROM nodes WHERE n > ? AND n <= ? AND content <> ''",
        (since, last),
    )
    tx.run("UPDATE numbers SET indexed = ?", (last,))
    return last


def keep_up(tx: Transaction, first: int, last: int, largest: int) -> None:
    """Called when nodes with these numbers were added: now and then, index what is missing."""
    if tx.dialect == "postgres":  # which keeps its own
        return
    if largest >= LARGE_CHARACTERS or first // INDEX_EVERY != (last + 1) // INDEX_EVERY:
        while catch_up(tx) < last:
            pass
