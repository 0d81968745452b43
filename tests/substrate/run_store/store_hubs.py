"""Hubs with a run store on one database, as if each were a separate process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from hub_calls import WAIT_S, register

from activations.approvals import Approvals
from plexus import Activation, Plexus
from plexus.limits import Limits
from plexus.runtime.builtin import PlexusActivation
from substrate.run_store.policy import RecordPolicy, RetentionPolicy
from substrate.run_store.store import RunStore, StoreOptions
from substrate.settings import Settings

__all__ = ("StoreHub", "wait_for", "wait_until")


class StoreHub:
    """A hub whose runs are recorded, and that sees all other runs of the database."""

    def __init__(self, hub: Plexus, store: RunStore) -> None:
        self.hub = hub
        self.store = store

    @classmethod
    async def open(
        cls,
        database: str,
        *activations: Activation | type[Activation],
        project: str = "/project",
        limits: Limits | None = None,
        settings: Settings | None = None,
    ) -> StoreHub:
        """Open a hub; close it with `close`, or `kill` it to leave its runs behind."""
        hub = Plexus(limits=limits or Limits())
        register(hub, PlexusActivation(hub), Approvals(), *activations)
        chosen = settings or Settings()
        options = StoreOptions(
            database, Path(project), RecordPolicy.of(chosen), RetentionPolicy.of(chosen)
        )
        store = RunStore(hub, options)
        store.start_recording()
        await store.open()
        hub.runs.stored = LoadedStore(store)
        return cls(hub, store)

    async def close(self) -> None:
        """Close the hub and its store."""
        await self.hub.close()


class LoadedStore:
    """The open store, as the table of runs uses it."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        loaded = store.loaded
        self.find, self.all, self.load = loaded.find, loaded.all, loaded.load
        self.find_kept, self.load_kept = loaded.find_kept, loaded.load_kept
        self.hand_over = store.hand_over
        self.refresh, self.watch, self.close_runs = loaded.refresh, loaded.watch, loaded.close
        history = store.history
        self.query, self.search, self.details = history.query, history.search, history.details
        self.counts = history.counts
        self.pin, self.delete, self.prune = history.pin, history.delete, history.prune

    async def close(self) -> None:
        """Close the store."""
        await self._store.close()


async def wait_until(condition: Callable[[], Any], within_s: float = WAIT_S) -> None:
    """Wait until a condition holds, which is checked every few milliseconds."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - any condition, also of other processes
            await asyncio.sleep(0.005)


async def wait_for(
    condition: Callable[[], Awaitable[Any]], within_s: float = WAIT_S, every_s: float = 0.02
) -> None:
    """Wait until an asynchronous condition holds."""
    async with asyncio.timeout(within_s):
        while not await condition():  # noqa: ASYNC110 - as above
            await asyncio.sleep(every_s)
