"""WebSocket: connections with bounds, and either view over them.

A message is one JSON-RPC message a frame, text both ways. A handshake and a close end, and peers
read, or they are cut off.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, cast

from starlette.types import Receive, Scope, Send
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from plexus.principal import Principal
from plexus.rpc import wire
from plexus.runtime.hub import Plexus
from substrate.driver import Connection, View
from substrate.security.authentication import Credential
from substrate.security.credential_watch import CredentialWatch
from substrate.server.peers import LAST_WRITE_S, StuckPeer
from substrate.server.shutdown import OpenStreams

if TYPE_CHECKING:  # the configuration names this protocol
    from substrate.server.connections import LimitedConfig

__all__ = (
    "MessageSocket",
    "WebSocketProtocol",
)

logger = logging.getLogger("substrate.server.connections")

#: How much may wait to be written before no more requests are read.
UNSENT_BYTES: Final = 1024 * 1024
#: WebSocket close codes. `NOT_UTF8` is for a message whose content is not what its type says.
GOING_AWAY: Final = 1001
NOT_UTF8: Final = 1007
POLICY_VIOLATION: Final = 1008
#: How long saying good-bye to a peer that does not read may take.
CLOSE_S: Final = 1.0
#: How long a close may take to be written.
ABORT_S: Final = 1.0


class MessageSocket:
    """A route that is a WebSocket; every peer gets a view of its own."""

    def __init__(
        self,
        hub: Plexus,
        make_view: Callable[[Principal], View],
        open_streams: OpenStreams,
        credentials: CredentialWatch,
        subprotocol: str | None = None,
    ) -> None:
        self._hub = hub
        self._make_view = make_view
        self._open = open_streams
        self._credentials = credentials
        self._subprotocol = subprotocol

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one peer until it is gone, or until it has not read for too long."""
        await receive()  # "websocket.connect", always the first
        offered = self._subprotocol in scope["subprotocols"]
        await send(
            {"type": "websocket.accept", "subprotocol": self._subprotocol if offered else None}
        )
        credential: Credential = scope["credential"]
        principal = credential.principal
        connection = Connection(self._hub, self._make_view(principal), principal)
        socket = _Socket(connection)
        self._open.add(connection)
        self._credentials.add(credential, socket)
        try:
            await self._serve(socket, receive, send)
        finally:
            self._credentials.discard(credential, socket)
            self._open.discard(connection)

    async def _serve(self, socket: _Socket, receive: Receive, send: Send) -> None:
        connection = socket.connection
        loop = asyncio.get_running_loop()
        reader = loop.create_task(self._read(connection, receive))
        writer = loop.create_task(self._write(connection, send))
        both: list[asyncio.Future[None]] = [reader, writer]
        try:
            await asyncio.wait([*both, socket.revoked], return_when=asyncio.FIRST_COMPLETED)
            if connection.revoked is not None and not reader.done():
                await asyncio.wait([writer], timeout=LAST_WRITE_S)
        finally:
            finished = connection.finished
            connection.lost()
            reader.cancel()
            writer.cancel()
            await asyncio.wait(both)
        if not reader.cancelled() and (error := reader.exception()) is not None:
            raise error
        if connection.revoked is not None:
            await _close(send, POLICY_VIOLATION, connection.revoked)
        elif not writer.cancelled() and writer.exception() is None:
            if finished:
                await _close(send, GOING_AWAY, "the server is stopping")
            else:
                await _close(send, POLICY_VIOLATION, "lagged")

    async def _read(self, connection: Connection, receive: Receive) -> None:
        limits = self._hub.limits
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                return
            text = message.get("text")
            data = message["bytes"] if text is None else text.encode()
            connection.receive(wire.decode(data, limits))
            if connection.unsent > UNSENT_BYTES:
                await connection.collected()

    async def _write(self, connection: Connection, send: Send) -> None:
        """Write what there is as it comes; returns when the peer does not take it in time, and
        when no more will come."""
        while not connection.finished:
            frames = connection.collect()
            if not frames:
                await connection.ready()
                continue
            try:
                async with asyncio.timeout(self._hub.limits.write_s):
                    for frame in frames:
                        await send({"type": "websocket.send", "text": frame.decode()})
            except TimeoutError:
                return


class _Socket:
    """One peer, as far as its credential is concerned."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.revoked: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def revoke(self, reason: str, *, refreshed: bool) -> None:  # noqa: ARG002 - it is gone anyway
        """End the connection: a client with a newer token opens another."""
        self.connection.revoke(reason)
        if not self.revoked.done():
            self.revoked.set_result(None)


async def _close(send: Send, code: int, reason: str) -> None:
    """Say why, if the peer takes that at least; its pings will go unanswered otherwise."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_S):
            await send({"type": "websocket.close", "code": code, "reason": reason})


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
