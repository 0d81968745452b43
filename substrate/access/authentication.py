"""Who sends a request: by the server's own token, a further one, a browser's session, or OAuth.

Rules:
- Every request is authenticated by itself, and over a WebSocket every message: a token that was
  revoked, has expired or was replaced reaches nothing from then on.
- A token comes in a header and never in an address: addresses are logged and passed on.
- A cookie is sent by the browser, whoever wrote the page. So it counts only for our own pages, and
  what changes something needs an Origin that says so.
- Only digests are compared, each in constant time, and all of them whichever fits.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from plexus.principal import LOCAL, Principal
from substrate.access.refusals import AccessRefused, Forbidden, Unauthenticated
from substrate.access.sessions import BrowserSessions
from substrate.access.tokens import TokenFile, digest_of, new_token

__all__ = (
    "Access",
    "Credential",
    "OAuthServer",
)

#: How seldom a token of somebody else is checked again while its connection is open, in seconds.
RECHECK_S: Final = 60.0
IDE_HEADER: Final = b"x-claude-code-ide-authorization"
NEEDED: Final = "a token is needed; `substrate token` prints it"
UNKNOWN: Final = "that token is not, or no longer, one of this server"
OVER: Final = "that session is over; open the server's address again"
#: What is said without OAuth; with it, the challenge says where a token is to be had.
CHALLENGE: Final = b"Bearer"
INVALID: Final = b'Bearer error="invalid_token"'


class OAuthServer(Protocol):
    """Whoever knows the tokens that others have issued for us."""

    async def principal(self, bearer: str) -> Principal:
        """Whose token it is; raises AccessRefused."""

    @property
    def metadata_paths(self) -> frozenset[str]:
        """Where `metadata` is served, below `/.well-known/`."""

    def metadata(self) -> Mapping[str, Any]:
        """What `/.well-known/oauth-protected-resource` says."""

    def challenge(self, scope: str | None = None, error: str | None = None) -> bytes:
        """What `WWW-Authenticate` says."""


class Credential(NamedTuple):
    """Who sent a request, and how that is known."""

    principal: Principal
    #: Of the token or the session that says so; empty if it was not asked for.
    digest: bytes = b""
    #: Whether it is a session.
    session: bool = False
    #: A token of somebody else, and when it was looked at.
    bearer: str | None = None
    checked_at: float = 0.0
    #: What `WWW-Authenticate` says about a scope that is missing, where more are to be had.
    challenge: Callable[[str], bytes] | None = None

    def step_up(self, missing: str | None) -> list[tuple[bytes, bytes]] | None:
        """The header that says where to get a scope that is missing; None if none is, or if it
        could not be had."""
        if missing is None or self.challenge is None:
            return None
        return [(b"www-authenticate", self.challenge(missing))]


class Access:
    """Everybody who may come in."""

    def __init__(
        self,
        token: str,
        tokens: TokenFile | None = None,
        *,
        port: int = 0,
        hosts: Sequence[str] = (),
        origins: Sequence[str] = (),
        oauth: OAuthServer | None = None,
        publish: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`token` is the server's own, empty if nobody is asked for one; `publish` makes a new
        one known to the programs of the same user. `hosts` and `origins` are allowed besides
        those of this machine."""
        self._main = digest_of(token) if token else b""
        self._tokens = tokens
        self._publish = publish
        self._rotating = asyncio.Lock()
        self._clock = clock
        self.hosts = hosts
        self.origins = origins
        self.oauth = oauth
        self.sessions = BrowserSessions(clock)
        #: Browsers keep one jar for all ports of a machine.
        self.cookie: Final = b"substrate_%d" % port

    @classmethod
    def open(cls) -> Access:
        """Lets everybody in as the person at this machine."""
        return cls("")

    @property
    def is_open(self) -> bool:
        """Whether nobody is asked for anything."""
        return not self._main

    # --- asking -------------------------------------------------------------------------------

    async def authenticate(
        self, headers: Mapping[bytes, bytes], *, changes: bool, own_origin: bool
    ) -> Credential:
        """Who sends a request with these headers; raises AccessRefused.

        `changes` says that it may change something, `own_origin` that a page of ours sends it.
        """
        if self.is_open:
            return Credential(LOCAL)
        bearer = _bearer(headers)
        if bearer is not None:
            credential = self._of_digest(digest_of(bearer))
            if credential is not None:
                return credential
            if self.oauth is None or not bearer:
                raise self._unauthenticated(UNKNOWN if bearer else NEEDED, invalid=bool(bearer))
            return await self._of_oauth(bearer)
        value = _cookie(headers.get(b"cookie"), self.cookie)
        if value is None or not _same_site(headers):
            raise self._unauthenticated(NEEDED)
        credential = self._of_session(digest_of(value))
        if credential is None:
            raise self._unauthenticated(OVER)
        if changes and not own_origin:
            raise Forbidden("with a cookie this needs the Origin of the server's own page")
        return credential

    async def still(self, credential: Credential) -> Credential | None:
        """The same credential, if it is still good."""
        if credential.bearer is not None:
            if self._clock() - credential.checked_at < RECHECK_S:
                return credential
            try:
                return await self._of_oauth(credential.bearer)
            except AccessRefused:
                return None
        if self.is_open:
            return credential
        if credential.session:
            return self._of_session(credential.digest)
        return self._of_digest(credential.digest)

    def _unauthenticated(self, reason: str, *, invalid: bool = False) -> Unauthenticated:
        if self.oauth is not None:
            return Unauthenticated(reason, self.oauth.challenge())
        return Unauthenticated(reason, INVALID if invalid else CHALLENGE)

    async def _of_oauth(self, bearer: str) -> Credential:
        oauth = self.oauth
        assert oauth is not None, "its tokens are known only by it"
        principal = await oauth.principal(bearer)
        challenge = partial(oauth.challenge, error="insufficient_scope")
        return Credential(principal, bearer=bearer, checked_at=self._clock(), challenge=challenge)

    def _of_digest(self, digest: bytes) -> Credential | None:
        if hmac.compare_digest(digest, self._main):
            return Credential(LOCAL, digest)
        found = None if self._tokens is None else self._tokens.find(digest)
        return None if found is None else Credential(found.principal, digest)

    def _of_session(self, digest: bytes) -> Credential | None:
        """A session lives no longer than the token that it was begun with."""
        token = self.sessions.find(digest)
        if token is None:
            return None
        source = self._of_digest(token)
        if source is None:
            self.sessions.end(digest)
            return None
        return Credential(source.principal, digest, session=True)

    # --- changing -----------------------------------------------------------------------------

    def begin_session(self, credential: Credential) -> str:
        """A value for a cookie that stands for whoever has this token; raises Forbidden."""
        if self.is_open or credential.session or credential.bearer is not None:
            raise Forbidden("a session is begun with a token of this server")
        value = new_token()
        self.sessions.begin(digest_of(value), credential.digest)
        return value

    async def rotate(self, credential: Credential) -> None:
        """Replace the server's own token; raises Forbidden for any other, OSError if the new one
        cannot be made known, and then the old one stays."""
        if self.is_open or self._publish is None or credential.digest != self._main:
            raise Forbidden("only the server's own token can have itself replaced")
        async with self._rotating:
            if credential.digest != self._main:
                raise Forbidden("the token has just been replaced")
            token = new_token()
            await asyncio.to_thread(self._publish, token)
            self._main = digest_of(token)


def _bearer(headers: Mapping[bytes, bytes]) -> str | None:
    """The token of a request, empty if it is of another kind; None if there is none."""
    value = headers.get(b"authorization")
    if value is None:
        value = headers.get(IDE_HEADER)
        return None if value is None else value.decode("latin-1")
    scheme, _, token = value.decode("latin-1").partition(" ")
    return token.strip(" ") if scheme.lower() == "bearer" else ""


def _cookie(header: bytes | None, name: bytes) -> str | None:
    """The value of our cookie."""
    for pair in (header or b"").split(b";"):
        key, _, value = pair.strip().partition(b"=")
        if key == name:
            return value.decode("latin-1")
    return None


def _same_site(headers: Mapping[bytes, bytes]) -> bool:
    """Whether the browser says that no other page is behind this; old ones say nothing."""
    return headers.get(b"sec-fetch-site", b"none") in (b"none", b"same-origin")
