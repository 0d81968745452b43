"""The table of errors: from error codes of the core to JSON-RPC numbers, and to client exceptions.

The numbers are the five of the specification and a few of the range reserved for servers. The error
code itself is also on the wire, in the `code` of a terminal; the number is for JSON-RPC clients. A
client raises the classes of `plexus.errors`, and three that only a client raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from plexus import errors
from plexus.errors import Failed, PlexusError
from plexus.rpc import wire

__all__ = (
    "CODES",
    "ConnectionLost",
    "ProtocolError",
    "RunCancelled",
    "code_of",
    "error_of_reply",
    "error_of_terminal",
)

#: A run failed for a reason specific to its method, which the terminal contains.
RUN_FAILED: Final = -32000

CODES: Final[dict[str, int]] = {
    "parse": wire.PARSE_ERROR,
    "invalid_request": wire.INVALID_REQUEST,
    "unknown_method": wire.METHOD_NOT_FOUND,
    "invalid_params": wire.INVALID_PARAMS,
    "internal": wire.INTERNAL_ERROR,
    "denied": -32001,
    "stopping": -32002,
    "busy": -32003,
    "not_found": -32004,
    "too_big": -32005,
    "deadline": -32006,
    "cancelled": -32007,
}


def code_of(word: str) -> int:
    """Return the JSON-RPC number for an error code. Codes of activations are failed runs."""
    return CODES.get(word, RUN_FAILED)


# --- client errors ----------------------------------------------------------------------------


class ConnectionLost(PlexusError):
    """The server cannot be reached, or the connection was lost and the call cannot resume."""

    default_code = "connection_lost"


class ProtocolError(PlexusError):
    """The server sent a message that the protocol does not allow."""

    default_code = "protocol"


class RunCancelled(Failed):
    """The run was cancelled. The message contains the reason if one was given."""

    default_code = "cancelled"


WORDS: Mapping[int, str] = {number: word for word, number in CODES.items()}

CLASSES: Mapping[str, type[PlexusError]] = {
    cls.default_code: cls
    for cls in (getattr(errors, name) for name in errors.__all__)
    if cls is not PlexusError
} | {RunCancelled.default_code: RunCancelled}


def error_of_reply(error: Mapping[str, Any]) -> PlexusError:
    """Convert a JSON-RPC error to an exception."""
    word = WORDS.get(error.get("code", 0), Failed.default_code)
    message = error.get("message") or "The server refused the call without a reason."
    return CLASSES.get(word, Failed)(str(message), code=word, data=error.get("data"))


def error_of_terminal(fields: Mapping[str, Any]) -> PlexusError | None:
    """Convert the terminal of a run to an exception; None if the run succeeded."""
    if fields["type"] == "cancelled":
        return RunCancelled(str(fields.get("reason") or "The run was cancelled."))
    if fields["type"] != "error":
        return None
    word = str(fields.get("code") or Failed.default_code)
    message = str(fields.get("message") or word)
    return CLASSES.get(word, Failed)(message, code=word, data=fields.get("data"))
