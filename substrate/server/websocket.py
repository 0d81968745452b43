"""WebSocket: routes that serve a view over connections with timeouts.

Each text frame contains one JSON-RPC message or batch, in both directions. A client that asks for
it with `?frames=batch` gets messages that are ready at the same time as one batch: a browser spends
more time on a frame than on the message in it. Handshakes, closes and writes have deadlines.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qs

from starlette.types import Receive, Scope, Send

from plexus.limits import Limits
from plexus.rpc import wire
from plexus.rpc.effects import View
from plexus.runtime.hub import Plexus
from substrate.driver import Connection
from substrate.security.authentication import Credential
from substrate.security.credential_watch import CredentialWatch
from substrate.server.asgi import client_name, comes_from_page
from substrate.server.peers import LAST_WRITE_S
from substrate.server.shutdown import OpenStreams
from substrate.server.websocket_protocol import protocol_of

__all__ = (
    "BATCH_BYTES",
    "MessageSocket",
    "OnOpen",
    "join_messages",
)

logger = logging.getLogger("substrate.server.connections")

#: Maximum size of unsent replies before reading from the peer pauses.
UNSENT_BYTES: Final = 1024 * 1024
#: Maximum bytes of the messages of a batch; one longer message is sent alone. A browser parses this
#: much in a few milliseconds.
BATCH_BYTES: Final = 256 * 1024
#: WebSocket close codes.
GOING_AWAY: Final = 1001
POLICY_VIOLATION: Final = 1008
#: Maximum characters of a close reason; a close frame has 123 bytes for it.
CLOSE_REASON_CHARS: Final = 120
#: Timeout of the close frame to a peer that does not read.
CLOSE_S: Final = 1.0


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
        try:
            view = self._make_view(scope)
        except ValueError as error:
            reason = str(error)[:CLOSE_REASON_CHARS]
            await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": reason})
            return
        connection = Connection(
            self._hub,
            view,
            credential.principal,
            client=client_name(scope),
            lasting=True,
            lookups=self._is_native and comes_from_page(scope),
        )
        write = self._write(connection, receive, send, self._is_native and _wants_batches(scope))
        socket = _OpenSocket(connection, write)
        self._open.add(connection)
        self._credentials.add(credential, socket)
        on_closed = None if self._on_open is None else self._on_open(connection, view, scope)
        del scope  # the socket may stay open for hours, and its headers must not
        try:
            await self._serve(socket, receive, send)
        finally:
            if on_closed is not None:
                on_closed()
            self._credentials.discard(credential, socket)
            self._open.discard(connection)

    async def _serve(self, socket: _OpenSocket, receive: Receive, send: Send) -> None:
        connection, writer = socket.connection, socket.writer
        try:
            async with asyncio.timeout(None) as reading:
                socket.reading = reading
                await self._read(connection, receive)
        except TimeoutError:
            if not reading.expired():
                raise
        finally:
            socket.reading = None
            finished = connection.finished
            connection.lost()
            writer.cancel()
            await asyncio.wait([writer])
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

    async def _write(
        self, connection: Connection, receive: Receive, send: Send, batched: bool
    ) -> None:
        """Write frames as they become available.

        Returns when the connection is finished, or when the peer does not read in time.
        """
        protocol = protocol_of(receive)
        while not connection.finished:
            frames = connection.collect()
            if not frames:
                waiter = connection.waiter()
                if waiter is not None:
                    await waiter
                continue
            if batched and len(frames) > 1:
                frames = join_messages(frames)
            if protocol is not None and protocol.write_now(frames):
                continue
            try:
                async with asyncio.timeout(self._hub.limits.write_s):
                    if protocol is not None:
                        await protocol.write(frames)
                        continue
                    for frame in frames:
                        await send({"type": "websocket.send", "text": frame.decode()})
            except TimeoutError:
                return


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


class _OpenSocket:
    """The connection of one peer, while a task writes to it and another one reads from it."""

    __slots__ = ("connection", "reading", "writer")

    def __init__(self, connection: Connection, write: Coroutine[Any, Any, None]) -> None:
        self.connection = connection
        #: The deadline of the reader, which is set when there is nothing more to write.
        self.reading: asyncio.Timeout | None = None
        self.writer = asyncio.get_running_loop().create_task(write)
        self.writer.add_done_callback(self._on_written)

    def _on_written(self, _: object) -> None:
        self._stop_reading(0)

    def revoke(self, reason: str, *, refreshed: bool) -> None:  # noqa: ARG002 - closed in both cases
        """End the connection. A client with a newer token opens another one."""
        self.connection.revoke(reason)
        self._stop_reading(LAST_WRITE_S)

    def _stop_reading(self, within_s: float) -> None:
        if self.reading is not None and not self.reading.expired():
            self.reading.reschedule(asyncio.get_running_loop().time() + within_s)


async def _close(send: Send, code: int, reason: str) -> None:
    """Send a close frame if the peer reads it in time. Otherwise its ping timeout closes it."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_S):
            await send({"type": "websocket.close", "code": code, "reason": reason})
