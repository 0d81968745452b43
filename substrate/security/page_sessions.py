"""Browser sessions: random secrets that a page keeps in place of the token it was given.

They are in a file beside that of the tokens, so they outlive a restart of the server, and of each
secret only its digest. A session that was begun with a further token ends with that token. One that
was begun with the server's own token is good for the server on that port until the token is
rotated; the next server there has another token, and takes the session all the same.

While the server is down, another program may listen on its port. So a page does not send the secret
after a lost connection before the server has proved that it knows the session: it answers a
challenge, for which it needs the digest. A secret begins with the name of its session, by which the
page asks.
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

from plexus.private_files import data_folder
from plexus.text import replace_controls
from substrate.security.errors import TooMany
from substrate.security.private_files import RecordFile
from substrate.security.tokens import digest_of, new_token
from substrate.server.limits import ServerLimits

__all__ = ("Session", "SessionFile", "is_session_name", "proof_of")

FILE: Final = "sessions.json"
#: What names of sessions begin with. No token can have such a name.
PREFIX: Final = "session:"
#: What a proof is of, so that it can be used for nothing else.
PROOF: Final = b"substrate session proof "
#: How much is kept of what a browser calls itself.
AGENT_CHARS: Final = 160
#: How seldom the time of the last use is written, in seconds, and as a part of the idle time.
USED_EVERY_S: Final = 3600.0
USED_PART: Final = 8


def is_session_name(name: str) -> bool:
    """Whether a name is that of a session, rather than of a token."""
    return name.startswith(PREFIX)


@dataclasses.dataclass(frozen=True)
class Session:
    """One session, without its secret."""

    name: str
    digest: bytes
    #: The name of its principal.
    principal: str
    #: The digest of the further token that it was begun with; None for the server's own token.
    token: bytes | None
    #: The port of the server whose own token it was begun with; None for a further token.
    port: int | None
    created_s: float
    #: When it was used last, within `used_every_s`.
    used_s: float
    expires_s: float
    #: How long it lives without a request.
    idle_s: float
    #: What the browser called itself: for people only.
    user_agent: str = ""

    @property
    def ends_s(self) -> float:
        """When it ends unless it is used again."""
        return min(self.expires_s, self.used_s + self.idle_s)

    @property
    def used_every_s(self) -> float:
        """How seldom the time of the last use is written."""
        return min(USED_EVERY_S, self.idle_s / USED_PART)


class SessionFile:
    """The sessions in one file. What changes it waits for other processes: call that in a thread.

    Servers call `find` on their event loop; it reads the file only when it has changed."""

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
        #: Sessions whose use is being written.
        self._marking: set[bytes] = set()

    @property
    def path(self) -> Path:
        """Where the file is."""
        return self._file.path

    # --- for servers --------------------------------------------------------------------------

    def find(self, digest: bytes) -> Session | None:
        """Return the session with this digest if it has not ended."""
        # What is looked up is a digest: how long that takes says nothing about any secret.
        return self._in_force(self._file.get(digest))

    def find_name(self, name: str) -> Session | None:
        """Return the session of this name if it has not ended."""
        return self._in_force(next((s for s in self._file.records() if s.name == name), None))

    def _in_force(self, session: Session | None) -> Session | None:
        return None if session is None or self._wall() >= session.ends_s else session

    def is_use_due(self, session: Session) -> bool:
        """Whether the time of the last use is to be written; the caller then calls `mark_used`."""
        old = self._wall() - session.used_s >= session.used_every_s
        if not old or session.digest in self._marking:
            return False
        self._marking.add(session.digest)
        return True

    def mark_used(self, digest: bytes) -> None:
        """Write that a session was used now. Raises OSError."""
        now = self._wall()
        try:
            with self._file.changing() as sessions:
                for index, each in enumerate(sessions):
                    if each.digest == digest:
                        sessions[index] = dataclasses.replace(each, used_s=now)
        finally:
            self._marking.discard(digest)

    def begin(
        self,
        principal: str,
        *,
        token: bytes | None = None,
        port: int | None = None,
        user_agent: str = "",
        tokens: Container[bytes] = (),
    ) -> tuple[str, Session]:
        """Begin a session and return its secret, which is kept nowhere. `tokens` are the digests
        of the further tokens in force: sessions of others are removed. Raises TooMany and
        OSError."""
        now, limits = self._wall(), self._limits
        with self._file.changing() as sessions:
            sessions[:] = [each for each in sessions if is_alive(each, now, tokens)]
            own = sorted(
                (each for each in sessions if each.principal == principal),
                key=lambda each: (each.used_s, each.created_s),
            )
            while own and (
                len(own) >= limits.sessions_per_principal or len(sessions) >= limits.sessions
            ):
                sessions.remove(own.pop(0))
            if len(sessions) >= limits.sessions:
                raise TooMany("there are too many sessions of others", limits.sessions)
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
        """End a session; False if there is none. Raises OSError."""
        return self._file.remove(lambda each: each.digest == digest)

    def end_of_port(self, port: int) -> None:
        """End the sessions that were begun with the own token of the server on this port. Raises
        OSError."""
        self._file.remove(lambda each: each.port == port)

    # --- for commands -------------------------------------------------------------------------

    def read(self, tokens: Container[bytes] = ()) -> list[Session]:
        """Return the sessions in force, the newest last, given the digests of the further tokens in
        force. Raises OSError and ValueError."""
        now = self._wall()
        return [each for each in self._file.read() if is_alive(each, now, tokens)]

    def revoke(self, name: str) -> bool:
        """End the session of this name; False if there is none. Raises OSError."""
        return self._file.remove(lambda each: each.name == name)


def proof_of(session: Session, challenge: str) -> str:
    """Return what only a server that knows the session can answer to a challenge."""
    return hmac.new(session.digest, PROOF + challenge.encode(), hashlib.sha256).hexdigest()


def is_alive(session: Session, now_s: float, tokens: Container[bytes]) -> bool:
    """Whether a session is in force, given the digests of the further tokens in force."""
    return now_s < session.ends_s and (session.token is None or session.token in tokens)


def _stripped(user_agent: str) -> str:
    """Text that can be printed on a terminal, on one line and within a bound."""
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
        raise ValueError("a session is begun with a further token or with that of one server")
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
