"""Serves one connection on a pair of descriptors, as newline-delimited messages.

Rules:
- The event loop watches both descriptors. Regular files, which it cannot watch, are read and
  written directly. No threads are used.
- Reading pauses while too many replies are unsent.
- Subclasses decide how long calls may continue after the end of the input, and how they end.

Used for stdin and stdout of this process (`substrate.stdio`), and for those of another process
(`substrate.front`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any

from plexus.limits import Limits
from plexus.rpc.wire import LineDecoder
from substrate.driver import Connection

__all__ = ("STDIO_CLIENT", "LineServer")

logger = logging.getLogger("substrate.stdio")

#: The client of a run whose view does not know its name, as in the native protocol.
STDIO_CLIENT = "stdio"
READ_BYTES = 64 * 1024
#: Requested capacity of the pipe to the client, where it can be set. It is larger than the usual
#: 64 KiB, so that the writer and the reader of a stream wake each other less often.
PIPE_BYTES = 256 * 1024
#: Seconds that the client may take to read the last output after a stop.
FLUSH_S = 2.0
#: Maximum size of unsent replies before reading requests pauses.
UNSENT_BYTES = 1024 * 1024


class LineServer(ABC):
    """Serves one connection until its input ends or `stop` is called."""

    def __init__(
        self, connection: Connection, limits: Limits, input_fd: int, output_fd: int
    ) -> None:
        self._connection = connection
        self._limits = limits
        self._lines = LineDecoder(limits)
        self._input = input_fd
        self._output = output_fd
        self._loop = asyncio.get_running_loop()
        #: Set when the input has ended, and when the server must stop immediately, with the reason.
        self._input_ended = asyncio.Event()
        self._stop_reason: asyncio.Future[str] = self._loop.create_future()
        self._writable: asyncio.Future[None] | None = None
        self._written = 0
        self._watched = False

    def stop(self, why: str) -> None:
        """Stop immediately, for the first reason that is given."""
        if not self._stop_reason.done():
            self._stop_reason.set_result(why)

    @abstractmethod
    async def _wait_for_calls(self) -> None:
        """Wait for the calls in progress after the end of the input, up to a limit."""

    @abstractmethod
    async def _end_calls(self, why: str) -> None:
        """End the calls that are still in progress."""

    async def serve(self) -> None:
        """Serve until the input ends or the server is stopped."""
        self._prepare_output()
        # Not a task group of anyio: importing it would slow down the cold start.
        async with asyncio.TaskGroup() as tasks:
            writer = tasks.create_task(self._write())
            reader = self._start_reading(tasks)
            try:
                why = await self._wait_for_end()
                self._unwatch_input()
                await self._end_calls(why)
                self._connection.finish()
                await self._flush(writer)
            finally:
                self._unwatch_input()
                for task in (writer, reader):
                    if task is not None:
                        task.cancel()

    async def _wait_for_end(self) -> str:
        """Wait until the input ends and the calls finish, or for a stop. Returns the reason."""
        if await self._wait_unless_stopped(self._input_ended.wait()):
            await self._wait_unless_stopped(self._wait_for_calls())
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
            timeout_s = FLUSH_S if self._stop_reason.done() else self._limits.write_s
            waits: list[asyncio.Future[Any]] = [writer]
            if not self._stop_reason.done():
                waits.append(self._stop_reason)
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if self._written == before and not writer.done():
                logger.warning("the client did not read the last output")
                return

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
            self.stop("output is not read")

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
