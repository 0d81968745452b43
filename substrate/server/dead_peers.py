"""Peers that are gone or do not read: noticed by the system, or cut off after a time."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Final

__all__ = ("StuckPeer", "watch_for_dead_peers")

logger = logging.getLogger("substrate.server.connections")

#: How long a peer that was given up may take to read what was written, and why it was given up.
GRACE_S: Final = 2.0
#: How much must leave meanwhile for a slow peer not to be a stuck one.
PROGRESS_BYTES: Final = 64 * 1024


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
