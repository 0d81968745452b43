"""Reasons for refusing a request, with their HTTP status."""

from __future__ import annotations

from typing import ClassVar

__all__ = ("AccessRefused", "Forbidden", "TooMany", "Unauthenticated", "Unavailable")


class AccessRefused(Exception):
    """A request is refused. The reason is for people, and contains no token."""

    #: The HTTP status of the response.
    status: ClassVar[int] = 403

    def __init__(self, reason: str, challenge: bytes | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        #: The value of WWW-Authenticate: how to authenticate.
        self.challenge = challenge


class Unauthenticated(AccessRefused):
    """The request has no token, or none that is accepted."""

    status = 401


class Forbidden(AccessRefused):
    """The caller is authenticated, but not authorized."""

    status = 403


class Unavailable(AccessRefused):
    """The token cannot be checked at the moment."""

    status = 503


class TooMany(AccessRefused):
    """A limit was reached. The response names it."""

    status = 429

    def __init__(self, reason: str, limit: int) -> None:
        super().__init__(f"{reason}: the limit is {limit}; try again later")
        self.limit = limit
