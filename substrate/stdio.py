"""The stdio transport: newline-delimited messages on the process's own stdin and stdout.

Rules:
- stdout carries protocol only. The real descriptors are moved aside before anything else runs;
  whatever a plugin prints lands on stderr, and no child can eat our input.
- Both descriptors are watched by the event loop; regular files, which cannot be, are read and
  written directly. No thread is involved.
- End of input lets the runs under way finish for a short while; a signal, or a reader of stdout
  that is gone, stops them at once. Every run's terminal is written before the process ends.
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
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeAlias

from native_rpc.framing import LINES
from native_rpc.protocol import NativeConnection
from plexus.principal import LOCAL
from plexus.registry.lazy import resolve
from plexus.rpc.wire import LineDecoder
from plexus.runtime.hub import Plexus
from substrate.build_hub import NO_FILES, MakeHub, build_hub, close_runner
from substrate.driver import Connection, View
from substrate.publishing.lookout import Lookout
from substrate.settings import ProjectFiles, Settings
from substrate.telemetry.observers import Observers
from substrate.telemetry.tracing import ORIGIN, STDIO

__all__ = ("StdioServer", "claim_stdio", "serve_mcp_stdio", "serve_stdio")

logger = logging.getLogger("substrate.stdio")

READ_BYTES = 64 * 1024
#: What the pipe to the client shall hold, where that can be chosen: more than the usual 64 KiB,
#: so that writer and reader of a stream need not wake each other for every batch.
PIPE_BYTES = 256 * 1024
#: How long a client that ended us may take to read the last of our output.
FLUSH_S = 2.0
#: How much may wait to be written before no more requests are read.
UNSENT_BYTES = 1024 * 1024
#: Imported only if a server is wanted beside.
BESIDE = "substrate.publishing.beside:see_to_server"
#: Imported only if MCP is served.
MCP_VIEW = "substrate.mcp_server:stdio_view"

MakeView: TypeAlias = Callable[[Plexus, Settings], View]


def claim_stdio() -> tuple[int, int]:
    """Move the real stdin and stdout aside and return them; prints go to stderr from now on."""
    if sys.stdout is not None:
        sys.stdout.flush()
    # A parent may have closed any of the three; then there is nothing to read, or nobody to tell.
    while (null := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(null, True)
    input_fd, output_fd = os.dup(0), os.dup(1)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return input_fd, output_fd


class StdioServer:
    """Serves one view on a pair of descriptors until the input ends or a signal comes."""

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
        #: Set when the input has ended, and when the server is to end at once, with the reason.
        self._input_ended = asyncio.Event()
        self._told_to_end: asyncio.Future[str] = self._loop.create_future()
        self._writable: asyncio.Future[None] | None = None
        self._written = 0
        self._watched = False

    async def serve(self) -> None:
        """Serve until the end, and clean up."""
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.add_signal_handler(number, self._end, f"{signal.Signals(number).name} came")
        self._prepare_output()
        # The standard library's: importing anyio would cost a good part of a cold start.
        async with asyncio.TaskGroup() as tasks:
            writer = tasks.create_task(self._write())
            reader = self._start_reading(tasks)
            try:
                why = await self._why_to_end()
                self._unwatch_input()
                await self._hub.close(reason=f"{why}; the server is stopping")
                self._connection.finish()
                await self._flushed(writer)
            finally:
                self._unwatch_input()
                for task in (writer, reader):
                    if task is not None:
                        task.cancel()

    async def _why_to_end(self) -> str:
        """Wait for the end of the input, and then for the runs, or for being told to end."""
        if await self._unless_told(self._input_ended.wait()):
            await self._unless_told(self._hub.runs.wait_idle(self._eof_grace_s))
        return self._told_to_end.result() if self._told_to_end.done() else "input ended"

    async def _unless_told(self, event: Coroutine[Any, Any, Any]) -> bool:
        """Wait for this, but not once we are told to end; False if it was that."""
        waiting = self._loop.create_task(event)
        either: list[asyncio.Future[Any]] = [waiting, self._told_to_end]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        await asyncio.wait([waiting])
        return not self._told_to_end.done()

    async def _flushed(self, writer: asyncio.Task[None]) -> None:
        """Wait until everything is written, as long as somebody takes it."""
        while not writer.done():
            before = self._written
            patience = FLUSH_S if self._told_to_end.done() else self._hub.limits.write_s
            either: list[asyncio.Future[Any]] = [writer]
            if not self._told_to_end.done():
                either.append(self._told_to_end)
            await asyncio.wait(either, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if self._written == before and not writer.done():
                logger.warning("nobody took the last of the output")
                return

    def _end(self, why: str) -> None:
        if not self._told_to_end.done():
            self._told_to_end.set_result(why)

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
        self._take(data)
        if not data:
            self._unwatch_input()
        elif self._connection.unsent > UNSENT_BYTES:
            self._unwatch_input()
            self._connection.on_collected(self._watch_input)

    async def _read_file(self) -> None:
        """Read a regular file, which cannot be watched and never makes anybody wait."""
        data = b"begin"
        while data:
            data = os.read(self._input, READ_BYTES)
            self._take(data)
            if self._connection.unsent > UNSENT_BYTES:
                await self._connection.collected()
            await asyncio.sleep(0)

    def _take(self, data: bytes) -> None:
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
            with contextlib.suppress(OSError):  # the system's bound is lower: leave it
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
        except OSError:  # whoever read our output is gone
            connection.lost()
            self._end("nobody reads the output")

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
    """`substrate --stdio`: serve the native view until the input ends."""
    _serve_view(settings, _native_view, files, make_hub)


def serve_mcp_stdio(
    settings: Settings, files: ProjectFiles = NO_FILES, make_hub: MakeHub = build_hub
) -> None:
    """`substrate --stdio --mcp`: serve MCP, and namespaced methods beside it."""
    _serve_view(settings, resolve(MCP_VIEW), files, make_hub)


def _native_view(hub: Plexus, _: Settings) -> View:
    return NativeConnection(LINES, hub.limits, hub.new_id)


def _serve_view(
    settings: Settings, make_view: MakeView, files: ProjectFiles, make_hub: MakeHub
) -> None:
    """Serve a view of the hub that the settings describe, until the input ends."""
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
    for plugin in broken:
        logger.error("plugin skipped: %s: %s", plugin.source, plugin.reason)
    observers = Observers(hub, settings)
    view = make_view(hub, settings)
    lookout = Lookout(hub, Path.cwd())
    server = StdioServer(hub, view, input_fd, output_fd, eof_grace_s=settings.eof_grace_s)
    beside = _server_beside(settings, files, lookout) if settings.watch else None
    await server.serve()
    if beside is not None:
        beside.cancel()
    await lookout.close()
    observers.close()
    return hub


def _server_beside(settings: Settings, files: ProjectFiles, lookout: Lookout) -> asyncio.Task[None]:
    """Start a server of the project unless one runs, and have it found at once."""
    see_to_server = resolve(BESIDE)
    seeing: Coroutine[Any, Any, None] = see_to_server(settings, files, Path.cwd(), lookout.look)
    return asyncio.get_running_loop().create_task(seeing)
