"""Why a call, or a connection, to another server failed."""

from __future__ import annotations

from typing import Any, ClassVar

from plexus.errors import Failed

__all__ = (
    "BadMessage",
    "Cancelled",
    "Late",
    "Lost",
    "NotReady",
    "Refused",
    "SignInRequired",
    "TooLarge",
    "Unreachable",
    "UpstreamError",
)


class UpstreamError(Failed):
    """Root of the errors of another server."""

    default_code: ClassVar[str] = "upstream"


class Unreachable(UpstreamError):
    """The server cannot be started or connected to."""

    default_code = "unreachable"


class NotReady(UpstreamError):
    """The server did not complete the handshake in time."""

    default_code = "not_ready"


class Lost(UpstreamError):
    """The connection ended while a request was in progress."""

    default_code = "upstream_lost"


class TooLarge(UpstreamError):
    """The server sent a message above the limit; `data["limit"]` is the limit."""

    default_code = "upstream_too_big"


class Refused(UpstreamError):
    """The server answered with a JSON-RPC error; `data` has its code, message and data."""

    default_code = "upstream_error"

    @classmethod
    def of(cls, error: dict[str, Any]) -> Refused:
        """Convert the error of a response."""
        code, message = error.get("code"), error.get("message")
        found: dict[str, Any] = {
            "code": code if isinstance(code, int) else 0,
            "message": message if isinstance(message, str) else "no message",
        }
        if "data" in error:
            found["data"] = error["data"]
        return cls(found["message"], data=found)

    @property
    def number(self) -> int:
        """The JSON-RPC error code."""
        return int(self.data["code"])


class Late(UpstreamError):
    """The server did not answer in time; `data["limit_s"]` is the timeout."""

    default_code = "upstream_timeout"


class BadMessage(UpstreamError):
    """The server violated the protocol."""

    default_code = "upstream_protocol"


class SignInRequired(UpstreamError):
    """The server requires a sign-in that was not completed."""

    default_code = "sign_in"


class Cancelled(UpstreamError):
    """The call was cancelled by its caller."""

    default_code = "cancelled"
