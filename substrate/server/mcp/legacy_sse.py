"""The legacy SSE transport: `GET /sse` opens a stream, and `POST /messages` sends messages.

The first event of the stream contains the URL to post to. All messages of the server are events of
the stream, including answers to posted requests; losing the stream closes the connection. The
transport supports only revisions with a handshake. A request of another revision is accepted and
its error is sent on the stream, because clients that probe for the newest revision wait for that
and fail if the POST does. With several servers behind one address, a message that is posted to
another server is passed on to the server of the stream.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import parse_qs

from starlette.types import Receive, Scope, Send

from mcp_view.errors import UNSUPPORTED_REVISION
from mcp_view.meta_keys import PROTOCOL_VERSION
from mcp_view.protocol import McpConnection
from mcp_view.revisions import HANDSHAKES
from mcp_view.server import McpServer
from mcp_view.session import Session, is_stateless
from native_rpc.framing import MESSAGES
from native_rpc.protocol import NativeConnection
from plexus.errors import Busy, Failed
from plexus.principal import Principal
from plexus.rpc import effects, wire
from substrate.driver import Connection
from substrate.security.authentication import Credential
from substrate.security.credential_watch import CredentialWatch
from substrate.server.asgi import (
    BodyTooBig,
    headers_of,
    parse_accept,
    read_body,
    send_bytes,
    send_json,
    send_too_big,
    send_wrong_method,
)
from substrate.server.limits import ServerLimits
from substrate.server.mcp.responder import chosen_tools
from substrate.server.mcp.streams import PlainStream
from substrate.server.peers import Peer
from substrate.server.shutdown import OpenStreams
from substrate.server.sse import EventWriter

if TYPE_CHECKING:  # only several servers need it
    from substrate.server.mcp.shared_sse import SharedSseStreams

__all__ = ("MessagesEndpoint", "SseEndpoint")

logger = logging.getLogger(__name__)

#: Maximum unsent bytes of a stream. Above it, posted messages are rejected.
UNSENT_BYTES: Final = 1024 * 1024


class OpenStream(NamedTuple):
    """An open stream and its principal."""

    connection: Connection
    principal: Principal

    def belongs_to(self, principal: Principal) -> bool:
        """Whether this principal may post to the stream.

        Messages are handled with the scopes of the credential that opened the stream, so the
        principal must have them too.
        """
        return principal.covers(self.principal) and self.connection.revoked is None


class LegacyStream(PlainStream):
    """Events of the legacy transport, named `message`. The stream stays open."""

    __slots__ = ("_endpoint",)

    def __init__(self, connection: Connection, view: McpConnection, endpoint: bytes) -> None:
        super().__init__(connection, view)
        self._endpoint = endpoint

    def opening(self) -> bytes:
        """Return the first event: the URL to post to."""
        return b"event: endpoint\ndata: %b\n\n" % self._endpoint

    def frame(self, messages: list[bytes]) -> bytes:
        """Encode messages as the next events."""
        return b"".join([b"event: message\ndata: %b\n\n" % message for message in messages])

    @property
    def over(self) -> bool:
        """Whether the stream has ended."""
        return self.connection.finished


class SseEndpoint:
    """The endpoint `GET /sse`."""

    def __init__(
        self,
        server: McpServer,
        open_streams: OpenStreams,
        credentials: CredentialWatch,
        shared: SharedSseStreams | None = None,
    ) -> None:
        self._server = server
        #: The streams of all servers of one database; None if this is the only server.
        self.shared = shared
        if shared is not None:
            shared.on_message(self._on_posted_elsewhere)
        self._credentials = credentials
        self._writer = EventWriter(ServerLimits.of(server.hub.limits), open_streams)
        #: Open streams by session id.
        self.streams: dict[bytes, OpenStream] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one client until it disconnects."""
        if scope["method"] != "GET":
            await send_wrong_method(send, "GET")
            return
        accept = parse_accept(headers_of(scope).get(b"accept"))
        if not accept.stream and not accept.anything:
            await send_json(send, 406, {"error": "Accept text/event-stream."})
            return
        hub = self._server.hub
        native = NativeConnection(MESSAGES, hub.limits, hub.new_id)
        credential: Credential = scope["credential"]
        principal = credential.principal
        try:
            session = Session(chosen_tools(scope))
        except ValueError as error:
            await send_json(send, 400, {"error": str(error)})
            return
        view = McpConnection(self._server, session, principal=principal, fallback=native)
        connection = Connection(hub, view, principal, lasting=True)
        name = os.urandom(16).hex().encode()
        events = LegacyStream(connection, view, b"/messages?session_id=" + name)
        if self.shared is not None:
            try:
                await self.shared.add(name, principal)
            except (Busy, Failed) as error:
                await _send_busy(send, error.message)
                return
        self.streams[name] = OpenStream(connection, principal)
        try:
            async with Peer(receive, connection, self._credentials, credential) as peer:
                await self._writer.write(events, peer, send, events.opening())
        finally:
            del self.streams[name]
            if self.shared is not None:
                self.shared.remove(name)

    def _on_posted_elsewhere(self, name: bytes, body: bytes) -> None:
        """Handle a message that was accepted by another server."""
        opened = self.streams.get(name)
        message = wire.decode(body, self._server.hub.limits)
        if opened is None or opened.connection.revoked is not None:
            return
        if isinstance(message, wire.Invalid) or opened.connection.unsent > UNSENT_BYTES:
            logger.warning(
                "a message for a stream of GET /sse is dropped: its client does not read"
            )
        else:
            _receive(opened.connection, message)


