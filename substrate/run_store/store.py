"""The run store of a process: its database, its lease, and what other processes ask for.

- Writes are flushes of the recorder, one at a time. After a commit, the processes that watch are
  woken: by datagrams on SQLite, by the change signal of the engine on PostgreSQL.
- A signal from another process means that something has changed. What matters to this process is
  read in one transaction: requests for its runs, answers to its own requests, items of followed
  runs, the list of runs.
- While this process executes or watches runs, a timer renews its lease and looks for dead
  processes. Otherwise nothing runs here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from plexus.errors import Failed, PlexusError
from plexus.private_files import data_folder
from plexus.process_identity import host_id, start_time
from plexus.runtime.hub import Plexus
from plexus.storage.engine import Engine, Transaction, is_postgres, open_engine, sqlite_path
from substrate.run_store.flush import Flush
from substrate.run_store.leases import (
    RENEW_S,
    UNOWNED,
    Process,
    ProcessMonitor,
    end_orphans,
    is_watched,
    other_processes,
    release_process,
    renew_lease,
)
from substrate.run_store.loaded_runs import Changes, LoadedRuns
from substrate.run_store.policy import RecordPolicy, RetentionPolicy
from substrate.run_store.queries import Request, Scope, open_requests
from substrate.run_store.recorder import Recorder
from substrate.run_store.requests import Requests, read_results
from substrate.run_store.restarts import Owner, Restarts, WaitingRun, waiting_runs
from substrate.run_store.schema import RUNS
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
    return os.environ.get("CLAUDE_CODE_SESSION_ID", "")[:100]


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
        self._engine: Engine | None = None
        self._opened = asyncio.Event()
        self.process = hub.new_id()
        self._host = host_id()
        self._is_postgres = is_postgres(options.database)
        self._signals: Signals | None = None
        self._others_watch = False
        self._unsubscribe: Callable[[], None] | None = None
        project = str(options.project)
        # A shared server shows each principal all its runs; on one machine projects are separate.
        scope = Scope(self.process, None if self._is_postgres else project)
        self.loaded = LoadedRuns(hub, self, scope)
        self.requests = Requests(
            hub, self.process, self._wake_process, hub.new_id, options.retention.kept_ms
        )
        self.recorder = Recorder(
            hub,
            options.record,
            options.retention,
            self._write,
            lambda: self.is_watched,
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
        self._lease_timer: asyncio.TimerHandle | None = None
        self._poll_timer: asyncio.TimerHandle | None = None
        self._check_timer: asyncio.TimerHandle | None = None
        self._checking: asyncio.Task[None] | None = None
        self._check_again = False
        self._checked_at = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    # --- opening and closing ------------------------------------------------------------------

    async def open(self) -> None:
        """Open the database and find the processes that share it. Raises PlexusError."""
        self._engine = await open_engine(self._options.database, RUNS)
        if self._is_postgres:
            self._unsubscribe = self._engine.subscribe(self.on_signal)
        else:
            folder = sqlite_path(self._options.database).absolute().parent / "signals"
            signals = Signals(folder, self.process, self.on_signal)
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

    def start_recording(self) -> Callable[[], None]:
        """Record the runs of the hub from now on. Returns a function that stops it."""
        return self.recorder.start()

    async def close(self) -> None:
        """Write the last items and release the lease."""
        if self._closed:
            return
        if self._engine is not None:
            await self.recorder.close(CLOSE_S)
            await self.requests.close()
        self._closed = True
        for timer in (self._lease_timer, self._poll_timer, self._check_timer):
            if timer is not None:
                timer.cancel()
        self.monitor.close()
        for task in [*self._tasks, *filter(None, [self._checking])]:
            task.cancel()
        if self._unsubscribe is not None:
            self._unsubscribe()
        engine, self._engine = self._engine, None
        if engine is None:
            return
        if self._has_lease:
            try:
                async with asyncio.timeout(CLOSE_S):
                    await engine.write(lambda tx: release_process(tx, self.process))
            except (PlexusError, TimeoutError):
                pass  # other processes notice that this one has ended
        if self._signals is not None:
            self._signals.notify_watchers()
            self._signals.close()
        await engine.close()

    @property
    def engine(self) -> Engine:
        """The open database. Raises Failed if there is none."""
        if self._engine is None:
            raise Failed("The run store is not available.", code="storage_closed")
        return self._engine

    # --- writing ------------------------------------------------------------------------------

    def _write(self, flush: Flush) -> asyncio.Task[Collection[int]]:
        return self._loop.create_task(self._write_flush(flush))

    async def _write_flush(self, flush: Flush) -> Collection[int]:
        renew = not self._has_lease or self._lease_timer is None

        def work(tx: Transaction) -> Collection[int]:
            if renew:
                self._renew_lease(tx)
            return flush.write(tx, self._row)

        await self._opened.wait()  # the recorder limits what waits here
        fenced = await self.engine.write(work)
        if renew:
            self._on_lease_begun()
        if self._signals is not None:
            self._signals.notify_watchers()
        if self.restarts.has_restarted and self.loaded.is_used:
            self.on_signal()  # readers that followed a run before it was restarted here
        return fenced

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
            logger.warning("cannot read the run store: %s", error)
        elif self._check_again and not self._closed:
            self._check_again = False
            self.on_signal()

    async def _check(self) -> None:
        pause_s = self._checked_at + CHECK_S - time.monotonic()
        if pause_s > 0:
            await asyncio.sleep(pause_s)
        self._checked_at = time.monotonic()
        self._check_again = False
        if self._engine is None:
            return
        with_list = self.loaded.needs_list
        news = await self.engine.read(partial(self._read_news, with_list=with_list))
        self._others_watch = news.watched
        self.requests.on_results(news.results)
        self.requests.serve(self.engine, news.requests)
        self.monitor.watch(news.processes)
        for process in news.processes:
            if process.host != self._host and process.expired:
                self._on_death(process)
        self._plan_check(news)
        if news.changes is not None:
            self.loaded.apply(news.changes)

    def _plan_check(self, news: _News) -> None:
        """Claim the runs that wait for this process, and check again when others are due."""
        due = [each.left_s for each in news.processes if each.host != self._host]
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
        if self._engine is None or not self.recorder.active:
            return
        try:
            released = await self.restarts.hand_over(self.engine, only_restarted=only_restarted)
        except PlexusError as error:
            logger.warning("runs are not handed over: %s", error.message)
            return
        if released and self._signals is not None:
            self._signals.notify_all()

    def _read_news(self, tx: Transaction, *, with_list: bool) -> _News:
        waiting = self.requests.waiting
        return _News(
            open_requests(tx, self.process) if self._has_lease else [],
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
        elif self._engine is not None:
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
        if self._closed or self._engine is None:
            return
        if self.recorder.active or (self._is_postgres and self._watching):
            self._start(self._renew())
            self._start_lease_timer()
            self.on_signal()

    async def _renew(self) -> None:
        had_lease, self._has_lease = self._has_lease, True
        if not await self.engine.write(self._renew_lease) and had_lease:
            # Others took this process for dead. Its runs learn whether they have another owner.
            for run in list(self.recorder.active):
                self.recorder.mark_changed(run)
        if self._lease_timer is None and not self._closed:
            self._start_lease_timer()

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

    def _start(self, work: Any) -> None:
        task: asyncio.Task[None] = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("cannot write to the run store: %s", error)
