"""Who sends a request: by the server's own token, a further one, a browser session, or OAuth.

Rules:
- Every request is authenticated by itself, and over a WebSocket every message: a token that was
  revoked, has expired or was replaced reaches nothing from then on. What it has open is ended by
  `substrate.security.credential_watch`.
- A secret comes in the Authorization header, and in no cookie: a browser sends a cookie to every
  port of a machine, and with requests of other pages. The one thing in an address is a ticket.
- Only digests are compared.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from plexus.principal import LOCAL, Principal
from substrate.security.errors import AccessRefused, Forbidden, Unauthenticated, Unavailable
from substrate.security.page_sessions import Session, SessionFile, proof_of
from substrate.security.tickets import Tickets
from substrate.security.tokens import TokenFile, credential_of, digest_of, new_token
from substrate.server.limits import ServerLimits

__all__ = (
    "Access",
    "Credential",
    "OAuthServer",
)

logger = logging.getLogger(__name__)

#: How seldom a token of somebody else is checked again while its connection is open, in seconds.
RECHECK_S: Final = 60.0
#: How long such a token stays valid after its last check while the issuer cannot be reached: one
#: failed attempt ends no stream.
UNREACHABLE_S: Final = 2 * RECHECK_S
IDE_HEADER: Final = b"x-claude-code-ide-authorization"
NEEDED: Final = "a token is needed; `substrate token` prints it"
UNKNOWN: Final = "that token is not, or no longer, one of this server"
SPENT: Final = "that ticket is not, or no longer, good for this; ask for another at /tickets"
#: What is said without OAuth; with it, the challenge says where a token is to be had.
CHALLENGE: Final = b"Bearer"
INVALID: Final = b'Bearer error="invalid_token"'


class OAuthServer(Protocol):
    """Whoever knows the tokens that others have issued for us."""

    async def verify(self, bearer: str) -> tuple[Principal, float]:
        """Return whose token it is and when it ends, in seconds since the epoch; raises
        AccessRefused."""

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
    #: Of the token or the session: what tells two credentials apart. Empty where none is asked for.
    digest: bytes = b""
    #: Whether it is a browser session.
    session: bool = False
    #: A token of somebody else, and when it was looked at.
    bearer: str | None = None
    checked_at: float = 0.0
    #: When that token ends, in seconds since the epoch; None where that is looked up each time.
    expires_s: float | None = None
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
        sessions: SessionFile | None = None,
        *,
        port: int = 0,
        hosts: Sequence[str] = (),
        origins: Sequence[str] = (),
        oauth: OAuthServer | None = None,
        publish: Callable[[str], None] | None = None,
        limits: ServerLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`token` is the server's own, empty if callers need none; `publish` makes a new one known
        to the programs of the same user. `hosts` and `origins` are allowed besides those of this
        machine. Without `sessions` no browser session can be begun."""
        self._use_main(token)
        self._tokens = tokens
        self._publish = publish
        self._rotating = asyncio.Lock()
        self._clock = clock
        self._wall = wall
        self.hosts = hosts
        self.origins = origins
        self.oauth = oauth
        self._port = port
        self._sessions = sessions
        self._tickets: Tickets[Credential] = Tickets(limits or ServerLimits(), clock)

    def _use_main(self, token: str) -> None:
        """Take this as the server's own token from now on."""
        self._main = digest_of(token) if token else b""
        self._local = Principal(LOCAL.name, None, credential_of(self._main, LOCAL.name, None))

    @classmethod
    def open(cls) -> Access:
        """Lets everybody in as the person at this machine."""
        return cls("")

    @property
    def is_open(self) -> bool:
        """Whether nobody is asked for anything."""
        return not self._main

    # --- asking -------------------------------------------------------------------------------

    async def authenticate(self, headers: Mapping[bytes, bytes]) -> Credential:
        """Return who sends a request with these headers. Raises AccessRefused."""
        if self.is_open:
            return Credential(LOCAL)
        bearer = _bearer(headers)
        if not bearer:
            raise self._unauthenticated(NEEDED)
        digest = digest_of(bearer)
        credential = self._of_digest(digest)
        if credential is not None:
            return credential
        session = self._find_session(digest)
        if session is not None:
            credential = self._of_session(await self._mark_used(session))
            if credential is not None:
                return credential
        if self.oauth is None or session is not None:
            raise self._unauthenticated(UNKNOWN, invalid=True)
        return await self._of_oauth(bearer)

    async def redeem(self, ticket: str, path: str) -> Credential:
        """Return who asked for a ticket, which is used up with that. Raises Unauthenticated."""
        holder = self._tickets.redeem(ticket, path)
        still = None if holder is None else await self.still(holder)
        if holder is None or still is None or not _is_same(still.principal, holder.principal):
            raise self._unauthenticated(SPENT, invalid=True)
        return still

    async def still(self, credential: Credential) -> Credential | None:
        """The same credential, if it is still good."""
        if self.has_expired(credential):
            return None
        if credential.bearer is not None:
            age_s = self._clock() - credential.checked_at
            if age_s < RECHECK_S:
                return credential
            try:
                return await self._of_oauth(credential.bearer)
            except Unavailable:
                return credential if age_s < UNREACHABLE_S else None
            except AccessRefused:
                return None
        if self.is_open:
            return credential
        if not credential.session:
            return self._of_known(credential.digest)
        return self._of_session(self._find_session(credential.digest))

    def has_expired(self, credential: Credential) -> bool:
        """Whether a credential with a known end is past it; for others `still` knows."""
        return credential.expires_s is not None and self._wall() >= credential.expires_s

    def prove_session(self, name: str, challenge: str) -> str | None:
        """Return the answer to a page's challenge that shows that this server knows the session of
        this name; None if there is none in force."""
        session = None if self._sessions is None else self._sessions.find_name(name)
        if session is None or self._of_session(session) is None:
            return None
        return proof_of(session, challenge)

    def _unauthenticated(self, reason: str, *, invalid: bool = False) -> Unauthenticated:
        if self.oauth is not None:
            return Unauthenticated(reason, self.oauth.challenge())
        return Unauthenticated(reason, INVALID if invalid else CHALLENGE)

    async def _of_oauth(self, bearer: str) -> Credential:
        oauth = self.oauth
        assert oauth is not None, "its tokens are known only by it"
        principal, expires_s = await oauth.verify(bearer)
        return Credential(
            principal,
            digest_of(bearer),
            bearer=bearer,
            checked_at=self._clock(),
            expires_s=expires_s,
            challenge=partial(oauth.challenge, error="insufficient_scope"),
        )

    def _of_digest(self, digest: bytes) -> Credential | None:
        if hmac.compare_digest(digest, self._main):
            return Credential(self._local, digest)
        found = None if self._tokens is None else self._tokens.find(digest)
        return None if found is None else Credential(found.principal, digest)

    def _of_known(self, digest: bytes) -> Credential | None:
        """The same for a digest that was found before: open streams are checked all the time."""
        if digest == self._main:
            return Credential(self._local, digest)
        found = None if self._tokens is None else self._tokens.get(digest)
        return None if found is None else Credential(found.principal, digest)

    def _find_session(self, digest: bytes) -> Session | None:
        return None if self._sessions is None else self._sessions.find(digest)

    def _of_session(self, session: Session | None) -> Credential | None:
        """Return whose session it is. One that was begun with a further token ends with that; one
        that was begun with the own token of a server is for the server on that port."""
        if session is None:
            return None
        if session.token is None:
            principal = LOCAL if session.port == self._port else None
        else:
            found = None if self._tokens is None else self._tokens.get(session.token)
            principal = None if found is None else found.principal
        if principal is None:
            return None
        name, scopes = principal.name, principal.scopes
        # A credential of its own: when it ends, so does what was opened with it.
        own = Principal(name, scopes, credential_of(session.digest, name, scopes))
        return Credential(own, session.digest, session=True)

    async def _mark_used(self, session: Session) -> Session | None:
        """Write now and then that a session is in use, and return it as it is then. A request does
        not fail because that cannot be written."""
        assert self._sessions is not None, "the session was found there"
        if not self._sessions.is_use_due(session):
            return session
        try:
            await asyncio.to_thread(self._sessions.mark_used, session.digest)
        except OSError as error:
            logger.warning("the use of a session cannot be written: %s", error)
        return self._find_session(session.digest)  # it may have been revoked meanwhile

    # --- changing -----------------------------------------------------------------------------

    async def begin_session(self, credential: Credential, user_agent: str = "") -> tuple[str, int]:
        """Begin a browser session for the holder of a token; return its secret and for how many
        seconds it lives. Raises Forbidden, TooMany and OSError."""
        by_token = not (self.is_open or credential.session or credential.bearer is not None)
        if self._sessions is None or not by_token:
            raise Forbidden("a session can be begun with a token of this server only")
        # A session of the own token must not slip in while that is being replaced.
        async with self._rotating:
            if await self.still(credential) is None:
                raise Forbidden("the token has just been revoked or replaced")
            own = credential.digest == self._main
            secret, session = await asyncio.to_thread(
                self._sessions.begin,
                credential.principal.name,
                token=None if own else credential.digest,
                port=self._port if own else None,
                user_agent=user_agent,
                tokens=frozenset() if self._tokens is None else self._tokens.digests_in_force(),
            )
        return secret, int(session.expires_s - session.created_s)

    async def end_session(self, credential: Credential) -> None:
        """End a browser session: log out. Raises Forbidden and OSError."""
        if self._sessions is None or not credential.session:
            raise Forbidden("only a session can be ended; revoke a token with `substrate token`")
        await asyncio.to_thread(self._sessions.end, credential.digest)

    def issue_ticket(self, credential: Credential, path: str | None = None) -> str:
        """Return a ticket for one stream, opened at this path or at any that takes tickets. Raises
        TooMany."""
        if self.is_open:
            return new_token()  # not looked at, like anything else that says who is calling
        return self._tickets.issue(credential, credential.digest, path)

    async def rotate(self, credential: Credential) -> None:
        """Replace the server's own token and end the sessions that were begun with it. Raises
        Forbidden for any other, and OSError if the new one cannot be made known or the sessions
        cannot be ended; the old one stays then."""
        if self.is_open or self._publish is None or credential.digest != self._main:
            raise Forbidden("only the server's own token can have itself replaced")
        async with self._rotating:
            if credential.digest != self._main:
                raise Forbidden("the token has just been replaced")
            if self._sessions is not None:
                await asyncio.to_thread(self._sessions.end_of_port, self._port)
            token = new_token()
            await asyncio.to_thread(self._publish, token)
            self._use_main(token)


def _bearer(headers: Mapping[bytes, bytes]) -> str | None:
    """The token of a request, empty if it is of another kind; None if there is none."""
    value = headers.get(b"authorization")
    if value is None:
        value = headers.get(IDE_HEADER)
        return None if value is None else value.decode("latin-1")
    scheme, _, token = value.decode("latin-1").partition(" ")
    return token.strip(" ") if scheme.lower() == "bearer" else ""


def _is_same(one: Principal, other: Principal) -> bool:
    """Whether two are the same principal with the same scopes."""
    return one == other and one.scopes == other.scopes
