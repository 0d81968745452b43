"""A flush: everything that was recorded since the last one, written in one transaction.

Rows are passed to the database as JSON, in one statement for all runs: a statement per run would
acquire and release the interpreter lock each time, which costs more than the database itself while
the event loop is busy. Times are those of the monotonic clock; the database converts them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from plexus.rpc import wire
from plexus.storage.engine import Dialect, Transaction
from substrate.run_store.chunks import encode_chunk
from substrate.run_store.schema import ENDED, storable_text

if TYPE_CHECKING:  # it imports this module
    from plexus.runtime.run import LocalRun
    from substrate.run_store.recorded_run import RunEntry
    from substrate.run_store.run_groups import Group

__all__ = ("Flush", "Segment", "json_rows")

#: The place of the arguments and of the summary in the row of a run.
_CALL: Final = 13
#: The items of one statement have at most this size, which bounds the memory of the database.
MAX_CHUNK_BYTES: Final = 8 * 1024 * 1024


class Segment:
    """Consecutive items of one run, joined."""

    __slots__ = ("first", "last", "marks", "pieces")

    def __init__(self, first: int) -> None:
        self.first = first
        self.last = first - 1
        self.pieces: list[bytes] = []
        #: Pairs of number and milliseconds since the epoch, the first for the first item.
        self.marks: list[tuple[int, int]] = []

    def add(self, piece: bytes, last: int, marks: Sequence[tuple[int, int]]) -> None:
        """Append items that end with this number."""
        self.pieces.append(piece)
        self.last = last
        self.marks += marks


def json_rows(dialect: Dialect) -> str:
    """Return the table expression for rows that are passed as a JSON array of arrays."""
    if dialect == "sqlite":
        return "jsonb_each(?)"  # its values are not parsed again for every column
    return "json_array_elements(CAST(? AS json))"


def _columns(*types: str) -> str:
    """Return the columns of JSON rows with their types; `time` converts a monotonic time."""
    expressions = []
    for index, kind in enumerate(types):
        if kind == "time":
            value = f"CAST(r.value ->> {index} AS DOUBLE PRECISION)"
            expressions.append(f"CAST(({value} + ?) * 1000 AS BIGINT)")
        else:
            expressions.append(f"CAST(r.value ->> {index} AS {kind})")
    return ", ".join(expressions)


class Flush:
    """What is written in one transaction."""

    __slots__ = (
        "_checkpoints",
        "_chunks",
        "_encoded",
        "_groups",
        "_inserts",
        "_questions",
        "_repeated",
        "_short",
        "_short_groups",
        "_short_rows",
        "_short_runs",
        "_updates",
        "ended",
        "entries",
        "offset",
        "size",
        "waiting",
    )

    def __init__(self, offset: float) -> None:
        #: The offset of the wall clock from the monotonic clock.
        self.offset = offset
        #: Runs that have started and ended since the last flush, whose items are in their rows:
        #: those without a row, the number of all, their rows, and the rows of their groups.
        self._short: list[tuple[Group, list[LocalRun]]] = []
        self._short_runs = 0
        self._short_rows: list[tuple[Any, ...]] = []
        self._short_groups: dict[int, list[Any]] = {}
        #: Number of rows at the beginning that are written for the second time.
        self._repeated = 0
        self._groups: dict[int, list[Any]] = {}
        self._inserts: list[tuple[Any, ...]] = []
        self._updates: list[tuple[Any, ...]] = []
        #: The entries of the rows, by run.
        self.entries: dict[int, RunEntry] = {}
        self._chunks: list[tuple[int, int, Segment]] = []
        self._encoded: list[tuple[Any, ...]] | None = None
        #: Checkpoints, and what waits until they are written.
        self._checkpoints: list[tuple[str, int, int]] = []
        self.waiting: list[tuple[RunEntry, list[asyncio.Future[None]]]] = []
        #: Question rows; None for one that was closed, and a request of None for all of a run.
        self._questions: list[tuple[int, str | None, tuple[str, int] | None]] = []
        #: Bytes of the items.
        self.size = 0
        #: Whether runs have ended.
        self.ended = False

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        has_rows = bool(self._short_runs or self._inserts or self._updates)
        return not (has_rows or self._chunks or self._questions)

    @property
    def runs(self) -> int:
        """Number of runs whose rows are inserted or updated."""
        return self._short_runs + len(self._inserts) + len(self._updates)

    def insert(
        self,
        entry: RunEntry,
        state: int,
        outcome: str | None,
        exit_code: int | None,
        ended_at: float | None,
        kept_ms: int | None,
        retention_s: float | None,
        items: str | None,
    ) -> None:
        """Add the row of a new run."""
        entry.state, entry.retention_s = str(state), retention_s
        self.ended |= ended_at is not None
        written = (ended_at, state, outcome, exit_code, entry.seq, entry.size, kept_ms, retention_s)
        self.entries[entry.run.id] = entry
        self._groups[entry.group.number] = entry.group.row
        self._inserts.append(_entry_row(entry, written, items))

    def add_short(self, runs: list[tuple[Group, list[LocalRun]]]) -> None:
        """Add runs that have ended and have no cursor, by their groups."""
        self._short = runs
        self._short_runs += sum(len(members) for _, members in runs)
        self._short_groups |= {group.number: group.row for group, _ in runs}
        self.ended |= bool(runs)

    def repeat_short(self, failed: Flush) -> None:
        """Add the short runs of a flush that was given up, without their calls. Only once each."""
        rows, groups = failed.short_rows()
        self._short_rows += [(*row[:_CALL], "", "", *row[_CALL + 2 :]) for row in rows]
        self._repeated = len(self._short_rows)
        self._short_runs += len(rows)
        self._short_groups |= groups
        self.ended |= bool(rows)

    def short_rows(self) -> tuple[list[tuple[Any, ...]], dict[int, list[Any]]]:
        """Return the rows of short runs that are written for the first time, and their groups."""
        self._make_short_rows()
        return self._short_rows[self._repeated :], self._short_groups

    def update(
        self,
        entry: RunEntry,
        state: int,
        outcome: str | None,
        exit_code: int | None,
        ended_at: float | None,
        kept_ms: int | None,
        retention_s: float | None,
    ) -> None:
        """Add the changes of a run that has a row."""
        self.ended |= ended_at is not None
        self.entries[entry.run.id] = entry
        self._updates.append(
            (
                entry.run.id,
                entry.epoch,
                ended_at,
                state,
                outcome,
                exit_code,
                entry.seq,
                entry.size,
                kept_ms,
                retention_s,
            )
        )

    def add_segments(self, entry: RunEntry) -> None:
        """Add the items of a run."""
        segments, entry.segments = entry.segments, []
        for segment in segments:
            self._chunks.append((entry.run.id, entry.epoch, segment))

    def add_question(self, run: int, request: str, row: tuple[str, int] | None) -> None:
        """Add a question that was opened, or closed if there is no row."""
        self._questions.append((run, request, row))

    def add_checkpoints(self, entry: RunEntry) -> None:
        """Add the newest checkpoint of a run, and what waits for it and those before."""
        checkpoints, entry.checkpoints = entry.checkpoints, None
        if checkpoints is not None:
            self._checkpoints.append((checkpoints[-1][0].decode(), entry.run.id, entry.epoch))
            self.waiting.append((entry, [written for _, written in checkpoints]))

    def close_questions(self, run: int) -> None:
        """Close all questions of a run."""
        self._questions.append((run, None, None))

    # --- on the writer thread -----------------------------------------------------------------

    def write(self, tx: Transaction, process: tuple[Any, ...]) -> Collection[int]:
        """Write everything. Returns the runs that belong to another process by now.

        `process` has the values of the columns project, process, pid and host.
        """
        if self._short_runs:
            self._make_short_rows()
            self._write_inserts(tx, process, self._short_rows, self._short_groups)
        if self._inserts:
            self._write_inserts(tx, process, self._inserts, self._groups)
        fenced: set[int] = set()
        if self._updates:
            fenced = self._write_updates(tx)
        if fenced:
            fenced -= self._restore(tx, process, fenced)
        if self._chunks:
            self._write_chunks(tx)
        if self._checkpoints:
            tx.many(
                f"UPDATE runs SET checkpoint = ? WHERE id = ? AND epoch = ? AND state < {ENDED}",
                self._checkpoints,
            )
        for run, request, row in self._questions:
            _write_question(tx, run, request, row)
        return fenced

    def _make_short_rows(self) -> None:
        """Make the rows of short runs, and release each run.

        Otherwise the event loop would free thousands of runs together, which it last used a long
        time ago: calls took 3 % longer.
        """
        for group, members in self._short:
            members.reverse()
            while members:
                self._short_rows.append(_short_row(members.pop(), group))
        self._short = []

    def _restore(
        self, tx: Transaction, process: tuple[Any, ...], runs: Collection[int]
    ) -> set[int]:
        """Insert the rows of those runs that have none any more. Returns these runs.

        A database that was removed, or set aside because it was corrupt, has lost them.
        """
        stored = tx.all(
            "SELECT runs.id FROM runs JOIN"
            f" (SELECT CAST(r.value ->> 0 AS BIGINT) AS id FROM {json_rows(tx.dialect)} AS r) AS u"
            " ON runs.id = u.id",
            (wire.encode([[run] for run in runs]).decode(),),
        )
        missing = set(runs) - {row[0] for row in stored}
        if missing:
            rows, groups = [], {}
            for run, _epoch, *written in self._updates:
                if run in missing:
                    entry = self.entries[run]
                    groups[entry.group.number] = entry.group.row
                    rows.append(_entry_row(entry, tuple(written), None))
            self._write_inserts(tx, process, rows, groups)
        return missing

    def _write_inserts(
        self,
        tx: Transaction,
        process: tuple[Any, ...],
        inserts: Sequence[tuple[Any, ...]],
        known_groups: Mapping[int, list[Any]],
    ) -> None:
        rows = json_rows(tx.dialect)
        # Read once for each group, not for each run.
        groups = ", ".join(f"value ->> {index} AS c{index}" for index in range(1, 10))
        groups = f"SELECT CAST(value ->> 0 AS INTEGER) AS number, {groups} FROM {rows}"
        columns = (
            "CAST(r.value ->> 1 AS BIGINT), g.c1, g.c2, g.c3, g.c4, g.c5, g.c6, g.c7, g.c8,"
            " g.c9,"
            " CAST((CAST(r.value ->> 2 AS DOUBLE PRECISION) + ?) * 1000 AS BIGINT),"
            " CAST((CAST(r.value ->> 3 AS DOUBLE PRECISION) + ?) * 1000 AS BIGINT),"
            " CAST(r.value ->> 4 AS INTEGER), r.value ->> 5, CAST(r.value ->> 6 AS BIGINT),"
            " CAST(r.value ->> 7 AS BIGINT), CAST(r.value ->> 8 AS BIGINT),"
            " CAST(r.value ->> 9 AS BIGINT),"
            " CAST((CAST(r.value ->> 3 AS DOUBLE PRECISION) + ?) * 1000 AS BIGINT)"
            " + CAST(r.value ->> 10 AS BIGINT),"
            " CAST(r.value ->> 11 AS DOUBLE PRECISION), r.value ->> 12, r.value ->> 13,"
            " r.value ->> 14, r.value ->> 15, CAST(r.value ->> 16 AS INTEGER)"
        )
        own = "?, ?, ?, ?" if tx.dialect == "sqlite" else "?, ?::bigint, ?::bigint, ?"
        tx.run(
            f"WITH g AS MATERIALIZED ({groups}) INSERT INTO runs"
            " (id, method, scope, principal, client, recorded, restart, scopes, agent_session,"
            " credential,"
            " started_ms, ended_ms, state, outcome, exit_code, last_seq, bytes, parent, kept_until,"
            " retention_s, run_key, arguments, summary, items, epoch, project, process, pid, host,"
            " cancel_requested, pinned, indexed)"
            f" SELECT {columns}, {own}, 0, 0, 0"
            f" FROM {rows} AS r JOIN g ON g.number = CAST(r.value ->> 0 AS INTEGER)"
            " ON CONFLICT (id) DO NOTHING",
            (
                wire.encode(list(known_groups.values())).decode(),
                self.offset,
                self.offset,
                self.offset,
                *process,
                wire.encode(inserts).decode(),
            ),
        )

    def _write_chunks(self, tx: Transaction) -> None:
        if self._encoded is None:  # a unit of work may run more than once
            self._encoded = [
                (run, segment.first, segment.last, epoch, *_encode(segment), run, epoch)
                for run, epoch, segment in self._chunks
            ]
        values = "?, ?, ?, ?, ?, ?"
        if tx.dialect == "postgres":
            values = "?::bigint, ?::bigint, ?::bigint, ?::integer, ?::integer, ?::bytea"
        tx.many(
            "INSERT INTO run_chunks (run, from_seq, to_seq, epoch, codec, content)"
            f" SELECT {values}"
            " WHERE EXISTS (SELECT 1 FROM runs WHERE id = ? AND epoch = ?)"
            # A flush is repeated if its outcome is unknown.
            " ON CONFLICT (run, from_seq) DO NOTHING",
            self._encoded,
        )

    def _write_updates(self, tx: Transaction) -> set[int]:
        columns = _columns(
            "BIGINT",
            "INTEGER",
            "time",
            "INTEGER",
            "TEXT",
            "BIGINT",
            "BIGINT",
            "BIGINT",
            "BIGINT",
            "DOUBLE PRECISION",
        )
        names = (
            "id",
            "epoch",
            "ended_ms",
            "state",
            "outcome",
            "exit_code",
            "last_seq",
            "bytes",
            "kept_ms",
            "retention_s",
        )
        aliased = ", ".join(
            f"{column} AS {name}" for column, name in zip(columns.split(", "), names, strict=True)
        )
        found = tx.all(
            "UPDATE runs SET state = u.state, outcome = u.outcome, exit_code = u.exit_code,"
            " ended_ms = u.ended_ms, last_seq = u.last_seq, bytes = u.bytes,"
            " kept_until = u.ended_ms + u.kept_ms, retention_s = u.retention_s"
            f" FROM (SELECT {aliased} FROM {json_rows(tx.dialect)} AS r) AS u"
            f" WHERE runs.id = u.id AND runs.epoch = u.epoch AND runs.state < {ENDED}"
            " RETURNING runs.id",
            (self.offset, wire.encode(self._updates).decode()),
        )
        return {row[0] for row in self._updates} - {row[0] for row in found}


def _short_row(run: LocalRun, group: Group) -> tuple[Any, ...]:
    """Return the row of a run without a cursor. It has ended, so that nothing changes any more."""
    arguments_text, run.summary = group.describe(run.arguments or {})
    run.arguments = None
    payloads = run.log.payloads
    items = b"\n".join(payloads)
    state, outcome, exit_code, kept_ms = group.ending(run)
    # Written out, because it is the row of almost every run.
    return (
        group.number,
        run.id,
        run.started_at,
        run.ended_at,
        state,
        outcome,
        exit_code,
        len(payloads),
        len(items),
        run.parent,
        kept_ms,
        run.retention_s,
        None if run.key is None else storable_text(run.key),
        arguments_text,
        run.summary,
        items.decode(),
        0,
    )


def _entry_row(entry: RunEntry, written: tuple[Any, ...], items: str | None) -> tuple[Any, ...]:
    """Return the row of a run with a cursor. `written` are its columns that an update writes."""
    run = entry.run
    ended_at, state, outcome, exit_code, last_seq, size, kept_ms, retention_s = written
    return (
        entry.group.number,
        run.id,
        run.started_at,
        ended_at,
        state,
        outcome,
        exit_code,
        last_seq,
        size,
        run.parent,
        kept_ms,
        retention_s,
        None if run.key is None else storable_text(run.key),
        *entry.describe(),
        items,
        entry.epoch,
    )


def _encode(segment: Segment) -> tuple[int, bytes]:
    marks = [(seq - segment.first, at_ms) for seq, at_ms in segment.marks]
    return encode_chunk(marks, segment.pieces)


def _write_question(
    tx: Transaction, run: int, request: str | None, row: tuple[str, int] | None
) -> None:
    if request is None:
        tx.run("DELETE FROM run_questions WHERE run = ?", (run,))
    elif row is None:
        tx.run("DELETE FROM run_questions WHERE run = ? AND request = ?", (run, request))
    else:
        tx.run(
            "INSERT INTO run_questions (run, request, event, asked_ms) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (run, request) DO NOTHING",
            (run, request, *row),
        )
