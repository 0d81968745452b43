"""Browser sessions: random secrets that a page stores instead of the token it was given.

They are stored in a file next to the token file, so they survive a restart of the server, and only
as digests. A session that was created with an additional token ends with that token. A session that
was created with the server's own token is valid for the server on that port until the token is
rotated; the next server there has another token, but accepts the session.

While the server is down, another program may listen on its port. So after a lost connection a page
does not send the secret before the server has proved that it knows the session: it answers a
challenge, for which it needs the digest. A secret starts with the name of its session, which the
page sends with the challenge.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any, Final

from plexus.principal import LOCAL, Principal
from plexus.private_files import data_folder
from plexus.text import replace_controls
from substrate.security.errors import TooMany
from substrate.security.private_files import RecordFile
from substrate.security.tokens import (
    CredentialKind,
    TokenFile,
    credential_of,
    digest_of,
    new_token,
)
from substrate.server.limits import ServerLimits

__all__ = ("Session", "SessionFile", "is_session_name", "principal_of_session", "proof_of")

FILE: Final = "sessions.json"
#: Prefix of session names. No token can have such a name.
PREFIX: Final = "session:"
#: Domain separation: a proof cannot be used for anything else.
PROOF: Final = b"substrate session proof "
#: Maximum stored characters of the User-Agent.
AGENT_CHARS: Final = 160
#: Minimum interval between updates of the time of use: in seconds, and as a fraction of the idle
#: timeout.
USED_EVERY_S: Final = 3600.0
USED_PART: Final = 8


def is_session_name(name: str) -> bool:
    """Return whether this is the name of a session, not of a token."""
    return name.startswith(PREFIX)


@dataclasses.dataclass(frozen=True)
class Session:
    """A session, without its secret."""

    name: str
    digest: bytes
    #: The name of its principal.
    principal: str
    #: The digest of the additional token that created it; None for the server's own token.
    token: bytes | None
    #: The port of the server whose own token created it; None for an additional token.
    port: int | None
    created_s: float
    #: The time of the last use, updated every `used_every_s`.
    used_s: float
    expires_s: float
    #: The idle timeout.
    idle_s: float
    #: The User-Agent of the browser, for display only.
    user_agent: str = ""

    @property
    def ends_s(self) -> float:
        """When it ends unless it is used again."""
        return min(self.expires_s, self.used_s + self.idle_s)

    @property
    def used_every_s(self) -> float:
        """Minimum interval between updates of the time of use."""
        return min(USED_EVERY_S, self.idle_s / USED_PART)


def principal_of_session(session: Session, tokens: TokenFile | None) -> Principal | None:
    """Return the principal of a session; None if the token that created it is not valid."""
    principal: Principal | None = LOCAL
    if session.token is not None:
        found = None if tokens is None else tokens.get(session.token)
        principal = None if found is None else found.principal
    if principal is None:
        return None
    name, scopes = principal.name, principal.scopes
    # A separate credential: when the session ends, so does everything that it has open.
    credential = credential_of(CredentialKind.SESSION, session.digest, name, scopes)
    return Principal(name, scopes, credential)


class SessionFile:
    """The sessions in one file.

    Methods that change it wait for other processes: call them in a thread. Servers call `find` on
    their event loop; it reads the file only when it has changed.
    """

    def __init__(
        self,
        path: Path | None = None,
        limits: ServerLimits | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._file = RecordFile(
            path or data_folder() / FILE,
            "sessions",
            decode=_session,
            encode=_entry,
            disposable=True,
        )
        self._limits = limits or ServerLimits()
        self._wall = wall
        #: Sessions whose time of use is being updated.
        self._marking: set[bytes] = set()

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self._file.path

    # --- for servers --------------------------------------------------------------------------

    def find(self, digest: bytes) -> Session | None:
        """Return the valid session with this digest."""
        # The lookup is by digest, so its timing reveals nothing about any secret.
        return self._if_valid(self._file.get(digest))

    def find_name(self, name: str) -> Session | None:
        """Return the valid session with this name."""
        return self._if_valid(next((s for s in self._file.records() if s.name == name), None))

    def has_credential(self, credential: bytes, tokens: TokenFile) -> bool:
        """Return whether a valid session has this identifier."""
        for session in self._file.records():
            owner = principal_of_session(session, tokens)
            if owner is not None and owner.credential == credential:
                return self._if_valid(session) is not None
        return False

    def _if_valid(self, session: Session | None) -> Session | None:
        return None if session is None or self._wall() >= session.ends_s else session

    def is_use_due(self, session: Session) -> bool:
        """Return whether the time of use must be updated; then the caller calls `mark_used`."""
        old = self._wall() - session.used_s >= session.used_every_s
        if not old or session.digest in self._marking:
            return False
        self._marking.add(session.digest)
        return True

    def mark_used(self, digest: bytes) -> None:
        """Set the time of use to now. Raises OSError."""
        now = self._wall()
        try:
            with self._file.update() as sessions:
                for index, each in enumerate(sessions):
                    if each.digest == digest:
                        sessions[index] = dataclasses.replace(each, used_s=now)
        finally:
            self._marking.discard(digest)

    def create(
        self,
        principal: str,
        *,
        token: bytes | None = None,
        port: int | None = None,
        user_agent: str = "",
        tokens: Container[bytes] = (),
    ) -> tuple[str, Session]:
        """Create a session and return it with its secret, which is not stored.

        `tokens` are the digests of the valid additional tokens: sessions of other tokens are
        removed. Raises TooMany and OSError.
        """
        now, limits = self._wall(), self._limits
        with self._file.update() as sessions:
            sessions[:] = [each for each in sessions if is_valid(each, now, tokens)]
            own = sorted(
                (each for each in sessions if each.principal == principal),
                key=lambda each: (each.used_s, each.created_s),
            )
            while own and (
                len(own) >= limits.sessions_per_principal or len(sessions) >= limits.sessions
            ):
                sessions.remove(own.pop(0))
            if len(sessions) >= limits.sessions:
                raise TooMany("other principals have too many sessions", limits.sessions)
            names = {each.name for each in sessions}
            name = PREFIX + secrets.token_hex(4)
            while name in names:
                name = PREFIX + secrets.token_hex(4)
            secret = f"{name}.{new_token()}"
            session = Session(
                name,
                digest_of(secret),
                principal,
                token,
                port,
                created_s=now,
                used_s=now,
                expires_s=now + limits.session_s,
                idle_s=limits.session_idle_s,
                user_agent=_stripped(user_agent),
            )
            sessions.append(session)
        return secret, session

    def end(self, digest: bytes) -> bool:
        """End a session. False if it does not exist. Raises OSError."""
        return self._file.remove(lambda each: each.digest == digest)

    def end_for_port(self, port: int) -> None:
        """End the sessions created with the own token of the server on this port.

        Raises OSError.
        """
        self._file.remove(lambda each: each.port == port)

    # --- for commands -------------------------------------------------------------------------

    def read(self, tokens: Container[bytes] = ()) -> list[Session]:
        """Return the valid sessions, the newest last. Raises OSError and ValueError.

        `tokens` are the digests of the valid additional tokens.
        """
        now = self._wall()
        return [each for each in self._file.read() if is_valid(each, now, tokens)]

    def revoke(self, name: str) -> bool:
        """End the session with this name. False if it does not exist. Raises OSError."""
        return self._file.remove(lambda each: each.name == name)


def proof_of(session: Session, challenge: str) -> str:
    """Return the response to a challenge that only a server that knows the session can compute."""
    return hmac.new(session.digest, PROOF + challenge.encode(), hashlib.sha256).hexdigest()


def is_valid(session: Session, now_s: float, tokens: Container[bytes]) -> bool:
    """Return whether a session is valid, given the digests of the valid additional tokens."""
    return now_s < session.ends_s and (session.token is None or session.token in tokens)


def _stripped(user_agent: str) -> str:
    """Return text that is safe to print on a terminal, on one line and within a limit."""
    return replace_controls(user_agent)[:AGENT_CHARS].strip()


def _entry(session: Session) -> dict[str, Any]:
    return {
        "name": session.name,
        "sha256": session.digest.hex(),
        "principal": session.principal,
        "token": None if session.token is None else session.token.hex(),
        "port": session.port,
        "created": session.created_s,
        "used": session.used_s,
        "expires": session.expires_s,
        "idle": session.idle_s,
        "user_agent": session.user_agent,
    }


def _session(entry: Any) -> Session:
    token, port = entry["token"], entry["port"]
    if (token is None) == (port is None):
        raise ValueError("a session belongs to either an additional token or a server's own token")
    return Session(
        str(entry["name"]),
        bytes.fromhex(entry["sha256"]),
        str(entry["principal"]),
        None if token is None else bytes.fromhex(token),
        None if port is None else int(port),
        created_s=float(entry["created"]),
        used_s=float(entry["used"]),
        expires_s=float(entry["expires"]),
        idle_s=float(entry["idle"]),
        user_agent=_stripped(str(entry["user_agent"])),
    )
