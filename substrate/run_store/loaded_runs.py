"""The runs of the store that are loaded: of other processes, and of the past.

Rules:
- Runs of other processes are loaded with their metadata when they are listed or watched, and with
  their newest items when they are read.
- A run that has readers is followed: when the store has changed, its new items are added. Nothing
  is polled while nothing is followed or watched.
- Finished runs are kept within the same limits as those of this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from plexus.errors import PlexusError
from plexus.events import QuestionAsked
from plexus.principal import Principal
from plexus.runtime.hub import Plexus
from plexus.runtime.log import StoredItems
from plexus.runtime.run import Run
from plexus.runtime.run_record import ENDED_STATES, RunRecord
from plexus.runtime.stored_run import StoredRun
from plexus.storage.engine import Engine, Transaction
from substrate.run_store.queries import (
    Scope,
    find_record,
    find_records,
    kept_records,
    open_questions,
    read_items,
    read_tail,
    recent_records,
)

__all__ = ("Changes", "LoadedRuns", "StoreAccess")

#: Maximum number of runs in progress of other processes that are listed.
MAX_ACTIVE: Final = 2048
#: Seconds between two updates of the list of runs while it is watched.
REFRESH_S: Final = 0.1
#: Seconds that the list of retained runs counts as up to date.
KEPT_S: Final = 0.2
#: Seconds between the checks for a run that may have just started: together longer than a process
#: waits before it writes, also in a burst of short runs.
START_CHECKS_S: Final = (0.03, 0.03, 0.06, 0.12, 0.24)
#: Seconds within which the caller of `load` finds the run.
FRESH_S: Final = 10.0
#: Why a loaded run ends here while the run itself continues.
STOPPING: Final = "the server that shows this run is stopping"

T = TypeVar("T")
Questions: TypeAlias = Mapping[int, dict[str, tuple[QuestionAsked, int]]]


class StoreAccess(Protocol):
    """What the loaded runs need from the store."""

    @property
    def engine(self) -> Engine:
        """The open database. Raises Failed if there is none."""

    async def flushed(self) -> None:
        """Wait until everything that this process has recorded is written."""

    async def request(
        self, run: int, method: str, params: dict[str, Any], client: str | None = None
    ) -> Any:
        """Call a method in the process that executes a run. Raises PlexusError."""

    def set_watching(self, watching: bool) -> None:
        """Declare whether this process needs the changes of others soon."""

    def on_read_error(self, error: PlexusError, engine: Engine) -> None:
        """Handle a failed read: the next one succeeds if the database can be replaced."""


class Changes(NamedTuple):
    """What has changed in the store, as far as it concerns the loaded runs."""

    records: dict[int, RunRecord]
    #: New items of followed runs.
    items: dict[int, list[StoredItems]]
    questions: Questions
    #: Whether `records` has all runs of other processes that are in progress.
    is_list: bool


class LoadedRuns:
    """Implements `plexus.runtime.stored_run.StoredRuns` and `RunSource`."""

    def __init__(self, hub: Plexus, access: StoreAccess, scope: Scope) -> None:
        self._hub = hub
        self._access = access
        self._scope = scope
        self._runs: dict[int, StoredRun] = {}
        self._followed: dict[int, StoredRun] = {}
        self._listeners: dict[object, Callable[[], None]] = {}
        self._kept: dict[str, tuple[float, list[StoredRun]]] = {}
        self._refreshed_at = 0.0
        #: Until when runs that were just loaded are found in any case.
        self._fresh: dict[int, float] = {}

    # --- for the table of runs ----------------------------------------------------------------

    def find(self, run_id: int) -> StoredRun | None:
        """Return a run that is loaded with its items and up to date, or None."""
        run = self._runs.get(run_id)
        if run is None or not run.is_loaded:
            return None
        # What was loaded for a caller is found once, however busy the event loop is.
        is_fresh = self._fresh.pop(run_id, 0.0) > time.monotonic()
        return run if is_fresh or run.is_current else None

    def all(self) -> list[StoredRun]:
        """Return the loaded runs that belong to the list of this process."""
        self._evict()
        project = self._scope.project
        return [
            run for run in self._runs.values() if project is None or run.record.project == project
        ]

    async def load(self, run_id: int, principal: Principal | None = None) -> StoredRun | None:
        """Load a run of this principal, or of any, with its newest items.

        Returns None if it is not stored or belongs to another principal. Raises PlexusError.
        """
        await self._access.flushed()
        limits = self._hub.limits

        def work(tx: Transaction) -> tuple[RunRecord, list[StoredItems], Questions] | None:
            record = find_record(tx, run_id)
            if record is None or (principal is not None and record.principal != principal.name):
                return None
            known = self._runs.get(run_id)
            if known is not None and known.is_loaded:
                items = list(_new_items(tx, run_id, known.log.last))
            else:
                items = read_tail(tx, run_id, limits.log_items, limits.log_bytes)
            return record, items, open_questions(tx, [run_id])

        found = await self._read(work)
        for pause_s in START_CHECKS_S:
            if found is not None:
                break
            # It may have started in another process, which has not written it yet.
            await asyncio.sleep(pause_s)
            found = await self._read(work)
        if found is None:
            if principal is None or run_id in self._runs:
                await self._forget_deleted(run_id)
            return None
        record, items, questions = found
        self._fresh[run_id] = time.monotonic() + FRESH_S
        run = self._update(record)
        if not run.is_loaded:
            run.is_loaded = True
            run.log.begin_at(items[0].first if items else record.last_seq + 1)
        self._add_items(run, items)
        run.set_questions(questions[run_id], self._hub.questions)
        return run

    def find_kept(self, principal: Principal) -> Sequence[StoredRun] | None:
        """Return the principal's runs with a guaranteed retention; None if not up to date."""
        loaded_at, runs = self._kept.get(principal.name, (0.0, []))
        return runs if time.monotonic() - loaded_at < KEPT_S else None

    async def load_kept(self, principal: Principal) -> None:
        """Load the principal's runs with a guaranteed retention. Raises PlexusError."""
        await self._access.flushed()
        limit = self._hub.limits.kept_runs
        now_ms = time.time_ns() // 1_000_000
        records = await self._read(lambda tx: kept_records(tx, principal.name, now_ms, limit))
        if len(self._kept) > limit:
            self._kept.clear()
        runs = [self._update(record) for record in records]
        self._kept[principal.name] = time.monotonic(), runs

    async def refresh(self) -> None:
        """Load the runs of other processes, with their questions. Raises PlexusError."""
        self.apply(await self._read(lambda tx: self.read_changes(tx, with_list=True)))

    @contextlib.contextmanager
    def watch(self, listener: Callable[[], None]) -> Iterator[None]:
        """Keep the list of runs up to date, and call `listener` after changes."""
        key = object()
        self._listeners[key] = listener
        self._set_watching()
        try:
            yield
        finally:
            del self._listeners[key]
            self._set_watching()

    def close(self) -> None:
        """End all loaded runs because this process stops; the runs themselves continue."""
        for run in list(self._runs.values()):
            run.end_without_items("stopping", STOPPING)

    def _set_watching(self) -> None:
        self._access.set_watching(bool(self._listeners or self._followed))

    # --- for the runs -------------------------------------------------------------------------

    async def read(self, run: int, after: int, before: int) -> StoredItems:
        """Return stored items between two numbers. Raises PlexusError."""
        await self._access.flushed()
        return await self._read(lambda tx: read_items(tx, run, after, before))

    def follow(self, run: StoredRun) -> None:
        """Add new items to this run when the store has changed."""
        self._followed[run.id] = run
        self._set_watching()

    def unfollow(self, run: StoredRun) -> None:
        """Stop updating this run."""
        self._followed.pop(run.id, None)
        self._set_watching()

    async def request(
        self, run: int, method: str, params: dict[str, Any], client: str | None = None
    ) -> Any:
        """Call a method in the process that executes this run. Raises PlexusError."""
        return await self._access.request(run, method, params, client)

    # --- changes ------------------------------------------------------------------------------

    @property
    def needs_list(self) -> bool:
        """Whether the list of runs is watched and was not updated just now."""
        return bool(self._listeners) and time.monotonic() - self._refreshed_at > REFRESH_S

    @property
    def is_used(self) -> bool:
        """Whether changes of the store matter here."""
        return bool(self._listeners or self._followed)

    def read_changes(self, tx: Transaction, *, with_list: bool) -> Changes:
        """Read what has changed for followed runs, and the list of runs. On a reader thread."""
        followed = {run.id: run.log.last for run in list(self._followed.values())}
        records = find_records(tx, followed)
        items = {run: list(_new_items(tx, run, last)) for run, last in followed.items()}
        if with_list:
            limits = self._hub.limits
            since_ms = round((time.time() - limits.finished_s) * 1000)
            listed = recent_records(tx, self._scope, since_ms, MAX_ACTIVE, limits.finished_runs)
            records |= {record.run: record for record in listed}
            # Runs that were in progress and ended so long ago that they are not listed.
            left = [run.id for run in list(self._runs.values()) if run.terminal is None]
            records |= find_records(tx, [run for run in left if run not in records])
        asking = [run for run, record in records.items() if record.state not in ENDED_STATES]
        return Changes(records, items, open_questions(tx, asking), with_list)

    def apply(self, changes: Changes) -> None:
        """Update the loaded runs."""
        if changes.is_list:
            self._refreshed_at = time.monotonic()
        for record in changes.records.values():
            run = self._update(record)
            if run.id in changes.items:
                self._add_items(run, changes.items[run.id])
            # A run that has ended has no open questions.
            asked = changes.questions.get(run.id, {})
            run.set_questions(asked, self._hub.questions)
        for number in changes.items.keys() - changes.records.keys():
            self._forget(number)
        if changes.is_list:
            for listener in list(self._listeners.values()):
                listener()

    def _update(self, record: RunRecord) -> StoredRun:
        run = self._runs.get(record.run)
        if run is None:
            principal = Principal(record.principal)
            run = StoredRun(record, principal, self._hub.limits, self, self._on_end)
            self._runs[run.id] = run
        elif run.terminal is None:
            run.update(record)
        return run

    def _add_items(self, run: StoredRun, items: Iterable[StoredItems]) -> None:
        for part in items:
            run.add_items(part)
        if run.terminal is None and run.record.state in ENDED_STATES:
            what = "output" if run.record.recorded == "metadata" else "end"
            run.end_without_items("not_recorded", f"The {what} of this run was not recorded.")

    def _on_end(self, run: Run) -> None:
        self._followed.pop(run.id, None)
        self._set_watching()
        self._evict()

    def _forget(self, run_id: int) -> None:
        """Forget a run that is not stored any more."""
        self._fresh.pop(run_id, None)
        run = self._runs.pop(run_id, None)
        if run is not None:
            run.end_without_items("deleted", "This run was deleted.")

    async def _forget_deleted(self, run_id: int) -> None:
        """Forget a run if it is not stored any more."""
        if await self._read(lambda tx: find_record(tx, run_id)) is None:
            self._forget(run_id)

    def forget(self, runs: Iterable[int]) -> None:
        """Forget runs that were deleted."""
        for run in runs:
            self._forget(run)

    async def forget_missing(self) -> None:
        """Forget all runs that are not stored any more. Raises PlexusError."""
        loaded = list(self._runs)
        self.forget(set(loaded) - (await self._read(lambda tx: find_records(tx, loaded))).keys())

    def _evict(self) -> None:
        """Forget finished runs past the limits, the oldest first, and those without readers."""
        limits = self._hub.limits
        finished = [run for run in self._runs.values() if run.state in ENDED_STATES]
        size = sum(run.log.size for run in finished)
        oldest = time.monotonic() - limits.finished_s
        finished.sort(key=lambda run: run.record.ended_ms or 0)
        excess = len(finished) - limits.finished_runs
        for run in finished:
            ended_at = run.ended_at
            is_old = ended_at is not None and ended_at < oldest and not run.log.last
            if excess <= 0 and size <= limits.finished_bytes and not is_old:
                return
            if not run.is_followed:
                del self._runs[run.id]
                self._fresh.pop(run.id, None)
            size -= run.log.size
            excess -= 1

    async def _read(self, work: Callable[[Transaction], T]) -> T:
        engine = self._access.engine
        try:
            return await engine.read(work)
        except PlexusError as error:
            self._access.on_read_error(error, engine)
            raise


def _new_items(tx: Transaction, run: int, last: int) -> Iterator[StoredItems]:
    """Yield the items after this one, in parts with consecutive numbers."""
    after = last
    while True:
        part = read_items(tx, run, after, 2**62)
        if not part.payloads:
            return
        yield part
        after = part.first + len(part.payloads) - 1
