"""Clients that hang up, vanish or do not read: how each is noticed and cut off."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Final

from starlette.types import Message, Receive, Send

from substrate.driver import Connection
from substrate.security.authentication import Credential
from substrate.security.credential_watch import CredentialWatch

__all__ = (
    "LAST_WRITE_S",
    "Peer",
    "StuckPeer",
    "watch_for_dead_peers",
)

logger = logging.getLogger("substrate.server.connections")

#: How long the last bytes for a client whose credential is no longer valid may take.
LAST_WRITE_S: Final = 0.4
#: How long a peer that was given up may take to read what was written, and why it was given up.
GRACE_S: Final = 2.0
#: How much must leave meanwhile for a slow peer not to be a stuck one.
PROGRESS_BYTES: Final = 64 * 1024


class Peer:
    """The reader of a response. Watching begins when it has to wait: an answer that is given at
    once needs none."""

    __slots__ = (
        "_connection",
        "_credential",
        "_credentials",
        "_deadline",
        "_receive",
        "_resumable",
        "_watching",
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
        """With `resumable` the client can come back for what it misses."""
        self._receive = receive
        self._connection = connection
        self._credentials = credentials
        self._credential = credential
        self._resumable = resumable
        self._watching: asyncio.Task[None] | None = None
        #: Of the write in progress.
        self._deadline: asyncio.Timeout | None = None
        #: Whether nothing more is to be written for it.
        self.gone = False

    def watch(self) -> None:
        """Begin to watch, once."""
        if self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._watch())
            self._credentials.add(self._credential, self)

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.dismiss()

    async def write(self, send: Send, message: Message, within_s: float) -> None:
        """Send a message; raises TimeoutError if the client does not take it in time."""
        if self._connection.revoked is not None:
            within_s = min(within_s, LAST_WRITE_S)
        try:
            async with asyncio.timeout(within_s) as self._deadline:
                await send(message)
        finally:
            self._deadline = None

    def dismiss(self) -> None:
        """Stop writing for this client."""
        self.gone = True
        self._connection.wake()

    def revoke(self, reason: str, *, refreshed: bool) -> None:
        """End the response, because its credential is no longer valid."""
        if refreshed and self._resumable:
            self.dismiss()
        else:
            self._connection.revoke(reason)
        if self._deadline is not None:
            end = asyncio.get_running_loop().time() + LAST_WRITE_S
            self._deadline.reschedule(min(end, self._deadline.when() or end))

    def leave(self) -> None:
        """Stop watching."""
        if self._watching is not None:
            self._watching.cancel()
            # The two would keep each other, and all of the connection, until a collection.
            self._watching = None
            self._credentials.discard(self._credential, self)

    async def __aenter__(self) -> Peer:
        return self

    async def __aexit__(self, *_: object) -> None:
        """With the peer goes its connection."""
        self.leave()
        self._connection.lost()


def watch_for_dead_peers(sock: socket.socket, ping_s: float) -> None:
    """Have the system notice peers that are gone without a word, on every connection that is
    accepted here, as far as it can: by probing silent ones, and by not waiting for ever for what
    was sent to be taken."""
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


class StuckPeer(asyncio.Protocol):
    """Cuts off a peer that reads nothing: what waits for it would be kept forever, even when its
    writer has given up."""

    # What either protocol has.
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    client: tuple[str, int] | None

    #: How long one write may take; set by the protocol.
    write_s: float

    _stuck: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        """There is more to write than the peer has taken."""
        super().pause_writing()
        self._watch_progress()

    def resume_writing(self) -> None:
        """The peer has caught up."""
        super().resume_writing()
        self._unwatch_progress()

    def connection_lost(self, exc: Exception | None) -> None:
        """The peer is gone."""
        super().connection_lost(exc)
        self._unwatch_progress()

    def _watch_progress(self) -> None:
        limit_s = self.write_s + GRACE_S
        unwritten = self.transport.get_write_buffer_size()
        self._stuck = self.loop.call_later(limit_s, self._look, unwritten)

    def _unwatch_progress(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def _look(self, before: int) -> None:
        self._stuck = None
        taken = before - self.transport.get_write_buffer_size()
        if taken >= min(PROGRESS_BYTES, before):
            self._watch_progress()
            return
        logger.info("cut off %s: lagged", self.client)
        self.transport.abort()
