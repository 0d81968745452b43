"""Reads what other processes have changed in the run store.

A signal means that something has changed. What matters to this process is read in one transaction:
requests for its runs, answers to its own requests, items of followed runs, the list of runs, and
the other processes. Signals that arrive during a read cause one more. A signal may be lost, so the
files are polled while changes of others matter.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from plexus.errors import PlexusError
from plexus.runtime.hub import Plexus
from plexus.storage.engine import Engine, Transaction
from substrate.run_store.database import FileState, RunDatabase
from substrate.run_store.deletions import Deletions, read_deletions
from substrate.run_store.leases import LEASE_S, Process, is_watched, other_processes
from substrate.run_store.loaded_runs import Changes, LoadedRuns
from substrate.run_store.process_lease import ProcessLease
from substrate.run_store.queries import Request, open_requests
from substrate.run_store.requests import Requests, read_results
from substrate.run_store.restarts import Owner, Restarts, WaitingRun, waiting_runs

__all__ = ("ChangeReader", "ReaderStore")

logger = logging.getLogger("substrate.run_store")

#: Seconds between two reads of what has changed.
CHECK_S: Final = 0.005
#: Seconds between checks for a change without a signal, while changes of others matter.
POLL_S: Final = 1.0
#: Seconds after an expiry until it is looked at, so that it has passed by any clock.
EXPIRY_S: Final = 0.05


class ReaderStore(Protocol):
    """What the reader needs from the store."""

    @property
    def is_closed(self) -> bool:
        """Whether the store is closed."""

    @property
    def is_watching(self) -> bool:
        """Whether this process needs the changes of others soon."""

    def start(self, work: Coroutine[Any, Any, object]) -> None:
        """Run work that nothing waits for."""

    async def replace(self, error: PlexusError, failed: Engine) -> bool:
        """Open the database again if its files are corrupt or gone. Returns whether it was."""


class _News(NamedTuple):
    """What concerns this process, read in one transaction."""

    requests: list[Request]
    results: dict[int, bytes]
    changes: Changes | None
    processes: list[Process]
    waiting: list[WaitingRun]
    watched: bool
    deletions: Deletions


class ChangeReader:
    """Reads the changes for one process, and passes them on."""

    def __init__(
        self,
        hub: Plexus,
        owner: Owner,
        database: RunDatabase,
        loaded: LoadedRuns,
        requests: Requests,
        restarts: Restarts,
        lease: ProcessLease,
        store: ReaderStore,
    ) -> None:
        self._hub = hub
        self._process = owner.process
        self._host = owner.host
        self._database = database
        self._loaded = loaded
        self._requests = requests
        self._restarts = restarts
        self._lease = lease
        self._store = store
        self._loop = asyncio.get_running_loop()
        #: Whether another process watches, as of the last read. Not known on SQLite.
        self.others_watch = False
        #: The number of deletions that this process has seen; None before the first read.
        self._deletions: int | None = None
        #: From when on expired leases of others count: others may not have reached the database
        #: while this process could not.
        self._trusted_at = 0.0
        self._is_failing = False
        self._trust_timer: asyncio.TimerHandle | None = None
        self._poll_timer: asyncio.TimerHandle | None = None
        self._check_timer: asyncio.TimerHandle | None = None
        self._checking: asyncio.Task[None] | None = None
        self._check_again = False
        self._checked_at = 0.0
        #: The state of the files that everything was read in; None if it must be read again.
        self._read_state: FileState | None = None

    def close(self) -> None:
        """Stop reading."""
        for timer in (self._poll_timer, self._check_timer, self._trust_timer):
            if timer is not None:
                timer.cancel()
        if self._checking is not None:
            self._checking.cancel()

    def on_unreachable(self) -> None:
        """Ignore expired leases until others had the time to renew theirs."""
        self._trusted_at = time.monotonic() + LEASE_S

    # --- signals ------------------------------------------------------------------------------

    def on_signal(self) -> None:
        """Read what has changed soon."""
        if self._store.is_closed:
            return
        if self._checking is not None:
            self._check_again = True
            return
        self._checking = self._loop.create_task(self._check())
        self._checking.add_done_callback(self._on_checked)

    def _on_checked(self, task: asyncio.Task[None]) -> None:
        self._checking = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self.on_error(error)
        elif self._check_again and not self._store.is_closed:
            self._check_again = False
            self.on_signal()

    def on_error(self, error: BaseException) -> None:
        """Report that the database cannot be used, once until it can."""
        self._read_state = None
        self.on_unreachable()
        if isinstance(error, PlexusError):
            if not self._is_failing:
                logger.warning("the run store is not available: %s", error.message)
            self._is_failing = True
        else:
            logger.error("the run store failed", exc_info=error)

    # --- reading ------------------------------------------------------------------------------

    async def _check(self) -> None:
        pause_s = self._checked_at + CHECK_S - time.monotonic()
        if pause_s > 0:
            await asyncio.sleep(pause_s)
        self._checked_at = time.monotonic()
        self._check_again = False
        if not self._database.is_open:
            return
        with_list = self._loaded.needs_list
        serving = self._requests.serving
        # Before the read: what is written meanwhile is read again.
        self._read_state = self._database.settled_state()
        engine = self._database.engine
        try:
            news = await engine.read(partial(self._read_news, with_list=with_list))
        except PlexusError as error:
            self._read_state = None
            if not await self._store.replace(error, engine):
                raise
            return
        self._is_failing = False
        self.others_watch = news.watched
        self._forget(news.deletions)
        self._requests.on_results(news.results)
        self._requests.serve(self._database.engine, news.requests, serving)
        self._lease.monitor.watch(news.processes)
        self._end_expired(news.processes)
        self._plan_check(news)
        if news.changes is not None:
            self._loaded.apply(news.changes)

    def _read_news(self, tx: Transaction, *, with_list: bool) -> _News:
        loaded, waiting = self._loaded, self._requests.waiting
        return _News(
            open_requests(tx, self._process),
            read_results(tx, waiting),
            loaded.read_changes(tx, with_list=with_list) if loaded.is_used else None,
            other_processes(tx, self._process),
            waiting_runs(tx),
            self._database.is_postgres and is_watched(tx, self._process),
            read_deletions(tx, self._deletions),
        )

    def _forget(self, deletions: Deletions) -> None:
        """Forget the runs that were deleted by any process."""
        self._deletions = deletions.number
        if deletions.runs:
            self._hub.runs.forget(deletions.runs)
            self._loaded.forget(deletions.runs)
        if not deletions.is_complete:
            self._store.start(self._loaded.forget_missing())

    def _end_expired(self, processes: list[Process]) -> None:
        """End the runs of other machines whose lease has expired, as soon as that counts."""
        expired = [each for each in processes if each.host != self._host and each.expired]
        left_s = self._trusted_at - time.monotonic()
        if expired and left_s <= 0:
            for process in expired:
                self._lease.on_death(process)
        elif expired and self._trust_timer is None:
            self._trust_timer = self._loop.call_later(left_s, self._on_trusted)

    def _on_trusted(self) -> None:
        self._trust_timer = None
        self.on_signal()

    def _plan_check(self, news: _News) -> None:
        """Claim the runs that wait for this process, and check again when others are due."""
        others = [each for each in news.processes if each.host != self._host]
        due = [min(each.left_s, LEASE_S) for each in others]
        attention_s = self._restarts.next_check_s(news.waiting) if news.waiting else None
        if attention_s == 0:
            self._store.start(self._claim())
        elif attention_s is not None:
            due.append(attention_s)
        if self._check_timer is not None:
            self._check_timer.cancel()
            self._check_timer = None
        left_s = min((each for each in due if each >= 0), default=None)
        if left_s is not None:
            self._check_timer = self._loop.call_later(left_s + EXPIRY_S, self.on_signal)

    async def _claim(self) -> None:
        if await self._restarts.claim(self._database.engine):
            self._lease.on_claimed()
            self.on_signal()

    # --- polling ------------------------------------------------------------------------------

    def require_read(self) -> None:
        """Have the next poll read: what is followed from now on may have changed before."""
        self._read_state = None

    def start_polling(self) -> None:
        """Look for changes without a signal while changes of others matter."""
        if self._poll_timer is None:
            self._poll_timer = self._loop.call_later(POLL_S, self._on_poll)

    def _on_poll(self) -> None:
        self._poll_timer = None
        if self._store.is_watching and not self._store.is_closed:
            state = self._database.settled_state()
            if state is None or state != self._read_state:
                self.on_signal()
            self.start_polling()
