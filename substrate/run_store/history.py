"""Pages of recorded runs, newest first: units of work over a transaction, for both databases.

A page is read in two steps: the positions of its runs, which indexes have completely, and then the
rows of these runs. Rows are large, and runs that a filter rejects are never read. Patterns of
methods are resolved to names first, by skipping from name to name in an index.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from plexus.errors import InvalidParams, NotFound
from plexus.registry.selection import check_patterns, matches
from plexus.runtime.run_record import RunQuery, RunRecord
from plexus.storage.engine import Transaction
from substrate.run_store.queries import find_records
from substrate.run_store.schema import ENDED, STATE_NUMBERS

__all__ = (
    "STATE_FILTERS",
    "Position",
    "check_query",
    "count_runs",
    "matching_methods",
    "ordered_records",
    "page",
    "position_of",
    "positions",
    "select_matching",
    "unindexed_positions",
)


class Position(NamedTuple):
    """The position of a run in the order of pages."""

    started_ms: int
    run: int


class _StateFilter(NamedTuple):
    """How a state or an outcome is found in the index: the outcomes, and what else must hold."""

    #: None is the outcome of a run in progress.
    outcomes: tuple[str | None, ...]
    state: int | None = None


#: What `RunQuery.state` can be.
STATE_FILTERS: Final = {
    **{
        name: _StateFilter((None,), number)
        for name, number in STATE_NUMBERS.items()
        if number < ENDED
    },
    "complete": _StateFilter(("succeeded", "failed"), STATE_NUMBERS["complete"]),
    "error": _StateFilter(("failed",), STATE_NUMBERS["error"]),
    "succeeded": _StateFilter(("succeeded",)),
    "failed": _StateFilter(("failed",)),
    "cancelled": _StateFilter(("cancelled",)),
}


def check_query(query: RunQuery) -> None:
    """Raise InvalidParams if a query cannot be answered."""
    if query.state is not None and query.state not in STATE_FILTERS:
        raise InvalidParams(f"Unknown state {query.state!r}. Use {', '.join(STATE_FILTERS)}.")
    try:
        check_patterns(query.methods)
    except ValueError as error:
        raise InvalidParams(str(error)) from error


def page(
    tx: Transaction, principal: str, query: RunQuery, project: str | None = None
) -> list[RunRecord]:
    """Return the newest runs of a principal that match, whatever their text.

    project: only runs of this project; None for all. Raises NotFound for an unknown `before`.
    """
    return ordered_records(tx, positions(tx, principal, query, project, query.limit))


def ordered_records(tx: Transaction, found: Iterable[Position]) -> list[RunRecord]:
    """Return the records at these positions, in this order."""
    runs = [position.run for position in found]
    records = find_records(tx, runs)
    return [records[run] for run in runs if run in records]


def matching_methods(tx: Transaction, principal: str, patterns: Sequence[str]) -> list[str]:
    """Return the methods of a principal's runs that match one of these patterns."""
    rows = tx.all(
        "WITH RECURSIVE names (method) AS ("
        " SELECT MIN(method) FROM runs WHERE principal = ?"
        " UNION ALL"
        " SELECT (SELECT MIN(method) FROM runs WHERE principal = ? AND method > names.method)"
        " FROM names WHERE names.method IS NOT NULL)"
        " SELECT method FROM names WHERE method IS NOT NULL",
        (principal, principal),
    )
    return [name for (name,) in rows if matches(name, patterns)]


def position_of(tx: Transaction, run: int, principal: str) -> Position:
    """Return the position of a principal's run. Raises NotFound."""
    row = tx.one("SELECT started_ms FROM runs WHERE id = ? AND principal = ?", (run, principal))
    if row is None:
        raise NotFound(f"Unknown run {run}. Start again from the newest run, without `before`.")
    return Position(row[0], run)


def positions(
    tx: Transaction, principal: str, query: RunQuery, project: str | None, limit: int
) -> list[Position]:
    """Return the positions of the newest runs that match, whatever their text. Raises NotFound."""
    where, params = _bounds(tx, principal, query)
    if project is not None:
        where, params = [*where, "project = ?"], [*params, project]
    if query.client is not None:
        where = [*where, "LOWER(client) LIKE ? ESCAPE '!'"]
        params = [*params, _containing(query.client.lower())]
    if query.agent_session is not None:
        where, params = [*where, "agent_session = ?"], [*params, query.agent_session]
    parts: list[tuple[str, list[Any]]]
    chosen = None if query.state is None else STATE_FILTERS[query.state]
    if chosen is not None and chosen.state is not None:
        where, params = [*where, "state = ?"], [*params, chosen.state]
    if query.methods:
        index = "runs_by_method"
        if chosen is not None:
            condition, values = _outcome_condition(chosen.outcomes)
            where, params = [*where, condition], [*params, *values]
        names = matching_methods(tx, principal, query.methods)
        parts = [("method = ?", [name]) for name in names]
        if query.parent is not None:  # its children are few, whatever their methods
            index = "runs_by_parent"
            parts = [(f"parent = ? AND {part}", [query.parent, *name]) for part, name in parts]
    elif query.parent is not None:
        index = "runs_by_parent"
        outcomes = ("1 = 1", []) if chosen is None else _outcome_condition(chosen.outcomes)
        parts = [(f"parent = ? AND {outcomes[0]}", [query.parent, *outcomes[1]])]
    elif chosen is not None:
        index = "runs_by_outcome"
        parts = [_outcome_condition((outcome,)) for outcome in chosen.outcomes]
    else:
        index = "runs_by_start" if project is None else "runs_by_project"
        parts = [("1 = 1", [])]
    found: list[Position] = []
    for condition, values in parts:
        sql = (
            f"SELECT started_ms, id FROM runs{_indexed_by(tx, index)}"
            f" WHERE {' AND '.join([*where, condition])} ORDER BY started_ms DESC, id DESC LIMIT ?"
        )
        found += [Position(*row) for row in tx.each(sql, (*params, *values, limit))]
    return heapq.nlargest(limit, found) if len(parts) > 1 else found


