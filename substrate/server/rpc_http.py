"""The native protocol over HTTP: a single response, or a stream of server-sent events.

`POST /rpc` sends one response to a client that accepts JSON, and a stream to one that accepts
`text/event-stream`. `GET /runs/{run}/events` streams an existing run. The id of an event is
`run:seq`, and `Last-Event-ID` resumes immediately after it.
"""

from __future__ import annotations

import asyncio
from typing import Final
from urllib.parse import parse_qs

from starlette.types import Receive, Scope, Send

from native_rpc.framing import EVENT_STREAM, MESSAGES
from native_rpc.protocol import NativeConnection
from plexus.errors import DeadlineExceeded, NotFound, PlexusError
from plexus.principal import Principal
from plexus.rpc import wire
from plexus.runtime.hub import Plexus
from plexus.runtime.run import LocalRun, Run
from plexus.runtime.runs import unknown_run
from substrate.driver import Connection
from substrate.security.authentication import Credential
from substrate.security.credential_watch import CredentialWatch
from substrate.server.asgi import (
    BodyTooBig,
    Headers,
    client_name,
    comes_from_page,
    header,
    headers_of,
    parse_accept,
    parse_number,
    read_body,
    send_bytes,
    send_empty,
    send_json,
    send_too_big,
    send_wrong_method,
)
from substrate.server.limits import ServerLimits
from substrate.server.peers import Peer
from substrate.server.sse import EVENT_STREAM as EVENT_STREAM_TYPE
from substrate.server.sse import EventWriter

__all__ = ("RpcEndpoint", "RunEvents")

#: Sent immediately, so that proxies forward the headers. It makes a disconnected EventSource
#: reconnect well before its run is cancelled.
GREETING = b"retry: 500\n\n"

#: Maximum time to load a run from the run store, in seconds.
LOAD_S: Final = 10.0

Posted = wire.Message | list[wire.Message]


class RpcEndpoint:
    """`POST /rpc`: process one message or batch."""

    def __init__(self, hub: Plexus, credentials: CredentialWatch) -> None:
        self._hub = hub
        self._credentials = credentials
        self._writer = EventWriter(ServerLimits.of(hub.limits))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        if scope["method"] != "POST":
            await send_wrong_method(send, "POST")
            return
        # An empty header counts as missing.
        accept = parse_accept(headers_of(scope).get(b"accept") or None)
        if not accept.json and not accept.stream:
            await send_json(send, 406, {"error": "Accept application/json or text/event-stream."})
            return
        limits = self._hub.limits
        try:
            body = await read_body(scope, receive, limits.message_bytes)
        except BodyTooBig:
            await send_too_big(send, limits.message_bytes)
            return
        message = wire.decode(body, limits)
        if accept.stream and not isinstance(message, wire.Invalid):
            await self._stream(message, scope, receive, send)
        else:
            await self._once(message, scope, receive, send)

    async def _once(self, message: Posted, scope: Scope, receive: Receive, send: Send) -> None:
        credential: Credential = scope["credential"]
        view = NativeConnection(MESSAGES, self._hub.limits, self._hub.new_id, buffered=True)
        connection = Connection(
            self._hub,
            view,
            credential.principal,
            client=client_name(scope),
            lookups=comes_from_page(scope),
        )
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

    async def _stream(self, message: Posted, scope: Scope, receive: Receive, send: Send) -> None:
        credential: Credential = scope["credential"]
        view = NativeConnection(EVENT_STREAM, self._hub.limits, self._hub.new_id, resumable=True)
        connection = Connection(
            self._hub,
            view,
            credential.principal,
            client=client_name(scope),
            lookups=comes_from_page(scope),
        )
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
            await _stream_frames(self._writer, view, connection, peer, send)


