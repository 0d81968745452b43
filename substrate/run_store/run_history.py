"""Recorded runs for people: pages, searches, details, pins and deletions of an open store.

A search for words reads the search index, and scans the few runs that are not indexed yet. A search
for any other text scans runs, the newest first: it yields what it has found in parts, and stops at
its bounds.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

from plexus.errors import Failed, InvalidParams
from plexus.principal import Principal
from plexus.runtime.run_record import FoundRuns, RunQuery, RunRecord
from plexus.storage.engine import Engine, Transaction
from substrate.run_store.history import (
    Position,
    check_query,
    count_runs,
    ordered_records,
    page,
    position_of,
    positions,
    select_matching,
    unindexed_positions,
)
from substrate.run_store.maintenance import Maintenance
from substrate.run_store.queries import find_record, find_records
from substrate.run_store.retention import delete_runs
from substrate.run_store.run_texts import Scan, ScanBounds, search_words
from substrate.run_store.schema import ENDED, STATE_NUMBERS

__all__ = ("RunHistory",)

#: Maximum number of runs in a page.
MAX_PAGE: Final = 1000
#: Maximum length of a text to search for.
MAX_TEXT: Final = 1000
#: Runs that a scan selects at a time, and seconds after which it returns what it has found.
SCAN_RUNS: Final = 200
PART_S: Final = 0.1
#: Maximum number of runs without an entry in the search index that a search for words scans.
MAX_UNINDEXED: Final = 200
#: Hits of the search index that are read at a time, and at most. Filters reject some of them.
HITS: Final = 200
MAX_HITS: Final = 20_000
#: Without filters only hits of deleted runs are rejected.
SPARE_HITS: Final = 10


class _Part(NamedTuple):
    """What one step of a scan has found."""

    records: list[RunRecord]
    #: The last run that was scanned; None if there are no more.
    last: int | None
    is_over: bool


class RunHistory:
    """Implements the history of `plexus.runtime.stored_run.StoredRuns` with an open store."""

    def __init__(
        self,
        engine: Engine,
        maintenance: Maintenance,
        project: str | None,
        flushed: Callable[[], Awaitable[None]],
        bounds: ScanBounds | None = None,
    ) -> None:
        self._engine = engine
        self._maintenance = maintenance
        #: The project of this process; None if the runs of all projects belong together.
        self._project = project
        #: Waits until what this process has recorded is written.
        self._flushed = flushed
        self._bounds = bounds or ScanBounds()

    # --- reading ------------------------------------------------------------------------------

    async def query(self, principal: Principal, query: RunQuery) -> list[dict[str, Any]]:
        """Return a page of a principal's runs, as in `plexus.runs`. Raises PlexusError."""
        if query.text is not None:
            parts = self.search(principal, query)
            return [record.describe() async for found in parts for record in found.runs]
        query, project = self._check(query)
        await self._flushed()
        records = await self._engine.read(lambda tx: page(tx, principal.name, query, project))
        return [record.describe() for record in records]

    async def counts(self, principal: Principal, since_ms: int) -> dict[str, int]:
        """Count a principal's runs that started since a time. Raises PlexusError."""
        await self._flushed()
        project = self._project
        return await self._engine.read(lambda tx: count_runs(tx, principal.name, project, since_ms))

    async def details(self, run: int) -> RunRecord | None:
        """Return what is recorded about a run, or None. Raises PlexusError."""
        await self._flushed()
        return await self._engine.read(lambda tx: find_record(tx, run))

    def _check(self, query: RunQuery) -> tuple[RunQuery, str | None]:
        check_query(query)
        text = query.text
        if text is not None and (not text.strip('" \t\r\n') or len(text) > MAX_TEXT):
            raise InvalidParams(f"The text to search for must have 1 to {MAX_TEXT} characters.")
        limited = query._replace(limit=min(max(query.limit, 0), MAX_PAGE))
        return limited, None if query.all_projects else self._project

    # --- searching ----------------------------------------------------------------------------

    async def search(
        self, principal: Principal, query: RunQuery
    ) -> AsyncGenerator[FoundRuns, None]:
        """Yield the runs that have the text of a query, newest first. Raises PlexusError."""
        query, project = self._check(query)
        assert query.text is not None, "a search has a text"
        await self._flushed()
        words = search_words(query.text)
        if words is not None:
            yield FoundRuns(await self._find_words(principal.name, query, project, words))
            return
        scan = Scan(query.text, self._bounds)
        left, before = query.limit, query.before
        while left > 0:
            part = await self._engine.read(
                _scanner(scan, principal.name, query._replace(before=before), project, left)
            )
            left -= len(part.records)
            stopped_at = part.last if part.is_over else None
            if part.records or stopped_at is not None:
                yield FoundRuns(part.records, stopped_at)
            if part.last is None or part.is_over:
                return
            before = part.last

    async def _find_words(
        self, principal: str, query: RunQuery, project: str | None, words: Sequence[str]
    ) -> list[RunRecord]:
        # Before the index: a run that is indexed in between is found twice, and not missed.
        scan = Scan(" ".join(words), self._bounds)
        found = await self._engine.read(
            lambda tx: _scan_unindexed(tx, scan, principal, query, project)
        )
        index = await self._maintenance.search_index()
        before = None
        if query.before is not None:
            cursor = query.before
            before = await self._engine.read(lambda tx: position_of(tx, cursor, principal))
        indexed = 0
        others = (query.parent, query.client, query.agent_session)
        is_filtered = bool(query.methods or query.state or query.until_ms or any(others))
        size = HITS if is_filtered else query.limit + SPARE_HITS
        for _ in range(MAX_HITS // HITS):
            hits = await index.search(words, principal, project, size, before)
            runs = [hit.run for hit in hits]
            records = await self._engine.read(
                lambda tx, runs=runs: select_matching(tx, principal, query, project, runs)  # type: ignore[misc]  # mypy cannot infer a lambda with a default
            )
            found += records
            indexed += len(records)
            is_past = bool(hits) and (query.since_ms or 0) > hits[-1].started_ms
            if len(hits) < size or indexed >= query.limit or is_past:
                break
            before = Position(hits[-1].started_ms, hits[-1].run)
        unique = {record.run: record for record in found}
        newest = sorted(unique.values(), key=_position_of_record, reverse=True)
        return newest[: query.limit]

    # --- changing -----------------------------------------------------------------------------

    async def pin(self, run: int, pinned: bool) -> None:
        """Keep a run until it is unpinned, or end that. Raises PlexusError."""
        value = int(pinned)
        await self._flushed()
        await self._engine.write(
            lambda tx: tx.run("UPDATE runs SET pinned = ? WHERE id = ?", (value, run))
        )

    async def delete(self, runs: Sequence[int]) -> int:
        """Delete runs and everything that was stored of them. Returns how many were stored.

        Raises Failed if one of them is in progress; then none is deleted.
        """

        def work(tx: Transaction) -> list[int]:
            records = find_records(tx, runs)
            for record in records.values():
                if STATE_NUMBERS[record.state] < ENDED:
                    message = f"Run {record.run} is in progress. Stop it first."
                    raise Failed(message, code="in_progress")
            delete_runs(tx, list(records))
            return list(records)

        await self._flushed()
        deleted = await self._engine.write(work)
        if deleted:
            await self._maintenance.finish_deletions()
        return len(deleted)

    async def prune(self) -> int:
        """Delete expired runs, and the oldest beyond the maximum size. Returns how many."""
        return len(await self._maintenance.prune())


def _position_of_record(record: RunRecord) -> Position:
    return Position(record.started_ms, record.run)


def _scanner(
    scan: Scan, principal: str, query: RunQuery, project: str | None, limit: int
) -> Callable[[Transaction], _Part]:
    """Return the unit of work that scans the next runs."""

    def work(tx: Transaction) -> _Part:
        end = time.monotonic() + PART_S
        found: list[RunRecord] = []
        selected = positions(tx, principal, query, project, SCAN_RUNS)
        last: int | None = query.before
        for record in ordered_records(tx, selected):
            if scan.is_over:
                return _Part(found, last or record.run, is_over=True)
            if scan.contains(tx, record):
                found.append(record)
            last = record.run
            if len(found) >= limit or time.monotonic() > end:
                return _Part(found, last, scan.is_over)
        if scan.is_over:
            return _Part(found, last, is_over=True)
        return _Part(found, last if len(selected) == SCAN_RUNS else None, is_over=False)

    return work


def _scan_unindexed(
    tx: Transaction, scan: Scan, principal: str, query: RunQuery, project: str | None
) -> list[RunRecord]:
    candidates = unindexed_positions(tx, principal, query, MAX_UNINDEXED)
    runs = [position.run for position in candidates]
    records = select_matching(tx, principal, query, project, runs)
    return [record for record in records if not scan.is_over and scan.contains(tx, record)]