def select_matching(
    tx: Transaction, principal: str, query: RunQuery, project: str | None, runs: Sequence[int]
) -> list[RunRecord]:
    """Return those of these runs that match, whatever their text, in this order."""
    chosen = None if query.state is None else STATE_FILTERS[query.state]
    records = find_records(tx, runs)

    def matches_query(record: RunRecord) -> bool:
        return (
            record.principal == principal
            and (project is None or record.project == project)
            and (query.since_ms is None or record.started_ms >= query.since_ms)
            and (query.until_ms is None or record.started_ms < query.until_ms)
            and (not query.methods or matches(record.method, query.methods))
            and (query.parent is None or record.parent == query.parent)
            and (query.client is None or query.client.lower() in record.client.lower())
            and (query.agent_session is None or record.agent_session == query.agent_session)
            and (chosen is None or record.outcome in chosen.outcomes)
            and (
                chosen is None
                or chosen.state is None
                or STATE_NUMBERS[record.state] == chosen.state
            )
        )

    return [records[run] for run in runs if run in records and matches_query(records[run])]


def count_runs(
    tx: Transaction, principal: str, project: str | None, since_ms: int
) -> dict[str, int]:
    """Count a principal's runs that started since a time, from indexes that have all columns.

    project: only runs of this project; None for all.
    """
    where = "principal = ? AND started_ms >= ?"
    params: list[Any] = [principal, since_ms]
    if project is not None:
        where, params = f"{where} AND project = ?", [*params, project]
    by_start = _indexed_by(tx, "runs_by_start" if project is None else "runs_by_project")
    by_outcome = _indexed_by(tx, "runs_by_outcome")
    total = tx.one(f"SELECT COUNT(*) FROM runs{by_start} WHERE {where}", params)
    failed = tx.one(
        f"SELECT COUNT(*) FROM runs{by_outcome} WHERE {where} AND outcome = ?", [*params, "failed"]
    )
    rows = tx.all(
        f"SELECT state, COUNT(*) FROM runs{by_outcome} WHERE {where} AND outcome IS NULL"
        " GROUP BY state",
        params,
    )
    assert total is not None, "a count has a row"
    assert failed is not None, "a count has a row"
    in_progress: dict[int, int] = dict(rows)
    asking = in_progress.pop(STATE_NUMBERS["asking"], 0)
    # A run that is being cancelled is still running.
    running = sum(in_progress.values())
    return {"running": running, "asking": asking, "failed": failed[0], "total": total[0]}


def unindexed_positions(
    tx: Transaction, principal: str, query: RunQuery, limit: int
) -> list[Position]:
    """Return the newest runs whose words are not in the search index yet."""
    where, params = _bounds(tx, principal, query)
    rows = tx.all(
        f"SELECT started_ms, id FROM runs{_indexed_by(tx, 'runs_to_index')}"
        f" WHERE indexed = 0 AND {' AND '.join(where)} ORDER BY started_ms DESC, id DESC"
        " LIMIT ?",
        (*params, limit),
    )
    return [Position(*row) for row in rows]


def _bounds(tx: Transaction, principal: str, query: RunQuery) -> tuple[list[str], list[Any]]:
    """Return the conditions for the principal, the times and the cursor."""
    where, params = ["principal = ?"], [principal]
    bounds: list[tuple[str, list[Any]]] = []
    if query.since_ms is not None:
        bounds.append(("started_ms >= ?", [query.since_ms]))
    if query.until_ms is not None:
        bounds.append(("started_ms < ?", [query.until_ms]))
    if query.before is not None:
        before = position_of(tx, query.before, principal)
        condition = "started_ms <= ? AND (started_ms < ? OR id < ?)"
        bounds.append((condition, [before.started_ms, before.started_ms, before.run]))
    for condition, values in bounds:
        where, params = [*where, condition], [*params, *values]
    return where, params


def _containing(text: str) -> str:
    """Return the LIKE pattern of texts that contain this one, with `!` as the escape character."""
    for special in "!%_":
        text = text.replace(special, f"!{special}")
    return f"%{text}%"


def _outcome_condition(outcomes: Sequence[str | None]) -> tuple[str, list[Any]]:
    if outcomes == (None,):
        return "outcome IS NULL", []
    return f"outcome IN ({', '.join('?' * len(outcomes))})", list(outcomes)


def _indexed_by(tx: Transaction, index: str) -> str:
    """Return the clause that selects an index. SQLite has no statistics to choose one by."""
    return f" INDEXED BY {index}" if tx.dialect == "sqlite" else ""
