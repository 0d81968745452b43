"""`/mcp`: Streamable HTTP, for clients with a handshake and for those without.

A message that says by itself, or by its header, that there was no handshake is answered by itself
and nothing of it is kept. Every other needs a session, which `initialize` begins, except `ping`
and the methods of the hub, which need none.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final

from starlette.types import Receive, Scope, Send

from mcp_view import headers as routing
from mcp_view.errors import NOT_INITIALIZED
from mcp_view.protocol import McpConnection
from mcp_view.revisions import HANDSHAKES
from mcp_view.server import McpServer
from mcp_view.session import Session, is_stateless
from native_rpc.framing import MESSAGES
from native_rpc.protocol import NativeConnection
from plexus.errors import UnknownMethod
from plexus.principal import Principal
from plexus.rpc import wire
from plexus.rpc.effects import WatchChanges
from substrate.driver import Connection
from substrate.security.authentication import Credential
from substrate.security.credential_watch import CredentialWatch
from substrate.server.asgi import (
    BodyTooBig,
    headers_of,
    parse_accept,
    read_body,
    send_bytes,
    send_empty,
    send_json,
    send_too_big,
    send_wrong_method,
)
from substrate.server.mcp.responder import Answers, Post, Posted, Rest, http_status
from substrate.server.mcp.sessions import HttpSession, Sessions
from substrate.server.mcp.streams import EventLog
from substrate.server.peers import Peer
from substrate.server.shutdown import OpenStreams
from substrate.server.sse import EVENT_STREAM

__all__ = ("McpEndpoint",)

SESSION_ID: Final = b"mcp-session-id"
#: What clients know an ended session by, beside the status.
NO_SESSION: Final = -32001
#: When to try again if there are too many sessions, in seconds.
RETRY_S: Final = b"10"

STREAMING: Final = "subscriptions/listen"
_HANDSHAKES: Final = frozenset(name.encode() for name in HANDSHAKES)

#: How a request is answered, which is still to be done; streams are what is left of it then.
Answering = Coroutine[Any, Any, Rest]


class McpEndpoint:
    """`/mcp`."""

    def __init__(
        self,
        server: McpServer,
        sessions: Sessions,
        open_streams: OpenStreams,
        credentials: CredentialWatch,
    ) -> None:
        self._server = server
        self._hub = server.hub
        self._limits = server.hub.limits
        self._sessions = sessions
        self._credentials = credentials
        self._answers = Answers(server, open_streams, credentials)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        verb = scope["method"]
        if verb == "POST":
            answering = await self._post(scope, receive, send)
        elif verb == "GET":
            answering = self._get(headers_of(scope), scope["credential"], receive, send)
        elif verb == "DELETE":
            answering = self._delete(headers_of(scope), scope["principal"], send)
        else:
            answering = send_wrong_method(send, "GET", "POST", "DELETE")
        rest = await answering
        if rest is not None:
            await rest

    # --- messages -----------------------------------------------------------------------------

    async def _post(self, scope: Scope, receive: Receive, send: Send) -> Answering:
        headers = headers_of(scope)
        accept = parse_accept(headers.get(b"accept"))
        if not accept.json and not accept.stream:
            error = "accept application/json or text/event-stream"
            return send_json(send, 406, {"error": error})
        limit = self._limits.message_bytes
        try:
            body = await read_body(scope, receive, limit)
        except BodyTooBig:
            return send_too_big(send, limit)
        message = wire.decode(body, self._limits)
        if isinstance(message, wire.Invalid):
            return _refuse(send, 400, message.id, message.code, message.message, message.data)
        post = Post(message, accept, receive, send, scope["credential"])
        if _is_stateless(message, headers):
            return self._answer_stateless(post, scope)
        session_id = headers.get(SESSION_ID)
        if session_id is None:
            return self._answer_without_session(post)
        session = self._sessions.find(session_id, post.principal)
        if session is None:
            return _refuse_unknown(send, message)
        return self._answer_in_session(post._replace(session=session), session)

    def _answer_stateless(self, post: Post, scope: Scope) -> Answering:
        message, accept, _, send, _, _ = post
        if not isinstance(message, wire.Request):
            if isinstance(message, wire.Notification):
                return self._note(message, post)
            reason = "without a handshake each body is one request"
            return _refuse(send, 400, None, wire.INVALID_REQUEST, reason)
        mismatch = routing.check(self._server, message, scope["headers"])
        if mismatch is not None:
            return send_bytes(send, 400, mismatch)
        streaming = accept.stream
        if message.method == STREAMING and not streaming:
            if not accept.anything:
                return send_json(send, 406, {"error": "accept text/event-stream to listen"})
            streaming = True
        view = self._view(Session(), post, streaming=streaming, stateless=True)
        return self._answers.give(view, post)

    def _answer_in_session(self, post: Post, session: HttpSession) -> Answering:
        message, accept, _, send, _, _ = post
        if isinstance(message, wire.Notification) and self._is_native(message):
            return self._note(message, post)
        if message.__class__ is not wire.Request and _deliver(message, session):
            return send_empty(send, 202)
        view = self._view(session.state, post, streaming=accept.stream)
        return self._answers.give(view, post)

    def _answer_without_session(self, post: Post) -> Answering:
        message, accept, _, send, _, _ = post
        if isinstance(message, wire.Request) and message.method == "initialize":
            return self._begin(post)
        if not isinstance(message, list):
            native = self._is_native(message)
            if native and isinstance(message, wire.Notification):
                return self._note(message, post)
            ping = isinstance(message, wire.Request) and message.method == "ping"
            if not native and not ping:
                request_id = message.id if isinstance(message, wire.Request) else None
                return _refuse(send, 400, request_id, NOT_INITIALIZED, "Server not initialized")
        view = self._view(Session(), post, streaming=accept.stream)
        return self._answers.give(view, post)

    async def _begin(self, post: Post) -> None:
        """Begin a session, if the handshake is a good one."""
        state = Session()
        view = self._view(state, post, streaming=False)
        connection = Connection(self._hub, view, post.principal)
        connection.receive(post.message)
        answer = connection.collect()
        if state.caller is None:
            assert view.refusal is not None, "a handshake succeeds or is refused"
            await send_bytes(post.send, http_status(view.refusal.code), answer[0])
            return
        session = self._sessions.begin(state, post.principal)
        if session is None:
            reason = (
                "All MCP sessions that you can have are in use. End one with DELETE /mcp, or try "
                "again later."
            )
            await send_json(post.send, 503, {"error": reason}, [(b"retry-after", RETRY_S)])
            return
        await self._answers.send_whole(
            view, post._replace(session=session), answer, [(SESSION_ID, session.id)]
        )

    async def _note(self, message: wire.Notification, post: Post) -> None:
        """A notification that nothing under way waits for."""
        view = self._view(Session(), post, streaming=False)
        connection = Connection(self._hub, view, post.principal)
        connection.receive(message)
        connection.lost()
        await send_empty(post.send, 202)

    def _view(
        self, state: Session, post: Post, *, streaming: bool, stateless: bool = False
    ) -> McpConnection:
        """A view for this message alone."""
        message = post.message
        native = None
        if not isinstance(message, list) and self._is_native(message):
            hub = self._hub
            native = NativeConnection(MESSAGES, hub.limits, hub.new_id, buffered=not streaming)
        return McpConnection(
            self._server,
            state,
            principal=post.principal,
            fallback=native,
            streaming=streaming,
            change_notifications=False,
            stateless=stateless,
        )

    def _is_native(self, message: wire.Message) -> bool:
        """Whether it names a method of the hub itself."""
        if not isinstance(message, wire.Request | wire.Notification):
            return False
        name = message.method
        if "/" in name or name in ("initialize", "ping"):
            return False
        try:
            self._hub.resolve(name)
        except UnknownMethod:
            return False
        return True

    # --- streams that are asked for -----------------------------------------------------------

    def _get(
        self, headers: dict[bytes, bytes], credential: Credential, receive: Receive, send: Send
    ) -> Answering:
        session_id = headers.get(SESSION_ID)
        if session_id is None or _names_stateless(headers):
            # Not 401, nor anything else that a client could take for an invitation.
            return send_wrong_method(send, "POST")
        session = self._sessions.find(session_id, credential.principal)
        if session is None:
            return _refuse_unknown(send, None)
        accept = parse_accept(headers.get(b"accept"))
        if not accept.stream and not accept.anything:
            return send_json(send, 406, {"error": "accept text/event-stream"})
        event_id = headers.get(b"last-event-id")
        found = None if event_id is None else session.find_stream(event_id)
        if found is None:
            # Some clients come back for what they have had already: they may wait here, but
            # not in place of whoever listens.
            takes_part = event_id is None or not session.is_listening
            return self._listen(session, credential, receive, send, takes_part=takes_part)
        stream, after = found
        if isinstance(stream, EventLog):
            body = stream.opening(after) + stream.after(after)
            return send_bytes(send, 200, body, EVENT_STREAM)
        peer = Peer(receive, stream.connection, self._credentials, credential, resumable=True)
        session.take_over(stream, peer)
        chunk = stream.log.opening(after) + stream.log.after(after)
        return self._answers.stream(session, stream, peer, send, chunk)

    def _listen(
        self,
        session: HttpSession,
        credential: Credential,
        receive: Receive,
        send: Send,
        *,
        takes_part: bool,
    ) -> Answering:
        """The standing stream of a session; or one that only stands there."""
        principal = credential.principal
        view = McpConnection(
            self._server, session.state, principal=principal, change_notifications=takes_part
        )
        connection = Connection(self._hub, view, principal)
        peer = Peer(receive, connection, self._credentials, credential, resumable=True)
        if takes_part:
            connection.perform([WatchChanges()])
            stream = session.open_standing(connection, view, peer)
        else:
            stream = session.open(connection, view, peer, standing=True)
        return self._answers.stream(session, stream, peer, send, stream.opening())

    def _delete(self, headers: dict[bytes, bytes], principal: Principal, send: Send) -> Answering:
        if _names_stateless(headers):
            return send_wrong_method(send, "POST")
        session_id = headers.get(SESSION_ID)
        if session_id is None:
            return _refuse(send, 400, None, wire.INVALID_REQUEST, "say which session is to end")
        session = self._sessions.find(session_id, principal)
        if session is None:
            return _refuse_unknown(send, None)
        self._sessions.end(session)
        return send_empty(send, 204)


def _is_stateless(message: Posted, headers: dict[bytes, bytes]) -> bool:
    """Whether there is no handshake behind this message."""
    named = _names_stateless(headers)
    if isinstance(message, list):
        return named or any(map(is_stateless, message))
    if message.__class__ is wire.Request and message.method == "initialize":
        # It is a handshake, unless everything about it says that it cannot be one.
        return named and is_stateless(message._replace(method=""))
    return named or is_stateless(message)


def _deliver(message: Posted, session: HttpSession) -> bool:
    """Deliver what is for others, of a batch too where there are batches; whether that was all."""
    if isinstance(message, list) and not session.revision.batches:
        return False
    entries = message if isinstance(message, list) else [message]
    notes = [entry for entry in entries if isinstance(entry, wire.Notification | wire.Response)]
    for note in notes:
        session.deliver(note)
    return len(notes) == len(entries)


def _refuse(
    send: Send, status: int, request_id: wire.Id, code: int, message: str, data: object = None
) -> Answering:
    return send_bytes(send, status, wire.encode_error(request_id, code, message, data))


def _refuse_unknown(send: Send, message: Posted | None) -> Answering:
    request_id = message.id if isinstance(message, wire.Request) else None
    return _refuse(send, 404, request_id, NO_SESSION, "Session not found")


def _names_stateless(headers: dict[bytes, bytes]) -> bool:
    """Whether the header names a revision, known or not, that has no handshake."""
    version = headers.get(b"mcp-protocol-version")
    return version is not None and version not in _HANDSHAKES
