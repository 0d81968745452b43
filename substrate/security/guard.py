"""The guard: checks every HTTP request and WebSocket upgrade before any other code.

It wraps the whole app, so no route can be forgotten, and it fails closed. Checks, in this order:
the Host must be ours (DNS rebinding), an Origin must be allowed (web pages), a POST body must be
JSON (forms) and within the size limit, and the request needs a token, or a ticket if it opens a
stream. The body has not been read by then, except that of a short call (`Guard.admits`). A loopback
name with another port (port forwarding) is accepted for requests with a valid token.

The principal is stored in `scope["principal"]`, and the credential in `scope["credential"]`. What
stays open after that is ended by `substrate.security.credential_watch` when the credential becomes
invalid.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Iterable, Mapping
from functools import lru_cache, wraps
from typing import Any, Final, NamedTuple

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from plexus.limits import Limits
from plexus.principal import LOCAL
from substrate.security.authentication import Access, Credential
from substrate.security.cors import is_preflight, send_preflight, with_origin
from substrate.security.credential_watch import REVOKED, CredentialWatch
from substrate.security.errors import AccessRefused
from substrate.security.tickets import PARAMETER, accepts_ticket, pop_ticket
from substrate.server.asgi import Headers, send_and_discard_body, send_json
from substrate.telemetry.refusals import OnRefused, address_of

__all__ = ("Guard", "Names", "allowed_names", "local_names")

#: "Misdirected request": this server does not answer for that name.
MISDIRECTED: Final = 421
FORBIDDEN: Final = 403
TOO_BIG: Final = 413
UNSUPPORTED: Final = 415
#: The WebSocket close code for a policy violation.
POLICY_VIOLATION: Final = 1008
#: After a body that took longer than this, the credential is checked again.
SLOW_BODY_S: Final = 0.2

#: Loopback names, with any port: `ssh -L` and container port mappings change it. They resolve to
#: loopback without DNS, so no web page can rebind them.
LOOPBACK: Final = re.compile(rb"(?:127\.0\.0\.1|localhost|\[::1\])(?::[0-9]{1,5})?")
#: Maximum characters of a refused name that are repeated in the response.
NAME_CHARS: Final = 100

#: Public paths: the name of the server, the files of its page, the session proof, and the OAuth
#: metadata.
PUBLIC_PATHS: Final = frozenset({"/", "/session/proof"})
PUBLIC: Final = ("/page/", "/.well-known/")
#: Methods that change nothing.
SAFE: Final = frozenset({"GET", "HEAD"})
#: Headers that must not be repeated: it would be ambiguous which one counts.
AUTHORIZATIONS: Final = (b"authorization", b"x-claude-code-ide-authorization")

RawHeaders = list[tuple[bytes, bytes]]


class Names(NamedTuple):
    """Allowed hosts and origins of a server, in lower case."""

    hosts: frozenset[bytes]
    #: Origins of the server's own pages.
    own: frozenset[bytes]
    #: Origins of other pages.
    others: frozenset[bytes]


def local_names(port: int) -> frozenset[bytes]:
    """Return the Host values by which a local client may address a server on this port."""
    names = (b"127.0.0.1", b"localhost", b"[::1]")
    full = {b"%b:%d" % (name, port) for name in names}
    return frozenset(full | set(names) if port == 80 else full)


def allowed_names(port: int, hosts: Iterable[str] = (), origins: Iterable[str] = ()) -> Names:
    """Return the names of this machine and these.

    A host without a port is allowed with the server's port and without one: a proxy in front of the
    server may use the default port.
    """
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
    """Why a request is refused."""

    #: The label in metrics.
    word: str
    status: int
    reason: str
    #: The limit that was exceeded.
    limit: int | None = None


class Guard:
    """ASGI middleware that refuses requests without valid names, body or credential."""

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

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Pass the request on, or refuse it.

        Returns the coroutine that does, because one around it would stay as long as a stream.
        """
        if scope["type"] == "lifespan":
            return self._app(scope, receive, send)
        ticket = pop_ticket(scope)
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
                    return send_preflight(send, origin, headers)
                send = with_origin(send, origin)
            if scope["method"] == "POST":
                refusal = self._check_body(headers)
        if refusal is not None:
            return self._refuse(scope, receive, send, refusal)
        if self._access.is_open:
            self._store(scope, ANONYMOUS)
            return self._app(scope, receive, send)
        if _is_public(scope):
            return self._app(scope, receive, send)
        if repeated:
            headers = _without_repeated(headers, raw)
        return self._pass_authenticated(scope, receive, send, headers, ticket, forwarded=forwarded)

    def admits(self, scope: Scope) -> bool:
        """Return whether a POST passes every check without waiting, and store its credential then.

        False, and nothing has changed, for a request that `__call__` refuses or has more to do for:
        one of a page, of a forwarded port, with a repeated header, or with a credential that must
        be looked up. The whole body must have arrived.
        """
        raw: RawHeaders = scope["headers"]
        headers = dict(raw)
        if (
            len(raw) != len(headers)
            or b"origin" in headers
            or PARAMETER in scope["query_string"]
            or self._check_names(headers, [], own=False, forwarded=False) is not None
            or self._check_body(headers) is not None
        ):
            return False
        credential = ANONYMOUS if self._access.is_open else self._access.find(headers)
        if credential is None:
            return False
        self._store(scope, credential)
        return True

    def _store(self, scope: Scope, credential: Credential) -> None:
        scope["principal"] = credential.principal
        scope["credential"] = credential
        self._credentials.record_use(credential)

    def _is_forwarded(self, headers: Mapping[bytes, bytes]) -> bool:
        """Return whether the Host is a loopback name with another port.

        Then the token decides, and a request without a valid one is refused.
        """
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
        """Check type and size of a body.

        Any page can post a form, but only an allowed page JSON.
        """
        if not _is_json(headers.get(b"content-type")):
            return _Refusal("content_type", UNSUPPORTED, "the body must be application/json")
        limit = self._body_bytes
        if _number(headers.get(b"content-length", b"0")) > limit:
            reason = f"The body is larger than {limit} bytes."
            return _Refusal("too_big", TOO_BIG, reason, limit)
        return None

    # --- authentication -----------------------------------------------------------------------

    async def _pass_authenticated(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        headers: Mapping[bytes, bytes],
        ticket: str | None,
        *,
        forwarded: bool,
    ) -> None:
        """Authenticate the request, and pass it on with its credential.

        A ticket counts only where a stream is opened, and only without a token.
        """
        is_socket = scope["type"] == "websocket"
        by_ticket = accepts_ticket(scope) and not any(name in headers for name in AUTHORIZATIONS)
        try:
            if ticket is not None and by_ticket:
                credential = await self._access.redeem(ticket, scope["path"])
            else:
                credential = await self._access.authenticate(headers)
        except AccessRefused as refused:
            if forwarded:
                await self._refuse(scope, receive, send, _misdirected(headers[b"host"]))
                return
            self._report(scope, "token", refused.status)
            await _send_refused(scope, receive, send, refused)
            return
        self._store(scope, credential)
        if is_socket:
            receive = self._check_messages(credential, receive, send)
        elif scope["method"] == "POST":
            receive = self._check_slow_body(credential, receive)
        handling = self._app(scope, receive, send)
        del scope, headers  # a stream may stay open for hours, and its headers must not
        await handling

    def _check_slow_body(self, credential: Credential, receive: Receive) -> Receive:
        """Wrap `receive`: a body is never completed after its credential has become invalid."""
        began = time.monotonic()

        @wraps(receive)
        async def receive_checked() -> Message:
            message = await receive()
            if time.monotonic() - began < SLOW_BODY_S or message["type"] != "http.request":
                return message
            still = await self._access.revalidate(credential)
            if still is None or not still.principal.covers(credential.principal):
                return {"type": "http.disconnect"}
            self._credentials.record_use(credential)
            return message

        return receive_checked

    def _check_messages(self, credential: Credential, receive: Receive, send: Send) -> Receive:
        """Wrap `receive`: close a WebSocket when its credential has become invalid."""

        @wraps(receive)
        async def receive_checked() -> Message:
            nonlocal credential
            message = await receive()
            if message["type"] != "websocket.receive":
                return message
            still = await self._access.revalidate(credential)
            if still is None or not still.principal.covers(credential.principal):
                await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": REVOKED})
                return {"type": "websocket.disconnect", "code": POLICY_VIOLATION}
            credential = still
            return message

        return receive_checked

    # --- refusing -----------------------------------------------------------------------------

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, refusal: _Refusal) -> None:
        self._report(scope, refusal.word, refusal.status)
        if scope["type"] == "websocket":
            # Before it is accepted: the upgrade fails.
            reason = refusal.reason
            await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": reason})
        else:
            limit = {} if refusal.limit is None else {"limit": refusal.limit}
            await _respond(scope, receive, send, refusal.status, {"error": refusal.reason, **limit})

    def _report(self, scope: Scope, word: str, status: int) -> None:
        if self._on_refused is not None:
            self._on_refused(word, address_of(scope), status)