class MessagesEndpoint:
    """The endpoint `POST /messages?session_id=...`."""

    def __init__(self, server: McpServer, endpoint: SseEndpoint) -> None:
        self._limits = server.hub.limits
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Accept one message. Its answer is sent on the stream."""
        if scope["method"] != "POST":
            await send_wrong_method(send, "POST")
            return
        limit = self._limits.message_bytes
        try:
            body = await read_body(scope, receive, limit)
        except BodyTooBig:
            await send_too_big(send, limit)
            return
        # Decode first, because `parse_qs` cannot parse bytes that are not ASCII.
        query = parse_qs(scope["query_string"].decode("latin-1"))
        name = query.get("session_id", [""])[-1].encode()
        message = wire.decode(body, self._limits)
        opened, shared = self._endpoint.streams.get(name), self._endpoint.shared
        passed_on = False
        if shared is not None:
            try:
                if opened is not None:
                    await shared.sync()  # messages are handled in the order in which they arrived
                elif not isinstance(message, wire.Invalid):
                    passed_on = await shared.pass_on(name, scope["principal"], body)
            except (Busy, Failed) as failed:
                await _send_busy(send, failed.message)
                return
        if passed_on:
            await send_bytes(send, 202, b"Accepted", b"text/plain")
            return
        if opened is None or not opened.belongs_to(scope["principal"]):
            await send_json(
                send, 404, {"error": "Unknown session. Open a stream with GET /sse first."}
            )
            return
        if isinstance(message, wire.Invalid):
            error = wire.encode_error(message.id, message.code, message.message, message.data)
            await send_bytes(send, 400, error)
        elif opened.connection.unsent > UNSENT_BYTES:
            await _send_busy(send, "Too many unread messages. Read the stream first.")
        else:
            _receive(opened.connection, message)
            await send_bytes(send, 202, b"Accepted", b"text/plain")


async def _send_busy(send: Send, reason: str) -> None:
    await send_json(send, 503, {"error": reason}, [(b"retry-after", b"1")])


def _receive(connection: Connection, message: wire.Message | list[wire.Message]) -> None:
    """Handle a posted message on its stream."""
    refused = _without_handshake(message)
    if refused is None:
        connection.receive(message)
    elif refused:
        connection.perform([effects.Send([refused])])


def _without_handshake(message: wire.Message | list[wire.Message]) -> bytes | None:
    """Return the error for a message of a revision without a handshake; None for other messages.

    Empty for a notification, which has no answer.
    """
    for entry in message if isinstance(message, list) else [message]:
        if is_stateless(entry):
            if not isinstance(entry, wire.Request):
                return b""
            requested = entry.params["_meta"][PROTOCOL_VERSION]  # type: ignore[call-overload, index]
            return wire.encode_error(
                entry.id,
                UNSUPPORTED_REVISION,
                "This transport requires initialize. Use /mcp for revisions without a handshake.",
                {"supported": list(HANDSHAKES), "requested": requested},
            )
    return None
