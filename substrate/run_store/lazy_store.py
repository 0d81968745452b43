"""The run store before it is needed: nothing is imported or opened until a run has answered.

This module is imported at every start, so it imports nothing of the store. It remembers the runs
that start before the store exists, and hands them over. What is looked up in the store opens it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from plexus.errors import Failed, PlexusError
from plexus.principal import Principal
from plexus.registry.lazy import resolve
from plexus.runtime.hub import Plexus
from plexus.runtime.run import LocalRun

if TYPE_CHECKING:  # imported when the store is opened
    from plexus.runtime.run_record import FoundRuns, RunQuery, RunRecord
    from plexus.runtime.stored_run import StoredRun
    from substrate.run_store.store import RunStore
    from substrate.settings import Settings

__all__ = ("LazyRunStore",)

logger = logging.getLogger("substrate.run_store")

#: Creates the store: `create_store(hub, settings, project)`.
CREATE_STORE: Final = "substrate.run_store.store:create_store"
RUN_IN_THREAD: Final = "plexus.storage.daemon_threads:run_in_daemon_thread"
#: Seconds after the first run has started until the store is opened. Most runs have answered then.
DELAY_S: Final = 0.05
#: Seconds after its start until a server opens the store.
START_S: Final = 1.0
#: Seconds before opening is tried again after a failure.
RETRY_S: Final = 10.0


class LazyRunStore:
    """Implements `plexus.runtime.stored_run.StoredRuns` with a store that is opened when needed."""

    def __init__(self, hub: Plexus, settings: Settings, project: Path) -> None:
        self._hub = hub
        self._settings = settings
        self._project = project
        self._loop = asyncio.get_running_loop()
        self._store: RunStore | None = None
        self._opening: asyncio.Task[None] | None = None
        self._error: PlexusError | None = None
        self._failed_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        #: Whether the timer waits for longer than the first run should.
        self._opens_later = False
        #: Runs that started before the store existed, with their arguments.
        self._early: list[tuple[LocalRun, Mapping[str, Any]]] = []
        self._stop: Callable[[], None] | None = None
        self._closed = False
        if settings.record != "off":
            hub.runs.record_with(self)
            self._stop = partial(hub.runs.record_with, None)
        hub.runs.stored = self

    # --- recording ----------------------------------------------------------------------------

    def on_start(self, run: LocalRun, arguments: Mapping[str, Any]) -> None:
        """Remember a run, and open the store soon."""
        if run.purpose != "work":
            return
        self._early.append((run, arguments))
        run.recorder = self
        run.log.on_trim = self._create
        if self._timer is not None and self._opens_later:
            self._timer.cancel()
            self._timer, self._opens_later = None, False
        if self._timer is None:
            self._timer = self._loop.call_later(DELAY_S, self._open_soon)

    def on_end(self, run: LocalRun) -> None:
        """Do nothing: a run that has ended is recorded when the store exists."""

    def describe(self, run: LocalRun) -> tuple[str, str]:
        """Return the recorded arguments of a run in progress, and their summary."""
        self._create()
        assert self._store is not None, "it was created"
        return self._store.recorder.describe(run)

    def _create(self) -> None:
        """Create the store and hand over the runs that have started."""
        if self._store is None:
            self._store = resolve(CREATE_STORE)(self._hub, self._settings, self._project)
            if self._stop is not None:
                self._stop()
                self._stop = self._store.start_recording()
        early, self._early = self._early, []
        for run, arguments in early:
            run.log.on_trim = None
            run.recorder = None
            self._store.recorder.adopt(run, arguments)

    async def checkpoint(self, run: LocalRun, value: bytes) -> None:
        """Store a checkpoint of a run that started before the store existed. Raises PlexusError."""
        store = await self.opened()
        if run.recorder is not None:
            await store.recorder.checkpoint(run, value)

    def open_later(self) -> None:
        """Open the store when this process has started, to take over runs that were released."""
        if self._stop is not None and self._timer is None and self._opening is None:
            self._timer = self._loop.call_later(START_S, self._open_soon)
            self._opens_later = True

    def _open_soon(self) -> None:
        self._timer = None
        if not self._closed and self._opening is None:
            self._opening = self._loop.create_task(self._open())

    async def _open(self) -> None:
        try:
            # In a thread: importing would block running calls for as long as a cold start takes. In
            # one that ends: its memory is used again by the threads of the database.
            run_in_thread = resolve(RUN_IN_THREAD)
            await run_in_thread(partial(resolve, CREATE_STORE), "run store import")
            self._create()
            assert self._store is not None, "it was created"
            await self._store.open()
        except (PlexusError, OSError) as failure:
            error = failure if isinstance(failure, PlexusError) else Failed(str(failure))
            self._report(error)
            self._error, self._failed_at = error, time.monotonic()
            self._opening = None
            if self._stop is not None and not self._closed:
                self._timer = self._loop.call_later(RETRY_S, self._open_soon)
        else:
            self._error = None

    def _report(self, error: PlexusError) -> None:
        """Report that the store cannot be opened, once for each reason."""
        if self._store is not None:
            self._store.recorder.on_failure(error.message)
        elif self._error is None or self._error.message != error.message:
            logger.warning("runs are not recorded: %s", error.message)

    async def opened(self) -> RunStore:
        """Return the open store. Raises PlexusError."""
        if self._error is not None and time.monotonic() - self._failed_at < RETRY_S:
            raise self._error
        if self._timer is not None:
            self._timer.cancel()
        self._open_soon()
        if self._opening is not None:
            await asyncio.shield(self._opening)
        if self._error is not None:
            raise self._error
        assert self._store is not None, "it was opened"
        return self._store

    async def close(self) -> None:
        """Write what is left, and close the store."""
        if self._closed:
            return
        if self._early and self._store is None and self._error is None:
            with contextlib.suppress(PlexusError):
                await self.opened()
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._stop is not None:
            self._stop()
            self._stop = None
        if self._opening is not None:
            await asyncio.wait([self._opening])
        if self._store is not None:
            await self._store.close()

    # --- stored runs --------------------------------------------------------------------------

    def find(self, run_id: int) -> StoredRun | None:
        """Return a run that is loaded and up to date, or None."""
        return None if self._store is None else self._store.loaded.find(run_id)

    def all(self) -> list[StoredRun]:
        """Return the loaded runs of other processes."""
        return [] if self._store is None else self._store.loaded.all()

    async def load(self, run_id: int, principal: Principal | None = None) -> StoredRun | None:
        """Load a run; None if it is not stored. Raises PlexusError."""
        return await (await self.opened()).loaded.load(run_id, principal)

    def find_kept(self, principal: Principal) -> Sequence[StoredRun] | None:
        """Return the principal's runs with a guaranteed retention; None if not up to date."""
        return None if self._store is None else self._store.loaded.find_kept(principal)

    async def load_kept(self, principal: Principal) -> None:
        """Load the principal's runs with a guaranteed retention. Raises PlexusError."""
        await (await self.opened()).loaded.load_kept(principal)

    async def refresh(self) -> None:
        """Load the runs of other processes that are in progress. Raises PlexusError."""
        await (await self.opened()).loaded.refresh()

    @contextlib.contextmanager
    def watch(self, listener: Callable[[], None]) -> Iterator[None]:
        """Keep the list of runs up to date, and call `listener` after changes."""
        self._create()
        assert self._store is not None, "it was created"
        if self._timer is not None:
            self._timer.cancel()
        self._open_soon()
        with self._store.loaded.watch(listener):
            yield

    async def hand_over(self, *, only_restarted: bool = False) -> None:
        """Stop the runs that another process can restart, and release them for it."""
        if self._store is not None:
            await self._store.hand_over(only_restarted=only_restarted)

    def close_runs(self) -> None:
        """End all loaded runs because this process stops."""
        if self._store is not None:
            self._store.loaded.close()

    # --- history ------------------------------------------------------------------------------

    async def query(self, principal: Principal, query: RunQuery) -> list[dict[str, Any]]:
        """Return this principal's recorded runs as in `plexus.runs`. Raises PlexusError."""
        return await (await self.opened()).history.query(principal, query)

    async def search(
        self, principal: Principal, query: RunQuery
    ) -> AsyncGenerator[FoundRuns, None]:
        """Yield the runs of a query with a text as they are found. Raises PlexusError."""
        history = (await self.opened()).history
        async with contextlib.aclosing(history.search(principal, query)) as parts:
            async for found in parts:
                yield found

    async def counts(self, principal: Principal, since_ms: int) -> dict[str, int]:
        """Count this principal's runs that started since a time. Raises PlexusError."""
        return await (await self.opened()).history.counts(principal, since_ms)

    async def details(self, run_id: int) -> RunRecord | None:
        """Return what is recorded about a run, or None. Raises PlexusError."""
        return await (await self.opened()).history.details(run_id)

    async def pin(self, run_id: int, pinned: bool) -> None:
        """Keep a run until it is unpinned, or end that. Raises PlexusError."""
        await (await self.opened()).history.pin(run_id, pinned)

    async def delete(self, run_ids: Sequence[int]) -> int:
        """Delete ended runs, and return how many were. Raises PlexusError."""
        return await (await self.opened()).history.delete(run_ids)

    async def prune(self) -> int:
        """Delete the runs whose retention has ended, and return how many. Raises PlexusError."""
        return await (await self.opened()).history.prune()
