"""The WebSocket protocol of the server: uvicorn's, with deadlines and with direct writes.

It starts with a complete HTTP header, which `substrate.server.connections` hands over. Handshakes,
closes and pings have deadlines. A stream writes many text frames at a time, directly: one ASGI
message and one write for each frame took six to seven times as long.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, cast

from starlette.types import Receive
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.protocol import State

from substrate.server.flow import LeanEvent, MessageQueue
from substrate.server.peers import StallTimeout

if TYPE_CHECKING:  # the configuration names this protocol
    from substrate.server.connections import LimitedConfig

__all__ = ("WebSocketProtocol", "protocol_of")

logger = logging.getLogger("substrate.server.connections")

#: The WebSocket close code for a text frame that is not UTF-8.
NOT_UTF8: Final = 1007
#: Frames are joined up to this size. Then the buffer of the socket must have capacity again.
JOINED_BYTES: Final = 64 * 1024
#: Time to write a close frame before the connection is aborted.
ABORT_S: Final = 1.0


class WebSocketProtocol(StallTimeout, WebSocketsSansIOProtocol):
    """The protocol of one WebSocket connection, from its complete HTTP header on."""

    # As for `HttpProtocol`: with slots a connection takes 1.1 KiB less.
    __slots__ = (
        "app",
        "app_state",
        "asgi_version",
        "client",
        "close_sent",
        "close_timer",
        "config",
        "conn",
        "connections",
        "curr_msg_data_type",
        "default_headers",
        "disconnected",
        "frames",
        "handshake_complete",
        "handshake_initiated",
        "initial_response",
        "last_ping_rtt",
        "logger",
        "loop",
        "pending_ping_payload",
        "ping_interval",
        "ping_sent_at",
        "ping_timeout",
        "ping_timer",
        "pong_timer",
        "queue",
        "read_paused",
        "request",
        "response",
        "root_path",
        "scheme",
        "scope",
        "server",
        "tasks",
        "transport",
        "writable",
    )

    #: Data that arrived together with the header. A client must not send anything before the
    #: handshake is complete; if it does, the data is processed after the handshake.
    early_data = b""
    #: Times out the handshake.
    _handshake_timer: asyncio.TimerHandle | None = None

    def __init__(self, config: LimitedConfig, **options: Any) -> None:
        super().__init__(config, **options)
        self.queue = cast("asyncio.Queue[Any]", MessageQueue())
        self.writable = cast("asyncio.Event", LeanEvent(is_set=True))
        self._header_s = config.limits.header_s
        self.write_s = config.limits.write_s
        #: Timeout of the reply to a close frame, the same as for the handshake.
        self.close_timeout = self._header_s

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the handshake. Reading is paused until it is complete."""
        super().connection_made(transport)
        transport.pause_reading()
        self._handshake_timer = self.loop.call_later(self._header_s, self._on_handshake_timeout)

    def data_received(self, data: bytes) -> None:
        """Process the header, which arrives complete, or frames."""
        super().data_received(data)
        if not self.handshake_initiated:
            self._reject_invalid_header()

    def _reject_invalid_header(self) -> None:
        """Reject a header that the WebSocket library could not parse."""
        answer = b"".join(self.conn.data_to_send())  # not empty if a line is too long
        if not answer:
            answer = self.conn.reject(HTTPStatus.BAD_REQUEST, "invalid upgrade\n").serialize()
        self.handshake_complete = self.close_sent = True
        self.transport.write(answer)
        self.transport.close()

    def _on_handshake_timeout(self) -> None:
        """Close a connection whose handshake the app did not answer in time."""
        self._handshake_timer = None
        if not self.handshake_complete:
            logger.warning("closed %s: the handshake took over %g s", self.client, self._header_s)
            self.send_500_response()
            self.transport.close()

    def _complete_handshake(self) -> None:
        """Start reading, unless the handshake was refused."""
        if self._handshake_timer is not None:
            self._handshake_timer.cancel()
            self._handshake_timer = None
        # Nothing needs the request any more. The parser refers to it, so its headers are deleted.
        self.request.headers.clear()
        del self.request, self.response, self.scope
        if not self.transport.is_closing():
            early_data, self.early_data = self.early_data, b""
            self.transport.resume_reading()
            if early_data:
                self.data_received(early_data)

    async def send(self, message: Any) -> None:
        """Write a message once the buffer has capacity.

        A close frame does not wait: a peer that resumes reading finds it after the buffered data.
        """
        if self.transport.is_closing():
            raise ClientDisconnected
        if message["type"] == "websocket.close":
            self.writable.set()
        await super().send(message)
        if self._handshake_timer is not None and self.handshake_complete:
            self._complete_handshake()

    def write_now(self, frames: list[bytes]) -> bool:
        """Write a few text frames, unless the client has to read first.

        Returns whether they are written. Raises ClientDisconnected.
        """
        if not self.writable.is_set() or sum(map(len, frames)) > JOINED_BYTES:
            return False
        self._check_open()
        self.transport.writelines(_encode_text(frames))
        return True

    async def write(self, frames: Iterable[bytes]) -> None:
        """Write text frames as the client reads them. Raises ClientDisconnected."""
        for data in _encode_text(frames):
            await self.writable.wait()
            self._check_open()
            self.transport.write(data)

    def _check_open(self) -> None:
        if self.disconnected or self.conn.state is not State.OPEN or self.transport.is_closing():
            raise ClientDisconnected

    def shutdown(self) -> None:
        """Close the connection. One that is closing already cannot send a close frame."""
        if not self.transport.is_closing():
            super().shutdown()

    def send_receive_event_to_app(self) -> None:
        """Queue a message for the app. A text message that is not UTF-8 closes the connection.

        uvicorn would close it too, but log a traceback as for an error of the server.
        """
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
        """Release the connection."""
        if self.client is not None:
            cast("LimitedConfig", self.config).connections.close(self.client)
        if self._handshake_timer is not None:
            self._handshake_timer.cancel()
            self._handshake_timer = None
        super().connection_lost(exc)
        # The parser is a generator that refers to its owner. Without this, both would stay in
        # memory until the next garbage collection.
        self.conn.parser.close()

    def keepalive_timeout(self) -> None:
        """Close a connection whose peer did not answer a ping, even if it reads no close frame."""
        super().keepalive_timeout()
        self.loop.call_later(ABORT_S, self.transport.abort)


def protocol_of(receive: Receive) -> WebSocketProtocol | None:
    """Return the connection that an app receives from; None if another server runs the app."""
    protocol = getattr(inspect.unwrap(receive), "__self__", None)
    return protocol if isinstance(protocol, WebSocketProtocol) else None


def _encode_text(frames: Iterable[bytes]) -> Iterator[bytes]:
    """Encode unfragmented text frames, joined into parts of about JOINED_BYTES."""
    parts: list[bytes] = []
    size = 0
    for frame in frames:
        length = len(frame)
        if length < 126:
            header = b"\x81%c" % length
        elif length < 65536:
            header = b"\x81\x7e" + length.to_bytes(2, "big")
        else:
            header = b"\x81\x7f" + length.to_bytes(8, "big")
        parts += (header, frame)
        size += length
        if size >= JOINED_BYTES:
            yield b"".join(parts)
            parts.clear()
            size = 0
    if parts:
        yield b"".join(parts)
