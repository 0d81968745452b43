"""The native view over HTTP: one answer, or a stream of server-sent events.

`POST /rpc` answers once when the client accepts JSON, and streams when it accepts
`text/event-stream`; `GET /runs/{run}/events` is the stream of a run that exists. An event's id is
`run:seq`, and `Last-Event-ID` goes on exactly after it.
"""

from __future__ import annotations

from urllib.parse import parse_qs

from starlette.types import Receive, Scope, Send

from native_rpc.framing import EVENT_STREAM, MESSAGES
from native_rpc.protocol import NativeConnection
from plexus.errors import NotFound
from plexus.rpc import wire
from plexus.runtime.hub import Plexus
from plexus.runtime.run import Run
from substrate.driver import Connection
from substrate.security.authentication import Credential
from substrate.security.credential_watch import CredentialWatch
from substrate.server.asgi import (
    BodyTooBig,
    Headers,
    accept_of,
    header,
    headers_of,
    read_body,
    send_bytes,
    send_empty,
    send_json,
    send_too_big,
    send_wrong_method,
    whole_number,
)
from substrate.server.limits import ServerLimits
from substrate.server.peers import Peer
from substrate.server.sse import EVENT_STREAM as EVENT_STREAM_TYPE
from substrate.server.sse import write_events

__all__ = ("RpcEndpoint", "RunEvents")

#: Sent at once, so that proxies pass the headers on; it tells an EventSource that was cut off to
#: come back well before its run is given up.
GREETING = b"retry: 500\n\n"

Posted = wire.Message | list[wire.Message]


class RpcEndpoint:
    """`POST /rpc`."""

    def __init__(self, hub: Plexus, credentials: CredentialWatch) -> None:
        self._hub = hub
        self._credentials = credentials

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["method"] != "POST":
            await send_wrong_method(send, "POST")
            return
        # An empty header is no header.
        accept = accept_of(headers_of(scope).get(b"accept") or None)
        if not accept.json and not accept.stream:
            await send_json(send, 406, {"error": "accept application/json or text/event-stream"})
            return
        limits = self._hub.limits
        try:
            body = await read_body(scope, receive, limits.message_bytes)
        except BodyTooBig:
            await send_too_big(send, limits.message_bytes)
            return
        message = wire.decode(body, limits)
        if accept.stream and not isinstance(message, wire.Invalid):
            await self._stream(message, scope["credential"], receive, send)
        else:
            await self._once(message, scope["credential"], receive, send)

    async def _once(
        self, message: Posted, credential: Credential, receive: Receive, send: Send
    ) -> None:
        view = NativeConnection(MESSAGES, self._hub.limits, self._hub.new_id, buffered=True)
        connection = Connection(self._hub, view, credential.principal)
        async with Peer(receive, connection, self._credentials, credential) as peer:
            connection.receive(message)
            frames = connection.collect()
            while not view.idle and not peer.gone:
                peer.watch()
                await connection.ready()
                frames += connection.collect()
            frames += connection.collect()
            if peer.gone:
                return
            if connection.revoked is not None:
                await send_bytes(send, 401, frames[0] if frames else b"")
            elif frames:
                challenge = _challenge(message, view, credential)
                status = 400 if isinstance(message, wire.Invalid) else 403 if challenge else 200
                await send_bytes(send, status, frames[0], extra=challenge)
            else:
                await send_empty(send, 202)

    async def _stream(
        self, message: Posted, credential: Credential, receive: Receive, send: Send
    ) -> None:
        view = NativeConnection(EVENT_STREAM, self._hub.limits, self._hub.new_id, resumable=True)
        connection = Connection(self._hub, view, credential.principal)
        async with Peer(receive, connection, self._credentials, credential, resumable=True) as peer:
            connection.receive(message)
            if view.idle and not connection.unsent:
                await send_empty(send, 202)
                return
            challenge = _challenge(message, view, credential)
            if challenge is not None:
                body = b"".join(connection.collect())
                await send_bytes(send, 403, body, EVENT_STREAM_TYPE, challenge)
                return
            await _stream_frames(view, connection, peer, send, self._hub)


