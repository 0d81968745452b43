"""Reading the run store: records, items, open questions and requests, on both databases."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from plexus.errors import PlexusError
from plexus.events import QuestionAsked
from plexus.runtime.log import TAKE_BYTES, StoredItems
from plexus.runtime.run_record import RunRecord
from plexus.runtime.stored_events import read_event
from plexus.storage.engine import Transaction
from substrate.run_store.chunks import decode_chunk, decode_text, stored_items
from substrate.run_store.schema import ENDED, STATES

__all__ = (
    "RECORD_COLUMNS",
    "Request",
    "Scope",
    "find_record",
    "find_records",
    "kept_records",
    "open_questions",
    "open_requests",
    "read_items",
    "read_tail",
    "recent_records",
    "record_of",
)

logger = logging.getLogger("substrate.run_store")

RECORD_COLUMNS: Final = (
    "id, method, scope, principal, state, started_ms, last_seq, epoch, ended_ms, outcome,"
    " exit_code, arguments, summary, parent, project, client, agent_session, bytes, kept_until,"
    " pinned, retention_s, recorded, process, pid, host"
)
STATE_RANGE: Final = range(len(STATES))
#: Maximum number of parameters of one statement.
MAX_PARAMETERS: Final = 500
#: Damaged rows that were reported, each once. There are few, or the store is of no use.
_reported: set[tuple[int, object]] = set()
MAX_REPORTED: Final = 1000


class Scope(NamedTuple):
    """Which runs of other processes belong to the list of this one."""

    #: This process, whose runs are in memory.
    process: int
    #: The project folder; None for the runs of all projects.
    project: str | None

    def where(self) -> tuple[str, tuple[Any, ...]]:
        """Return the condition and its parameters."""
        if self.project is None:
            return "process <> ?", (self.process,)
        return "process <> ? AND project = ?", (self.process, self.project)


class Request(NamedTuple):
    """A call that another process wants this process to make."""

    id: int
    run: int
    requester: int
    method: str
    params: str
    principal: str
    #: The client that the call is made for; None if it is unknown.
    client: str | None


def record_of(row: Sequence[Any]) -> RunRecord:
    """Return the record of a row with `RECORD_COLUMNS`."""
    (
        run,
        method,
        scope,
        principal,
        state,
        started_ms,
        last_seq,
        epoch,
        ended_ms,
        outcome,
        exit_code,
        arguments,
        summary,
        parent,
        project,
        client,
        agent_session,
        size,
        kept_until,
        pinned,
        retention_s,
        recorded,
        process,
        pid,
        host,
    ) = row
    return RunRecord(
        run,
        method,
        scope,
        principal,
        STATES[state] if state in STATE_RANGE else "error",
        started_ms,
        last_seq,
        epoch,
        ended_ms,
        outcome,
        exit_code,
        arguments,
        summary,
        parent,
        project,
        client,
        agent_session,
        size,
        kept_until if state not in range(ENDED) else None,
        bool(pinned),
        retention_s,
        recorded,
        {"pid": pid, "project": project, "host": host, "id": process},
    )


def find_record(tx: Transaction, run: int) -> RunRecord | None:
    """Return the record of a run, or None."""
    row = tx.one(f"SELECT {RECORD_COLUMNS} FROM runs WHERE id = ?", (run,))
    return None if row is None else record_of(row)


def find_records(tx: Transaction, runs: Iterable[int]) -> dict[int, RunRecord]:
    """Return the records of these runs, as far as they are stored."""
    wanted = list(runs)
    found: dict[int, RunRecord] = {}
    for start in range(0, len(wanted), MAX_PARAMETERS):
        part = wanted[start : start + MAX_PARAMETERS]
        marks = ", ".join("?" * len(part))
        rows = tx.all(f"SELECT {RECORD_COLUMNS} FROM runs WHERE id IN ({marks})", part)
        found |= {row[0]: record_of(row) for row in rows}
    return found


def recent_records(
    tx: Transaction, scope: Scope, since_ms: int, active: int, ended: int
) -> list[RunRecord]:
    """Return runs of other processes: those in progress, and those that ended since a time."""
    where, params = scope.where()
    rows = tx.all(
        f"SELECT {RECORD_COLUMNS} FROM runs WHERE state < {ENDED} AND {where}"
        " ORDER BY started_ms DESC LIMIT ?",
        (*params, active),
    )
    rows += tx.all(
        f"SELECT {RECORD_COLUMNS} FROM runs WHERE state >= {ENDED} AND {where}"
        " AND ended_ms > ? ORDER BY ended_ms DESC LIMIT ?",
        (*params, since_ms, ended),
    )
    return [record_of(row) for row in rows]


def kept_records(tx: Transaction, principal: str, now_ms: int, limit: int) -> list[RunRecord]:
    """Return a principal's runs with a guaranteed retention that has not passed."""
    rows = tx.all(
        f"SELECT {RECORD_COLUMNS} FROM runs WHERE principal = ? AND retention_s IS NOT NULL"
        " AND started_ms + retention_s * 1000 > ? ORDER BY started_ms DESC LIMIT ?",
        (principal, now_ms, limit),
    )
    return [record_of(row) for row in rows]


