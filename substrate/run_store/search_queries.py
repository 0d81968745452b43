"""The tables of the search index, and the units of work over them, for both engines.

- `run_words` has one row for each different word of a run, with the chunk in which the word was
  found first. Its key begins with the *segment* of the run. A run belongs to the segment that was
  the newest when the run was added, and a segment takes runs until it has enough rows. Words are
  random numbers; because of the segments, new rows change few pages of the file nevertheless.
- `word_runs` has one row for each run. Its key orders runs by the time when they started.
- `word_segments` has the limits between which the positions of a segment's runs are, and how many
  runs and rows it has.
- `word_lists` has the words of each run, so that a run can be deleted without a search for it.
"""

from __future__ import annotations

import array
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple

from plexus.rpc import wire
from plexus.storage import Component, Dialect, Migration, Transaction

__all__ = (
    "RUN_WORDS",
    "SEARCH_INDEX",
    "Hit",
    "Posting",
    "add_run",
    "delete_runs",
    "get_identity",
    "read_size",
    "search_runs",
)

#: The different words of one run; further words are not indexed. A run that prints random data
#: would otherwise take as much space as thousands of others.
RUN_WORDS: Final = 65_536
#: The rows of a segment, about 15 MB, which fit into the cache of a writer.
SEGMENT_ROWS: Final = 400_000
#: Up to this many rows are counted to find the rarest of several words: one or two pages.
COUNTED: Final = 100
#: The same, once in a search that has to read several segments.
COUNTED_ONCE: Final = 2_000
#: Runs that started in the same millisecond have different keys up to this number.
RUNS_PER_MS: Final = 1 << 16
#: After all positions.
END: Final = (1 << 63) - 1

TABLES: Final = Migration(
    both=(
        "CREATE TABLE word_index (identity {name} NOT NULL)",
        """CREATE TABLE word_segments (
            id {key},
            runs BIGINT NOT NULL,
            size BIGINT NOT NULL,
            oldest BIGINT NOT NULL,
            newest BIGINT NOT NULL
        )""",
        """CREATE TABLE word_runs (
            position {key},
            run BIGINT NOT NULL UNIQUE,
            started_ms BIGINT NOT NULL,
            segment BIGINT NOT NULL,
            size BIGINT NOT NULL
        )""",
    ),
    sqlite=(
        """CREATE TABLE run_words (
            segment INTEGER NOT NULL,
            word INTEGER NOT NULL,
            position INTEGER NOT NULL,
            from_seq INTEGER NOT NULL,
            PRIMARY KEY (segment, word, position)
        ) WITHOUT ROWID""",
        """CREATE TABLE word_lists (
            position INTEGER NOT NULL,
            part INTEGER NOT NULL,
            words BLOB NOT NULL,
            PRIMARY KEY (position, part)
        ) WITHOUT ROWID""",
    ),
    postgres=(
        """CREATE TABLE run_words (
            segment BIGINT NOT NULL,
            word BIGINT NOT NULL,
            position BIGINT NOT NULL,
            from_seq BIGINT NOT NULL,
            PRIMARY KEY (segment, word, position) INCLUDE (from_seq)
        )""",
        """CREATE TABLE word_lists (
            position BIGINT NOT NULL,
            part BIGINT NOT NULL,
            words BYTEA NOT NULL,
            PRIMARY KEY (position, part)
        )""",
    ),
)
SEARCH_INDEX: Final = Component("run_words", (TABLES,), durability="normal", erases=True)

#: A list of numbers as one parameter, and the rows of such a parameter.
LISTED: Final[dict[Dialect, tuple[Callable[[Sequence[int]], Any], str]]] = {
    "sqlite": (lambda numbers: wire.encode(numbers).decode(), "SELECT value FROM json_each(?)"),
    "postgres": (lambda numbers: numbers, "SELECT value FROM unnest(?::bigint[]) AS value"),
}


class Hit(NamedTuple):
    """A run that has all words, and the chunk from which on it has them all."""

    run: int
    from_seq: int
    started_ms: int


class Posting(NamedTuple):
    """Words of one chunk of a run."""

    run: int
    from_seq: int
    started_ms: int
    words: Collection[int]


