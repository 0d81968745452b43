"""The old pair of routes: `GET /sse` is the stream, and `POST /messages` is where to post.

The first event of the stream says where. Everything comes as an event there, also the answers to
what was posted; losing the stream is losing the connection. Only revisions with a handshake are
spoken here: a request without one is accepted, and its error comes on the stream. Clients that
probe for the newest revision wait for that, and give up at a failed POST.
"""

from __future__ import annotations

import os
from typing import Final, NamedTuple
from urllib.parse import parse_qs

from starlette.types import Receive, Scope, Send

from mcp_view.errors import UNSUPPORTED_REVISION
from mcp_view.protocol import McpConnection
from mcp_view.revisions import HANDSHAKES
from mcp_view.server import McpServer
from mcp_view.session import PROTOCOL_VERSION, Session, is_stateless
from native_rpc.framing import MESSAGES
from native_rpc.protocol import NativeConnection
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
from substrate.server.mcp.streams import Events, EventWriter
from substrate.server.peers import Peer
from substrate.server.shutdown import OpenStreams

__all__ = ("PairMessages", "PairStream")

#: How much may wait to be written before no more messages are taken.
UNSENT_BYTES: Final = 1024 * 1024


class Opened(NamedTuple):
    """A stream that is open, and whose it is."""

    connection: Connection
    principal: Principal

    def belongs_to(self, principal: Principal) -> bool:
        """Whether this one may post to it: what is posted is done with the scopes of the
        credential that opened the stream, so it must have them too."""
        return principal.covers(self.principal) and self.connection.revoked is None


class NamedEvents(Events):
    """Events as the pair has them: each says that it is a message. The stream stays open."""

    __slots__ = ("_endpoint",)

    def __init__(self, connection: Connection, view: McpConnection, endpoint: bytes) -> None:
        super().__init__(connection, view)
        self._endpoint = endpoint

    def opening(self) -> bytes:
        """The first bytes of the stream: where to post."""
        return b"event: endpoint\ndata: %b\n\n" % self._endpoint

    def frame(self, messages: list[bytes]) -> bytes:
        """These messages as the next events."""
        return b"".join([b"event: message\ndata: %b\n\n" % message for message in messages])

    @property
    def over(self) -> bool:
        """Whether no more will come."""
        return self.connection.finished


class PairStream:
    """`GET /sse`."""

    def __init__(
        self, server: McpServer, open_streams: OpenStreams, credentials: CredentialWatch
    ) -> None:
        self._server = server
        self._credentials = credentials
        self._writer = EventWriter(ServerLimits.of(server.hub.limits), open_streams)
        #: What is open, by the names that clients post with.
        self.opened: dict[bytes, Opened] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one client until it is gone."""
        if scope["method"] != "GET":
            await send_wrong_method(send, "GET")
            return
        accept = parse_accept(headers_of(scope).get(b"accept"))
        if not accept.stream and not accept.anything:
            await send_json(send, 406, {"error": "accept text/event-stream"})
            return
        hub = self._server.hub
        native = NativeConnection(MESSAGES, hub.limits, hub.new_id)
        credential: Credential = scope["credential"]
        principal = credential.principal
        view = McpConnection(self._server, Session(), principal=principal, fallback=native)
        connection = Connection(hub, view, principal)
        name = os.urandom(16).hex().encode()
        events = NamedEvents(connection, view, b"/messages?session_id=" + name)
        self.opened[name] = Opened(connection, principal)
        async with Peer(receive, connection, self._credentials, credential) as peer:
            try:
                await self._writer.write(events, peer, send, events.opening())
            finally:
                del self.opened[name]


class PairMessages:
    """`POST /messages?session_id=...`."""

    def __init__(self, server: McpServer, stream: PairStream) -> None:
        self._limits = server.hub.limits
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Take one message; its answer comes in the stream."""
        if scope["method"] != "POST":
            await send_wrong_method(send, "POST")
            return
        limit = self._limits.message_bytes
        try:
            body = await read_body(scope, receive, limit)
        except BodyTooBig:
            await send_too_big(send, limit)
            return
        # As text, because bytes that are not ASCII cannot be parsed.
        query = parse_qs(scope["query_string"].decode("latin-1"))
        name = query.get("session_id", [""])[-1].encode()
        opened = self._stream.opened.get(name)
        if opened is None or not opened.belongs_to(scope["principal"]):
            await send_json(send, 404, {"error": "there is no such session"})
            return
        connection = opened.connection
        message = wire.decode(body, self._limits)
        if isinstance(message, wire.Invalid):
            error = wire.encode_error(message.id, message.code, message.message, message.data)
            await send_bytes(send, 400, error)
        elif connection.unsent > UNSENT_BYTES:
            await send_json(send, 503, {"error": "read the stream first"}, [(b"retry-after", b"1")])
        else:
            refused = _without_handshake(message)
            if refused is None:
                connection.receive(message)
            elif refused:
                connection.perform([effects.Send([refused])])
            await send_bytes(send, 202, b"Accepted", b"text/plain")


def _without_handshake(message: wire.Message | list[wire.Message]) -> bytes | None:
    """Return the error for what names a revision without a handshake; None for everything else.

    It is empty for a notification, which wants no answer.
    """
    for entry in message if isinstance(message, list) else [message]:
        if is_stateless(entry):
            if not isinstance(entry, wire.Request):
                return b""
            requested = entry.params["_meta"][PROTOCOL_VERSION]  # type: ignore[call-overload, index]
            return wire.encode_error(
                entry.id,
                UNSUPPORTED_REVISION,
                "this transport needs initialize; /mcp serves revisions without a handshake",
                {"supported": list(HANDSHAKES), "requested": requested},
            )
    return None
