"""What can be wrong with who is calling, and what HTTP says then."""

from __future__ import annotations

from typing import ClassVar

__all__ = ("AccessRefused", "Forbidden", "TooMany", "Unauthenticated", "Unavailable")


class AccessRefused(Exception):
    """A request is not let in. The reason is for people, and names no token."""

    #: The HTTP status of the answer.
    status: ClassVar[int] = 403

    def __init__(self, reason: str, challenge: bytes | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        #: The value of WWW-Authenticate: how to do better.
        self.challenge = challenge


class Unauthenticated(AccessRefused):
    """There is no token, or none that is taken."""

    status = 401


class Forbidden(AccessRefused):
    """The caller is known, and may not do this."""

    status = 403


class Unavailable(AccessRefused):
    """Whether the token is good cannot be found out now."""

    status = 503


class TooMany(AccessRefused):
    """A limit was reached; the answer names it."""

    status = 429

    def __init__(self, reason: str, limit: int) -> None:
        super().__init__(f"{reason}: the limit is {limit}; try again later")
        self.limit = limit
