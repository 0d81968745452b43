"""WebSocket: connections with timeouts, and routes that serve a view over them.

Each text frame contains one JSON-RPC message or batch, in both directions. A client that asks for
it with `?frames=batch` gets messages that are ready at the same time as one batch: a browser spends
more time on a frame than on the message in it. Handshakes, closes and writes have deadlines.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast
from urllib.parse import parse_qs

from starlette.types import Receive, Scope, Send
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request
from websockets.protocol import State

from plexus.limits import Limits
from plexus.rpc import wire
from plexus.rpc.effects import View
from plexus.runtime.hub import Plexus
from substrate.driver import Connection
from substrate.security.authentication import Credential
from substrate.security.credential_watch import CredentialWatch
from substrate.server.asgi import client_name, comes_from_page
from substrate.server.flow import LeanEvent, MessageQueue
from substrate.server.peers import LAST_WRITE_S, StallTimeout
from substrate.server.shutdown import OpenStreams

if TYPE_CHECKING:  # the configuration names this protocol
    from substrate.server.connections import LimitedConfig

__all__ = (
    "BATCH_BYTES",
    "MessageSocket",
    "OnOpen",
    "WebSocketProtocol",
    "join_messages",
)

logger = logging.getLogger("substrate.server.connections")

Write = Callable[[list[bytes]], Awaitable[None]]

#: Maximum size of unsent replies before reading from the peer pauses.
UNSENT_BYTES: Final = 1024 * 1024
#: Maximum bytes of the messages of a batch; one longer message is sent alone. A browser parses this
#: much in a few milliseconds.
BATCH_BYTES: Final = 256 * 1024
#: WebSocket close codes.
GOING_AWAY: Final = 1001
NOT_UTF8: Final = 1007
POLICY_VIOLATION: Final = 1008
#: Maximum characters of a close reason; a close frame has 123 bytes for it.
CLOSE_REASON_CHARS: Final = 120
#: ASGI message with many text frames, for servers whose scope has an extension of this name: the
#: program's own. One message and one write for each frame took six to seven times as long.
TEXT_FRAMES: Final = "substrate.websocket.text_frames"
#: Frames are joined up to this size. Then the buffer of the socket must have capacity again.
JOINED_BYTES: Final = 64 * 1024
#: Timeout of the close frame to a peer that does not read.
CLOSE_S: Final = 1.0
#: Time to write a close frame before the connection is aborted.
ABORT_S: Final = 1.0


#: Called with a connection, its view and its scope; returns what is called at its end.
OnOpen: TypeAlias = Callable[[Connection, View, Scope], Callable[[], None]]


class MessageSocket:
    """A WebSocket route. Every peer gets its own view."""

    def __init__(
        self,
        hub: Plexus,
        make_view: Callable[[Scope], View],
        open_streams: OpenStreams,
        credentials: CredentialWatch,
        subprotocol: str | None = None,
        *,
        limits: Limits | None = None,
        on_open: OnOpen | None = None,
    ) -> None:
        """Serve the views that `make_view` returns.

        `limits` are those of messages, by default those of the hub. `on_open` is called with each
        new connection; what it returns is called when the connection has ended.
        """
        self._hub = hub
        self._limits = limits or hub.limits
        self._on_open = on_open
        self._make_view = make_view
        self._open = open_streams
        self._credentials = credentials
        self._subprotocol = subprotocol
        #: Whether it is the native protocol. It has batches that no request asked for, and lookups.
        self._is_native = subprotocol is None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one peer until it disconnects or stops reading."""
        await receive()  # always "websocket.connect"
        offered = self._subprotocol in scope["subprotocols"]
        await send(
            {"type": "websocket.accept", "subprotocol": self._subprotocol if offered else None}
        )
        credential: Credential = scope["credential"]
        principal = credential.principal
        try:
            view = self._make_view(scope)
        except ValueError as error:
            reason = str(error)[:CLOSE_REASON_CHARS]
            await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": reason})
            return
        connection = Connection(
            self._hub,
            view,
            principal,
            client=client_name(scope),
            lasting=True,
            lookups=self._is_native and comes_from_page(scope),
        )
        socket = _RevocableSocket(connection)
        write = _writer(scope, send, batched=self._is_native and _wants_batches(scope))
        self._open.add(connection)
        self._credentials.add(credential, socket)
        on_closed = None if self._on_open is None else self._on_open(connection, view, scope)
        try:
            await self._serve(socket, receive, send, write)
        finally:
            if on_closed is not None:
                on_closed()
            self._credentials.discard(credential, socket)
            self._open.discard(connection)

    async def _serve(
        self, socket: _RevocableSocket, receive: Receive, send: Send, write: Write
    ) -> None:
        connection = socket.connection
        loop = asyncio.get_running_loop()
        reader = loop.create_task(self._read(connection, receive))
        writer = loop.create_task(self._write(connection, write))
        tasks: list[asyncio.Future[None]] = [reader, writer]
        try:
            await asyncio.wait([*tasks, socket.revoked], return_when=asyncio.FIRST_COMPLETED)
            if connection.revoked is not None and not reader.done():
                await asyncio.wait([writer], timeout=LAST_WRITE_S)
        finally:
            finished = connection.finished
            connection.lost()
            reader.cancel()
            writer.cancel()
            await asyncio.wait(tasks)
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
        limits = self._limits
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                return
            text = message.get("text")
            data = message["bytes"] if text is None else text.encode()
            connection.receive(wire.decode(data, limits))
            if connection.unsent > UNSENT_BYTES:
                await connection.collected()

    async def _write(self, connection: Connection, write: Write) -> None:
        """Write frames as they become available.

        Returns when the connection is finished, or when the peer does not read in time.
        """
        while not connection.finished:
            frames = connection.collect()
            if not frames:
                await connection.ready()
                continue
            try:
                async with asyncio.timeout(self._hub.limits.write_s):
                    await write(frames)
            except TimeoutError:
                return


