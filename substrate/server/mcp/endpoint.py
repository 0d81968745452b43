"""`/mcp`: Streamable HTTP, for clients with and without a handshake.

A message that names a revision without a handshake, in itself or in its header, is handled without
state. Every other message needs a session, which `initialize` creates, except `ping` and native
methods of the hub.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, NamedTuple

from starlette.types import Receive, Scope, Send

from mcp_view import headers as routing
from mcp_view.calls.resumed import ResumedCall
from mcp_view.errors import NOT_INITIALIZED
from mcp_view.protocol import McpConnection
from mcp_view.revisions import HANDSHAKES
from mcp_view.server import McpServer
from mcp_view.session import Session, is_stateless
from native_rpc.framing import MESSAGES
from native_rpc.protocol import NativeConnection
from plexus.errors import Busy, Failed, InvalidParams, NotFound, UnknownMethod
from plexus.principal import Principal
from plexus.rpc import wire
from plexus.rpc.effects import WatchChanges
from plexus.runtime.run import Run
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
    send_response,
    send_too_big,
    send_wrong_method,
)
from substrate.server.mcp.responder import (
    TOOLS_HEADER,
    MessageOrBatch,
    PostedMessage,
    RemainingWork,
    Responder,
    chosen_tools,
    http_status,
)
from substrate.server.mcp.sessions import HttpSession, Sessions
from substrate.server.mcp.streams import EventLog, ResumePoint
from substrate.server.peers import Peer
from substrate.server.shutdown import OpenStreams
from substrate.server.sse import EVENT_STREAM

__all__ = ("McpEndpoint", "StartedCall")

SESSION_ID: Final = b"mcp-session-id"
#: The error number of an unknown session, in addition to status 404.
NO_SESSION: Final = -32001
#: Seconds after which to retry if there are too many sessions.
RETRY_S: Final = b"10"

#: How long and how often to look for a run of another server, which records it shortly after its
#: start.
RECORDED_S: Final = 1.0
RECHECK_S: Final = 0.05
RUN_LOST: Final = "The run of this request is unknown: its server has ended. Repeat the request."

#: Requests that change a setting of their session.
SETTERS: Final = frozenset({"logging/setLevel", "resources/subscribe", "resources/unsubscribe"})
LISTEN: Final = "subscriptions/listen"
_HANDSHAKES: Final = frozenset(name.encode() for name in HANDSHAKES)

#: The handling of a request. Its result is the remaining work, such as writing a stream.
ResponseCoroutine = Coroutine[Any, Any, RemainingWork]


class StartedCall(NamedTuple):
    """A posted request that was started."""

    view: McpConnection
    post: PostedMessage
    connection: Connection


class McpEndpoint:
    """The endpoint `/mcp`."""

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
        #: Answers what was started.
        self.responder = Responder(server, open_streams, credentials)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one HTTP request."""
        verb = scope["method"]
        try:
            if verb == "POST":
                response = await self._post(scope, receive, send)
            elif verb == "GET":
                response = await self._get(headers_of(scope), scope["credential"], receive, send)
            elif verb == "DELETE":
                response = await self._delete(headers_of(scope), scope["principal"], send)
            else:
                response = send_wrong_method(send, "GET", "POST", "DELETE")
            remaining = await response
        except (Busy, Failed) as error:
            # Of the database that stores sessions, before any part of the response was sent.
            retry = [(b"retry-after", RETRY_S)]
            response = remaining = send_json(send, 503, {"error": error.message}, retry)
        if remaining is not None:
            # A stream may stay open for hours, and the request that opened it must not.
            del scope, response
            await remaining

    def start(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> StartedCall | None:
        """Start a posted request; None, and nothing has happened, if it has to wait or is unusual.

        Anything but a request in a session of this server, or of a client without a handshake, is
        unusual. The sessions must not be stored.
        """
        headers = headers_of(scope)
        accept = parse_accept(headers.get(b"accept"))
        chooses = TOOLS_HEADER in headers or scope["query_string"]
        if chooses or len(body) > self._limits.message_bytes or not (accept.json or accept.stream):
            return None
        message = wire.decode(body, self._limits)
        if message.__class__ is not wire.Request or message.method in (LISTEN, "initialize"):
            return None
        credential: Credential = scope["credential"]
        stateless = _is_stateless(message, headers)
        if stateless:
            session, state = None, Session()
            if routing.check(self._server, message, scope["headers"]) is not None:
                return None
        else:
            session = self._sessions.find(headers.get(SESSION_ID, b""), credential.principal)
            if session is None:
                return None
            state = session.state
        post = PostedMessage(message, accept, receive, send, credential, session)
        view = self._view(state, post, streaming=accept.stream, stateless=stateless)
        return StartedCall(view, post, self.responder.start(view, post))

    # --- messages -----------------------------------------------------------------------------

    async def _post(self, scope: Scope, receive: Receive, send: Send) -> ResponseCoroutine:
        headers = headers_of(scope)
        accept = parse_accept(headers.get(b"accept"))
        if not accept.json and not accept.stream:
            error = "Accept application/json or text/event-stream."
            return send_json(send, 406, {"error": error})
        limit = self._limits.message_bytes
        try:
            body = await read_body(scope, receive, limit)
        except BodyTooBig:
            return send_too_big(send, limit)
        message = wire.decode(body, self._limits)
        if isinstance(message, wire.Invalid):
            return _refuse(send, 400, message.id, message.code, message.message, message.data)
        try:
            tools = chosen_tools(scope)
        except ValueError as error:
            request_id = message.id if isinstance(message, wire.Request) else None
            return _refuse(send, 400, request_id, wire.INVALID_PARAMS, str(error))
        post = PostedMessage(message, accept, receive, send, scope["credential"], tools=tools)
        if _is_stateless(message, headers):
            return self._answer_stateless(post, scope)
        session_id = headers.get(SESSION_ID)
        if session_id is None:
            return self._answer_without_session(post)
        sets = _changes_settings(message)
        session = await self._sessions.lookup(session_id, post.principal, sets=sets)
        if session is None:
            return _refuse_unknown(send, message)
        return await self._answer_in_session(post._replace(session=session), session)

    def _answer_stateless(self, post: PostedMessage, scope: Scope) -> ResponseCoroutine:
        message, accept, _, send, *_ = post
        if not isinstance(message, wire.Request):
            if isinstance(message, wire.Notification):
                return self._accept_notification(message, post)
            reason = "Without a handshake, each body must be a single request."
            return _refuse(send, 400, None, wire.INVALID_REQUEST, reason)
        mismatch = routing.check(self._server, message, scope["headers"])
        if mismatch is not None:
            return send_bytes(send, 400, mismatch)
        streaming = accept.stream
        if message.method == LISTEN and not streaming:
            if not accept.anything:
                return send_json(send, 406, {"error": "Accept text/event-stream to listen."})
            streaming = True
        view = self._view(Session(post.tools), post, streaming=streaming, stateless=True)
        return self.responder.respond(view, post)

    async def _answer_in_session(
        self, post: PostedMessage, session: HttpSession
    ) -> ResponseCoroutine:
        message, accept, _, send, *_ = post
        if isinstance(message, wire.Notification) and self._is_native(message):
            return self._accept_notification(message, post)
        if message.__class__ is not wire.Request and await _deliver(message, session):
            if session.needs_save:
                await session.save()
            return send_empty(send, 202)
        view = self._view(session.state, post, streaming=accept.stream)
        return self.responder.respond(view, post)

    def _answer_without_session(self, post: PostedMessage) -> ResponseCoroutine:
        message, accept, _, send, *_ = post
        if isinstance(message, wire.Request) and message.method == "initialize":
            return self._initialize(post)
        if not isinstance(message, list):
            native = self._is_native(message)
            if native and isinstance(message, wire.Notification):
                return self._accept_notification(message, post)
            ping = isinstance(message, wire.Request) and message.method == "ping"
            if not native and not ping:
                request_id = message.id if isinstance(message, wire.Request) else None
                return _refuse(send, 400, request_id, NOT_INITIALIZED, "Server not initialized")
        view = self._view(Session(post.tools), post, streaming=accept.stream)
        return self.responder.respond(view, post)

    async def _initialize(self, post: PostedMessage) -> None:
        """Create a session, if `initialize` succeeds."""
        state = Session(post.tools)
        view = self._view(state, post, streaming=False)
        connection = Connection(self._hub, view, post.principal)
        connection.receive(post.message)
        answer = connection.collect()
        if state.caller is None:
            assert view.refusal is not None, "initialize succeeds or is refused"
            await send_bytes(post.send, http_status(view.refusal.code), answer[0])
            return
        try:
            session = await self._sessions.begin(state, post.principal)
        except InvalidParams as error:
            request_id = post.message.id if isinstance(post.message, wire.Request) else None
            await _refuse(
                post.send, 400, request_id, wire.INVALID_PARAMS, error.message, error.data
            )
            return
        if session is None:
            reason = (
                "All MCP sessions available to you are in use. End one with DELETE /mcp, or try "
                "again later."
            )
            await send_json(post.send, 503, {"error": reason}, [(b"retry-after", RETRY_S)])
            return
        created = post._replace(session=session)
        named = [(SESSION_ID, session.id)]
        await send_response(post.send, self.responder.complete(view, created, answer, extra=named))

    async def _accept_notification(self, message: wire.Notification, post: PostedMessage) -> None:
        """Handle a notification that concerns no request in progress."""
        view = self._view(Session(post.tools), post, streaming=False)
        connection = Connection(self._hub, view, post.principal)
        connection.receive(message)
        connection.lost()
        await send_empty(post.send, 202)

    def _view(
        self, state: Session, post: PostedMessage, *, streaming: bool, stateless: bool = False
    ) -> McpConnection:
        """Return a view for a single message."""
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
        """Whether a message calls a native method of the hub."""
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

    # --- streams ------------------------------------------------------------------------------

    async def _get(
        self, headers: dict[bytes, bytes], credential: Credential, receive: Receive, send: Send
    ) -> ResponseCoroutine:
        session_id = headers.get(SESSION_ID)
        if session_id is None or _names_stateless(headers):
            # Not 401, which a client could take as a request to authenticate.
            return send_wrong_method(send, "POST")
        session = await self._sessions.lookup(session_id, credential.principal)
        if session is None:
            return _refuse_unknown(send, None)
        accept = parse_accept(headers.get(b"accept"))
        if not accept.stream and not accept.anything:
            return send_json(send, 406, {"error": "Accept text/event-stream."})
        event_id = headers.get(b"last-event-id")
        found = None if event_id is None else session.find_stream(event_id)
        point = None if found is not None or event_id is None else session.resume_point(event_id)
        if point is not None:
            return await self._resume(session, point, credential, receive, send)
        if found is None:
            # Some clients reconnect for events that they have already received. They get a stream,
            # but do not replace the reader of the standalone stream.
            receives_changes = event_id is None or not session.has_standalone_reader
            return self._listen(
                session, credential, receive, send, receives_changes=receives_changes
            )
        stream, after = found
        if isinstance(stream, EventLog):
            body = stream.opening(after) + stream.after(after)
            return send_bytes(send, 200, body, EVENT_STREAM)
        peer = Peer(receive, stream.connection, self._credentials, credential, resumable=True)
        session.attach(stream, peer)
        chunk = stream.log.opening(after) + stream.log.after(after)
        return self.responder.stream(session, stream, peer, send, chunk)

    async def _resume(
        self,
        session: HttpSession,
        point: ResumePoint,
        credential: Credential,
        receive: Receive,
        send: Send,
    ) -> ResponseCoroutine:
        """Continue the stream of another server by reading its run, or answer with an error."""
        hub, principal = self._hub, credential.principal
        run = await self._fetch(point.run, principal)
        if run is None:
            error = wire.encode_error(point.request_id, wire.INTERNAL_ERROR, RUN_LOST)
            return send_bytes(send, 200, session.complete_stream([error]), EVENT_STREAM)
        await session.take_over(point)
        view = McpConnection(
            self._server, session.state, principal=principal, change_notifications=False
        )
        connection = Connection(hub, view, principal)
        call = ResumedCall(view.peer, point.request_id, session.caller, point.seen, point.token)
        view.adopt(call)
        connection.attach(call, run, 0, owner=hub.may_control(run, principal))
        connection.perform(view.on_started(call, run))
        peer = Peer(receive, connection, self._credentials, credential, resumable=True)
        stream = session.open_stream(connection, view, peer)
        stream.request_ids = point.request_id
        return self.responder.stream(session, stream, peer, send, stream.opening())

    async def _fetch(self, run_id: int, principal: Principal) -> Run | None:
        """Return a run that this server can continue; None if there is none.

        A run that has just started may not be recorded yet.
        """
        try:
            async with asyncio.timeout(RECORDED_S):
                while True:
                    try:
                        run = await self._hub.runs.fetch(run_id, principal)
                    except NotFound:
                        await asyncio.sleep(RECHECK_S)
                    else:
                        self._hub.resolve(run.method)
                        return run
        except (TimeoutError, UnknownMethod):
            return None

    def _listen(
        self,
        session: HttpSession,
        credential: Credential,
        receive: Receive,
        send: Send,
        *,
        receives_changes: bool,
    ) -> ResponseCoroutine:
        """Open the standalone stream of a session, or a stream without events."""
        principal = credential.principal
        view = McpConnection(
            self._server, session.state, principal=principal, change_notifications=receives_changes
        )
        connection = Connection(self._hub, view, principal)
        peer = Peer(receive, connection, self._credentials, credential, resumable=True)
        if receives_changes:
            connection.perform([WatchChanges()])
            stream = session.open_standalone(connection, view, peer)
        else:
            stream = session.open_stream(connection, view, peer, standalone=True)
        return self.responder.stream(session, stream, peer, send, stream.opening())

    async def _delete(
        self, headers: dict[bytes, bytes], principal: Principal, send: Send
    ) -> ResponseCoroutine:
        if _names_stateless(headers):
            return send_wrong_method(send, "POST")
        session_id = headers.get(SESSION_ID)
        if session_id is None:
            return _refuse(
                send, 400, None, wire.INVALID_REQUEST, "DELETE requires the header Mcp-Session-Id."
            )
        session = await self._sessions.lookup(session_id, principal)
        if session is None:
            return _refuse_unknown(send, None)
        await self._sessions.end(session)
        return send_empty(send, 204)


def _is_stateless(message: MessageOrBatch, headers: dict[bytes, bytes]) -> bool:
    """Whether a message belongs to a revision without a handshake."""
    named = _names_stateless(headers)
    if isinstance(message, list):
        return named or any(map(is_stateless, message))
    if message.__class__ is wire.Request and message.method == "initialize":
        # It is a handshake, unless both its header and its `_meta` name a revision without one.
        return named and is_stateless(message._replace(method=""))
    return named or is_stateless(message)


def _changes_settings(message: MessageOrBatch) -> bool:
    """Whether a message changes what is stored of its session."""
    entries = message if isinstance(message, list) else [message]
    return any(isinstance(entry, wire.Request) and entry.method in SETTERS for entry in entries)


async def _deliver(message: MessageOrBatch, session: HttpSession) -> bool:
    """Deliver notifications and responses to the session. Returns whether nothing else remains.

    This includes those in a batch, if the revision has batches.
    """
    if isinstance(message, list) and not session.revision.batches:
        return False
    entries = message if isinstance(message, list) else [message]
    delivered = [entry for entry in entries if isinstance(entry, wire.Notification | wire.Response)]
    for each in delivered:
        await session.deliver(each)
    return len(delivered) == len(entries)


def _refuse(
    send: Send, status: int, request_id: wire.Id, code: int, message: str, data: object = None
) -> ResponseCoroutine:
    return send_bytes(send, status, wire.encode_error(request_id, code, message, data))


def _refuse_unknown(send: Send, message: MessageOrBatch | None) -> ResponseCoroutine:
    request_id = message.id if isinstance(message, wire.Request) else None
    return _refuse(send, 404, request_id, NO_SESSION, "Session not found")


def _names_stateless(headers: dict[bytes, bytes]) -> bool:
    """Whether the header names a revision without a handshake, known or unknown."""
    version = headers.get(b"mcp-protocol-version")
    return version is not None and version not in _HANDSHAKES