# --- items ----------------------------------------------------------------------------------------


def read_items(tx: Transaction, run: int, after: int, before: int) -> StoredItems:
    """Return stored items between these two numbers: about one batch, the oldest first.

    The items of a damaged chunk are missing, as if they had not been recorded.
    """
    inline = tx.one("SELECT items, started_ms, ended_ms FROM runs WHERE id = ?", (run,))
    if inline is not None and inline[0] is not None:
        decoded = _decode_inline(run, *inline)
        return (
            StoredItems(after + 1, [], [], [])
            if decoded is None
            else _between(decoded, after, before)
        )
    found = StoredItems(after + 1, [], [], [])
    for row in tx.each(
        "SELECT from_seq, codec, content FROM run_chunks"
        " WHERE run = ? AND to_seq > ? AND from_seq < ? ORDER BY from_seq",
        (run, after, before),
    ):
        decoded = _decode(run, *row)
        if decoded is None:
            continue
        part = _between(decoded, after, before)
        if found.payloads and found.first + len(found.payloads) != part.first:
            break  # items are missing in between
        if not found.payloads:
            found = part
        else:
            found.events.extend(part.events)
            found.payloads.extend(part.payloads)
            found.times_ms.extend(part.times_ms)
        if sum(map(len, found.payloads)) > TAKE_BYTES:
            break
    return found


def _decode(run: int, first: int, codec: int, content: bytes) -> StoredItems | None:
    """Return the items of a chunk; None if it is damaged."""
    try:
        return stored_items(first, *decode_chunk(codec, content))
    except (ValueError, PlexusError) as error:
        _report(run, first, error)
        return None


def _decode_inline(run: int, items: str, started_ms: int, ended_ms: int) -> StoredItems | None:
    """Return the items of a short run; None if they are damaged."""
    try:
        return stored_items(1, *decode_text(items, started_ms, ended_ms or started_ms))
    except (ValueError, PlexusError) as error:
        _report(run, 1, error)
        return None


def _report(run: int, row: int | str, error: Exception) -> None:
    """Report a damaged row of a run, unless it was reported before."""
    if (run, row) not in _reported and len(_reported) < MAX_REPORTED:
        _reported.add((run, row))
        what = f"question {row}" if isinstance(row, str) else f"from item {row}"
        logger.warning("the record of run %d is damaged (%s): %s", run, what, error)


def _between(items: StoredItems, after: int, before: int) -> StoredItems:
    first = items.first
    start, end = max(after + 1 - first, 0), max(before - first, 0)
    return StoredItems(
        first + start, items.events[start:end], items.payloads[start:end], items.times_ms[start:end]
    )


def read_tail(tx: Transaction, run: int, max_items: int, max_bytes: int) -> list[StoredItems]:
    """Return the newest items within bounds, as parts with consecutive numbers, oldest first.

    The items of damaged chunks are missing.
    """
    inline = tx.one("SELECT items, started_ms, ended_ms FROM runs WHERE id = ?", (run,))
    if inline is not None and inline[0] is not None:
        decoded = _decode_inline(run, *inline)
        return [] if decoded is None else [decoded]
    parts: list[StoredItems] = []
    for row in tx.each(
        "SELECT from_seq, codec, content FROM run_chunks WHERE run = ? ORDER BY from_seq DESC",
        (run,),
    ):
        part = _decode(run, *row)
        if part is None:
            continue
        parts.insert(0, part)
        max_items -= len(part.payloads)
        max_bytes -= sum(map(len, part.payloads))
        if max_items <= 0 or max_bytes <= 0:
            break
    return parts


# --- questions and requests -----------------------------------------------------------------------


def open_questions(
    tx: Transaction, runs: Iterable[int]
) -> Mapping[int, dict[str, tuple[QuestionAsked, int]]]:
    """Return the open questions of these runs, each with the time when it was asked."""
    found: dict[int, dict[str, tuple[QuestionAsked, int]]] = {run: {} for run in runs}
    wanted = list(found)
    for start in range(0, len(wanted), MAX_PARAMETERS):
        part = wanted[start : start + MAX_PARAMETERS]
        marks = ", ".join("?" * len(part))
        for run, request, event, asked_ms in tx.all(
            f"SELECT run, request, event, asked_ms FROM run_questions WHERE run IN ({marks})", part
        ):
            try:
                asked = read_event(event.encode())
            except (ValueError, PlexusError) as error:
                _report(run, request, error)
                continue
            if isinstance(asked, QuestionAsked):
                found[run][request] = asked, asked_ms
    return found


def open_requests(tx: Transaction, process: int) -> list[Request]:
    """Return the calls that others want this process to make."""
    rows = tx.all(
        "SELECT id, run, requester, method, params, principal, client FROM run_requests"
        " WHERE process = ? AND result IS NULL",
        (process,),
    )
    return [Request(*row) for row in rows]
