"""Connections with bounds: uvicorn's two protocols, and what they leave open.

uvicorn waits for ever for a header, a body, and a peer that does not read; it takes any number of
connections and headers of any size. All of that is bounded here, below the app.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any, Final, Literal, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from plexus import wire
from plexus.limits import Limits
from substrate.refusals import OnRefused

__all__ = ("HttpProtocol", "LimitedConfig", "WebSocketProtocol", "watch_for_dead_peers")

logger = logging.getLogger("substrate.connections")

#: How long a peer that was given up may take to read what was written, and why it was given up.
GRACE_S: Final = 2.0
#: How much must leave meanwhile for a slow peer not to be a stuck one.
PROGRESS_BYTES: Final = 64 * 1024
#: How long a connection that is refused stays open, so that the answer is not lost: closing with
#: bytes unread would tell the system to throw it away.
LINGER_S: Final = 1.0
#: How long a close may take to be written.
ABORT_S: Final = 1.0
#: The WebSocket close code for a message whose content is not what its type says.
NOT_UTF8: Final = 1007
END_OF_HEADER: Final = b"\r\n\r\n"
#: What each status means here, for those who count.
WORDS: Final = {408: "slow", 431: "header", 503: "connections"}


class LimitedConfig(uvicorn.Config):
    """uvicorn's settings, with the limits for its connections."""

    def __init__(
        self, app: Any, limits: Limits, on_refused: OnRefused | None = None, **options: Any
    ) -> None:
        super().__init__(
            app,
            http=HttpProtocol,
            ws=WebSocketProtocol,
            ws_max_size=limits.message_bytes,
            ws_ping_interval=limits.ping_s,
            ws_ping_timeout=limits.ping_s,
            **options,
        )
        self.limits = limits
        self.on_refused = on_refused


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
    """Cuts a peer off that takes nothing: what waits for it would be kept for ever, even when
    whoever wrote it has given up."""

    # What either protocol has.
    config: uvicorn.Config
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    client: tuple[str, int] | None

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
        limit_s = cast("LimitedConfig", self.config).limits.write_s + GRACE_S
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


class HttpProtocol(StuckPeer, HttpToolsProtocol):
    """One HTTP connection."""

    _due: asyncio.TimerHandle | None = None
    #: What has to be complete when the timer ends.
    _awaited: Literal["header", "body"] = "header"
    #: How much of a header has come that is not complete.
    _header_bytes = 0
    #: Whether nothing of what comes is looked at any more.
    _over = False

    def __init__(self, config: LimitedConfig, **options: Any) -> None:
        super().__init__(config, **options)
        self._limits = config.limits

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there; if there are too many, it is told so."""
        super().connection_made(transport)
        if len(self.connections) > self._limits.connections:
            # It does not count: nobody else is kept out because it takes long to leave.
            self.connections.discard(self)
            limit = self._limits.connections
            self._refuse(503, f"at most {limit} connections may be open", limit)
        else:
            self._await("header")

    def data_received(self, data: bytes) -> None:
        """Take what has come, and see whether it is a whole request."""
        if self._over:
            return
        if (self._header_bytes or len(data) > self._limits.header_bytes) and self._is_long(data):
            limit = self._limits.header_bytes
            self._refuse(431, f"the header is over {limit} bytes", limit)
            return
        super().data_received(data)
        cycle = self.cycle
        # Nearly every request comes in one piece.
        if cycle is None or cycle.more_body or "method" not in self.scope:
            self._received_part(data)
        elif self._due is not None:
            self._await(None)

    def _is_long(self, data: bytes) -> bool:
        """Whether the header, as far as it has come, is longer than it may be."""
        if self._header_bytes == 0 and self._due is not None and self._awaited == "body":
            return False
        end = data.find(END_OF_HEADER)
        header = self._header_bytes + (len(data) if end < 0 else end)
        return header > self._limits.header_bytes

    def _has_header(self) -> bool:
        """Whether the header of the newest request is complete."""
        scope = cast("dict[str, Any] | None", self.scope)
        return scope is not None and "method" in scope

    def _received_part(self, data: bytes) -> None:
        if self._over or self.transport.is_closing():
            return
        if not self._has_header():
            # How much of it belongs to a body that was still to come is not known.
            after_body = self._due is not None and self._awaited == "body"
            self._header_bytes += 1 if after_body else len(data)
            self._await("header")
        else:
            self._await("body")

    def _await(self, what: Literal["header", "body"] | None) -> None:
        """Begin to wait for this, unless that has begun already."""
        if self._due is not None:
            if what == self._awaited:
                return
            self._due.cancel()
            self._due = None
        if what != "header":
            self._header_bytes = 0
        if what is not None:
            self._awaited = what
            limit_s = self._limits.header_s if what == "header" else self._limits.body_s
            self._due = self.loop.call_later(limit_s, self._late, limit_s)

    def _late(self, limit_s: float) -> None:
        """What was to be complete by now is not."""
        self._due = None
        answered = self.cycle is not None and self.cycle.response_started
        if self.scope is None or (self._awaited == "body" and answered):
            self.transport.close()  # there is nothing to answer, or it is answered already
        else:
            self._refuse(408, f"the {self._awaited} took longer than {limit_s:g} s", limit_s)

    def _refuse(self, status: int, reason: str, limit: float) -> None:
        """Answer in place of the app, and read no more."""
        self._over = True
        self._await(None)
        on_refused = cast("LimitedConfig", self.config).on_refused
        if on_refused is not None:
            on_refused(WORDS[status], None if self.client is None else self.client[0], status)
        body = wire.encode({"error": reason, "limit": limit})
        head = [
            STATUS_LINE[status],
            b"content-type: application/json\r\nconnection: close\r\n",
            b"retry-after: 1\r\n" if status == 503 else b"",
            b"content-length: %d\r\n\r\n" % len(body),
        ]
        self.transport.write(b"".join(head) + body)
        self.transport.write_eof()
        self.loop.call_later(LINGER_S, self.transport.abort)

    def handle_websocket_upgrade(self) -> None:
        """From here on another protocol has the connection."""
        self._over = True
        self._await(None)
        super().handle_websocket_upgrade()
        # As when a connection is lost: the two would keep each other until a collection.
        self.parser = None  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._await(None)
        super().connection_lost(exc)


class WebSocketProtocol(StuckPeer, WebSocketsSansIOProtocol):
    """One WebSocket."""

    async def send(self, message: Any) -> None:
        """Write a message once there is room for it. A good-bye does not wait for that: a peer
        that begins to read again finds it at the end of what it missed."""
        if message["type"] == "websocket.close":
            self.writable.set()
        await super().send(message)

    def send_receive_event_to_app(self) -> None:
        """Queue a message for the app. A text that is not UTF-8 closes the connection: uvicorn
        does that too, but logs it as an error of the server, with a traceback."""
        if self.curr_msg_data_type == "text" and not self.close_sent:
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:
                logger.info("closed %s: a text frame is not UTF-8", self.client)
                self.frames = []
                self.conn.send_close(NOT_UTF8, "a text frame must be UTF-8")
                self.handle_parser_exception()
                return
        super().send_receive_event_to_app()

    def connection_lost(self, exc: Exception | None) -> None:
        """The peer is gone."""
        super().connection_lost(exc)
        # A generator of its own state: the two would keep each other until a collection.
        self.conn.parser.close()

    def keepalive_timeout(self) -> None:
        """The peer did not answer a ping; it need not take the good-bye either."""
        super().keepalive_timeout()
        self.loop.call_later(ABORT_S, self.transport.abort)
