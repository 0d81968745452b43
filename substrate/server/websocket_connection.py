"""WebSocket connections with bounds: a handshake and a close that end, and peers that read."""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, cast

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from substrate.server.dead_peers import StuckPeer

if TYPE_CHECKING:  # the configuration names this protocol
    from substrate.server.connections import LimitedConfig

__all__ = ("WebSocketProtocol",)

logger = logging.getLogger("substrate.server.connections")

#: How long a close may take to be written.
ABORT_S: Final = 1.0
#: The WebSocket close code for a message whose content is not what its type says.
NOT_UTF8: Final = 1007


class WebSocketProtocol(StuckPeer, WebSocketsSansIOProtocol):
    """One WebSocket, from its complete header on."""

    #: What came behind the header in the same read. A client must not send anything before the
    #: handshake is complete, but if it does, it is read then and not before.
    early = b""
    #: Ends a handshake that takes too long.
    _due: asyncio.TimerHandle | None = None

    def __init__(self, config: LimitedConfig, **options: Any) -> None:
        super().__init__(config, **options)
        self._header_s = config.limits.header_s
        self.write_s = config.limits.write_s
        #: How long the peer may take to answer a close frame: no longer than to open a socket.
        self.close_timeout = self._header_s

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin the handshake; nothing is read until it is complete."""
        super().connection_made(transport)
        transport.pause_reading()
        self._due = self.loop.call_later(self._header_s, self._late)

    def data_received(self, data: bytes) -> None:
        """Take the header, which comes as a whole, or frames."""
        super().data_received(data)
        if not self.handshake_initiated:
            self._refuse_unreadable()

    def _refuse_unreadable(self) -> None:
        """Answer a header that the WebSocket library could not parse."""
        answer = b"".join(self.conn.data_to_send())  # it has one if a line is too long
        if not answer:
            answer = self.conn.reject(HTTPStatus.BAD_REQUEST, "invalid upgrade\n").serialize()
        self.handshake_complete = self.close_sent = True
        self.transport.write(answer)
        self.transport.close()

    def _late(self) -> None:
        """Give up a handshake that the app has not answered."""
        self._due = None
        if not self.handshake_complete:
            logger.warning("closed %s: the handshake took over %g s", self.client, self._header_s)
            self.send_500_response()
            self.transport.close()

    def _complete_handshake(self) -> None:
        """Begin to read, unless the handshake was refused."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if not self.transport.is_closing():
            early, self.early = self.early, b""
            self.transport.resume_reading()
            if early:
                self.data_received(early)

    async def send(self, message: Any) -> None:
        """Write a message once there is room for it. A close frame does not wait for that: a peer
        that begins to read again finds it at the end of what it missed."""
        if self.transport.is_closing():
            raise ClientDisconnected
        if message["type"] == "websocket.close":
            self.writable.set()
        await super().send(message)
        if self._due is not None and self.handshake_complete:
            self._complete_handshake()

    def shutdown(self) -> None:
        """Close it, unless that has begun: a socket that is closing cannot send a close frame."""
        if not self.transport.is_closing():
            super().shutdown()

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
        if self.client is not None:
            cast("LimitedConfig", self.config).connections.close(self.client)
        if self._due is not None:
            self._due.cancel()
            self._due = None
        super().connection_lost(exc)
        # A generator of its own state: the two would keep each other until a collection.
        self.conn.parser.close()

    def keepalive_timeout(self) -> None:
        """Close a socket whose peer did not answer a ping, and may not take a close frame."""
        super().keepalive_timeout()
        self.loop.call_later(ABORT_S, self.transport.abort)