#: The credential of every request while authentication is off.
ANONYMOUS: Final = Credential(LOCAL)


async def _send_refused(scope: Scope, receive: Receive, send: Send, refused: AccessRefused) -> None:
    """Respond to a request without a valid token."""
    if scope["type"] == "websocket":
        # Accept first: only then can the close reason be sent. Nothing that the client sends is
        # read.
        protocol = next(iter(scope["subprotocols"]), None)
        await send({"type": "websocket.accept", "subprotocol": protocol})
        reason = refused.reason
        await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": reason})
        return
    challenge = refused.challenge
    extra = None if challenge is None else [(b"www-authenticate", challenge)]
    await _respond(scope, receive, send, refused.status, {"error": refused.reason}, extra)


async def _respond(
    scope: Scope,
    receive: Receive,
    send: Send,
    status: int,
    value: Mapping[str, Any],
    extra: Headers | None = None,
) -> None:
    """Send a whole response. A body is not read."""
    if any(name in (b"content-length", b"transfer-encoding") for name, _ in scope["headers"]):
        await send_and_discard_body(receive, send, status, value, extra)
    else:
        await send_json(send, status, value, extra)


def _misdirected(host: bytes | None) -> _Refusal:
    """Return the refusal of a Host that is not ours, with the remedy."""
    if host is None:
        return _Refusal("host", MISDIRECTED, "the request has no Host header")
    name = host[:NAME_CHARS].decode("ascii", "replace")
    reason = f"this server does not answer for the Host {name!r}"
    if LOOPBACK.fullmatch(host.lower()):
        reason += " without a valid token (`substrate token` prints it)"
    return _Refusal("host", MISDIRECTED, f"{reason}; to allow it, add --allow-host {name}")


def _is_public(scope: Scope) -> bool:
    """Return whether the path needs no token."""
    if scope["type"] != "http" or scope["method"] not in SAFE:
        return False
    path: str = scope["path"]
    return path in PUBLIC_PATHS or path.startswith(PUBLIC)


def _without_repeated(headers: Mapping[bytes, bytes], raw: RawHeaders) -> dict[bytes, bytes]:
    """Return the headers with every repeated token emptied."""
    repeated = {name for name in AUTHORIZATIONS if _count(raw, name) > 1}
    return {name: b"" if name in repeated else value for name, value in headers.items()}


def _count(headers: RawHeaders, name: bytes) -> int:
    return sum(key == name for key, _ in headers)


@lru_cache(maxsize=256)
def _is_json(content_type: bytes | None) -> bool:
    return (content_type or b"").partition(b";")[0].strip().lower() == b"application/json"


def _number(value: bytes) -> int:
    """Return a declared length. The HTTP server refuses what is not a number."""
    # Python refuses to parse very long digit strings.
    return int(value[:20]) if value.isdigit() else 0
