"""The guard: what every request passes before anything else sees it, WebSocket upgrades too.

It wraps the whole app, so no route can be forgotten, and it fails closed. In this order: the Host
must be ours (DNS rebinding), an Origin must be allowed (web pages), what is posted must be JSON
(forms) and small enough, and there must be a token, or a ticket where a stream is opened. Nothing
of the body has been read by then.
A loopback name with another port (a forwarded one) is ours for requests with a valid token.
Who it was stands in `scope["principal"]`, and how that is known in `scope["credential"]`. What
stays open after that is ended by `substrate.security.credential_watch` when the credential ends.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from plexus.limits import Limits
from plexus.principal import LOCAL
from substrate.security.authentication import Access, Credential
from substrate.security.cors import is_preflight, send_preflight, with_origin
from substrate.security.credential_watch import REVOKED, CredentialWatch
from substrate.security.errors import AccessRefused
from substrate.security.tickets import take_ticket, takes_ticket
from substrate.server.asgi import Headers, send_json, send_unread
from substrate.telemetry.refusals import OnRefused, address_of

__all__ = ("Guard", "Names", "allowed_names", "local_names")

#: "Misdirected request": this server does not answer for that name.
MISDIRECTED: Final = 421
FORBIDDEN: Final = 403
TOO_BIG: Final = 413
UNSUPPORTED: Final = 415
#: The WebSocket close code for a policy violation.
POLICY_VIOLATION: Final = 1008
#: A body that takes longer than this to come is acted on only if the credential is still valid.
SLOW_BODY_S: Final = 0.2

#: The names of this machine itself, with any port: `ssh -L` and container port mappings change it.
#: They resolve to loopback without DNS, so no web page can rebind them.
LOOPBACK: Final = re.compile(rb"(?:127\.0\.0\.1|localhost|\[::1\])(?::[0-9]{1,5})?")
#: How much of a name that is refused is repeated in the answer.
NAME_CHARS: Final = 100

#: What needs no token: the name of the server, the files of its page, the proof that it knows a
#: session, and where others issue tokens for it.
PUBLIC_PATHS: Final = frozenset({"/", "/session/proof"})
PUBLIC: Final = ("/page/", "/.well-known/")
#: What changes nothing.
SAFE: Final = frozenset({"GET", "HEAD"})
#: Of these a second one would leave open which of them counts.
AUTHORIZATIONS: Final = (b"authorization", b"x-claude-code-ide-authorization")

RawHeaders = list[tuple[bytes, bytes]]


class Names(NamedTuple):
    """What a server is called, and who may call it from a web page; all in lower case."""

    hosts: frozenset[bytes]
    #: The origins of the server's own pages.
    own: frozenset[bytes]
    #: The origins of other pages.
    others: frozenset[bytes]


def local_names(port: int) -> frozenset[bytes]:
    """What a client on this machine may call a server on this port, as a Host header has it."""
    names = (b"127.0.0.1", b"localhost", b"[::1]")
    full = {b"%b:%d" % (name, port) for name in names}
    return frozenset(full | set(names) if port == 80 else full)


def allowed_names(port: int, hosts: Iterable[str] = (), origins: Iterable[str] = ()) -> Names:
    """The names of this machine, and these. A host without a port is meant with the server's own
    port, and without one too: what is in front of the server may have the usual one."""
    local = local_names(port)
    further: set[bytes] = set()
    for host in hosts:
        name = host.lower().encode()
        has_port = b":" in name.rpartition(b"]")[2]
        further |= {name} if has_port else {name, b"%b:%d" % (name, port)}
    own = {b"http://" + host for host in local | further}
    own |= {b"https://" + host for host in further}
    others = frozenset(origin.lower().encode() for origin in origins)
    return Names(local | further, frozenset(own), others - own)


class _Refusal(NamedTuple):
    """Why a request is not let in."""

    #: A word for it, for those who count.
    word: str
    status: int
    reason: str
    #: What would have been let in.
    limit: int | None = None


class Guard:
    """Refuses whoever may not come in."""

    def __init__(
        self,
        app: ASGIApp,
        names: Names,
        access: Access,
        limits: Limits,
        on_refused: OnRefused | None = None,
        credentials: CredentialWatch | None = None,
    ) -> None:
        self._app = app
        self._credentials = CredentialWatch(access) if credentials is None else credentials
        self._names = names
        self._access = access
        self._body_bytes = limits.message_bytes
        self._on_refused = on_refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        ticket = take_ticket(scope)
        raw: RawHeaders = scope["headers"]
        headers = dict(raw)
        repeated = len(raw) != len(headers)
        origin = headers.get(b"origin")
        forwarded = self._is_forwarded(headers)
        own_origins = (b"http://" + headers[b"host"].lower(),) if forwarded else self._names.own
        own = origin is not None and origin.lower() in own_origins
        refusal = self._check_names(headers, raw if repeated else [], own=own, forwarded=forwarded)
        if refusal is None and scope["type"] == "http":
            if origin is not None and not own:
                if is_preflight(scope["method"], headers):
                    await send_preflight(send, origin, headers)
                    return
                send = with_origin(send, origin)
            if scope["method"] == "POST":
                refusal = self._check_body(headers)
        if refusal is not None:
            await self._refuse(scope, receive, send, refusal)
        elif self._access.is_open:
            scope["principal"] = LOCAL
            scope["credential"] = EVERYBODY
            await self._app(scope, receive, send)
        elif _is_public(scope):
            await self._app(scope, receive, send)
        else:
            if repeated:
                headers = _without_repeated(headers, raw)
            await self._pass_known(scope, receive, send, headers, ticket, forwarded=forwarded)

    def _is_forwarded(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether the Host is a loopback name with a port that is not ours. Then the token
        decides, and where there is none the request is refused."""
        host = headers.get(b"host", b"").lower()
        if host in self._names.hosts or self._access.is_open:
            return False
        return LOOPBACK.fullmatch(host) is not None

    def _check_names(
        self, headers: Mapping[bytes, bytes], repeated: RawHeaders, *, own: bool, forwarded: bool
    ) -> _Refusal | None:
        host = headers.get(b"host")
        if (
            host is None
            or not (forwarded or host.lower() in self._names.hosts)
            or (repeated and _count(repeated, b"host") > 1)
        ):
            return _misdirected(host)
        origin = headers.get(b"origin")
        if origin is not None and (
            not (own or origin.lower() in self._names.others)
            or (repeated and _count(repeated, b"origin") > 1)
        ):
            return _Refusal("origin", FORBIDDEN, "requests from that Origin are not allowed")
        return None

    def _check_body(self, headers: Mapping[bytes, bytes]) -> _Refusal | None:
        """A form can be posted from any page, JSON from an allowed one only."""
        if not _is_json(headers.get(b"content-type")):
            return _Refusal("content_type", UNSUPPORTED, "the body must be application/json")
        limit = self._body_bytes
        if _number(headers.get(b"content-length", b"0")) > limit:
            reason = f"the body is over {limit} bytes"
            return _Refusal("too_big", TOO_BIG, reason, limit)
        return None

    # --- who it is ----------------------------------------------------------------------------

    async def _pass_known(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        headers: Mapping[bytes, bytes],
        ticket: str | None,
        *,
        forwarded: bool,
    ) -> None:
        """Find out who it is, and pass the request on with that. A ticket counts only where a
        stream is opened, and only without a token."""
        is_socket = scope["type"] == "websocket"
        by_ticket = takes_ticket(scope) and not any(name in headers for name in AUTHORIZATIONS)
        try:
            if ticket is not None and by_ticket:
                credential = await self._access.redeem(ticket, scope["path"])
            else:
                credential = await self._access.authenticate(headers)
        except AccessRefused as refused:
            if forwarded:
                await self._refuse(scope, receive, send, _misdirected(headers[b"host"]))
                return
            self._tell(scope, "token", refused.status)
            await _send_refused(scope, receive, send, refused)
            return
        scope["principal"] = credential.principal
        scope["credential"] = credential
        self._credentials.note(credential)
        if is_socket:
            receive = self._while_known(credential, receive, send)
        elif scope["method"] == "POST":
            receive = self._body_while_known(credential, receive)
        await self._app(scope, receive, send)

    def _body_while_known(self, credential: Credential, receive: Receive) -> Receive:
        """Read a body; one that is complete only after its credential has ended never is."""
        began = time.monotonic()

        async def receive_known() -> Message:
            message = await receive()
            if time.monotonic() - began < SLOW_BODY_S or message["type"] != "http.request":
                return message
            still = await self._access.still(credential)
            if still is None or not still.principal.covers(credential.principal):
                return {"type": "http.disconnect"}
            self._credentials.note(credential)
            return message

        return receive_known

    def _while_known(self, credential: Credential, receive: Receive, send: Send) -> Receive:
        """What a WebSocket sends for as long as its token is good; then it is closed."""

        async def receive_known() -> Message:
            nonlocal credential
            message = await receive()
            if message["type"] != "websocket.receive":
                return message
            still = await self._access.still(credential)
            if still is None or not still.principal.covers(credential.principal):
                await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": REVOKED})
                return {"type": "websocket.disconnect", "code": POLICY_VIOLATION}
            credential = still
            return message

        return receive_known

    # --- refusing -----------------------------------------------------------------------------

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, refusal: _Refusal) -> None:
        self._tell(scope, refusal.word, refusal.status)
        if scope["type"] == "websocket":
            # Before it is accepted: the upgrade fails.
            reason = refusal.reason
            await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": reason})
        else:
            limit = {} if refusal.limit is None else {"limit": refusal.limit}
            await _answer(scope, receive, send, refusal.status, {"error": refusal.reason, **limit})

    def _tell(self, scope: Scope, word: str, status: int) -> None:
        if self._on_refused is not None:
            self._on_refused(word, address_of(scope), status)


