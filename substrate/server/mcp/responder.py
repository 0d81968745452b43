"""The HTTP response to a posted message: JSON, or a stream of events.

Most calls are short, so the responder waits briefly for the answer. A complete answer is sent in
one response; otherwise the response is a stream that starts immediately.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs

from starlette.types import Receive, Scope, Send

from mcp_view.errors import (
    DENIED,
    HEADER_MISMATCH,
    MISSING_CAPABILITY,
    UNSUPPORTED_REVISION,
    ProtocolError,
)
from mcp_view.protocol import McpConnection
from mcp_view.server import McpServer
from mcp_view.tool_sets import ToolSet
from plexus.errors import PlexusError
from plexus.principal import Principal
from plexus.rpc import wire
from substrate.driver import Connection
from substrate.security.authentication import Credential
from substrate.security.credential_watch import CredentialWatch
from substrate.server.asgi import (
    Accept,
    Headers,
    Response,
    empty_response,
    header,
    response_of,
    send_bytes,
    send_response,
)
from substrate.server.limits import ServerLimits
from substrate.server.mcp.sessions import HttpSession
from substrate.server.mcp.streams import PlainStream, SessionStream, encode_events
from substrate.server.peers import Peer
from substrate.server.shutdown import OpenStreams
from substrate.server.sse import EVENT_STREAM, EventWriter

__all__ = (
    "STATUSES",
    "TOOLS_HEADER",
    "MessageOrBatch",
    "PostedMessage",
    "RemainingWork",
    "Responder",
    "chosen_tools",
    "http_status",
    "missing_scope",
)

#: The HTTP status of an error code without a session; with a session, see `_status`. A code without
#: a row is answered with 200, as JSON-RPC has it.
STATUSES: Final[dict[int, int]] = {
    wire.PARSE_ERROR: 400,
    wire.INVALID_REQUEST: 400,
    wire.INVALID_PARAMS: 400,
    wire.METHOD_NOT_FOUND: 404,
    DENIED: 403,
    HEADER_MISMATCH: 400,
    MISSING_CAPABILITY: 400,
    UNSUPPORTED_REVISION: 400,
}
#: How long to wait for a complete answer before starting a stream.
IMMEDIATE_S: Final = 0.005

MessageOrBatch = wire.Message | list[wire.Message]
#: The remaining work after a message was handled. A long-lived stream should not keep the message
#: in memory.
RemainingWork = Coroutine[Any, Any, None] | None


#: The header with which a client chooses its tool set, and how much of it is read.
TOOLS_HEADER: Final = b"x-substrate-tools"
TOOLS_CHARS: Final = 4096


class PostedMessage(NamedTuple):
    """A posted message with its request context."""

    message: MessageOrBatch
    accept: Accept
    receive: Receive
    send: Send
    credential: Credential
    session: HttpSession | None = None
    #: The tools that the client chose to see; None for the choice of the server.
    tools: ToolSet | None = None

    @property
    def principal(self) -> Principal:
        """The principal of the request."""
        return self.credential.principal


def chosen_tools(scope: Scope) -> ToolSet | None:
    """Return the tool set that a client chose with `?tools=` or the header; None without a choice.

    Raises ValueError for an invalid pattern.
    """
    text = header(scope, TOOLS_HEADER)
    query_string: bytes = scope.get("query_string", b"")
    if b"tools=" in query_string:
        # As text, because bytes that are not ASCII cannot be parsed.
        query = parse_qs(query_string.decode("latin-1"))
        text = ",".join(query.get("tools", [])).encode("latin-1") or text
    return _tool_set(text) if text else None


@lru_cache(maxsize=256)
def _tool_set(text: bytes) -> ToolSet:
    return ToolSet.parse(text[:TOOLS_CHARS].decode("latin-1"))


class Responder:
    """Answers posted messages, each with a separate view."""

    def __init__(
        self, server: McpServer, open_streams: OpenStreams, credentials: CredentialWatch
    ) -> None:
        self._server = server
        self._hub = server.hub
        self._credentials = credentials
        self._writer = EventWriter(ServerLimits.of(server.hub.limits), open_streams)

    async def respond(self, view: McpConnection, post: PostedMessage) -> RemainingWork:
        """Answer a message with this view. Returns the remaining work, such as a stream."""
        connection = self.start(view, post)
        if post.session is not None and post.session.needs_save:
            await _save(post.session, connection)
        if not view.idle:
            await asyncio.sleep(0)  # runs that do not suspend end here
        return await self.answer(view, post, connection, connection.collect())

    def start(self, view: McpConnection, post: PostedMessage) -> Connection:
        """Start what a message requests."""
        connection = Connection(self._hub, view, post.principal)
        connection.receive(post.message)
        if post.session is not None and not view.idle:
            post.session.connections[connection] = view
        return connection

    async def answer(
        self,
        view: McpConnection,
        post: PostedMessage,
        connection: Connection,
        messages: list[bytes],
    ) -> RemainingWork:
        """Answer a message that was started, beginning with what was collected of its answer."""
        session = post.session
        if view.streaming and not messages and not view.idle:
            messages = await _wait_briefly(view, connection)
        if view.idle:
            await send_response(post.send, self.complete(view, post, messages, connection))
            return None
        if not view.streaming:
            return self._send_later(view, post, connection, messages)
        peer = Peer(
            post.receive,
            connection,
            self._credentials,
            post.credential,
            resumable=session is not None,
        )
        if session is None:
            events = PlainStream(connection, view)
            chunk = events.opening() + (events.frame(messages) if messages else b"")
            return self._stream_without_replay(events, peer, post.send, chunk)
        stream = session.open_stream(connection, view, peer)
        stream.request_ids = _request_ids(post.message)
        chunk = stream.opening() + (stream.frame(messages) if messages else b"")
        return self.stream(session, stream, peer, post.send, chunk)

    async def _stream_without_replay(
        self, events: PlainStream, peer: Peer, send: Send, chunk: bytes
    ) -> None:
        """Write a stream that cannot be resumed."""
        async with peer:
            await self._writer.write(events, peer, send, chunk)

    def stream(
        self, session: HttpSession, stream: SessionStream, peer: Peer, send: Send, chunk: bytes
    ) -> Coroutine[Any, Any, None]:
        """Write a stream of a session. Events that the peer does not receive can be replayed."""
        # Only in revisions whose clients reconnect, and only response streams.
        ends = session.revision.priming and not stream.standalone
        for_s = self._server.options.stream_s if ends else None
        return self._writer.write(stream, peer, send, chunk, for_s)

    async def _send_later(
        self,
        view: McpConnection,
        post: PostedMessage,
        connection: Connection,
        messages: list[bytes],
    ) -> None:
        """Send one answer to a client that accepts no stream.

        The client cannot resume it, so a disconnect cancels the request.
        """
        async with Peer(post.receive, connection, self._credentials, post.credential) as peer:
            peer.watch()
            try:
                while not view.idle and not peer.gone:
                    await connection.ready()
                    messages += connection.collect()
            finally:
                if post.session is not None:
                    post.session.connections.pop(connection, None)
            if peer.gone:
                return
            if connection.revoked is None:
                await send_response(post.send, self.complete(view, post, messages))
            else:
                await send_bytes(post.send, 401, messages[-1] if messages else b"")

    def complete(
        self,
        view: McpConnection,
        post: PostedMessage,
        messages: list[bytes],
        connection: Connection | None = None,
        extra: Headers | None = None,
    ) -> Response:
        """Return the response for a complete answer. The session forgets its connection."""
        message, accept, _, _, credential, session, _ = post
        if session is not None and connection is not None:
            session.connections.pop(connection, None)
        if not messages:
            return empty_response(202)  # the request was cancelled
        refusal = view.refusal
        status = 200 if refusal is None else _status(refusal.code, message, session)
        if refusal is not None and isinstance(message, wire.Request):
            challenge = credential.step_up(missing_scope(refusal))
            if challenge is not None:
                status, extra = 403, challenge
        if len(messages) == 1 and (
            status != 200 or (accept.json and not (accept.stream and _requests_progress(message)))
        ):
            return response_of(status, messages[0], extra=extra)
        events = encode_events(messages) if session is None else session.complete_stream(messages)
        return response_of(200, events, EVENT_STREAM, extra)


def http_status(code: int) -> int:
    """Return the HTTP status for an error number."""
    return STATUSES.get(code, 200)


def missing_scope(error: ProtocolError | None) -> str | None:
    """Return the missing scope of a denied request; None if it was not denied."""
    if error is None or error.code != DENIED or not isinstance(error.data, dict):
        return None
    scope: str | None = error.data.get("scope")
    return scope


async def _save(session: HttpSession, connection: Connection) -> None:
    """Store what a message has changed. If that fails, nothing of the message stays in progress."""
    try:
        await session.save()
    except PlexusError:
        session.connections.pop(connection, None)
        connection.lost()
        raise


async def _wait_briefly(view: McpConnection, connection: Connection) -> list[bytes]:
    """Return the first messages if they arrive soon."""
    loop = asyncio.get_running_loop()
    end = loop.time() + IMMEDIATE_S
    while (left_s := end - loop.time()) > 0:
        await connection.ready(left_s)
        messages = connection.collect()
        if messages or view.idle:
            return messages
    return []


def _status(code: int, message: MessageOrBatch, session: HttpSession | None) -> int:
    """Return the HTTP status of an error answer.

    With a session, only the refusal of a whole message is a failed HTTP request: 404 would mean
    that the session does not exist.
    """
    status = http_status(code)
    if session is None or status == 200:
        return status
    if isinstance(message, list):
        return 200 if session.revision.batches else 400
    return 400 if isinstance(message, wire.Request) and message.method == "initialize" else 200


def _requests_progress(message: MessageOrBatch) -> bool:
    """Whether the client requests progress notifications and therefore expects a stream."""
    if not isinstance(message, wire.Request) or not isinstance(message.params, dict):
        return False
    meta = message.params.get("_meta")
    return isinstance(meta, dict) and "progressToken" in meta


def _request_ids(message: MessageOrBatch) -> wire.Id | list[wire.Id]:
    if isinstance(message, list):
        return [entry.id for entry in message if isinstance(entry, wire.Request)]
    return message.id if isinstance(message, wire.Request) else None