def _writer(scope: Scope, send: Send, *, batched: bool) -> Write:
    """Return the function that writes frames, all in one ASGI message if the server takes that."""
    is_joined = TEXT_FRAMES in (scope.get("extensions") or {})

    async def write(frames: list[bytes]) -> None:
        if batched and len(frames) > 1:
            frames = join_messages(frames)
        if is_joined:
            await send({"type": TEXT_FRAMES, "frames": frames})
            return
        for frame in frames:
            await send({"type": "websocket.send", "text": frame.decode()})

    return write


def _wants_batches(scope: Scope) -> bool:
    query: bytes = scope["query_string"]
    if b"frames=" not in query:
        return False
    return parse_qs(query.decode("ascii", "replace")).get("frames", [])[-1:] == ["batch"]


def join_messages(messages: list[bytes]) -> list[bytes]:
    """Return the messages in their order as batches of a bounded size.

    A reply to a batch is an array already, and stays as it is.
    """
    frames: list[bytes] = []
    batch: list[bytes] = []
    size = 0
    for message in messages:
        is_array = message.startswith(b"[")
        if batch and (is_array or size + len(message) > BATCH_BYTES):
            frames.append(_batch(batch))
            batch, size = [], 0
        if is_array:
            frames.append(message)
        else:
            batch.append(message)
            size += len(message)
    if batch:
        frames.append(_batch(batch))
    return frames


def _batch(messages: list[bytes]) -> bytes:
    return messages[0] if len(messages) == 1 else wire.encode_batch(messages)


class _RevocableSocket:
    """The connection of one peer, as seen by the credential watch."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.revoked: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def revoke(self, reason: str, *, refreshed: bool) -> None:  # noqa: ARG002 - closed in both cases
        """End the connection. A client with a newer token opens another one."""
        self.connection.revoke(reason)
        if not self.revoked.done():
            self.revoked.set_result(None)


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


async def _close(send: Send, code: int, reason: str) -> None:
    """Send a close frame if the peer reads it in time. Otherwise its ping timeout closes it."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_S):
            await send({"type": "websocket.close", "code": code, "reason": reason})


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
        # They have the headers of the request. Nothing reads them any more.
        del self.request, self.response
        if not self.transport.is_closing():
            early_data, self.early_data = self.early_data, b""
            self.transport.resume_reading()
            if early_data:
                self.data_received(early_data)

    def handle_connect(self, event: Request) -> None:
        """Start the app, which may send many frames in one message."""
        super().handle_connect(event)
        if self.response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
            self.scope["extensions"][TEXT_FRAMES] = {}

    async def send(self, message: Any) -> None:
        """Write a message once the buffer has capacity.

        A close frame does not wait: a peer that resumes reading finds it after the buffered data.
        """
        if self.transport.is_closing():
            raise ClientDisconnected
        if message["type"] == TEXT_FRAMES:
            await self._send_text_frames(message["frames"])
            return
        if message["type"] == "websocket.close":
            self.writable.set()
        await super().send(message)
        if self._handshake_timer is not None and self.handshake_complete:
            self._complete_handshake()

    async def _send_text_frames(self, frames: Iterable[bytes]) -> None:
        """Write frames without the WebSocket library, which copies each of them several times.

        Valid because no extension is negotiated: compression is off.
        """
        for data in _encode_text(frames):
            await self.writable.wait()
            if self.disconnected or self.conn.state is not State.OPEN:
                raise ClientDisconnected
            self.transport.write(data)

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
