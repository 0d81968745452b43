"""Shared by the methods: the store, which is opened at first use, and the lease of a caller.

A server whose clients never use tasks touches no database.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from activations.tasks.lease_monitor import LeaseMonitor
from activations.tasks.model import PROJECT_BYTES, Caller
from activations.tasks.project import current_project
from activations.tasks.queries.rows import check_text
from activations.tasks.schema import TASKS
from activations.tasks.store import Store, open_store
from plexus import Activation, Context, Failed, PlexusError
from plexus.caller_connection import CallerConnection
from plexus.private_files import data_folder
from plexus.runtime.run import Run
from plexus.storage.engine import is_postgres, sqlite_path
from plexus.text import printable_name

__all__ = ("ALL_PROJECTS", "StoreActivation", "default_path", "project_of")

#: The project that means all of them, where tasks are read.
ALL_PROJECTS: Final = "*"
#: Maximum characters of the name of a client.
NAME_CHARACTERS: Final = 80
#: Minimum interval between renewals of a lease by time: a caller may make many calls.
TOUCH_S: Final = 30.0
#: Maximum number of callers whose last renewal is remembered.
MAX_TOUCHED: Final = 1000
#: The clients that people use: the page, and the commands of the terminal. Their claims are kept
#: when they end, because a person continues in another window.
PEOPLE: Final = ("Browser", "substrate ")


def default_path() -> Path:
    """Return the default path of the database file."""
    return data_folder() / "tasks.db"


def project_of(project: str | None) -> str:
    """Return the project of a call: the given one, or that of its caller. Raises InvalidParams."""
    if project is None:
        return current_project()
    return check_text(project, "The project", PROJECT_BYTES)


class StoreActivation(Activation):
    """An activation with a store that is opened at first use."""

    def __init__(self, database: str = "") -> None:
        """Set the database (default: a file in the user's data folder). Does not open it."""
        self._database = database
        self._opened: Store | None = None
        self._opening: asyncio.Lock | None = None
        self._monitor: LeaseMonitor | None = None
        self._closed = False
        #: The names of connections that may hold tasks, and how to stop listening to them.
        self._connections: dict[CallerConnection, tuple[str, Callable[[], None]]] = {}
        #: The runs that may hold tasks, and how to stop listening to the ends of runs.
        self._runs: set[int] = set()
        self._stop_runs: Callable[[], None] | None = None
        self._releases: set[asyncio.Task[None]] = set()
        self._touched: dict[tuple[str, str], float] = {}

    async def store(self) -> Store:
        """Return the store. The first call opens it; concurrent calls wait. Raises Failed."""
        if self._opened is not None:
            return self._opened
        if self._opening is None:
            self._opening = asyncio.Lock()
        async with self._opening:
            if self._closed:
                raise Failed("The store is closed.", code="storage")
            if self._opened is None:
                store = await open_store(self._database or str(default_path()))
                self._monitor = LeaseMonitor(store)
                self._opened = store
            return self._opened

    def is_empty(self) -> bool:
        """Return whether there is no database file yet, and so no task. Opens nothing."""
        if self._opened is not None or is_postgres(self._database):
            return False
        return not self.path().exists()

    def location(self) -> str:
        """Return the location of the database, without credentials."""
        if is_postgres(self._database):
            _, _, where = self._database.partition("://")
            where = where.rpartition("@")[2].partition("?")[0]
            return f"postgresql {where}, schema {TASKS.version}"
        return f"sqlite {self.path()}, schema {TASKS.version}"

    def path(self) -> Path:
        """Return the path of the SQLite file."""
        return sqlite_path(self._database or str(default_path()))

    async def close(self) -> None:
        """Release all claims of this process, and close the store permanently."""
        self._closed = True
        for _, unsubscribe in self._connections.values():
            unsubscribe()
        self._connections.clear()
        if self._stop_runs is not None:
            self._stop_runs()
            self._stop_runs = None
        if self._opening is None:
            return
        async with self._opening:
            store, self._opened = self._opened, None
            if self._monitor is not None:
                await self._monitor.stop()
            if self._releases:
                await asyncio.wait(self._releases)
            if store is not None:
                await store.close()

    # --- the caller -------------------------------------------------------------------------------

    async def caller(self, ctx: Context) -> Caller:
        """Return the caller of a method, and what its claims are leased to.

        Renews the leases that it has by time.
        """
        client = printable_name(ctx.client or "", NAME_CHARACTERS) or "unnamed client"
        principal = ctx.principal.name
        if client.startswith(PEOPLE):
            return Caller(principal, client, "kept", "")
        if ctx.outer_run_id != ctx.run_id:
            name = f"{client} in run {ctx.outer_run_id}"
            return Caller(principal, name, "run", str(ctx.outer_run_id))
        connection = ctx.connection
        if connection is not None and connection.is_open:
            ref = self._name_of(connection)
            return Caller(principal, f"{client} #{ref[:4]}", "connection", ref)
        caller = Caller(principal, client, "time", client)
        await self._touch(caller)
        return caller

    def follow_lease(self, ctx: Context, caller: Caller) -> None:
        """Release the claims of a caller when its run ends, before it claims anything."""
        if caller.lease != "run":
            return
        self._runs.add(ctx.outer_run_id)
        if self._stop_runs is None:
            self._stop_runs = self.plexus.runs.on_end(self._on_run_end)

    async def _touch(self, caller: Caller) -> None:
        key = caller.principal, caller.ref
        now = time.monotonic()
        if now - self._touched.get(key, -TOUCH_S) < TOUCH_S or self.is_empty():
            return
        if len(self._touched) >= MAX_TOUCHED:
            self._touched.clear()
        self._touched[key] = now
        await (await self.store()).touch(caller)

    def _name_of(self, connection: CallerConnection) -> str:
        """Return the name of a connection, and release its claims when it ends."""
        known = self._connections.get(connection)
        if known is None:
            ref = os.urandom(8).hex()
            known = ref, connection.on_close(lambda: self._on_connection_end(connection))
            self._connections[connection] = known
        return known[0]

    def _on_connection_end(self, connection: CallerConnection) -> None:
        ref, _ = self._connections.pop(connection)
        self._release("connection", ref, "its connection has ended")

    def _on_run_end(self, run: Run) -> None:
        if run.id not in self._runs:
            return
        self._runs.discard(run.id)
        if not self._runs and self._stop_runs is not None:
            # Not here: the listeners are being called.
            asyncio.get_running_loop().call_soon(self._stop_listening)
        self._release("run", str(run.id), f"run {run.id} has ended")

    def _stop_listening(self) -> None:
        if not self._runs and self._stop_runs is not None:
            self._stop_runs()
            self._stop_runs = None

    def _release(self, lease: str, ref: str, why: str) -> None:
        """Release claims in a task of this activation; `close` releases all others."""
        if self._closed or self._opened is None:
            return
        release: Coroutine[Any, Any, None] = self._release_now(self._opened, lease, ref, why)
        task = asyncio.get_running_loop().create_task(release)
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    @staticmethod
    async def _release_now(store: Store, lease: str, ref: str, why: str) -> None:
        # A database that fails here loses nothing: the lease ends with this process.
        with suppress(PlexusError):
            await store.release_of(lease, ref, why)