def get_identity(tx: Transaction, new: str) -> str:
    """Return the stored identity of the index. Stores `new` if it has none."""
    row = tx.one("SELECT identity FROM word_index")
    if row is not None:
        return str(row[0])
    tx.run("INSERT INTO word_index (identity) VALUES (?)", (new,))
    return new


# --- adding ---------------------------------------------------------------------------------------


def add_run(tx: Transaction, posting: Posting) -> None:
    """Add the words of a chunk that its run does not have yet."""
    row = tx.one(
        "SELECT position, segment, size FROM word_runs WHERE run = ?", (posting.run,)
    ) or _create_run(tx, posting)
    position, segment, size = row
    # In the order of the table, which is faster.
    words = sorted(posting.words)[: RUN_WORDS - size]
    if not words:
        return
    encode, rows = LISTED[tx.dialect]
    added = tx.all(
        "INSERT INTO run_words (segment, word, position, from_seq)"
        f" SELECT ?, value, ?, ? FROM ({rows}) AS words WHERE true"
        " ON CONFLICT (segment, word, position) DO NOTHING RETURNING word",
        (segment, position, posting.from_seq, encode(words)),
    )
    if not added:
        return
    tx.run(
        "INSERT INTO word_lists (position, part, words)"
        " VALUES (?, (SELECT count(*) FROM word_lists WHERE position = ?), ?)",
        (position, position, array.array("q", [word for (word,) in added]).tobytes()),
    )
    tx.run("UPDATE word_runs SET size = size + ? WHERE position = ?", (len(added), position))
    tx.run("UPDATE word_segments SET size = size + ? WHERE id = ?", (len(added), segment))


def _create_run(tx: Transaction, posting: Posting) -> tuple[int, int, int]:
    """Create the row of a run. Returns its position, segment and number of words."""
    newest = tx.one("SELECT id, size FROM word_segments ORDER BY id DESC LIMIT 1") or (0, None)
    segment, size = newest
    if size is None or size >= SEGMENT_ROWS:
        segment += 1
        tx.run(
            "INSERT INTO word_segments (id, runs, size, oldest, newest) VALUES (?, 0, 0, ?, 0)",
            (segment, END),
        )
    first = posting.started_ms * RUNS_PER_MS
    last = tx.one(
        "SELECT max(position) FROM word_runs WHERE position >= ? AND position < ?",
        (first, first + RUNS_PER_MS),
    )
    position = first if last is None or last[0] is None else last[0] + 1
    tx.run(
        "INSERT INTO word_runs (position, run, started_ms, segment, size) VALUES (?, ?, ?, ?, 0)",
        (position, posting.run, posting.started_ms, segment),
    )
    tx.run(
        "UPDATE word_segments SET runs = runs + 1,"
        " oldest = CASE WHEN oldest < ? THEN oldest ELSE ? END,"
        " newest = CASE WHEN newest > ? THEN newest ELSE ? END WHERE id = ?",
        (position, position, position, position, segment),
    )
    return position, segment, 0


# --- searching ------------------------------------------------------------------------------------


def search_runs(
    tx: Transaction,
    words: Sequence[int],
    project: int | None,
    limit: int,
    before: tuple[int, int] | None,
) -> list[Hit]:
    """Return the newest runs that have all words. `before` is a start time and a run."""
    end = _end_position(tx, before)
    segments = tx.all(
        "SELECT newest, id FROM word_segments WHERE runs > 0 AND oldest < ? ORDER BY newest DESC",
        (end,),
    )
    wanted = list(words) if project is None else [*words, project]
    found: list[tuple[int, int]] = []
    for number, (newest, segment) in enumerate(segments):
        if len(found) == limit and found[-1][0] > newest:
            break  # all further runs are older
        if number == 1:
            # The first segment did not have enough: words that are frequent in all are ordered.
            wanted = _rarest_first(tx, segment, wanted, COUNTED_ONCE) or wanted
        found += _search_segment(tx, segment, wanted, project, limit, end)
        found = sorted(found, reverse=True)[:limit]
    return _hits(tx, found)


def _end_position(tx: Transaction, before: tuple[int, int] | None) -> int:
    """Return the position before which the runs of a page are."""
    if before is None:
        return END
    started_ms, run = before
    row = tx.one("SELECT position FROM word_runs WHERE run = ?", (run,))
    return started_ms * RUNS_PER_MS if row is None else int(row[0])


