"""Searching the texts of nodes by words, and the index for that.

PostgreSQL keeps its index by itself. In SQLite, adding to it costs the same for one text as for
many, so it follows the nodes by up to `INDEX_EVERY` numbers; a search brings it up to date first.
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

#: Numbers after which a write brings the index up to date.
INDEX_EVERY: Final = 256
#: A text of this length does so at once: a few hundred of those would take long together.
LARGE_CHARACTERS: Final = 4096
#: Nodes that one step adds.
STEP: Final = 2048

#: How much of a text is shown before and after the word that was found.
BEFORE, AFTER = 60, 140


class _Source(NamedTuple):
    """What a search reads from: the one thing that the two databases do differently."""

    tables: str
    #: The condition that takes the words.
    match: str
    #: The node's number.
    number: str
    #: Written around each word of what the condition takes.
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
        # Words as the schema makes them of texts. With a collation of its own, because otherwise
        # what is a letter, and which one is its small form, depends on the server's settings.
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
    """A page of nodes that hold every word, newest first.

    Whatever is searched for is words, and nothing in it is an operator.
    """
    check_text(text, "what is searched for", QUERY_BYTES)
    words = [word for word in text.translate(_SIGNS).split() if any(map(str.isalnum, word))]
    if not words:
        raise InvalidParams("there is no word in what is searched for")
    source = SOURCES[tx.dialect]
    quote = source.quote
    params: list[Any] = [
        " ".join(f"{quote}{word}{quote}" for word in words),
        NUMBER_MAX if before is None else check_number(before, "before"),
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
    """The text around the first of the words that can be seen in it."""
    seen = content[:SEARCHED_CHARACTERS].lower()
    places = [place for word in words if (place := seen.find(word.lower())) >= 0]
    # Lowering some letters changes their number, so the place may be off by a little.
    at = min(places, default=0)
    start = max(0, at - BEFORE)
    end = at + AFTER
    return ("…" if start else "") + content[start:end] + ("…" if end < len(content) else "")


# --- the index of words ---------------------------------------------------------------------------


def is_stale(tx: Transaction) -> bool:
    """Whether there are nodes that a search would miss."""
    if tx.dialect == "postgres":  # which keeps its own
        return False
    return tx.one("SELECT 1 FROM nodes WHERE n > (SELECT indexed FROM numbers) LIMIT 1") is not None


def index_batch(tx: Transaction) -> int:
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


def index_new_nodes(tx: Transaction, first: int, last: int, largest: int) -> None:
    """Called when nodes with these numbers were added: now and then, index what is missing."""
    if tx.dialect == "postgres":  # which keeps its own
        return
    if largest >= LARGE_CHARACTERS or first // INDEX_EVERY != (last + 1) // INDEX_EVERY:
        while index_batch(tx) < last:
            pass
