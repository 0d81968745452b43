"""Authentication of requests: by the server's token, additional tokens, sessions or OAuth.

Rules:

- Every request is authenticated separately, and over a WebSocket every message: a token that was
  revoked, replaced or has expired is refused from then on. What it has open is ended by
  `substrate.security.credential_watch`.
- A secret is sent in the Authorization header, never in a cookie: a browser sends cookies to every
  port of a machine, and with requests of other pages. Only a ticket may be part of a URL.
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

from plexus.errors import PlexusError
from plexus.principal import LOCAL, Principal
from substrate.security.errors import AccessRefused, Forbidden, Unauthenticated, Unavailable
from substrate.security.page_sessions import (
    Session,
    SessionFile,
    principal_of_session,
    proof_of,
)
from substrate.security.tickets import Tickets, TicketStore
from substrate.security.tokens import (
    CredentialKind,
    TokenFile,
    credential_of,
    digest_of,
    new_token,
)
from substrate.server.limits import ServerLimits

__all__ = (
    "Access",
    "Credential",
    "OAuthServer",
)

logger = logging.getLogger(__name__)

#: How often an OAuth token is checked again while its connection is open, in seconds.
RECHECK_S: Final = 60.0
#: How long an OAuth token stays valid after its last check while the issuer is unreachable: a
#: single failed attempt ends no stream.
UNREACHABLE_S: Final = 2 * RECHECK_S
IDE_HEADER: Final = b"x-claude-code-ide-authorization"
NEEDED: Final = "a token is needed; `substrate token` prints it"
UNKNOWN: Final = "the token is unknown, expired or revoked; `substrate token` prints a valid one"
SPENT: Final = "the ticket is unknown, expired or used; request another at /tickets"
#: WWW-Authenticate without OAuth; with it, the challenge names the issuer.
CHALLENGE: Final = b"Bearer"
INVALID: Final = b'Bearer error="invalid_token"'


class OAuthServer(Protocol):
    """Verifier of tokens that an OAuth issuer has issued for this server."""

    async def verify(self, bearer: str) -> tuple[Principal, float]:
        """Return the token's principal and its expiry in seconds since the epoch.

        Raises AccessRefused.
        """

    @property
    def metadata_paths(self) -> frozenset[str]:
        """Paths of `metadata`, below `/.well-known/`."""

    def metadata(self) -> Mapping[str, Any]:
        """Return the content of `/.well-known/oauth-protected-resource`."""

    def challenge(self, scope: str | None = None, error: str | None = None) -> bytes:
        """Return the value of `WWW-Authenticate`."""


class Credential(NamedTuple):
    """The sender of a request, and how it was authenticated."""

    principal: Principal
    #: Digest of the token or the session secret, which identifies the credential. Empty if
    #: authentication is off.
    digest: bytes = b""
    #: Whether it is a browser session.
    session: bool = False
    #: An OAuth token, and the time of its last check.
    bearer: str | None = None
    checked_at: float = 0.0
    #: Expiry of that token, in seconds since the epoch; None if it is looked up at each check.
    expires_s: float | None = None
    #: Returns `WWW-Authenticate` for a missing scope, if scopes can be requested.
    challenge: Callable[[str], bytes] | None = None

    def step_up(self, missing: str | None) -> list[tuple[bytes, bytes]] | None:
        """Return the header that says where to request the missing scope.

        None if no scope is missing or it cannot be requested.
        """
        if missing is None or self.challenge is None:
            return None
        return [(b"www-authenticate", self.challenge(missing))]


class Access:
    """The credentials that a server accepts."""

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
        tickets: TicketStore[Credential] | None = None,
        limits: ServerLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Configure the accepted credentials.

        `token` is the server's own, empty if authentication is off; `publish` makes a new one known
        to programs of the same user. `hosts` and `origins` are allowed in addition to those of this
        machine. Without `sessions` no browser session can be created. Tickets are kept in memory,
        unless `tickets` is where several servers keep them.
        """
        self._set_own_token(token)
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
        self._tickets: TicketStore[Credential] = tickets or Tickets(limits or ServerLimits(), clock)

    def _set_own_token(self, token: str) -> None:
        """Set the server's own token."""
        self._own_digest = digest_of(token) if token else b""
        credential = credential_of(CredentialKind.OWN, self._own_digest, LOCAL.name, None)
        self._local = Principal(LOCAL.name, None, credential)

    @classmethod
    def open(cls) -> Access:
        """Return an access that admits every client as the local user."""
        return cls("")

    @property
    def is_open(self) -> bool:
        """Whether authentication is off."""
        return not self._own_digest

    # --- checking -----------------------------------------------------------------------------

    def find(self, headers: Mapping[bytes, bytes]) -> Credential | None:
        """Return the credential of a request with a token of this server; None for any other."""
        if self.is_open:
            return Credential(LOCAL)
        bearer = _bearer(headers)
        return self._from_digest(digest_of(bearer)) if bearer else None

    async def authenticate(self, headers: Mapping[bytes, bytes]) -> Credential:
        """Return the credential of a request with these headers. Raises AccessRefused."""
        known = self.find(headers)
        if known is not None:
            return known
        bearer = _bearer(headers)
        if not bearer:
            raise self._unauthenticated(NEEDED)
        digest = digest_of(bearer)
        session = self._find_session(digest)
        if session is not None:
            credential = self._from_session(await self._mark_used(session))
            if credential is not None:
                return credential
        if self.oauth is None or session is not None:
            raise self._unauthenticated(UNKNOWN, invalid=True)
        return await self._from_oauth(bearer)

    async def redeem(self, ticket: str, path: str) -> Credential:
        """Return the credential that requested a ticket, and use the ticket up.

        Raises Unauthenticated, and Unavailable if the ticket cannot be looked up.
        """
        try:
            holder = await self._tickets.redeem(ticket, path)
        except PlexusError as error:
            raise Unavailable(error.message) from error
        still = None if holder is None else await self.revalidate(holder)
        if holder is None or still is None or not _is_same(still.principal, holder.principal):
            raise self._unauthenticated(SPENT, invalid=True)
        return still

    async def revalidate(self, credential: Credential) -> Credential | None:
        """Return the credential if it is still valid, otherwise None."""
        if self.has_expired(credential):
            return None
        if credential.bearer is not None:
            age_s = self._clock() - credential.checked_at
            if age_s < RECHECK_S:
                return credential
            try:
                return await self._from_oauth(credential.bearer)
            except Unavailable:
                return credential if age_s < UNREACHABLE_S else None
            except AccessRefused:
                return None
        if self.is_open:
            return credential
        if not credential.session:
            return self._from_known_digest(credential.digest)
        return self._from_session(self._find_session(credential.digest))

    def has_expired(self, credential: Credential) -> bool:
        """Return whether a credential with a known expiry has expired.

        For others use `revalidate`.
        """
        return credential.expires_s is not None and self._wall() >= credential.expires_s

    def prove_session(self, name: str, challenge: str) -> str | None:
        """Return the response to a challenge that proves that this server knows the session.

        None if no valid session has this name.
        """
        session = None if self._sessions is None else self._sessions.find_name(name)
        if session is None or self._from_session(session) is None:
            return None
        return proof_of(session, challenge)

    def _unauthenticated(self, reason: str, *, invalid: bool = False) -> Unauthenticated:
        if self.oauth is not None:
            return Unauthenticated(reason, self.oauth.challenge())
        return Unauthenticated(reason, INVALID if invalid else CHALLENGE)

    async def _from_oauth(self, bearer: str) -> Credential:
        oauth = self.oauth
        assert oauth is not None, "only OAuth has issued such tokens"
        principal, expires_s = await oauth.verify(bearer)
        return Credential(
            principal,
            digest_of(bearer),
            bearer=bearer,
            checked_at=self._clock(),
            expires_s=expires_s,
            challenge=partial(oauth.challenge, error="insufficient_scope"),
        )

    def _from_digest(self, digest: bytes) -> Credential | None:
        if hmac.compare_digest(digest, self._own_digest):
            return Credential(self._local, digest)
        found = None if self._tokens is None else self._tokens.find(digest)
        return None if found is None else Credential(found.principal, digest)

    def _from_known_digest(self, digest: bytes) -> Credential | None:
        """Return the same for a digest that was found before: open streams are checked often."""
        if digest == self._own_digest:
            return Credential(self._local, digest)
        found = None if self._tokens is None else self._tokens.get(digest)
        return None if found is None else Credential(found.principal, digest)

    def _find_session(self, digest: bytes) -> Session | None:
        return None if self._sessions is None else self._sessions.find(digest)

    def _from_session(self, session: Session | None) -> Credential | None:
        """Return the credential of a session.

        A session that was created with an additional token ends with that token; a session that was
        created with a server's own token is valid for the server on that port.
        """
        if session is None:
            return None
        if session.token is None and session.port != self._port:
            return None
        own = principal_of_session(session, self._tokens)
        return None if own is None else Credential(own, session.digest, session=True)

    async def _mark_used(self, session: Session) -> Session | None:
        """Update the session's time of use now and then, and return the session as it is then.

        A request does not fail if the update cannot be written.
        """
        assert self._sessions is not None, "the session was found there"
        if not self._sessions.is_use_due(session):
            return session
        try:
            await asyncio.to_thread(self._sessions.mark_used, session.digest)
        except OSError as error:
            logger.warning("the time of use of a session cannot be written: %s", error)
        return self._find_session(session.digest)  # it may have been revoked meanwhile

    # --- changing -----------------------------------------------------------------------------

    async def create_session(self, credential: Credential, user_agent: str = "") -> tuple[str, int]:
        """Create a browser session for a token; return its secret and its lifetime in seconds.

        Raises Forbidden, TooMany and OSError.
        """
        by_token = not (self.is_open or credential.session or credential.bearer is not None)
        if self._sessions is None or not by_token:
            raise Forbidden("a session can be created only with a token of this server")
        # No session of the own token may be created while that is being replaced.
        async with self._rotating:
            if await self.revalidate(credential) is None:
                raise Forbidden("the token has just been revoked or replaced")
            own = credential.digest == self._own_digest
            secret, session = await asyncio.to_thread(
                self._sessions.create,
                credential.principal.name,
                token=None if own else credential.digest,
                port=self._port if own else None,
                user_agent=user_agent,
                tokens=frozenset() if self._tokens is None else self._tokens.valid_digests(),
            )
        return secret, int(session.expires_s - session.created_s)

    async def end_session(self, credential: Credential) -> None:
        """End a browser session (log out). Raises Forbidden and OSError."""
        if self._sessions is None or not credential.session:
            raise Forbidden("only a session can be ended; revoke a token with `substrate token`")
        await asyncio.to_thread(self._sessions.end, credential.digest)

    async def issue_ticket(self, credential: Credential, path: str | None = None) -> str:
        """Return a ticket for one stream at this path, or at any that accepts tickets.

        Raises TooMany, and Unavailable if the ticket cannot be stored.
        """
        if self.is_open:
            return new_token()  # not checked: authentication is off
        try:
            return await self._tickets.issue(credential, credential.digest, path)
        except PlexusError as error:
            raise Unavailable(error.message) from error

    async def rotate(self, credential: Credential) -> None:
        """Replace the server's own token and end the sessions that were created with it.

        Raises Forbidden for any other token. Raises OSError, and keeps the old token, if the new
        one cannot be published or the sessions cannot be ended.
        """
        if self.is_open or self._publish is None or credential.digest != self._own_digest:
            raise Forbidden("only the server's own token can rotate itself")
        async with self._rotating:
            if credential.digest != self._own_digest:
                raise Forbidden("the token has just been replaced")
            if self._sessions is not None:
                await asyncio.to_thread(self._sessions.end_for_port, self._port)
            token = new_token()
            await asyncio.to_thread(self._publish, token)
            self._set_own_token(token)


def _bearer(headers: Mapping[bytes, bytes]) -> str | None:
    """Return the bearer token of a request; empty for another scheme, None without a token."""
    value = headers.get(b"authorization")
    if value is None:
        value = headers.get(IDE_HEADER)
        return None if value is None else value.decode("latin-1")
    scheme, _, token = value.decode("latin-1").partition(" ")
    return token.strip(" ") if scheme.lower() == "bearer" else ""


def _is_same(one: Principal, other: Principal) -> bool:
    """Return whether both are the same principal with the same scopes."""
    return one == other and one.scopes == other.scopes
