"""Full-text search in nodes, and its index.

PostgreSQL updates its index automatically. In SQLite, an update costs the same for one text as for
many, so nodes are indexed in batches of up to `INDEX_EVERY` numbers. A search updates the index
first.
"""

from __future__ import annotations

import string
from typing import Any, Final, NamedTuple

from activations.arbor.model import QUERY_BYTES, Hit
from activations.arbor.queries.rows import (
    NODE,
    NUMBER_MAX,
    check_number,
    check_page_size,
    check_text,
    decode_node,
    find_tree,
)
from activations.arbor.schema import SEARCHED_CHARACTERS
from plexus.errors import InvalidParams
from plexus.storage import Dialect, Transaction

__all__ = ("INDEX_EVERY", "find", "index_batch", "index_new_nodes", "is_stale")

#: A write updates the index after this many numbers.
INDEX_EVERY: Final = 256
#: A text of this length is indexed immediately: a batch of such texts would take too long.
LARGE_CHARACTERS: Final = 4096
#: Maximum number of nodes that one step indexes.
STEP: Final = 2048

#: Number of characters before and after the match in an excerpt.
BEFORE, AFTER = 60, 140


class _Source(NamedTuple):
    """The parts of a search query that differ between the databases."""

    tables: str
    #: The match condition, with a placeholder for the words.
    match: str
    #: The number of the node.
    number: str
    #: Quotes each word.
    quote: str


SOURCES: Final[dict[Dialect, _Source]] = {
    "sqlite": _Source(
        tables="search JOIN nodes ON nodes.n = search.rowid",
        match="search MATCH ?",
        number="search.rowid",
        quote='"',
    ),
    "postgres": _Source(
        tables="nodes",
        # Splits words as the schema does. An explicit collation, because otherwise the classes and
        # lowercase forms of letters depend on the server's settings.
        match=(
            "nodes.words @@ plainto_tsquery('simple', lower(regexp_replace("
            "CAST(? AS TEXT) COLLATE \"und-x-icu\", '[^[:alnum:]]+', ' ', 'g')))"
        ),
        number="nodes.n",
        quote="",
    ),
}

#: Punctuation only separates words.
_SIGNS: Final = str.maketrans(dict.fromkeys(string.punctuation, " "))


def find(
    tx: Transaction, principal: str, text: str, tree: str | None, before: int | None, limit: int
) -> list[Hit]:
    """Return a page of nodes that contain every word, newest first.

    The query consists of words only; there are no operators. Raises InvalidParams without words.
    """
    check_text(text, "The search text", QUERY_BYTES)
    words = [word for word in text.translate(_SIGNS).split() if any(map(str.isalnum, word))]
    if not words:
        raise InvalidParams(f"The search text {text[:64]!r} contains no word.")
    source = SOURCES[tx.dialect]
    quote = source.quote
    params: list[Any] = [
        " ".join(f"{quote}{word}{quote}" for word in words),
        NUMBER_MAX if before is None else check_number(before, "`before`"),
        principal,
    ]
    within = ""
    if tree is not None:
        within = " AND trees.n = ?"
        params.append(find_tree(tx, principal, tree).n)
    rows = tx.all(
        f"SELECT trees.id, {NODE} FROM {source.tables}"
        " JOIN trees ON trees.n = nodes.tree LEFT JOIN nodes AS above ON above.n = nodes.parent"
        f" WHERE {source.match} AND {source.number} < ?"
        f" AND trees.principal = ? AND trees.state <> 'gone' AND nodes.deleted_ms IS NULL{within}"
        f" ORDER BY {source.number} DESC LIMIT ?",
        (*params, check_page_size(limit)),
    )
    return [Hit(decode_node(row[0], row[1:]), _excerpt(row[5], words)) for row in rows]


def _excerpt(content: str, words: list[str]) -> str:
    """Return the text around the first match."""
    seen = content[:SEARCHED_CHARACTERS].lower()
    places = [place for word in words if (place := seen.find(word.lower())) >= 0]
    # Lowercasing can change the length of a text, so the position may be slightly off.
    at = min(places, default=0)
    start = max(0, at - BEFORE)
    end = at + AFTER
    return ("…" if start else "") + content[start:end] + ("…" if end < len(content) else "")


# --- the index of words ---------------------------------------------------------------------------


def is_stale(tx: Transaction) -> bool:
    """Return whether nodes are missing from the index."""
    if tx.dialect == "postgres":  # updates its index automatically
        return False
    return tx.one("SELECT 1 FROM nodes WHERE n > (SELECT indexed FROM numbers) LIMIT 1") is not None


def index_batch(tx: Transaction) -> int:
    """Index some of the missing nodes. Returns the number of the last indexed node."""
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


def index_new_nodes(tx: Transaction, first: int, last: int, largest: int) -> None:
    """Update the index if a batch is complete. Called after nodes were added."""
    if tx.dialect == "postgres":  # updates its index automatically
        return
    if largest >= LARGE_CHARACTERS or first // INDEX_EVERY != (last + 1) // INDEX_EVERY:
        while index_batch(tx) < last:
            pass
