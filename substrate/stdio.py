"""The stdio transport: newline-delimited messages on the process's own stdin and stdout.

Rules:
- stdout carries protocol messages only. The real descriptors are duplicated before any other code
  runs, output that a plugin prints goes to stderr, and child processes cannot read our input.
- At the end of input, running calls may finish within a grace period. A signal, or the loss of the
  reader of stdout, cancels them immediately. Every terminal is written before the process exits.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeAlias

from native_rpc.framing import LINES
from native_rpc.protocol import NativeConnection
from plexus.principal import LOCAL
from plexus.registry.lazy import resolve
from plexus.rpc.effects import View
from plexus.runtime.hub import Plexus
from substrate.build_hub import (
    NO_FILES,
    MakeHub,
    build_hub,
    close_runner,
    notify_of_recording,
    open_hub,
)
from substrate.driver import Connection
from substrate.line_server import STDIO_CLIENT, LineServer
from substrate.run_store.lazy_store import LazyRunStore
from substrate.settings import ProjectFiles, Settings
from substrate.standard_streams import claim_stdio
from substrate.telemetry.observers import Observers
from substrate.telemetry.tracing import ORIGIN, STDIO

__all__ = ("StdioServer", "serve_mcp_stdio", "serve_stdio")

logger = logging.getLogger("substrate.stdio")

#: Imported only with the setting `watch`.
ENSURE_SERVER = "substrate.project_server:ensure_server"
FIND_SERVER = "substrate.security.lockfile:find_by_project"
#: Seconds after which the server of `watch` may have stopped.
WATCH_CHECK_S = 30.0
#: Imported only if MCP is served.
MCP_VIEW = "substrate.mcp_server:stdio_view"

MakeView: TypeAlias = Callable[[Plexus, Settings], View]


class StdioServer(LineServer):
    """Serves one view on the descriptors of this process, and closes the hub at the end."""

    def __init__(
        self,
        hub: Plexus,
        view: View,
        input_fd: int,
        output_fd: int,
        *,
        eof_grace_s: float,
    ) -> None:
        connection = Connection(hub, view, LOCAL, client=STDIO_CLIENT, lasting=True)
        super().__init__(connection, hub.limits, input_fd, output_fd)
        self._hub = hub
        self._eof_grace_s = eof_grace_s

    async def serve(self) -> None:
        """Serve until the input ends or a signal arrives."""
        for number in (signal.SIGINT, signal.SIGTERM):
            reason = f"received {signal.Signals(number).name}"
            self._loop.add_signal_handler(number, self.stop, reason)
        await super().serve()

    async def _wait_for_calls(self) -> None:
        await self._hub.runs.wait_idle(self._eof_grace_s)

    async def _end_calls(self, why: str) -> None:
        if (stored := self._hub.runs.stored) is not None:
            # Its client did not start those that were restarted here.
            await stored.hand_over(only_restarted=True)
        await self._hub.close(reason=f"{why}; the server is stopping")


def serve_stdio(
    settings: Settings, files: ProjectFiles = NO_FILES, make_hub: MakeHub = build_hub
) -> None:
    """`substrate --stdio`: serve the native protocol until the input ends."""
    _serve_view(settings, _native_view, files, make_hub)


def serve_mcp_stdio(
    settings: Settings, files: ProjectFiles = NO_FILES, make_hub: MakeHub = build_hub
) -> None:
    """`substrate --stdio --mcp`: serve MCP and namespaced methods until the input ends."""
    _serve_view(settings, resolve(MCP_VIEW), files, make_hub)


def _native_view(hub: Plexus, _: Settings) -> View:
    return NativeConnection(LINES, hub.limits, hub.new_id)


def _serve_view(
    settings: Settings, make_view: MakeView, files: ProjectFiles, make_hub: MakeHub
) -> None:
    """Serve a view of a new hub on stdio until the input ends."""
    input_fd, output_fd = claim_stdio()
    ORIGIN.set(STDIO)
    runner = asyncio.Runner()
    serving = _run(settings, make_view, files, make_hub, input_fd, output_fd)
    close_runner(runner, runner.run(serving))


async def _run(
    settings: Settings,
    make_view: MakeView,
    files: ProjectFiles,
    make_hub: MakeHub,
    input_fd: int,
    output_fd: int,
) -> Plexus:
    hub, broken = make_hub(settings, Path.cwd(), files)
    hub.runs.shows_defects = True
    LazyRunStore(hub, settings, Path.cwd())
    broken += await open_hub(hub)
    for plugin in broken:
        logger.error("plugin skipped: %s: %s", plugin.source, plugin.reason)
    observers = Observers(hub, settings)
    view = make_view(hub, settings)
    hub.find_page = _find_page
    server = StdioServer(hub, view, input_fd, output_fd, eof_grace_s=settings.eof_grace_s)
    notify_of_recording(settings)
    watch_server = WatchServer(hub, settings, files) if settings.watch else None
    await server.serve()
    if watch_server is not None:
        watch_server.close()
    observers.close()
    return hub


class WatchServer:
    """Keeps a server of the project running while this process has runs, for `--watch`.

    The server stops when it is idle, so it is started again when a run starts later.
    """

    def __init__(self, hub: Plexus, settings: Settings, files: ProjectFiles) -> None:
        self._settings = settings
        self._files = files
        self._task: asyncio.Task[None] | None = None
        self._checked_at = 0.0
        self._announced = False
        self._unsubscribe = hub.runs.on_start(self._on_start)
        self._ensure()

    def _on_start(self, *_: object) -> None:
        if time.monotonic() - self._checked_at > WATCH_CHECK_S:
            self._ensure()

    def _ensure(self) -> None:
        if self._task is not None and not self._task.done():
            return
        self._checked_at = time.monotonic()
        starting: Coroutine[Any, Any, None] = resolve(ENSURE_SERVER)(
            self._settings, self._files, Path.cwd(), announced=self._announced
        )
        self._announced = True
        self._task = asyncio.get_running_loop().create_task(starting)

    def close(self) -> None:
        """Stop waiting for the server, which continues."""
        self._unsubscribe()
        if self._task is not None:
            self._task.cancel()


def _find_page() -> str | None:
    """Return the address of the project's server, if one is running."""
    server: Any = resolve(FIND_SERVER)(Path.cwd())
    return None if server is None else f"http://127.0.0.1:{server.port}/"
