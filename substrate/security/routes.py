"""HTTP routes for browser sessions, tickets, token rotation and OAuth metadata."""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import parse_qs

from starlette.types import Receive, Scope, Send

from plexus.errors import PlexusError
from plexus.rpc import wire
from substrate.security.authentication import Access
from substrate.security.errors import AccessRefused, Forbidden, TooMany, Unavailable
from substrate.security.tickets import TICKET_PATHS, is_ticket_path
from substrate.server.asgi import (
    BodyTooBig,
    header,
    read_body,
    send_empty,
    send_json,
    send_too_big,
    send_wrong_method,
)
from substrate.server.limits import ServerLimits

__all__ = ("OAuthMetadata", "RotateToken", "SessionEndpoint", "SessionProof", "TicketEndpoint")

#: For responses that contain a secret.
NO_STORE: Final = (b"cache-control", b"no-store")
#: A challenge: 256 random bits from the page.
CHALLENGE: Final = re.compile(r"[0-9a-f]{64}")
#: Maximum body of a ticket request: one path.
TICKET_BODY_BYTES: Final = 1024


class SessionEndpoint:
    """`POST /session`: exchange a token for a session secret. `DELETE /session`: log out.

    The body is not read.
    """

    def __init__(self, access: Access) -> None:
        self._access = access

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        """Create a session, or end the session of the request."""
        if scope["method"] not in ("POST", "DELETE"):
            await send_wrong_method(send, "POST", "DELETE")
            return
        try:
            if scope["method"] == "POST":
                await self._create(scope, send)
            else:
                await self._access.end_session(scope["credential"])
                await send_empty(send, 204)
        except AccessRefused as refused:
            await _send_refused(send, refused)
        except OSError as error:
            reason = f"the session file cannot be written: {error.strerror or error}"
            await send_json(send, 500, {"error": reason})

    async def _create(self, scope: Scope, send: Send) -> None:
        answer: dict[str, Any] = {"session": None, "principal": scope["principal"].name}
        if not self._access.is_open:
            agent = header(scope, b"user-agent").decode("latin-1")
            secret, lives_s = await self._access.create_session(scope["credential"], agent)
            answer |= {"session": secret, "expires_in_s": lives_s}
        await send_json(send, 200, answer, [NO_STORE])


class SessionProof:
    """`GET /session/proof?session=NAME&challenge=C`: prove that this server knows the session.

    The page requests it before it sends the secret. Needs no token.
    """

    def __init__(self, access: Access) -> None:
        self._access = access

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        """Answer a challenge."""
        if scope["method"] not in ("GET", "HEAD"):
            await send_wrong_method(send, "GET", "HEAD")
            return
        query = parse_qs(scope["query_string"].decode("latin-1"))
        challenge = query.get("challenge", [""])[-1]
        if not CHALLENGE.fullmatch(challenge):
            await send_json(send, 400, {"error": "challenge must be 64 hexadecimal digits"})
            return
        proof = self._access.prove_session(query.get("session", [""])[-1], challenge)
        if proof is None:
            await send_json(send, 404, {"error": "unknown session"}, [NO_STORE])
        else:
            await send_json(send, 200, {"proof": proof}, [NO_STORE])


class TicketEndpoint:
    """`POST /tickets`: issue a ticket for one WebSocket or EventSource.

    The body may restrict it to a path: `{"path": "/rpc"}`.
    """

    def __init__(self, access: Access, limits: ServerLimits) -> None:
        self._access = access
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Issue a ticket."""
        if scope["method"] != "POST":
            await send_wrong_method(send, "POST")
            return
        try:
            path = _path_of(await read_body(scope, receive, TICKET_BODY_BYTES), self._limits)
        except BodyTooBig:
            await send_too_big(send, TICKET_BODY_BYTES)
            return
        except ValueError as error:
            await send_json(send, 400, {"error": str(error)})
            return
        try:
            ticket = await self._access.issue_ticket(scope["credential"], path)
        except (TooMany, Unavailable) as refused:
            await _send_refused(send, refused)
            return
        answer = {"ticket": ticket, "expires_in_s": self._limits.ticket_s}
        await send_json(send, 200, answer, [NO_STORE])


class RotateToken:
    """`POST /token/rotate`: replace the server's own token.

    The new token is written to the lock file only, and never sent in a response.
    """

    def __init__(self, access: Access) -> None:
        self._access = access

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        """Replace the token."""
        if scope["method"] != "POST":
            await send_wrong_method(send, "POST")
            return
        try:
            await self._access.rotate(scope["credential"])
        except Forbidden as refused:
            await send_json(send, refused.status, {"error": refused.reason})
        except OSError as error:
            reason = f"the token was not replaced: writing failed: {error.strerror or error}"
            await send_json(send, 500, {"error": reason})
        else:
            await send_json(send, 200, {"rotated": True})


class OAuthMetadata:
    """`GET /.well-known/oauth-protected-resource`, with or without a path suffix."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        """Return the OAuth issuer of this server, if it has one."""
        oauth = self._access.oauth
        if oauth is None or scope["path"] not in oauth.metadata_paths:
            await send_json(send, 404, {"error": "this server has no OAuth metadata at this path"})
        elif scope["method"] not in ("GET", "HEAD"):
            await send_wrong_method(send, "GET", "HEAD")
        else:
            await send_json(send, 200, oauth.metadata())


async def _send_refused(send: Send, refused: AccessRefused) -> None:
    limit = {"limit": refused.limit} if isinstance(refused, TooMany) else {}
    await send_json(send, refused.status, {"error": refused.reason, **limit})


def _path_of(body: bytes, limits: ServerLimits) -> str | None:
    """Return the path that a ticket is requested for; None for any. Raises ValueError."""
    if not body.strip():
        return None
    try:
        request = wire.decode_value(body, limits)
    except PlexusError as error:
        raise ValueError(error.message) from error
    match request:
        case {"path": str(path)} if len(request) == 1 and is_ticket_path(path):
            return path
        case {} if not request:
            return None
    raise ValueError(f'the body must be {{}} or {{"path": PATH}}; PATH is one of {TICKET_PATHS}')
