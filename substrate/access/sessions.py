"""The sessions of browsers: each a random value in a cookie, that stands for a token.

The cookie is not the token, so that a page cannot read it and a restart ends it. They are held
in memory, within a bound.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

__all__ = ("BrowserSessions",)

#: How many there may be; the one that was used longest ago makes room for a new one.
MAX_SESSIONS: Final = 256
#: How long one lives without a request, in seconds.
IDLE_S: Final = 12 * 3600.0


class Session(NamedTuple):
    """The digest of the token that it stands for, and when it was used last."""

    token: bytes
    used_at: float


class BrowserSessions:
    """All sessions of one server, by the digests of their cookies."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        #: The one that was used last is the last.
        self._sessions: dict[bytes, Session] = {}

    def begin(self, digest: bytes, token: bytes) -> None:
        """A new session."""
        while len(self._sessions) >= MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        self._sessions[digest] = Session(token, self._clock())

    def find(self, digest: bytes) -> bytes | None:
        """The digest of the token that this session stands for; it is used with that."""
        # What is looked up is a digest: how long that takes says nothing about any cookie.
        session = self._sessions.pop(digest, None)
        now = self._clock()
        if session is None or now - session.used_at > IDLE_S:
            return None
        self._sessions[digest] = Session(session.token, now)
        return session.token

    def end(self, digest: bytes) -> None:
        """End a session."""
        self._sessions.pop(digest, None)
