"""A run store in memory: the runs of other processes and of the past, as tests need them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import Any

from plexus import Plexus, Principal
from plexus.errors import PlexusError
from plexus.events import Event, QuestionAsked, Terminal
from plexus.limits import Limits
from plexus.principal import LOCAL
from plexus.rpc import wire
from plexus.runtime.log import StoredItems
from plexus.runtime.run import LocalRun, Run
from plexus.runtime.run_record import FoundRuns, RunQuery, RunRecord
from plexus.runtime.stored_run import StoredRun

__all__ = ("MemoryStore", "StoredHistory", "attach_store", "record_run")

#: Maximum number of items that one read returns, so that several reads are necessary.
READ_ITEMS = 3
STARTED_MS = 1_700_000_000_000


class StoredHistory:
    """One stored run: its record, its items and its open questions."""

    def __init__(self, record: RunRecord, principal: Principal) -> None:
        self.record = record
        self.principal = principal
        #: The stored items by number.
        self.items: dict[int, Event] = {}
        self.asked: dict[str, tuple[QuestionAsked, int]] = {}

    def add(self, *events: Event, at: int | None = None) -> None:
        """Store the next items, or items from this number on."""
        first = self.record.last_seq + 1 if at is None else at
        for seq, event in enumerate(events, first):
            self.items[seq] = event
            self.record.last_seq = max(self.record.last_seq, seq)
            if isinstance(event, Terminal):
                self.record.state = event.type
                self.record.ended_ms = self.record.started_ms + 1000

    def read(self, after: int, before: int) -> StoredItems:
        """Return consecutive items between two numbers."""
        numbers = [seq for seq in sorted(self.items) if after < seq < before]
        first = numbers[0] if numbers else before
        run = [seq for place, seq in enumerate(numbers) if seq == first + place][:READ_ITEMS]
        events = [self.items[seq] for seq in run]
        times = [self.record.started_ms + seq for seq in run]
        return StoredItems(first, events, [wire.encode_event(event) for event in events], times)


class MemoryStore:
    """Implements `RunSource` and `StoredRuns` for one process."""

    def __init__(self, hub: Plexus, *, log_items: int | None = None) -> None:
        self._hub = hub
        limits = hub.limits
        self._limits = limits if log_items is None else Limits(log_items=log_items)
        self.histories: dict[int, StoredHistory] = {}
        self.loaded: dict[int, StoredRun] = {}
        #: Requests to the processes of runs, and how they are answered.
        self.requests: list[tuple[str, dict[str, Any]]] = []
        #: The clients that made them.
        self.clients: list[str | None] = []
        self.answer: Callable[[str, dict[str, Any]], Any] = lambda _method, _params: True
        self.followed: list[int] = []
        self.listeners: list[Callable[[], None]] = []
        self.loads = 0
        self.refreshes = 0
        #: Raised by every operation, if set.
        self.error: Exception | None = None
        #: Every load waits for this.
        self.open = asyncio.Event()
        self.open.set()
        self._kept: set[str] = set()

    # --- for tests ----------------------------------------------------------------------------

    def create(
        self, number: int, *events: Event, principal: Principal = LOCAL, **fields: Any
    ) -> StoredHistory:
        """Store a run of another process."""
        given = {"method": "demo.wait", "scope": "call", "state": "running"} | fields
        record = RunRecord(
            run=number, principal=principal.name, started_ms=STARTED_MS, last_seq=0, **given
        )
        history = self.histories[number] = StoredHistory(record, principal)
        history.add(*events)
        return history

    def ask(self, number: int, event: QuestionAsked) -> None:
        """Open a question of a run."""
        self.histories[number].asked[event.request] = (event, STARTED_MS + 5)
        self.histories[number].record.state = "asking"

    def append(self, number: int, *events: Event) -> None:
        """Store the next items of a run, and deliver them like the process that follows it."""
        self.histories[number].add(*events)
        run = self.loaded.get(number)
        if run is not None and run.is_followed:
            self._update(run)
        self.notify()

    def notify(self) -> None:
        """Notify the listeners of changes."""
        for listener in list(self.listeners):
            listener()

    # --- RunSource ----------------------------------------------------------------------------

    async def read(self, run: int, after: int, before: int) -> StoredItems:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        history = self.histories.get(run)
        return StoredItems(before, [], [], []) if history is None else history.read(after, before)

    def follow(self, run: StoredRun) -> None:
        self.followed.append(run.id)
        asyncio.get_running_loop().call_soon(self._update, run)

    def unfollow(self, run: StoredRun) -> None:
        self.followed.remove(run.id)

    async def request(
        self, run: int, method: str, params: dict[str, Any], client: str | None = None
    ) -> Any:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        assert params.get("run", run) == run
        self.requests.append((method, params))
        self.clients.append(client)
        answer = self.answer(method, params)
        if isinstance(answer, PlexusError):
            raise answer
        return answer

    # --- StoredRuns ---------------------------------------------------------------------------

    def find(self, run_id: int) -> StoredRun | None:
        run = self.loaded.get(run_id)
        return run if run is not None and run.is_current else None

    def all(self) -> list[StoredRun]:
        return list(self.loaded.values())

    async def load(self, run_id: int, principal: Principal | None = None) -> StoredRun | None:
        self.loads += 1
        await self.open.wait()
        if self.error is not None:
            raise self.error
        run = self._load(run_id)
        return None if run is None or (principal or run.principal) != run.principal else run

    def find_kept(self, principal: Principal) -> Sequence[StoredRun] | None:
        if principal.name not in self._kept:
            return None
        self._kept.discard(principal.name)
        found = (run for run in self.loaded.values() if run.retention_s is not None)
        return [run for run in found if run.principal == principal]

    async def load_kept(self, principal: Principal) -> None:
        await self.open.wait()
        if self.error is not None:
            raise self.error
        for number, history in self.histories.items():
            if history.principal == principal and history.record.retention_s is not None:
                self._load(number)
        self._kept.add(principal.name)

    async def refresh(self) -> None:
        self.refreshes += 1
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        for number, history in self.histories.items():
            if history.record.ended_ms is None:
                self._load(number)

    @contextlib.contextmanager
    def watch(self, listener: Callable[[], None]) -> Iterator[None]:
        self.listeners.append(listener)
        try:
            yield
        finally:
            self.listeners.remove(listener)

    async def close(self) -> None:
        """Do nothing: there is nothing to write."""

    async def query(self, principal: Principal, query: RunQuery) -> list[dict[str, Any]]:
        found = await self.records_of(principal)
        return [record.describe() for record in found[: query.limit]]

    async def search(
        self, principal: Principal, query: RunQuery
    ) -> AsyncGenerator[FoundRuns, None]:
        yield FoundRuns((await self.records_of(principal))[: query.limit])

    async def records_of(self, principal: Principal) -> list[RunRecord]:
        """Return the records of a principal's runs, newest first."""
        own = [each.record for each in self.histories.values() if each.principal == principal]
        return sorted(own, key=lambda record: record.started_ms, reverse=True)

    async def counts(self, principal: Principal, since_ms: int) -> dict[str, int]:
        own = [each for each in await self.records_of(principal) if each.started_ms >= since_ms]
        states = [each.state for each in own]
        counts = {state: states.count(state) for state in ("running", "asking")}
        failed = [each.outcome for each in own].count("failed")
        return counts | {"failed": failed, "total": len(own)}

    async def details(self, run_id: int) -> RunRecord | None:
        history = self.histories.get(run_id)
        return None if history is None else history.record

    async def pin(self, run_id: int, pinned: bool) -> None:
        self.histories[run_id].record.pinned = pinned

    async def delete(self, run_ids: Sequence[int]) -> int:
        return len([self.histories.pop(run) for run in run_ids if run in self.histories])

    async def prune(self) -> int:
        return 0

    async def hand_over(self, *, only_restarted: bool = False) -> None:
        """Release nothing: there is no process that restarts runs."""

    def close_runs(self) -> None:
        for run in self.loaded.values():
            run.end_without_items("stopping", "this server is stopping")

    # --- loading ------------------------------------------------------------------------------

    def _load(self, run_id: int) -> StoredRun | None:
        history = self.histories.get(run_id)
        if history is None:
            return None
        run = self.loaded.get(run_id)
        if run is None:
            run = StoredRun(history.record, history.principal, self._limits, self, _ignore)
            self.loaded[run_id] = run
            newest = sorted(history.items)[-self._limits.log_items :]
            run.log.begin_at(newest[0] if newest else 1)
        self._update(run)
        return run

    def _update(self, run: StoredRun) -> None:
        history = self.histories[run.id]
        run.update(history.record)
        run.set_questions(history.asked, self._hub.questions)
        while run.terminal is None:
            found = history.read(run.log.last, 1 << 53)
            if not found.payloads:
                break
            run.add_items(found)


def _ignore(_: Run) -> None:
    """Listener that does nothing."""


def attach_store(hub: Plexus, *, log_items: int | None = None) -> MemoryStore:
    """Give a hub a store in memory."""
    store = MemoryStore(hub, log_items=log_items)
    hub.runs.stored = store
    return store


def record_run(store: MemoryStore, run: LocalRun) -> None:
    """Record a local run from now on: what its log drops is read from the store."""
    history = store.create(run.id, method=run.method, principal=run.principal)
    run.log.dropped = store

    def record() -> None:
        events = run.log.events[history.record.last_seq + 1 - run.log.first :]
        history.add(*events)

    run.log.on_trim = record
