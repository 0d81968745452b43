"""The routes of access itself: sessions for browsers, a new token, and where others issue them."""

from __future__ import annotations

from typing import Final

from starlette.types import Receive, Scope, Send

from substrate.access.authentication import Access
from substrate.access.refusals import Forbidden
from substrate.responses import Headers, header, send_json

__all__ = ("OAuthMetadata", "RotateToken", "StartSession")

POST_ONLY: Final[Headers] = [(b"allow", b"POST")]
GET_ONLY: Final[Headers] = [(b"allow", b"GET, HEAD")]
#: What nobody on the way may keep.
NO_STORE: Final = (b"cache-control", b"no-store")


class StartSession:
    """`POST /session`: a cookie for whoever has a token. Nothing of the body is read."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        """Begin a session."""
        if scope["method"] != "POST":
            await send_json(send, 405, {"error": "use POST"}, POST_ONLY)
            return
        try:
            value = self._access.begin_session(scope["credential"])
        except Forbidden as refused:
            await send_json(send, refused.status, {"error": refused.reason})
            return
        cookie = b"%b=%b; Path=/; HttpOnly; SameSite=Strict" % (self._access.cookie, value.encode())
        if header(scope, b"origin").lower().startswith(b"https:"):
            cookie += b"; Secure"
        await send_json(
            send, 200, {"principal": scope["principal"].name}, [(b"set-cookie", cookie), NO_STORE]
        )


class RotateToken:
    """`POST /token/rotate`: a new token in place of the server's own. It is told by the lock file
    only, so that it is in no answer."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        """Replace the token."""
        if scope["method"] != "POST":
            await send_json(send, 405, {"error": "use POST"}, POST_ONLY)
            return
        try:
            await self._access.rotate(scope["credential"])
        except Forbidden as refused:
            await send_json(send, refused.status, {"error": refused.reason})
        except OSError as error:
            reason = f"the lock file cannot be written: {error.strerror}; the token stays"
            await send_json(send, 500, {"error": reason})
        else:
            await send_json(send, 200, {"rotated": True})


class OAuthMetadata:
    """`GET /.well-known/oauth-protected-resource`, also with a path behind it."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        """Say where tokens for this server are issued, if anybody else does."""
        oauth = self._access.oauth
        if oauth is None or scope["path"] not in oauth.metadata_paths:
            await send_json(send, 404, {"error": "there is nothing here"})
        elif scope["method"] not in ("GET", "HEAD"):
            await send_json(send, 405, {"error": "use GET"}, GET_ONLY)
        else:
            await send_json(send, 200, oauth.metadata())