def _search_segment(
    tx: Transaction,
    segment: int,
    words: Sequence[int],
    project: int | None,
    limit: int,
    end: int,
) -> list[tuple[int, int]]:
    """Return the positions and chunks of the newest runs of a segment that have all words."""
    # The rows of the rarest word are read, and the others are looked up.
    wanted = words if len(words) == 1 else _rarest_first(tx, segment, words, COUNTED)
    if not wanted:
        return []
    # A cross join has a fixed order in SQLite. The word of the project has no chunk.
    tables = " CROSS JOIN ".join(f"run_words AS w{n}" for n in range(len(wanted)))
    same = "".join(
        f" AND w{n}.segment = w0.segment AND w{n}.position = w0.position AND w{n}.word = ?"
        for n in range(1, len(wanted))
    )
    chunks = ", ".join(f"w{n}.from_seq" for n, word in enumerate(wanted) if word != project)
    rows = tx.all(
        f"SELECT w0.position, {chunks} FROM {tables}"
        f" WHERE w0.segment = ? AND w0.word = ? AND w0.position < ?{same}"
        " ORDER BY w0.position DESC LIMIT ?",
        (segment, wanted[0], end, *wanted[1:], limit),
    )
    return [(row[0], max(row[1:])) for row in rows]


def _rarest_first(tx: Transaction, segment: int, words: Sequence[int], limit: int) -> list[int]:
    """Return the words by their number of rows, up to a limit. Empty if a word has none."""
    counts: dict[int, int] = {}
    for word in words:
        row = tx.one(
            "SELECT count(*) FROM"
            " (SELECT 1 FROM run_words WHERE segment = ? AND word = ? LIMIT ?) AS counted",
            (segment, word, limit),
        )
        counts[word] = 0 if row is None else int(row[0])
        if not counts[word]:
            return []
    return sorted(words, key=counts.__getitem__)


def _hits(tx: Transaction, found: Sequence[tuple[int, int]]) -> list[Hit]:
    if not found:
        return []
    encode, rows = LISTED[tx.dialect]
    runs = {
        position: (run, started_ms)
        for position, run, started_ms in tx.all(
            f"SELECT position, run, started_ms FROM word_runs WHERE position IN ({rows})",
            (encode([position for position, _ in found]),),
        )
    }
    return [Hit(runs[position][0], from_seq, runs[position][1]) for position, from_seq in found]


# --- deleting -------------------------------------------------------------------------------------


def delete_runs(tx: Transaction, runs: Iterable[int], limit: int) -> int:
    """Delete runs until this many words are deleted. Returns the number of runs."""
    encode, rows = LISTED[tx.dialect]
    done = deleted = 0
    for run in runs:
        if deleted >= limit:
            break
        done += 1
        row = tx.one("SELECT position, segment FROM word_runs WHERE run = ?", (run,))
        if row is None:
            continue
        position, segment = row
        words = array.array("q")
        for (part,) in tx.all("SELECT words FROM word_lists WHERE position = ?", (position,)):
            words.frombytes(part)
        tx.run(
            f"DELETE FROM run_words WHERE segment = ? AND position = ? AND word IN ({rows})",
            (segment, position, encode(words.tolist())),
        )
        tx.run("DELETE FROM word_lists WHERE position = ?", (position,))
        tx.run("DELETE FROM word_runs WHERE position = ?", (position,))
        tx.run(
            "UPDATE word_segments SET runs = runs - 1, size = size - ? WHERE id = ?",
            (len(words), segment),
        )
        deleted += len(words)
    # The newest segment stays, so that numbers are not used twice.
    tx.run("DELETE FROM word_segments WHERE runs = 0 AND id < (SELECT max(id) FROM word_segments)")
    return done


def read_size(tx: Transaction) -> tuple[int, int, int]:
    """Return the number of runs and of their words, and the size of the index in bytes."""
    counts = tx.one(
        "SELECT (SELECT count(*) FROM word_runs), (SELECT sum(size) FROM word_segments)"
    )
    if tx.dialect == "sqlite":
        size = tx.one("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")
    else:
        size = tx.one(
            "SELECT sum(pg_total_relation_size(name::regclass)) FROM"
            " unnest(ARRAY['run_words', 'word_runs', 'word_lists', 'word_segments']) AS name"
        )
    assert counts is not None
    assert size is not None
    return int(counts[0]), int(counts[1] or 0), int(size[0])
