"""The run store of a process: its database, and the parts that use it.

- Writes are flushes of the recorder, one at a time. After a commit, the processes that watch are
  woken: by datagrams on SQLite, by the change signal of the engine on PostgreSQL.
- A signal from another process means that something has changed. `ChangeReader` reads what matters
  to this process.
- `ProcessLease` renews the lease while this process executes or watches runs, and ends the runs of
  dead processes. The background work is in `Maintenance`. Otherwise nothing runs here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from plexus.errors import Failed, PlexusError
from plexus.private_files import data_folder
from plexus.process_identity import host_id, start_time
from plexus.registry.lazy import resolve
from plexus.runtime.hub import Plexus
from plexus.storage.engine import Engine, Transaction, is_postgres
from substrate.run_store.change_reader import ChangeReader
from substrate.run_store.database import RunDatabase
from substrate.run_store.flush import Flush
from substrate.run_store.leases import UNOWNED, release_process
from substrate.run_store.loaded_runs import LoadedRuns
from substrate.run_store.policy import RecordPolicy, RetentionPolicy
from substrate.run_store.process_lease import ProcessLease
from substrate.run_store.queries import Scope
from substrate.run_store.recorder import Recorder
from substrate.run_store.requests import Requests
from substrate.run_store.restarts import Owner, Restarts
from substrate.run_store.schema import storable_text
from substrate.run_store.signals import Signals
from substrate.settings import Settings

if TYPE_CHECKING:  # a process that only records for a moment needs neither
    from substrate.run_store.maintenance import Maintenance
    from substrate.run_store.run_history import RunHistory

__all__ = ("RunStore", "StoreOptions", "create_store")

logger = logging.getLogger("substrate.run_store")

MAINTENANCE: Final = "substrate.run_store.maintenance:Maintenance"
RUN_HISTORY: Final = "substrate.run_store.run_history:RunHistory"
#: Seconds after opening until the background work begins.
MAINTENANCE_S: Final = 5.0
#: Seconds to write the last items when this process ends. Hosts kill processes that take longer.
CLOSE_S: Final = 1.0


class StoreOptions(NamedTuple):
    """What a run store is opened with."""

    #: A path or a URL of PostgreSQL.
    database: str
    project: Path
    record: RecordPolicy
    retention: RetentionPolicy


def create_store(hub: Plexus, settings: Settings, project: Path) -> RunStore:
    """Create the run store of a hub. `open` opens its database."""
    is_shared = is_postgres(settings.database)
    database = settings.database if is_shared else str(data_folder() / "runs.db")
    options = StoreOptions(
        database, project, RecordPolicy.of(settings), RetentionPolicy.of(settings)
    )
    return RunStore(hub, options)


class RunStore:
    """Records the runs of a hub, and gives access to all others."""

    def __init__(self, hub: Plexus, options: StoreOptions) -> None:
        self._hub = hub
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._database = RunDatabase(options.database)
        self._opened = asyncio.Event()
        self.process = hub.new_id()
        self._is_postgres = self._database.is_postgres
        self._signals: Signals | None = None
        self._unsubscribe: Callable[[], None] | None = None
        project = storable_text(str(options.project))
        # A shared server shows each principal all its runs; on one machine projects are separate.
        scope = Scope(self.process, None if self._is_postgres else project)
        self._scope = scope
        self.loaded = LoadedRuns(hub, self, scope)
        self._maintenance: Maintenance | None = None
        self._maintenance_timer: asyncio.TimerHandle | None = None
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
        host, pid, kept = host_id(), os.getpid(), options.retention.kept_ms
        identity = (host, pid, start_time(pid), project, hub.version)
        self.lease = ProcessLease(self.process, identity, self._database, self.recorder, kept, self)
        owner = Owner(self.process, pid, host, scope.project)
        self.restarts = Restarts(hub, self.recorder, options.record, owner, self.lease.write, kept)
        self.reader = ChangeReader(
            hub,
            owner,
            self._database,
            self.loaded,
            self.requests,
            self.restarts,
            self.lease,
            self,
        )
        self._row = (project, self.process, pid, host)
        self.is_watching = False
        self._tasks: set[asyncio.Task[object]] = set()
        self.is_closed = False

    # --- opening and closing ------------------------------------------------------------------

    async def open(self) -> None:
        """Open the database and find the processes that share it. Raises PlexusError."""
        engine = await self._database.open()
        self.reader.on_unreachable()
        if self._is_postgres:
            self._unsubscribe = engine.subscribe(self.on_signal)
        else:
            signals = Signals(self._database.path.parent / "signals", self.process, self.on_signal)
            try:
                signals.open()
            except OSError as error:
                logger.warning("runs of other processes are seen late: %s", error)
            self._signals = signals
        if self.is_watching:
            self.is_watching = False
            self.set_watching(True)
        self._opened.set()
        self.on_signal()
        self._maintenance_timer = self._loop.call_later(
            MAINTENANCE_S, lambda: self.start(self._start_maintenance())
        )

    async def replace(self, error: PlexusError, failed: Engine) -> bool:
        """Open the database again if its files are corrupt or gone. Returns whether it was."""
        if not await self._database.replace(error, failed):
            return False
        self.lease.require_renewal()
        self.recorder.mark_all()
        self.start(failed.close())
        return True

    def on_read_error(self, error: PlexusError, engine: Engine) -> None:
        """Replace the database if its files are corrupt or gone."""
        if not self.is_closed:
            self.start(self.replace(error, engine))

    def start_recording(self) -> Callable[[], None]:
        """Record the runs of the hub from now on. Returns a function that stops it."""
        return self.recorder.start()

    async def close(self) -> None:
        """Write the last items and release the lease."""
        if self.is_closed:
            return
        is_written = await self.recorder.close(CLOSE_S if self._database.is_open else 0.0)
        if is_written:
            await self.requests.close()
        self.is_closed = True
        if self._maintenance_timer is not None:
            self._maintenance_timer.cancel()
        self.lease.close()
        self.restarts.close()
        self.reader.close()
        for task in self._tasks:
            task.cancel()
        if self._unsubscribe is not None:
            self._unsubscribe()
        if self._maintenance is not None:
            await self._maintenance.close()
        engine = self._database.detach()
        if engine is None:
            return
        if self.lease.is_held and is_written:
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
            self.reader.on_unreachable()
            if not await self.replace(error, engine):
                raise
            fenced = await self._write_to(self.engine, flush)
        self.lease.keep()
        if self._signals is not None:
            self._signals.notify_watchers()
        if self.restarts.has_restarted and self.loaded.is_used:
            self.on_signal()  # readers that followed a run before it was restarted here
        if flush.ended and self._maintenance is not None:
            self._maintenance.on_runs_ended()
        return fenced

    async def _write_to(self, engine: Engine, flush: Flush) -> Collection[int]:
        started_at = time.monotonic()
        renew = self.lease.is_due(started_at)

        def work(tx: Transaction) -> tuple[Collection[int], bool]:
            known = self.lease.write(tx) if renew else True
            return flush.write(tx, self._row), known

        fenced, known = await engine.write(work)
        if renew:
            self.lease.on_renewed(started_at, known=known)
        return fenced

    async def _is_writable(self) -> bool:
        """Return whether the database accepts anything."""
        try:
            await self.lease.renew()
        except PlexusError:
            return False
        return True

    async def flushed(self) -> None:
        """Wait until everything that this process has recorded is written."""
        await self.recorder.flushed()

    @property
    def is_watched(self) -> bool:
        """Whether another process watches the runs of this one."""
        return self.reader.others_watch if self._signals is None else self._signals.is_watched

    # --- signals ------------------------------------------------------------------------------

    def on_signal(self) -> None:
        """Read what has changed soon."""
        self.reader.on_signal()

    def notify_all(self) -> None:
        """Wake all other processes."""
        if self._signals is not None:
            self._signals.notify_all()

    async def hand_over(self, *, only_restarted: bool = False) -> None:
        """Stop the runs that another process can restart, and release them for it."""
        if not self._database.is_open or not self.recorder.active:
            return
        try:
            released = await self.restarts.hand_over(self.engine, only_restarted=only_restarted)
        except PlexusError as error:
            logger.warning("runs are not handed over: %s", error.message)
            return
        if released:
            self.notify_all()

    def set_watching(self, watching: bool) -> None:
        """Declare whether this process needs the changes of others soon."""
        self.reader.require_read()
        if watching == self.is_watching or self.is_closed:
            return
        self.is_watching = watching
        if self._signals is not None:
            if watching:
                self._signals.watch()
            else:
                self._signals.unwatch()
        elif self._database.is_open:
            self.start(self.lease.renew())
        if watching:
            self.on_signal()
            self.reader.start_polling()

    def _wake_process(self, process: int) -> None:
        """Wake a process; all of them if the run of a request belongs to none."""
        if process == UNOWNED:
            self.on_signal()
            self.notify_all()
        elif self._signals is not None:
            self._signals.notify(process)

    async def request(
        self, run: int, method: str, params: dict[str, Any], client: str | None = None
    ) -> Any:
        """Call a method in the process that executes a run. Raises PlexusError."""
        return await self.requests.make(self.engine, run, method, params, client)

    # --- history ------------------------------------------------------------------------------

    @property
    def history(self) -> RunHistory:
        """The recorded runs. Raises Failed if the store is not open."""
        history: RunHistory = resolve(RUN_HISTORY)(
            self.engine, self.maintenance, self._scope.project, self.flushed
        )
        return history

    # --- maintenance --------------------------------------------------------------------------

    async def _start_maintenance(self) -> None:
        # In a thread: importing would block running calls.
        await asyncio.to_thread(resolve, MAINTENANCE)
        if not self.is_closed:
            self.maintenance.start()

    @property
    def maintenance(self) -> Maintenance:
        """The background work. Raises Failed if the store is not open."""
        if self.is_closed or not self._database.is_open:
            raise Failed("The run store is not available.", code="storage_closed")
        if self._maintenance is None:
            options = self._options
            self._maintenance = resolve(MAINTENANCE)(
                lambda: self.engine,
                options.database,
                options.retention,
                self.process,
                self._on_deleted,
            )
        return self._maintenance

    def _on_deleted(self, runs: Sequence[int]) -> None:
        self._hub.runs.forget(runs)
        self.loaded.forget(runs)
        self.notify_all()

    # --- tasks --------------------------------------------------------------------------------

    def start(self, work: Coroutine[Any, Any, object]) -> None:
        """Run work that nothing waits for."""
        task: asyncio.Task[object] = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.reader.on_error(error)
