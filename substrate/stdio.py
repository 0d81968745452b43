"""The stdio transport: newline-delimited messages on the process's own stdin and stdout.

Rules:
- stdout carries protocol messages only. The real descriptors are duplicated before any other code
  runs, output that a plugin prints goes to stderr, and child processes cannot read our input.
- The event loop watches both descriptors. Regular files, which it cannot watch, are read and
  written directly. No threads are used.
- At the end of input, running calls may finish within a grace period. A signal, or the loss of the
  reader of stdout, cancels them immediately. Every terminal is written before the process exits.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import signal
import stat
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeAlias

from native_rpc.framing import LINES
from native_rpc.protocol import NativeConnection
from plexus.principal import LOCAL
from plexus.registry.lazy import resolve
from plexus.rpc.effects import View
from plexus.rpc.wire import LineDecoder
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
from substrate.run_store.lazy_store import LazyRunStore
from substrate.settings import ProjectFiles, Settings
from substrate.telemetry.observers import Observers
from substrate.telemetry.tracing import ORIGIN, STDIO

__all__ = ("StdioServer", "claim_stdio", "serve_mcp_stdio", "serve_stdio")

logger = logging.getLogger("substrate.stdio")

READ_BYTES = 64 * 1024
#: Requested capacity of the pipe to the client, where it can be set. It is larger than the usual
#: 64 KiB, so that the writer and the reader of a stream wake each other less often.
PIPE_BYTES = 256 * 1024
#: Seconds that the client may take to read the last output after a signal.
FLUSH_S = 2.0
#: Maximum size of unsent replies before reading requests pauses.
UNSENT_BYTES = 1024 * 1024
#: Imported only with the setting `watch`.
ENSURE_SERVER = "substrate.project_server:ensure_server"
FIND_SERVER = "substrate.security.lockfile:find_by_project"
#: Seconds after which the server of `watch` may have stopped.
WATCH_CHECK_S = 30.0
#: Imported only if MCP is served.
MCP_VIEW = "substrate.mcp_server:stdio_view"

MakeView: TypeAlias = Callable[[Plexus, Settings], View]


def claim_stdio() -> tuple[int, int]:
    """Duplicate stdin and stdout, return them, and redirect stdout to stderr."""
    if sys.stdout is not None:
        sys.stdout.flush()
    # The parent may have closed any of the three descriptors. They then refer to /dev/null.
    while (null := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(null, True)
    input_fd, output_fd = os.dup(0), os.dup(1)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return input_fd, output_fd


class StdioServer:
    """Serves one view on a pair of descriptors until the input ends or a signal arrives."""

    def __init__(
        self,
        hub: Plexus,
        view: View,
        input_fd: int,
        output_fd: int,
        *,
        eof_grace_s: float,
    ) -> None:
        self._hub = hub
        self._connection = Connection(hub, view, LOCAL)
        self._lines = LineDecoder(hub.limits)
        self._input = input_fd
        self._output = output_fd
        self._eof_grace_s = eof_grace_s
        self._loop = asyncio.get_running_loop()
        #: Set when the input has ended, and when the server must stop immediately, with the reason.
        self._input_ended = asyncio.Event()
        self._stop_reason: asyncio.Future[str] = self._loop.create_future()
        self._writable: asyncio.Future[None] | None = None
        self._written = 0
        self._watched = False

    async def serve(self) -> None:
        """Serve until the input ends or the server is stopped, then close the hub."""
        for number in (signal.SIGINT, signal.SIGTERM):
            reason = f"received {signal.Signals(number).name}"
            self._loop.add_signal_handler(number, self._stop, reason)
        self._prepare_output()
        # Not a task group of anyio: importing it would slow down the cold start.
        async with asyncio.TaskGroup() as tasks:
            writer = tasks.create_task(self._write())
            reader = self._start_reading(tasks)
            try:
                why = await self._wait_for_end()
                self._unwatch_input()
                await self._hub.close(reason=f"{why}; the server is stopping")
                self._connection.finish()
                await self._flush(writer)
            finally:
                self._unwatch_input()
                for task in (writer, reader):
                    if task is not None:
                        task.cancel()

    async def _wait_for_end(self) -> str:
        """Wait until the input ends and the runs finish, or for a stop. Returns the reason."""
        if await self._wait_unless_stopped(self._input_ended.wait()):
            await self._wait_unless_stopped(self._hub.runs.wait_idle(self._eof_grace_s))
        return self._stop_reason.result() if self._stop_reason.done() else "input ended"

    async def _wait_unless_stopped(self, event: Coroutine[Any, Any, Any]) -> bool:
        """Wait for an event or a stop. Returns False if the server is being stopped."""
        waiting = self._loop.create_task(event)
        waits: list[asyncio.Future[Any]] = [waiting, self._stop_reason]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        await asyncio.wait([waiting])
        return not self._stop_reason.done()

    async def _flush(self, writer: asyncio.Task[None]) -> None:
        """Wait until all output is written, while the client reads."""
        while not writer.done():
            before = self._written
            timeout_s = FLUSH_S if self._stop_reason.done() else self._hub.limits.write_s
            waits: list[asyncio.Future[Any]] = [writer]
            if not self._stop_reason.done():
                waits.append(self._stop_reason)
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if self._written == before and not writer.done():
                logger.warning("the client did not read the last output")
                return

    def _stop(self, why: str) -> None:
        if not self._stop_reason.done():
            self._stop_reason.set_result(why)

    # --- reading ------------------------------------------------------------------------------

    def _start_reading(self, tasks: asyncio.TaskGroup) -> asyncio.Task[None] | None:
        try:
            self._watch_input()
        except OSError as error:
            if error.errno != errno.EPERM:
                raise
            return tasks.create_task(self._read_file())
        return None

    def _watch_input(self) -> None:
        self._loop.add_reader(self._input, self._readable)
        self._watched = True

    def _unwatch_input(self) -> None:
        if self._watched:
            self._watched = False
            self._loop.remove_reader(self._input)

    def _readable(self) -> None:
        try:
            data = os.read(self._input, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._feed(data)
        if not data:
            self._unwatch_input()
        elif self._connection.unsent > UNSENT_BYTES:
            self._unwatch_input()
            self._connection.on_collected(self._watch_input)

    async def _read_file(self) -> None:
        """Read a regular file, which cannot be watched and never blocks."""
        data = b"begin"
        while data:
            data = os.read(self._input, READ_BYTES)
            self._feed(data)
            if self._connection.unsent > UNSENT_BYTES:
                await self._connection.collected()
            await asyncio.sleep(0)

    def _feed(self, data: bytes) -> None:
        receive = self._connection.receive
        for message in self._lines.feed(data) if data else self._lines.end():
            receive(message)
        if not data:
            self._input_ended.set()

    # --- writing ------------------------------------------------------------------------------

    def _prepare_output(self) -> None:
        mode = os.fstat(self._output).st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            os.set_blocking(self._output, False)
        if stat.S_ISFIFO(mode) and hasattr(fcntl, "F_SETPIPE_SZ"):
            with contextlib.suppress(OSError):  # above the limit of the system
                fcntl.fcntl(self._output, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    async def _write(self) -> None:
        connection = self._connection
        try:
            while True:
                frames = connection.collect()
                if frames:
                    await self._write_bytes(b"".join(frames))
                elif connection.finished:
                    return
                else:
                    await connection.ready()
        except OSError:  # the reader of the output is gone
            connection.lost()
            self._stop("output is not read")

    async def _write_bytes(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            try:
                sent = os.write(self._output, rest)
            except BlockingIOError:
                self._writable = self._loop.create_future()
                self._loop.add_writer(self._output, self._became_writable)
                try:
                    await self._writable
                finally:
                    self._loop.remove_writer(self._output)
            else:
                self._written += sent
                rest = rest[sent:]

    def _became_writable(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)


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
