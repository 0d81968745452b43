"""WebSocket: one message per text frame. Not part of the specification; several servers have it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from activations.gateway.transports.http_hosts import is_loopback
from activations.gateway.transports.session import UpstreamSession
from activations.gateway.transports.transport import SessionLimits, too_large
from mcp_view.client.effects import Send
from mcp_view.client.errors import BadMessage, Lost, SignInRequired, Unreachable, UpstreamError
from mcp_view.client.options import Server

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

__all__ = ("WebSocketTransport",)

#: Interval and timeout of pings: a connection that is gone is noticed.
PING_S: Final = 30.0
TOO_BIG: Final = 1009


class WebSocketTransport:
    """One server over WebSocket."""

    is_http = False
    is_signing_in = False
    restarts = False
    stderr = ""

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        limits: SessionLimits | None = None,
    ) -> None:
        self._url = url
        self._headers = dict(headers or {})
        self._limits = SessionLimits() if limits is None else limits
        self._connection: ClientConnection | None = None
        self._session: UpstreamSession | None = None
        self._outbox: deque[bytes] = deque()
        self._outbox_bytes = 0
        self._wakeup = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def connect(self, session: UpstreamSession) -> None:
        """Connect. Raises UpstreamError."""
        from websockets.asyncio.client import connect
        from websockets.exceptions import InvalidStatus, WebSocketException

        self._session = session
        parts = urlsplit(self._url)
        if parts.scheme not in ("ws", "wss") or not parts.hostname:
            raise Unreachable(f"{self._url!r} is no URL of WebSocket.")
        try:
            self._connection = await connect(
                self._url,
                additional_headers=self._headers,
                subprotocols=["mcp"],  # type: ignore[list-item]
                compression=None,  # a compressed message would be larger than what was counted
                open_timeout=self._limits.connect_s,
                close_timeout=self._limits.close_s,
                ping_interval=PING_S,
                ping_timeout=PING_S,
                max_size=session.client.options.limits.message_bytes,
                # A proxy of the environment does not know this machine.
                proxy=None if is_loopback(parts.hostname) else True,
            )
        except InvalidStatus as error:
            status = error.response.status_code
            kind = SignInRequired if status in (401, 403) else BadMessage
            raise kind(f"{self._url} answered with HTTP {status}.") from error
        except (OSError, TimeoutError, WebSocketException, ValueError) as error:
            raise Unreachable(f"Cannot connect to {self._url}: {error or 'timed out'}") from error
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._read(session, self._connection)),
            loop.create_task(self._write(self._connection)),
        ]

    def send(self, message: Send) -> None:
        """Send a message after those before it."""
        self._outbox.append(message.data)
        self._outbox_bytes += len(message.data)
        self._wakeup.set()
        limit = self._limits.outbox_bytes
        if self._session is not None and self._outbox_bytes > limit:
            self._session.lost(Lost(f"The server does not read: {limit} bytes wait."))

    def abort(self, request_id: int) -> None:
        """Do nothing: all requests share the connection."""

    def opened(self, server: Server) -> None:
        """Do nothing: there is no other stream to open."""

    async def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def _read(self, session: UpstreamSession, connection: ClientConnection) -> None:
        from websockets.exceptions import ConnectionClosed

        error: UpstreamError = Lost("The server closed the connection.")
        try:
            async for frame in connection:
                session.received(frame.encode() if isinstance(frame, str) else frame)
                session.flush()
                await asyncio.sleep(0)  # frames that are always ready would never let the loop run
        except ConnectionClosed as closed:
            sent = closed.sent
            if sent is not None and sent.code == TOO_BIG:
                limit = session.client.options.limits.message_bytes
                error = too_large(limit + 1, limit)
            elif closed.rcvd is not None:
                error = Lost(f"The server closed the connection with code {closed.rcvd.code}.")
        session.lost(error)

    async def _write(self, connection: ClientConnection) -> None:
        from websockets.exceptions import ConnectionClosed

        while True:
            while self._outbox:
                data = self._outbox.popleft()
                self._outbox_bytes -= len(data)
                try:
                    await connection.send(data.decode())
                except ConnectionClosed:
                    return  # the reader reports it
            self._wakeup.clear()
            await self._wakeup.wait()
