"""The lease of this process, and the ends of the others.

While this process executes runs, or watches those of others on PostgreSQL, a timer renews its lease
and looks for runs whose process is gone. A write of runs renews the lease too, if that is due.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any, Protocol

from plexus.storage.engine import Transaction
from substrate.run_store.database import RunDatabase
from substrate.run_store.leases import (
    RENEW_S,
    Identity,
    Kept,
    Process,
    ProcessMonitor,
    end_orphans,
    end_ownerless,
    renew_lease,
)
from substrate.run_store.recorder import Recorder

__all__ = ("LeaseStore", "ProcessLease")

logger = logging.getLogger("substrate.run_store")


class LeaseStore(Protocol):
    """What the lease needs from the store."""

    @property
    def is_closed(self) -> bool:
        """Whether the store is closed."""

    @property
    def is_watching(self) -> bool:
        """Whether this process needs the changes of others soon."""

    def start(self, work: Coroutine[Any, Any, object]) -> None:
        """Run work that nothing waits for."""

    def on_signal(self) -> None:
        """Read what has changed soon."""

    def notify_all(self) -> None:
        """Wake all other processes."""


class ProcessLease:
    """The lease of one process."""

    def __init__(
        self,
        process: int,
        identity: Identity,
        database: RunDatabase,
        recorder: Recorder,
        kept: Kept,
        store: LeaseStore,
    ) -> None:
        self._process = process
        self._identity = identity
        self._host = identity[0]
        self._database = database
        self._recorder = recorder
        self._kept = kept
        self._store = store
        self._loop = asyncio.get_running_loop()
        #: Whether the lease was written.
        self.is_held = False
        self._renewed_at = 0.0
        self._is_renewing = False
        self._timer: asyncio.TimerHandle | None = None
        self.monitor = ProcessMonitor(self._host, self.on_death)

    def close(self) -> None:
        """Stop renewing."""
        if self._timer is not None:
            self._timer.cancel()
        self.monitor.close()

    # --- renewal ------------------------------------------------------------------------------

    def is_due(self, now: float) -> bool:
        """Return whether a write must renew the lease: no timer does while no run is active."""
        return not self.is_held or now - self._renewed_at > RENEW_S

    def require_renewal(self) -> None:
        """Have the next write renew the lease: the database is another one."""
        self._renewed_at = 0.0

    def write(self, tx: Transaction) -> bool:
        """Write the lease. Returns whether this process had one."""
        return renew_lease(tx, self._process, self._identity, watching=self._store.is_watching)

    def on_renewed(self, started_at: float, *, known: bool) -> None:
        """Handle a lease that was written in a transaction which began at this time."""
        had_lease, self.is_held = self.is_held, True
        self._renewed_at = started_at
        if not known:
            self._store.notify_all()
            if had_lease:
                self._recorder.mark_all()  # another process may have ended the runs

    async def renew(self) -> None:
        """Write the lease, and end runs without a process. Raises PlexusError."""

        def work(tx: Transaction) -> bool:
            known = self.write(tx)
            end_ownerless(tx, self._kept)
            return known

        started_at = time.monotonic()
        self._is_renewing = True
        try:
            known = await self._database.engine.write(work)
        finally:
            self._is_renewing = False
        self.on_renewed(started_at, known=known)
        if not self._store.is_closed:
            self.keep()

    def keep(self) -> None:
        """Renew the lease from now on, while it is needed."""
        if self._timer is None:
            self._timer = self._loop.call_later(RENEW_S, self._on_timer)

    def on_claimed(self) -> None:
        """Keep the lease that was written with a claim, and make this process known."""
        if self._recorder.active and self._timer is None:
            self.is_held = True
            if not self._store.is_closed:
                self.keep()
        self._store.notify_all()

    def _on_timer(self) -> None:
        self._timer = None
        if self._store.is_closed or not self._database.is_open:
            return
        is_watching = self._database.is_postgres and self._store.is_watching
        if self._recorder.active or is_watching:
            if not self._is_renewing:
                self._store.start(self.renew())
            self.keep()
            self._store.on_signal()

    # --- other processes ----------------------------------------------------------------------

    def on_death(self, process: Process) -> None:
        """End or release the runs of a process that has ended."""
        self._store.start(self._end_orphans(process))

    async def _end_orphans(self, process: Process) -> None:
        host, kept = self._host, self._kept
        ended = await self._database.engine.write(lambda tx: end_orphans(tx, process, host, kept))
        if ended:
            logger.info("process %d has ended; %d of its runs were ended", process.pid, ended)
        self._store.notify_all()
        self._store.on_signal()
