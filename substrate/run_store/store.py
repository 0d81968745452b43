"""The run store of a process: its database, its lease, and what other processes ask for.

- Writes are flushes of the recorder, one at a time. After a commit, the processes that watch are
  woken: by datagrams on SQLite, by the change signal of the engine on PostgreSQL.
- A signal from another process means that something has changed. What matters to this process is
  read in one transaction: requests for its runs, answers to its own requests, items of followed
  runs, the list of runs.
- While this process executes or watches runs, a timer renews its lease and looks for dead
  processes. The background work is in `Maintenance`. Otherwise nothing runs here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from plexus.errors import Failed, PlexusError
from plexus.private_files import data_folder
from plexus.process_identity import host_id, start_time
from plexus.runtime.hub import Plexus
from plexus.storage.engine import Engine, Transaction, is_postgres
from substrate.run_store.database import RunDatabase
from substrate.run_store.flush import Flush
from substrate.run_store.leases import (
    LEASE_S,
    RENEW_S,
    UNOWNED,
    Process,
    ProcessMonitor,
    end_orphans,
    end_ownerless,
    is_watched,
    other_processes,
    release_process,
    renew_lease,
)
from substrate.run_store.loaded_runs import Changes, LoadedRuns
from substrate.run_store.maintenance import Maintenance
from substrate.run_store.policy import RecordPolicy, RetentionPolicy
from substrate.run_store.queries import Request, Scope, open_requests
from substrate.run_store.recorder import Recorder
from substrate.run_store.requests import Requests, read_results
from substrate.run_store.restarts import Owner, Restarts, WaitingRun, waiting_runs
from substrate.run_store.run_history import RunHistory
from substrate.run_store.schema import storable_text
from substrate.run_store.signals import Signals
from substrate.settings import Settings

__all__ = ("RunStore", "StoreOptions", "create_store")

logger = logging.getLogger("substrate.run_store")

#: Seconds between two reads of what has changed.
CHECK_S: Final = 0.005
#: Seconds between reads without a signal, while changes of others matter.
POLL_S: Final = 1.0
#: Seconds after an expiry until it is looked at, so that it has passed by any clock.
EXPIRY_S: Final = 0.05
#: Seconds to write the last items when this process ends. Hosts kill processes that take longer.
CLOSE_S: Final = 1.0


class StoreOptions(NamedTuple):
    """What a run store is opened with."""

    #: A path or a URL of PostgreSQL.
    database: str
    project: Path
    record: RecordPolicy
    retention: RetentionPolicy
    #: The session of the agent that started this process.
    agent_session: str


def create_store(hub: Plexus, settings: Settings, project: Path) -> RunStore:
    """Create the run store of a hub. `open` opens its database."""
    is_shared = is_postgres(settings.database)
    database = settings.database if is_shared else str(data_folder() / "runs.db")
    options = StoreOptions(
        database, project, RecordPolicy.of(settings), RetentionPolicy.of(settings), agent_session()
    )
    return RunStore(hub, options)


def agent_session() -> str:
    """Return the session of the agent that started this process; empty if it is unknown."""
    return storable_text(os.environ.get("CLAUDE_CODE_SESSION_ID", ""))[:100]


class _News(NamedTuple):
    """What concerns this process, read in one transaction."""

    requests: list[Request]
    results: dict[int, bytes]
    changes: Changes | None
    processes: list[Process]
    waiting: list[WaitingRun]
    watched: bool


class RunStore:
    """Records the runs of a hub, and gives access to all others."""

    def __init__(self, hub: Plexus, options: StoreOptions) -> None:
        self._hub = hub
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._database = RunDatabase(options.database)
        self._opened = asyncio.Event()
        self.process = hub.new_id()
        self._host = host_id()
        self._is_postgres = self._database.is_postgres
        self._signals: Signals | None = None
        self._others_watch = False
        self._unsubscribe: Callable[[], None] | None = None
        project = storable_text(str(options.project))
        # A shared server shows each principal all its runs; on one machine projects are separate.
        scope = Scope(self.process, None if self._is_postgres else project)
        self._scope = scope
        self.loaded = LoadedRuns(hub, self, scope)
        #: While the store is open.
        self.maintenance: Maintenance | None = None
        self.requests = Requests(
            hub, self.process, self._wake_process, hub.new_id, options.retention.kept_ms
        )
        self.recorder = Recorder(
            hub,
            options.record,
            options.retention,
            self._write,
            lambda: self.is_watched,
            self._is_writable,
            self.loaded,
        )
        self.monitor = ProcessMonitor(self._host, self._on_death)
        self._identity = (
            self._host,
            os.getpid(),
            start_time(os.getpid()),
            project,
            hub.version,
        )
        self.restarts = Restarts(
            hub,
            self.recorder,
            options.record,
            Owner(self.process, os.getpid(), self._host, scope.project),
            self._renew_lease,
            options.retention.kept_ms,
        )
        self._row = (project, self.process, os.getpid(), self._host, options.agent_session)
        self._watching = False
        self._has_lease = False
        #: When the lease was renewed, and from when on expired leases of others count: others may
        #: not have reached the database while this process could not.
        self._renewed_at = 0.0
        self._renewing = False
        self._trusted_at = 0.0
        self._trust_timer: asyncio.TimerHandle | None = None
        self._is_failing = False
        self._lease_timer: asyncio.TimerHandle | None = None
        self._poll_timer: asyncio.TimerHandle | None = None
        self._check_timer: asyncio.TimerHandle | None = None
        self._checking: asyncio.Task[None] | None = None
        self._check_again = False
        self._checked_at = 0.0
        self._tasks: set[asyncio.Task[object]] = set()
        self._closed = False

    # --- opening and closing ------------------------------------------------------------------

    async def open(self) -> None:
        """Open the database and find the processes that share it. Raises PlexusError."""
        options = self._options
        engine = await self._database.open()
        self._trusted_at = time.monotonic() + LEASE_S
        self.maintenance = Maintenance(
            lambda: self.engine, options.database, options.retention, self.process, self._on_deleted
        )
        if self._is_postgres:
            self._unsubscribe = engine.subscribe(self.on_signal)
        else:
            signals = Signals(self._database.path.parent / "signals", self.process, self.on_signal)
            try:
                signals.open()
            except OSError as error:
                logger.warning("runs of other processes are seen late: %s", error)
            self._signals = signals
        if self._watching:
            self._watching = False
            self.set_watching(True)
        self._opened.set()
        self.on_signal()
        self.maintenance.start()

    async def _replace(self, error: PlexusError, failed: Engine) -> bool:
        """Open the database again if its files are corrupt or gone. Returns whether it was."""
        if not await self._database.replace(error, failed):
            return False
        self._renewed_at = 0.0
        self.recorder.mark_all()
        self._start(failed.close())
        return True

    def on_read_error(self, error: PlexusError, engine: Engine) -> None:
        """Replace the database if its files are corrupt or gone."""
        if not self._closed:
            self._start(self._replace(error, engine))

    def start_recording(self) -> Callable[[], None]:
        """Record the runs of the hub from now on. Returns a function that stops it."""
        return self.recorder.start()

    async def close(self) -> None:
        """Write the last items and release the lease."""
        if self._closed:
            return
        is_written = await self.recorder.close(CLOSE_S if self._database.is_open else 0.0)
        if is_written:
            await self.requests.close()
        self._closed = True
        for timer in (self._lease_timer, self._poll_timer, self._check_timer, self._trust_timer):
            if timer is not None:
                timer.cancel()
        self.monitor.close()
        for task in [*self._tasks, *filter(None, [self._checking])]:
            task.cancel()
        if self._unsubscribe is not None:
            self._unsubscribe()
        maintenance, self.maintenance = self.maintenance, None
        if maintenance is not None:
            await maintenance.close()
        engine = self._database.detach()
        if engine is None:
            return
        if self._has_lease and is_written:
            try:
                async with asyncio.timeout(CLOSE_S):
                    await engine.write(lambda tx: release_process(tx, self.process))
            except (PlexusError, TimeoutError):
                pass  # other processes notice that this one has ended
        if self._signals is not None:
            self._signals.notify_watchers()
            self._signals.close()
        closing = asyncio.ensure_future(engine.close())
        await asyncio.wait([closing], timeout=CLOSE_S if is_written else 0.0)
        closing.cancel()
        await asyncio.wait([closing], timeout=0.1)

    @property
    def engine(self) -> Engine:
        """The open database. Raises Failed if there is none."""
        return self._database.engine

    # --- writing ------------------------------------------------------------------------------

    def _write(self, flush: Flush) -> asyncio.Task[Collection[int]]:
        return self._loop.create_task(self._write_flush(flush))

    async def _write_flush(self, flush: Flush) -> Collection[int]:
        await self._opened.wait()  # the recorder limits what waits here
        engine = self.engine
        try:
            fenced = await self._write_to(engine, flush)
        except PlexusError as error:
            self._trusted_at = time.monotonic() + LEASE_S
            if not await self._replace(error, engine):
                raise
            fenced = await self._write_to(self.engine, flush)
        if self._lease_timer is None:
            self._start_lease_timer()
        if self._signals is not None:
            self._signals.notify_watchers()
        if self.restarts.has_restarted and self.loaded.is_used:
            self.on_signal()  # readers that followed a run before it was restarted here
        if flush.ended and self.maintenance is not None:
            self.maintenance.on_runs_ended()
        return fenced

    async def _write_to(self, engine: Engine, flush: Flush) -> Collection[int]:
        started_at = time.monotonic()
        # Nothing renews the lease while no run is in progress.
        renew = not self._has_lease or started_at - self._renewed_at > RENEW_S

        def work(tx: Transaction) -> tuple[Collection[int], bool]:
            known = True
            if renew:
                known = renew_lease(tx, self.process, self._identity, watching=self._watching)
            return flush.write(tx, self._row), known

        fenced, known = await engine.write(work)
        if renew:
            self._on_renewed(started_at, known=known)
        return fenced

    async def _is_writable(self) -> bool:
        """Return whether the database accepts anything."""
        try:
            await self._renew()
        except PlexusError:
            return False
        return True

    async def flushed(self) -> None:
        """Wait until everything that this process has recorded is written."""
        await self.recorder.flushed()

    @property
    def is_watched(self) -> bool:
        """Whether another process watches the runs of this one."""
        return self._others_watch if self._signals is None else self._signals.is_watched

    # --- signals ------------------------------------------------------------------------------

    def on_signal(self) -> None:
        """Read what has changed soon."""
        if self._closed:
            return
        if self._checking is not None:
            self._check_again = True
            return
        self._checking = self._loop.create_task(self._check())
        self._checking.add_done_callback(self._on_checked)

    def _on_checked(self, task: asyncio.Task[None]) -> None:
        self._checking = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_error(error)
        elif self._check_again and not self._closed:
            self._check_again = False
            self.on_signal()

    async def _check(self) -> None:
        pause_s = self._checked_at + CHECK_S - time.monotonic()
        if pause_s > 0:
            await asyncio.sleep(pause_s)
        self._checked_at = time.monotonic()
        self._check_again = False
        if not self._database.is_open:
            return
        with_list = self.loaded.needs_list
        engine = self.engine
        try:
            news = await engine.read(partial(self._read_news, with_list=with_list))
        except PlexusError as error:
            if not await self._replace(error, engine):
                raise
            return
        self._is_failing = False
        self._others_watch = news.watched
        self.requests.on_results(news.results)
        self.requests.serve(self.engine, news.requests)
        self.monitor.watch(news.processes)
        expired = [each for each in news.processes if each.host != self._host and each.expired]
        left_s = self._trusted_at - time.monotonic()
        if expired and left_s <= 0:
            for process in expired:
                self._on_death(process)
        elif expired and self._trust_timer is None:
            self._trust_timer = self._loop.call_later(left_s, self._on_trusted)
        self._plan_check(news)
        if news.changes is not None:
            self.loaded.apply(news.changes)

    def _plan_check(self, news: _News) -> None:
        """Claim the runs that wait for this process, and check again when others are due."""
        others = [each for each in news.processes if each.host != self._host]
        due = [min(each.left_s, LEASE_S) for each in others]
        attention_s = self.restarts.next_check_s(news.waiting) if news.waiting else None
        if attention_s == 0:
            self._start(self._claim())
        elif attention_s is not None:
            due.append(attention_s)
        if self._check_timer is not None:
            self._check_timer.cancel()
            self._check_timer = None
        left_s = min((each for each in due if each >= 0), default=None)
        if left_s is not None:
            self._check_timer = self._loop.call_later(left_s + EXPIRY_S, self.on_signal)

    async def _claim(self) -> None:
        claims = self.restarts.claim(self.engine)
        if await claims:
            if self.recorder.active and self._lease_timer is None:
                self._on_lease_begun()
            elif self._signals is not None:
                self._signals.notify_all()
            self.on_signal()

    async def hand_over(self, *, only_restarted: bool = False) -> None:
        """Stop the runs that another process can restart, and release them for it."""
        if not self._database.is_open or not self.recorder.active:
            return
        try:
            released = await self.restarts.hand_over(self.engine, only_restarted=only_restarted)
        except PlexusError as error:
            logger.warning("runs are not handed over: %s", error.message)
            return
        if released and self._signals is not None:
            self._signals.notify_all()

    def _on_trusted(self) -> None:
        self._trust_timer = None
        self.on_signal()

    def _on_error(self, error: BaseException) -> None:
        """Report that the database cannot be used, once until it can."""
        self._trusted_at = time.monotonic() + LEASE_S
        if isinstance(error, PlexusError):
            if not self._is_failing:
                logger.warning("the run store is not available: %s", error.message)
            self._is_failing = True
        else:
            logger.error("the run store failed", exc_info=error)

    def _read_news(self, tx: Transaction, *, with_list: bool) -> _News:
        waiting = self.requests.waiting
        return _News(
            open_requests(tx, self.process),
            read_results(tx, waiting),
            self.loaded.read_changes(tx, with_list=with_list) if self.loaded.is_used else None,
            other_processes(tx, self.process),
            waiting_runs(tx),
            self._is_postgres and is_watched(tx, self.process),
        )

    def set_watching(self, watching: bool) -> None:
        """Declare whether this process needs the changes of others soon."""
        if watching == self._watching or self._closed:
            return
        self._watching = watching
        if self._signals is not None:
            if watching:
                self._signals.watch()
            else:
                self._signals.unwatch()
        elif self._database.is_open:
            self._start(self._renew())
        if watching:
            self.on_signal()
            self._start_poll_timer()

    def _start_poll_timer(self) -> None:
        if self._poll_timer is None:
            self._poll_timer = self._loop.call_later(POLL_S, self._on_poll)

    def _on_poll(self) -> None:
        self._poll_timer = None
        if self._watching and not self._closed:
            self.on_signal()
            self._start_poll_timer()

    def _wake_process(self, process: int) -> None:
        """Wake a process; all of them if the run of a request belongs to none."""
        if process == UNOWNED:
            self.on_signal()
            if self._signals is not None:
                self._signals.notify_all()
        elif self._signals is not None:
            self._signals.notify(process)

    async def request(self, run: int, method: str, params: dict[str, Any]) -> Any:
        """Call a method in the process that executes a run. Raises PlexusError."""
        return await self.requests.make(self.engine, run, method, params)

    # --- history ------------------------------------------------------------------------------

    @property
    def history(self) -> RunHistory:
        """The recorded runs. Raises Failed if the store is not open."""
        if self.maintenance is None:
            raise Failed("The run store is not available.", code="storage_closed")
        project = self._scope.project
        return RunHistory(self.engine, self.maintenance, project, self.flushed)

    def _on_deleted(self, runs: Sequence[int]) -> None:
        self._hub.runs.forget(runs)
        self.loaded.forget(runs)
        if self._signals is not None:
            self._signals.notify_watchers()

    # --- leases -------------------------------------------------------------------------------

    def _renew_lease(self, tx: Transaction) -> bool:
        return renew_lease(tx, self.process, self._identity, watching=self._watching)

    def _on_lease_begun(self) -> None:
        """Keep the lease while there are runs, and make this process known to the others."""
        self._has_lease = True
        if self._lease_timer is None and not self._closed:
            self._start_lease_timer()
        if self._signals is not None:
            self._signals.notify_all()

    def _start_lease_timer(self) -> None:
        self._lease_timer = self._loop.call_later(RENEW_S, self._on_lease_timer)

    def _on_lease_timer(self) -> None:
        self._lease_timer = None
        if self._closed or not self._database.is_open:
            return
        if self.recorder.active or (self._is_postgres and self._watching):
            if not self._renewing:
                self._start(self._renew())
            self._start_lease_timer()
            self.on_signal()

    async def _renew(self) -> None:
        kept = self._options.retention.kept_ms

        def work(tx: Transaction) -> bool:
            known = self._renew_lease(tx)
            end_ownerless(tx, kept)
            return known

        started_at = time.monotonic()
        self._renewing = True
        try:
            known = await self.engine.write(work)
        finally:
            self._renewing = False
        self._on_renewed(started_at, known=known)
        if self._lease_timer is None and not self._closed:
            self._start_lease_timer()

    def _on_renewed(self, started_at: float, *, known: bool) -> None:
        had_lease, self._has_lease = self._has_lease, True
        self._renewed_at = started_at
        if not known:
            if self._signals is not None:
                self._signals.notify_all()
            if had_lease:
                self.recorder.mark_all()  # another process may have ended the runs

    def _on_death(self, process: Process) -> None:
        self._start(self._end_orphans(process))

    async def _end_orphans(self, process: Process) -> None:
        kept = self._options.retention.kept_ms
        ended = await self.engine.write(lambda tx: end_orphans(tx, process, self._host, kept))
        if ended:
            logger.info("process %d has ended; %d of its runs were ended", process.pid, ended)
        if self._signals is not None:
            self._signals.notify_all()
        self.on_signal()

    def _start(self, work: Coroutine[Any, Any, object]) -> None:
        task: asyncio.Task[object] = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_error(error)
