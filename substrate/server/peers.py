"""Detects clients that disconnect, vanish or stop reading, and closes their connections."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Final

from starlette.types import Receive, Send

from substrate.driver import Connection
from substrate.security.authentication import Credential
from substrate.security.credential_watch import CredentialWatch
from substrate.server.http_response import exchange_of

__all__ = (
    "LAST_WRITE_S",
    "Peer",
    "StallTimeout",
    "watch_for_dead_peers",
)

logger = logging.getLogger("substrate.server.connections")

#: Timeout of the last write to a client whose credential is no longer valid.
LAST_WRITE_S: Final = 0.4
#: Extra time for a stalled peer to read what was written, including the reason for the close.
GRACE_S: Final = 2.0
#: How much a peer must read within the write timeout to count as slow rather than stalled.
PROGRESS_BYTES: Final = 64 * 1024


class Peer:
    """The client that reads a response.

    Watching for a disconnect starts when the response has to wait. An immediate answer needs none.
    The program's own server calls back and writes directly; others are watched by a task.
    """

    __slots__ = (
        "_connection",
        "_credential",
        "_credentials",
        "_deadline",
        "_exchange",
        "_is_watching",
        "_receive",
        "_resumable",
        "_watcher",
        "gone",
    )

    def __init__(
        self,
        receive: Receive,
        connection: Connection,
        credentials: CredentialWatch,
        credential: Credential,
        *,
        resumable: bool = False,
    ) -> None:
        """Create the peer of a response. With `resumable` the client can reconnect and resume."""
        self._receive = receive
        self._exchange = exchange_of(receive)
        self._connection = connection
        self._credentials = credentials
        self._credential = credential
        self._resumable = resumable
        self._is_watching = False
        self._watcher: asyncio.Task[None] | None = None
        #: The timeout of the write in progress.
        self._deadline: asyncio.Timeout | None = None
        #: Whether nothing more is to be written.
        self.gone = False

    def watch(self) -> None:
        """Start watching for a disconnect, unless started already."""
        if self._is_watching:
            return
        self._is_watching = True
        self._credentials.add(self._credential, self)
        exchange = self._exchange
        if exchange is None:
            self._watcher = asyncio.get_running_loop().create_task(self._watch())
        else:
            exchange.watch(self.dismiss)

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.dismiss()

    def write_now(self, part: bytes) -> bool:
        """Write a part of the body if that needs no waiting. Returns whether it is written."""
        return self._exchange is not None and self._exchange.write_now(part)

    async def write(self, send: Send, part: bytes, within_s: float) -> None:
        """Send a part of the body. Raises TimeoutError if the client does not read it in time."""
        if self._connection.revoked is not None:
            within_s = min(within_s, LAST_WRITE_S)
        try:
            async with asyncio.timeout(within_s) as self._deadline:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        finally:
            self._deadline = None

    def dismiss(self) -> None:
        """Stop writing to this client."""
        self.gone = True
        self._connection.wake()

    def wake(self) -> None:
        """Wake the writer of the response."""
        self._connection.wake()

    def revoke(self, reason: str, *, refreshed: bool) -> None:
        """End the response because the credential is no longer valid."""
        if refreshed and self._resumable:
            self.dismiss()
        else:
            self._connection.revoke(reason)
        if self._deadline is not None:
            end = asyncio.get_running_loop().time() + LAST_WRITE_S
            self._deadline.reschedule(min(end, self._deadline.when() or end))

    def leave(self) -> None:
        """Stop watching."""
        if not self._is_watching:
            return
        self._is_watching = False
        self._credentials.discard(self._credential, self)
        # The watcher and this object refer to each other. Without this, both and the connection
        # would stay in memory until the next garbage collection.
        if self._exchange is not None:
            self._exchange.unwatch()
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None

    async def __aenter__(self) -> Peer:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop watching, and end the connection."""
        self.leave()
        self._connection.lost()


def watch_for_dead_peers(sock: socket.socket, ping_s: float) -> None:
    """Enable TCP keepalive and a TCP user timeout on all connections accepted from a socket.

    The system then detects peers that vanished without closing: by probing idle connections, and
    by limiting the wait for acknowledgements. Options that the system lacks are skipped.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        "TCP_KEEPIDLE": max(round(ping_s), 1),
        "TCP_KEEPINTVL": max(round(ping_s / 2), 1),
        "TCP_KEEPCNT": 4,
        "TCP_USER_TIMEOUT": max(round(ping_s * 2000), 1),
    }
    for name, value in options.items():
        option = getattr(socket, name, None)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


class StallTimeout(asyncio.Protocol):
    """Protocol mixin that aborts the connection of a peer that stops reading.

    Unsent data would otherwise stay in memory indefinitely, even after its writer timed out.
    """

    # Attributes of both protocols.
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    client: tuple[str, int] | None

    #: Write timeout in seconds, set by the protocol.
    write_s: float

    _stall_timer: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        """Start the stall timer: the write buffer is full."""
        super().pause_writing()
        self._start_stall_timer()

    def resume_writing(self) -> None:
        """Stop the stall timer: the write buffer has drained."""
        super().resume_writing()
        self._stop_stall_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the stall timer: the connection is closed."""
        super().connection_lost(exc)
        self._stop_stall_timer()

    def _start_stall_timer(self) -> None:
        limit_s = self.write_s + GRACE_S
        unwritten = self.transport.get_write_buffer_size()
        self._stall_timer = self.loop.call_later(limit_s, self._check_progress, unwritten)

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _check_progress(self, unwritten_before: int) -> None:
        self._stall_timer = None
        written = unwritten_before - self.transport.get_write_buffer_size()
        if written >= min(PROGRESS_BYTES, unwritten_before):
            self._start_stall_timer()
            return
        logger.info("closed %s: lagged", self.client)
        self.transport.abort()