#: Who comes in where nobody is asked.
EVERYBODY: Final = Credential(LOCAL)


async def _send_refused(scope: Scope, receive: Receive, send: Send, refused: AccessRefused) -> None:
    """Say that there is no token, or not the right one."""
    if scope["type"] == "websocket":
        # Accepted first: only so can the client be told why. Nothing that it sends is read.
        protocol = next(iter(scope["subprotocols"]), None)
        await send({"type": "websocket.accept", "subprotocol": protocol})
        reason = refused.reason
        await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": reason})
        return
    challenge = refused.challenge
    extra = None if challenge is None else [(b"www-authenticate", challenge)]
    await _answer(scope, receive, send, refused.status, {"error": refused.reason}, extra)


async def _answer(
    scope: Scope,
    receive: Receive,
    send: Send,
    status: int,
    value: Mapping[str, Any],
    extra: Headers | None = None,
) -> None:
    """A whole response. The body, if there is one, is not looked at."""
    if any(name in (b"content-length", b"transfer-encoding") for name, _ in scope["headers"]):
        await send_unread(receive, send, status, value, extra)
    else:
        await send_json(send, status, value, extra)


def _misdirected(host: bytes | None) -> _Refusal:
    """Return the refusal of a Host that is not ours, with the cure."""
    if host is None:
        return _Refusal("host", MISDIRECTED, "the request has no Host header")
    name = host[:NAME_CHARS].decode("ascii", "replace")
    reason = f"this server does not answer for the Host {name!r}"
    if LOOPBACK.fullmatch(host.lower()):
        reason += " without a valid token (`substrate token` prints it)"
    return _Refusal("host", MISDIRECTED, f"{reason}; if it is yours, add --allow-host {name}")


def _is_public(scope: Scope) -> bool:
    """Whether it is shown to whoever asks."""
    if scope["type"] != "http" or scope["method"] not in SAFE:
        return False
    path: str = scope["path"]
    return path in PUBLIC_PATHS or path.startswith(PUBLIC)


def _without_repeated(headers: Mapping[bytes, bytes], raw: RawHeaders) -> dict[bytes, bytes]:
    """The headers without a token that came twice."""
    twice = {name for name in AUTHORIZATIONS if _count(raw, name) > 1}
    return {name: b"" if name in twice else value for name, value in headers.items()}


def _count(headers: RawHeaders, name: bytes) -> int:
    return sum(key == name for key, _ in headers)


@lru_cache(maxsize=256)
def _is_json(content_type: bytes | None) -> bool:
    return (content_type or b"").partition(b";")[0].strip().lower() == b"application/json"


def _number(value: bytes) -> int:
    """A declared length; what is no number is left to the HTTP server, which refuses it."""
    # Never more digits than Python likes to read.
    return int(value[:20]) if value.isdigit() else 0
