"""A server that is a program: its standard streams, under the process supervisor.

The supervisor ends the whole process tree with this transport, and with this process however it
ends. What the program writes to its standard error is kept in part, never awaited.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import deque
from typing import Final

from activations.gateway.transports.session import UpstreamSession
from activations.processes.process import CannotStart, Command, Launcher, Process
from mcp_view.client.effects import Send
from mcp_view.client.errors import Lost, Unreachable
from mcp_view.client.line_reader import LineReader, Oversized
from mcp_view.client.options import Server

__all__ = ("StdioTransport",)

#: Bytes of standard error that are kept.
STDERR_BYTES: Final = 16 * 1024
#: Interval at which the input of a program is checked while calls are in progress.
WATCH_S: Final = 1.0
#: Timeout for a program to exit after SIGTERM.
TERM_S: Final = 1.0


class StdioTransport:
    """One program."""

    is_http = False
    is_signing_in = False
    restarts = True

    def __init__(self, command: Command, launcher: Launcher) -> None:
        self._command = command
        self._launcher = launcher
        self._process: Process | None = None
        self._session: UpstreamSession | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._outbox: deque[bytes] = deque()
        self._outbox_bytes = 0
        self._wakeup = asyncio.Event()
        self._stderr = bytearray()

    @property
    def stderr(self) -> str:
        """The last of what the program wrote to its standard error."""
        return self._stderr.decode(errors="replace")

    @property
    def pid(self) -> int:
        """The process of the program; 0 if there is none."""
        return 0 if self._process is None else self._process.pid

    async def connect(self, session: UpstreamSession) -> None:
        """Start the program. Raises Unreachable."""
        self._session = session
        name = self._command.arguments[0]
        try:
            self._process = process = await self._launcher.start(
                self._command, b"", stdin_stays_open=True
            )
        except (CannotStart, OSError, ValueError) as error:
            raise Unreachable(f"{name} cannot be started: {error}") from error
        if process.stdin is not None:
            process.stdin.on_broken = self._on_input_closed
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._read(process, session)),
            loop.create_task(self._write(process)),
            loop.create_task(self._read_errors(process)),
            loop.create_task(self._watch_input(process, session)),
        ]

    def send(self, message: Send) -> None:
        """Send a message after those before it."""
        session, process = self._session, self._process
        pipe = None if process is None or self._outbox else process.stdin
        if pipe is not None and pipe.try_write(message.data + b"\n"):
            return
        self._outbox.append(message.data)
        self._outbox_bytes += len(message.data)
        self._wakeup.set()
        if session is not None and self._outbox_bytes > session.limits.outbox_bytes:
            limit = session.limits.outbox_bytes
            session.lost(Lost(f"The program does not read its input: {limit} bytes wait."))

    def abort(self, request_id: int) -> None:
        """Do nothing: all requests share the pipe."""

    def opened(self, server: Server) -> None:
        """Do nothing: there is no other stream to open."""

    async def close(self) -> None:
        """End the program: close its input, then SIGTERM, then kill what is left of its tree."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            if process.returncode is None and process.is_running:
                await self._end_gently(process)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._tasks = []
            self._outbox.clear()
            self._outbox_bytes = 0
            await process.end()

    async def _end_gently(self, process: Process) -> None:
        close_s = 1.0 if self._session is None else self._session.limits.close_s
        if process.stdin is not None:
            process.stdin.finish()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(close_s):
                await process.wait()
                return
        if process.returncode is None and process.pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TERM_S):
                    await process.wait()

    async def _write(self, process: Process) -> None:
        pipe = process.stdin
        while pipe is not None:
            while self._outbox:
                # What waits is written together: a burst of requests costs one write.
                data = b"\n".join((*self._outbox, b""))
                self._outbox.clear()
                await pipe.write(data)
                self._outbox_bytes -= len(data) - data.count(b"\n")
            self._outbox_bytes = 0
            self._wakeup.clear()
            await self._wakeup.wait()

    async def _read(self, process: Process, session: UpstreamSession) -> None:
        lines = LineReader(session.client.options.limits.message_bytes)
        ended = asyncio.Event()

        def receive(data: bytes) -> None:
            if not data:
                ended.set()
            for line in lines.feed(data):
                if isinstance(line, Oversized):
                    session.oversized(line)
                else:
                    session.received(line)
            session.flush()

        process.stdout.start_reading(receive)
        await ended.wait()
        # Its exit code arrives after the end of its output.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                if process.returncode is None:
                    await process.wait()
        session.lost(Lost(self._how_it_ended(process)))

    async def _read_errors(self, process: Process) -> None:
        while data := await process.stderr.read():
            self._stderr += data
            del self._stderr[:-STDERR_BYTES]
            await asyncio.sleep(0)

    async def _watch_input(self, process: Process, session: UpstreamSession) -> None:
        """Notice a closed input although nothing is written: calls would wait indefinitely."""
        pipe = process.stdin
        while pipe is not None:
            await asyncio.sleep(WATCH_S)
            if session.client.calls and pipe.is_broken:
                self._on_input_closed()
                return

    def _on_input_closed(self) -> None:
        if self._session is not None and self._process is not None:
            process = self._process
            if process.returncode is None:
                self._session.lost(Lost("The program closed its standard input."))

    def _how_it_ended(self, process: Process) -> str:
        code = process.returncode
        if code is None:
            how = "closed its standard output"
        elif code < 0:
            how = f"was ended by {signal.Signals(-code).name}"
        else:
            how = f"exited with code {code}"
        text = self.stderr.strip()[-500:]
        return f"{self._command.arguments[0]} {how}." + (f" It wrote: {text}" if text else "")
