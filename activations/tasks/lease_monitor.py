"""The task that keeps the leases of a store: it renews its own, and releases those that ended.

Readers never see a claim of a dead holder, because the store checks that before it reads. This task
is for those that wait: it makes the release a change, which watchers receive.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Final

from activations.tasks.model import Process
from activations.tasks.store import Store
from plexus import PlexusError
from plexus.process_identity import is_running

__all__ = ("LeaseMonitor",)

#: Interval of the checks while any process holds tasks. Only /proc is read.
CHECK_S: Final = 0.5
#: Interval between renewals of the lease of this process, which other machines rely on.
RENEW_S: Final = 5.0
#: How long changes are collected before the leases are read again.
DEBOUNCE_S: Final = 0.05
#: Delay before a failed use of the store is retried.
RETRY_S: Final = 1.0


class LeaseMonitor:
    """Watches the processes and times that leases depend on, until it is stopped."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changed = asyncio.Event()
        self._changed.set()
        self._unsubscribe = store.subscribe(self._changed.set)
        self._processes: list[Process] = []
        #: When the next lease by time expires, in milliseconds since the epoch.
        self._expires_ms: int | None = None
        self._renewed_at = -RENEW_S
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop the task."""
        self._unsubscribe()
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        while True:
            active = self._processes or self._expires_ms is not None
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_S if active else None):
                    await self._changed.wait()
                    await asyncio.sleep(DEBOUNCE_S)
            try:
                await self._check()
            except PlexusError:  # the callers of the store get it as well
                await asyncio.sleep(RETRY_S)

    async def _check(self) -> None:
        if self._changed.is_set():
            self._changed.clear()  # before reading, so that no change is missed
            self._processes, self._expires_ms = await self._store.leases()
        if self._has_ended():
            await self._store.release_dead()
        own = self._store.process
        if self._processes and time.monotonic() - self._renewed_at >= RENEW_S:
            self._renewed_at = time.monotonic()
            if any(each.id == own.id for each in self._processes):
                await self._store.renew()
            if any(each.host != own.host for each in self._processes):
                await self._store.release_dead()  # by the clock of the database

    def _has_ended(self) -> bool:
        if self._expires_ms is not None and time.time() * 1000 > self._expires_ms:
            return True
        return any(
            each.host == self._store.process.host and not is_running(each.pid, each.start_ticks)
            for each in self._processes
        )