class RunEvents:
    """`GET /runs/{run}/events`: the stream of a run, for an EventSource in a browser."""

    def __init__(self, hub: Plexus, credentials: CredentialWatch) -> None:
        self._hub = hub
        self._credentials = credentials
        self._writer = EventWriter(ServerLimits.of(hub.limits))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream a run from its first item, or from the client's cursor."""
        if scope["method"] != "GET":
            await send_wrong_method(send, "GET")
            return
        try:
            run = await self._fetch(_run_id(scope), scope["principal"])
            after = _cursor(scope, run)
        except PlexusError as error:
            status = 404 if isinstance(error, NotFound) else 503
            await send_json(send, status, {"error": error.message})
            return
        except ValueError as error:
            await send_json(send, 400, {"error": str(error)})
            return
        if run.terminal is not None and after >= run.log.last:
            # An EventSource reconnects when its stream ends. A 204 makes it stop.
            await send_empty(send, 204)
            return
        view = NativeConnection(EVENT_STREAM, self._hub.limits, self._hub.new_id, resumable=True)
        connection = Connection(self._hub, view, scope["principal"])
        # A client that reconnects to a run without an owner becomes its owner, if its scopes allow
        # it to control the run. Otherwise it only follows.
        # The process of a run of another one decides whether the run has lost its owner.
        is_orphan = run.orphan_deadline is not None or not isinstance(run, LocalRun)
        owner = is_orphan and self._hub.may_control(run, scope["principal"])
        credential: Credential = scope["credential"]
        async with Peer(receive, connection, self._credentials, credential, resumable=True) as peer:
            call = view.follow(run.id, run.method, timed=_requests_times(scope))
            connection.attach(call, run, after, owner=owner)
            await _stream_frames(self._writer, view, connection, peer, send)

    async def _fetch(self, run_id: int, principal: Principal) -> Run:
        """Return a run. Raises NotFound, and the errors of the run store."""
        try:
            async with asyncio.timeout(LOAD_S):
                return await self._hub.runs.fetch(run_id, principal)
        except TimeoutError:
            reason = f"The run store did not answer within {LOAD_S:g} s. Try again."
            raise DeadlineExceeded(reason, data={"limit_s": LOAD_S}) from None


class _Events:
    """The event source of a connection whose frames are server-sent events already."""

    __slots__ = ("_view", "connection")

    def __init__(self, view: NativeConnection, connection: Connection) -> None:
        self._view = view
        self.connection = connection

    @property
    def over(self) -> bool:
        return self._view.idle

    def frame(self, messages: list[bytes]) -> bytes:
        return b"".join(messages)

    def on_closed(self, peer: Peer) -> None: ...


async def _stream_frames(
    writer: EventWriter, view: NativeConnection, connection: Connection, peer: Peer, send: Send
) -> None:
    """Write frames until no call is in progress or the client disconnects."""
    events = _Events(view, connection)
    first = GREETING + events.frame(connection.collect())
    await writer.write(events, peer, send, first)


def _challenge(message: Posted, view: NativeConnection, credential: Credential) -> Headers | None:
    """Return the header that tells the client how to get a missing scope, if it can.

    A batch gets none: other requests in it may have succeeded.
    """
    return credential.step_up(view.missing_scope) if isinstance(message, wire.Request) else None


def _requests_times(scope: Scope) -> bool:
    """Whether the client requests the time of every item, with `?times=1`."""
    query = parse_qs(scope["query_string"].decode("ascii", "replace"))
    return query.get("times", ["0"])[-1] in ("1", "true")


def _run_id(scope: Scope) -> int:
    """Return the run id in the path. Raises NotFound if it is not a number."""
    text: str = scope["path_params"]["run"]
    number = parse_number(text)
    if number is None:
        raise unknown_run(text[:40])
    return number


def _cursor(scope: Scope, run: Run) -> int:
    """Return the cursor from Last-Event-ID or `?after=`. Raises ValueError."""
    last = header(scope, b"last-event-id").decode("ascii", "replace")
    if last:
        number, _, seq = last.partition(":")
        cursor = parse_number(seq)
        if number != str(run.id) or cursor is None:
            raise ValueError(f"Last-Event-ID {last[:40]!r} is not an event of run {run.id}.")
        return cursor
    query = parse_qs(scope["query_string"].decode("ascii", "replace"))
    after = parse_number(query.get("after", ["0"])[-1])
    if after is None:
        raise ValueError("after must be the seq of an item, or 0.")
    return after
