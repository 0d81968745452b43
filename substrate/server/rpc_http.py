"""The native view over HTTP: one answer, or a stream of server-sent events.

`POST /rpc` answers once when the client accepts JSON, and streams when it accepts
`text/event-stream`; `GET /runs/{run}/events` is the stream of a run that exists. An event's id is
`run:seq`, and `Last-Event-ID` goes on exactly after it.
"""

from __future__ import annotations

from typing import Literal
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
from substrate.server.disconnect import Peer
from substrate.server.limits import ServerLimits
from substrate.server.responses import EVENT_STREAM as EVENT_STREAM_TYPE
from substrate.server.responses import (
    BodyTooBig,
    Headers,
    header,
    read_body,
    send_bytes,
    send_empty,
    send_json,
    start_stream,
    whole_number,
)

__all__ = ("RpcEndpoint", "RunEvents")

KEEP_ALIVE = b": keep-alive\n\n"
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
            await send_json(send, 405, {"error": "use POST"}, [(b"allow", b"POST")])
            return
        wanted = _wanted(header(scope, b"accept"))
        if wanted is None:
            await send_json(send, 406, {"error": "accept application/json or text/event-stream"})
            return
        limits = self._hub.limits
        try:
            body = await read_body(scope, receive, limits.message_bytes)
        except BodyTooBig:
            limit = limits.message_bytes
            await send_json(send, 413, {"error": f"the body is over {limit} bytes", "limit": limit})
            return
        message = wire.decode(body, limits)
        if wanted == "stream" and not isinstance(message, wire.Invalid):
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
        async with self._peer(receive, connection, credential) as peer:
            connection.receive(message)
            if view.idle and not connection.unsent:
                await send_empty(send, 202)
                return
            challenge = _challenge(message, view, credential)
            if challenge is not None:
                body = b"".join(connection.collect())
                await send_bytes(send, 403, body, EVENT_STREAM_TYPE, challenge)
                return
            await stream_frames(view, connection, peer, send, self._hub)

    def _peer(self, receive: Receive, connection: Connection, credential: Credential) -> Peer:
        return Peer(receive, connection, self._credentials, credential, resumable=True)


class RunEvents:
    """`GET /runs/{run}/events`, for a browser's EventSource."""

    def __init__(self, hub: Plexus, credentials: CredentialWatch) -> None:
        self._hub = hub
        self._credentials = credentials

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream a run from its first item, or from where the client left off."""
        if scope["method"] != "GET":
            await send_json(send, 405, {"error": "use GET"}, [(b"allow", b"GET")])
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
            await stream_frames(view, connection, peer, send, self._hub)


async def stream_frames(
    view: NativeConnection, connection: Connection, peer: Peer, send: Send, hub: Plexus
) -> None:
    """Write what there is as it comes, until nothing is under way or the client is gone."""
    limits = ServerLimits.of(hub.limits)
    peer.watch()
    await start_stream(send)
    greeting = [GREETING]
    try:
        while not peer.gone:
            frames = greeting + connection.collect()
            greeting = []
            if not frames:
                if view.idle:
                    break
                if await connection.ready(limits.keep_alive_s):
                    continue
                frames = [KEEP_ALIVE]
            body = b"".join(frames)
            message = {"type": "http.response.body", "body": body, "more_body": True}
            await peer.write(send, message, limits.write_s)
    except TimeoutError:
        return  # the client does not read; leaving closes its connection
    if not peer.gone:
        await send({"type": "http.response.body", "body": b""})


def _challenge(message: Posted, view: NativeConnection, credential: Credential) -> Headers | None:
    """How to get the scope for want of which this call was refused, if it was and there is a way.
    In a batch others may have been answered, so there it is left at the error."""
    return credential.step_up(view.missing_scope) if isinstance(message, wire.Request) else None


def _wanted(accept: bytes) -> Literal["stream", "once"] | None:
    """A client that can take a stream gets one; one that says nothing gets one answer."""
    kinds = {part.partition(b";")[0].strip().lower() for part in accept.split(b",")}
    if b"text/event-stream" in kinds:
        return "stream"
    return "once" if kinds & {b"", b"*/*", b"application/*", b"application/json"} else None


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
