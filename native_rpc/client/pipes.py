"""Connections for messages in both directions: stdin and stdout of a process, and a WebSocket.

Exceptions of the underlying libraries become `ConnectionLost` here. `websockets` is imported when a
WebSocket is opened, because other transports do not need it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream, Process

from native_rpc.client.limits import READ_BYTES, READING, USER_AGENT, ClientLimits, UnreadCounter
from native_rpc.errors import ConnectionLost
from plexus.errors import Denied
from plexus.rpc import wire

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

__all__ = ("Pipe", "StdioPipe", "WebSocketPipe")

#: How long a process may take to exit after SIGTERM before it is killed.
TERMINATE_S = 2.0
#: How long to wait for remaining output of a process that has exited.
OUTPUT_GRACE_S = 1.0
#: The interval of WebSocket pings, and the timeout of each.
PING_S = 20.0
UNAUTHORIZED, FORBIDDEN = 401, 403
#: The close code of a server that rejects the credentials.
POLICY_VIOLATION = 1008


class Pipe(Protocol):
    """One connection. Its methods raise only ConnectionLost, when it is lost."""

    async def send(self, frames: list[bytes]) -> None:
        """Send messages."""

    async def receive(self) -> tuple[list[wire.Message | list[wire.Message]], int]:
        """Return received messages, possibly none complete, and the number of bytes read."""

    async def watch(self, unread: UnreadCounter) -> None:
        """Raise ConnectionLost when the peer stops responding. Otherwise wait indefinitely."""

    async def close(self) -> None:
        """Close the connection within a bounded time, without raising."""


class StdioPipe:
    """A child process that exchanges lines on stdin and stdout and inherits stderr."""

    def __init__(self, process: Process, name: str, limits: ClientLimits) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._stdin: ByteSendStream = process.stdin
        self._stdout: ByteReceiveStream = process.stdout
        self._name = name
        self._limits = limits
        self._lines = wire.LineDecoder(READING)

    @classmethod
    async def open(cls, command: Sequence[str], limits: ClientLimits) -> StdioPipe:
        """Start the command. Raises ConnectionLost if it cannot be started."""
        name = shlex.join(command)
        try:
            with anyio.fail_after(limits.connect_s):
                process = await anyio.open_process(list(command), stderr=None)
        except (OSError, TimeoutError) as error:
            raise ConnectionLost(f"Cannot start {name}: {error}") from error
        return cls(process, name, limits)

    async def send(self, frames: list[bytes]) -> None:
        try:
            await self._stdin.send(b"".join(frame + b"\n" for frame in frames))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            # `receive` reads the remaining output, and `watch` reports why the process exited.
            await anyio.sleep(OUTPUT_GRACE_S)
            raise ConnectionLost(f"{self._name} closed its input.") from error

    async def receive(self) -> tuple[list[wire.Message | list[wire.Message]], int]:
        try:
            data = await self._stdout.receive(READ_BYTES)
        except anyio.EndOfStream:
            with anyio.move_on_after(OUTPUT_GRACE_S):
                await self._process.wait()
            raise ConnectionLost(self._exit_message()) from None
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise ConnectionLost(self._exit_message()) from error
        return self._lines.feed(data), len(data)

    async def watch(self, unread: UnreadCounter) -> None:  # noqa: ARG002 - part of the interface
        # A grandchild may keep stdout open after the process has exited, without an end of file.
        await self._process.wait()
        await anyio.sleep(OUTPUT_GRACE_S)
        raise ConnectionLost(self._exit_message())

    async def close(self) -> None:
        process = self._process
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._stdin.aclose()
        with anyio.move_on_after(self._limits.close_s):
            # A process that blocks on writing cannot exit, so discard its output.
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                while True:
                    await self._stdout.receive(READ_BYTES)
            await process.wait()
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.terminate()
            with anyio.move_on_after(TERMINATE_S):
                await process.wait()
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
        await process.aclose()

    def _exit_message(self) -> str:
        code = self._process.returncode
        return f"{self._name} " + ("closed its output." if code is None else f"ended with {code}.")


class WebSocketPipe:
    """A WebSocket with one message per frame."""

    def __init__(self, socket: ClientConnection, url: str) -> None:
        self._socket = socket
        self._url = url

    @classmethod
    async def open(
        cls, url: str, headers: Mapping[str, str], limits: ClientLimits
    ) -> WebSocketPipe:
        """Connect. Raises ConnectionLost, or Denied if the server rejects the token."""
        from websockets.asyncio.client import connect
        from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

        try:
            socket = await connect(
                url,
                additional_headers=headers,
                user_agent_header=USER_AGENT,
                # Do not connect to a local server through a proxy from the environment.
                proxy=None,
                compression=None,
                open_timeout=limits.connect_s,
                close_timeout=limits.close_s,
                # `watch` pings instead: while reading is paused, the library would miss the pong
                # and treat a slow program as a dead server.
                ping_interval=None,
                max_size=READING.message_bytes,
            )
        except InvalidStatus as error:
            status = error.response.status_code
            kind = Denied if status in (UNAUTHORIZED, FORBIDDEN) else ConnectionLost
            raise kind(f"{url} answered with HTTP {status}.") from error
        except (OSError, TimeoutError, InvalidHandshake) as error:
            raise ConnectionLost(f"Cannot connect to {url}: {error}") from error
        # A server that rejects the token accepts the connection, sends the reason and closes it.
        try:
            with anyio.fail_after(limits.connect_s):
                await (await socket.ping())
        except ConnectionClosed as error:
            if error.rcvd is not None and error.rcvd.code == POLICY_VIOLATION:
                raise Denied(f"{url} refused the connection: {error.rcvd.reason}") from error
            raise ConnectionLost(f"Cannot connect to {url}: {error}") from error
        except TimeoutError as error:
            socket.transport.abort()
            raise ConnectionLost(f"Cannot connect to {url}: timed out") from error
        return cls(socket, url)

    async def send(self, frames: list[bytes]) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            for frame in frames:
                await self._socket.send(frame, text=True)
        except ConnectionClosed as error:
            raise self._connection_lost(error) from error

    async def receive(self) -> tuple[list[wire.Message | list[wire.Message]], int]:
        from websockets.exceptions import ConnectionClosed

        try:
            frame = await self._socket.recv(decode=False)
        except ConnectionClosed as error:
            raise self._connection_lost(error) from error
        return [wire.decode(frame, READING)], len(frame)

    async def watch(self, unread: UnreadCounter) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            while True:
                await anyio.sleep(PING_S)
                pong = await self._socket.ping()
                with anyio.move_on_after(PING_S) as waited:
                    await pong
                if waited.cancelled_caught and not unread.full:
                    self._socket.transport.abort()  # a close frame would not be answered either
                    raise ConnectionLost(f"{self._url} did not answer for {PING_S:g} s.")
        except ConnectionClosed as error:
            raise self._connection_lost(error) from error

    async def close(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._drain)
            await self._socket.close()
            tasks.cancel_scope.cancel()

    async def _drain(self) -> None:
        """Discard messages until the server's close frame."""
        from websockets.exceptions import ConnectionClosed

        with suppress(ConnectionClosed):
            while True:
                await self._socket.recv(decode=False)

    def _connection_lost(self, error: Exception) -> ConnectionLost:
        return ConnectionLost(f"The connection to {self._url} was lost: {error}")