class RunEvents:
    """`GET /runs/{run}/events`, for a browser's EventSource."""

    def __init__(self, hub: Plexus, credentials: CredentialWatch) -> None:
        self._hub = hub
        self._credentials = credentials

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream a run from its first item, or from where the client left off."""
        if scope["method"] != "GET":
            await send_wrong_method(send, "GET")
            return
        try:
            run = self._hub.runs.find(_run_number(scope), scope["principal"])
            after = _after(scope, run)
        except NotFound as error:
            await send_json(send, 404, {"error": error.message})
            return
        except ValueError as error:
            await send_json(send, 400, {"error": str(error)})
            return
        if run.terminal is not None and after >= run.log.last:
            # An EventSource comes back when its stream ends; this answer tells it not to.
            await send_empty(send, 204)
            return
        view = NativeConnection(EVENT_STREAM, self._hub.limits, self._hub.new_id, resumable=True)
        connection = Connection(self._hub, view, scope["principal"])
        # A client that comes back to a run that lost its caller is its caller again, if it could
        # have called it; with fewer scopes it only follows.
        lost = run.orphan_deadline is not None
        owner = lost and self._hub.may_control(run, scope["principal"])
        credential: Credential = scope["credential"]
        async with Peer(receive, connection, self._credentials, credential, resumable=True) as peer:
            call = view.follow(run.id, run.method, timed=_wants_times(scope))
            connection.attach(call, run, after, owner=owner)
            await _stream_frames(view, connection, peer, send, self._hub)


class _Events:
    """The frames of a connection, which are events already."""

    __slots__ = ("_view", "connection")

    def __init__(self, view: NativeConnection, connection: Connection) -> None:
        self._view = view
        self.connection = connection

    @property
    def over(self) -> bool:
        return self._view.idle

    def frame(self, messages: list[bytes]) -> bytes:
        return b"".join(messages)


async def _stream_frames(
    view: NativeConnection, connection: Connection, peer: Peer, send: Send, hub: Plexus
) -> None:
    """Write frames as they come, until nothing is under way or the client is gone."""
    events = _Events(view, connection)
    first = GREETING + events.frame(connection.collect())
    await write_events(events, peer, send, ServerLimits.of(hub.limits), first)


def _challenge(message: Posted, view: NativeConnection, credential: Credential) -> Headers | None:
    """How to get the scope for want of which this call was refused, if it was and there is a way.
    In a batch others may have been answered, so there it is left at the error."""
    return credential.step_up(view.missing_scope) if isinstance(message, wire.Request) else None


def _wants_times(scope: Scope) -> bool:
    """Whether the client asks for the time of every item, by `?times=1`."""
    query = parse_qs(scope["query_string"].decode("ascii", "replace"))
    return query.get("times", ["0"])[-1] in ("1", "true")


def _run_number(scope: Scope) -> int:
    """Return the number of the run in the path. Raises NotFound if it can be none."""
    text: str = scope["path_params"]["run"]
    number = whole_number(text)
    if number is None:
        raise NotFound(f"there is no run {text[:40]}")
    return number


def _after(scope: Scope, run: Run) -> int:
    """Return the item to continue after, from Last-Event-ID or `?after=`. Raises ValueError."""
    last = header(scope, b"last-event-id").decode("ascii", "replace")
    if last:
        number, _, seq = last.partition(":")
        seen = whole_number(seq)
        if number != str(run.id) or seen is None:
            raise ValueError("Last-Event-ID is not of this run")
        return seen
    query = parse_qs(scope["query_string"].decode("ascii", "replace"))
    after = whole_number(query.get("after", ["0"])[-1])
    if after is None:
        raise ValueError("after must be the number of an item, or 0")
    return after
