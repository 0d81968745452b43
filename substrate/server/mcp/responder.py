"""The answer to a message that was posted: one JSON text, or a stream of events.

Most calls are short. So every answer is waited for, for a moment: what is complete by then goes
out in one piece, and only what takes longer becomes a stream, with its first bytes at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, NamedTuple

from starlette.types import Receive, Send

from mcp_view.errors import (
    DENIED,
    HEADER_MISMATCH,
    MISSING_CAPABILITY,
    UNSUPPORTED_REVISION,
    ProtocolError,
)
from mcp_view.protocol import McpConnection
from mcp_view.server import McpServer
from plexus.principal import Principal
from plexus.rpc import wire
from substrate.driver import Connection
from substrate.security.authentication import Credential
from substrate.security.credential_watch import CredentialWatch
from substrate.server.asgi import Accept, Headers, send_bytes, send_empty
from substrate.server.limits import ServerLimits
from substrate.server.mcp.sessions import HttpSession
from substrate.server.mcp.streams import Events, EventWriter, SessionEvents, unnumbered
from substrate.server.peers import Peer
from substrate.server.shutdown import OpenStreams
from substrate.server.sse import EVENT_STREAM

__all__ = ("STATUSES", "Answers", "Post", "Posted", "Rest", "http_status", "missing_scope")

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
#: How long an answer that is to be a stream may take to come in one piece.
MOMENT_S: Final = 0.005

Posted = wire.Message | list[wire.Message]
#: What is left to do when the message itself is of no more use: streams wait long, and should
#: hold nothing but what they need.
Rest = Coroutine[Any, Any, None] | None


class Post(NamedTuple):
    """A message that was posted, and who waits for its answer."""

    message: Posted
    accept: Accept
    receive: Receive
    send: Send
    credential: Credential
    session: HttpSession | None = None

    @property
    def principal(self) -> Principal:
        """Who posted it."""
        return self.credential.principal


class Answers:
    """Answers messages, each with a view of its own."""

    def __init__(
        self, server: McpServer, open_streams: OpenStreams, credentials: CredentialWatch
    ) -> None:
        self._server = server
        self._hub = server.hub
        self._credentials = credentials
        self._writer = EventWriter(ServerLimits.of(server.hub.limits), open_streams)

    async def give(self, view: McpConnection, post: Post) -> Rest:
        """Have the view answer this message."""
        session = post.session
        connection = Connection(self._hub, view, post.principal)
        connection.receive(post.message)
        if not view.idle:
            if session is not None:
                session.live[connection] = view
            await asyncio.sleep(0)  # a run that does not wait has ended after that
        messages = connection.collect()
        if view.streaming and not messages and not view.idle:
            messages = await _wait_a_moment(view, connection)
        if view.idle:
            if session is not None:
                session.live.pop(connection, None)
            await self.send_whole(view, post, messages)
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
            events = Events(connection, view)
            chunk = events.opening() + (events.frame(messages) if messages else b"")
            return self._stream_once(events, peer, post.send, chunk)
        stream = session.open(connection, view, peer)
        stream.asked = _ids_of(post.message)
        chunk = stream.opening() + (stream.frame(messages) if messages else b"")
        return self.stream(session, stream, peer, post.send, chunk)

    async def _stream_once(self, events: Events, peer: Peer, send: Send, chunk: bytes) -> None:
        """Write a stream that nobody can come back to: it is lost with its peer."""
        async with peer:
            await self._writer.write(events, peer, send, chunk)

    async def stream(
        self, session: HttpSession, stream: SessionEvents, peer: Peer, send: Send, chunk: bytes
    ) -> None:
        """Write a stream of a session for this peer; what it does not take is kept."""
        # Only where clients know how to come back, and only what they wait for the end of.
        ends = session.revision.priming and not stream.standing
        for_s = self._server.options.stream_s if ends else None
        try:
            await self._writer.write(stream, peer, send, chunk, for_s)
        finally:
            session.leave(stream, peer)

    async def _send_later(
        self, view: McpConnection, post: Post, connection: Connection, messages: list[bytes]
    ) -> None:
        """One answer for a client that takes no stream. It cannot come back for it either, so
        hanging up ends what it waited for."""
        async with Peer(post.receive, connection, self._credentials, post.credential) as peer:
            peer.watch()
            try:
                while not view.idle and not peer.gone:
                    await connection.ready()
                    messages += connection.collect()
            finally:
                if post.session is not None:
                    post.session.live.pop(connection, None)
            if peer.gone:
                return
            if connection.revoked is None:
                await self.send_whole(view, post, messages)
            else:
                await send_bytes(post.send, 401, messages[-1] if messages else b"")

    async def send_whole(
        self,
        view: McpConnection,
        post: Post,
        messages: list[bytes],
        extra: Headers | None = None,
    ) -> None:
        """Everything there is to say, in one piece."""
        message, accept, _, send, credential, session = post
        if not messages:
            await send_empty(send, 202)  # what was asked for was cancelled meanwhile
            return
        refusal = view.refusal
        status = 200 if refusal is None else _status(refusal.code, message, session)
        if refusal is not None and isinstance(message, wire.Request):
            challenge = credential.step_up(missing_scope(refusal))
            if challenge is not None:
                status, extra = 403, challenge
        if len(messages) == 1 and (
            status != 200 or (accept.json and not (accept.stream and _has_token(message)))
        ):
            await send_bytes(send, status, messages[0], extra=extra)
            return
        events = unnumbered(messages) if session is None else session.whole(messages)
        await send_bytes(send, 200, events, EVENT_STREAM, extra)


def http_status(code: int) -> int:
    """Return the status of an answer with this error code."""
    return STATUSES.get(code, 200)


def missing_scope(error: ProtocolError | None) -> str | None:
    """Return the scope that a request was denied for; None if it was not."""
    if error is None or error.code != DENIED or not isinstance(error.data, dict):
        return None
    scope: str | None = error.data.get("scope")
    return scope


async def _wait_a_moment(view: McpConnection, connection: Connection) -> list[bytes]:
    """The first messages, if they come soon."""
    loop = asyncio.get_running_loop()
    end = loop.time() + MOMENT_S
    while (left_s := end - loop.time()) > 0:
        await connection.ready(left_s)
        messages = connection.collect()
        if messages or view.idle:
            return messages
    return []


def _status(code: int, message: Posted, session: HttpSession | None) -> int:
    """Return the HTTP status of an answer with this error. With a session only refusing the
    message as such is a failed request: 404 would mean that the session is gone."""
    status = http_status(code)
    if session is None or status == 200:
        return status
    if isinstance(message, list):
        return 200 if session.revision.batches else 400
    return 400 if isinstance(message, wire.Request) and message.method == "initialize" else 200


def _has_token(message: Posted) -> bool:
    """Whether the client wants to be told of progress: then it expects a stream."""
    if not isinstance(message, wire.Request) or not isinstance(message.params, dict):
        return False
    meta = message.params.get("_meta")
    return isinstance(meta, dict) and "progressToken" in meta


def _ids_of(message: Posted) -> wire.Id | list[wire.Id]:
    if isinstance(message, list):
        return [entry.id for entry in message if isinstance(entry, wire.Request)]
    return message.id if isinstance(message, wire.Request) else None
