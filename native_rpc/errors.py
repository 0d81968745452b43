"""The native view's one table: from the core's error codes to JSON-RPC's numbers, and back to
exceptions in a client.

The five of the specification, and a few of the range it leaves to servers. The word itself is
on the wire too, in a terminal's `code`; the number is for JSON-RPC clients. What a client raises
are the classes of `plexus.errors`, and three that only a client can meet.
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

#: A run that failed for a reason of its own; the terminal says which.
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
    """The number for this word; words that activations make up are all failed runs."""
    return CODES.get(word, RUN_FAILED)


# --- in a client ----------------------------------------------------------------------------


class ConnectionLost(PlexusError):
    """The server cannot be reached, or went away and the call could not be taken up again."""

    default_code = "connection_lost"


class ProtocolError(PlexusError):
    """The server said something that the protocol does not allow."""

    default_code = "protocol"


class RunCancelled(Failed):
    """The run was stopped before its end; the message gives the reason if there was one."""

    default_code = "cancelled"


WORDS: Mapping[int, str] = {number: word for word, number in CODES.items()}

CLASSES: Mapping[str, type[PlexusError]] = {
    cls.default_code: cls
    for cls in (getattr(errors, name) for name in errors.__all__)
    if cls is not PlexusError
} | {RunCancelled.default_code: RunCancelled}


def error_of_reply(error: Mapping[str, Any]) -> PlexusError:
    """The error that a JSON-RPC error response stands for."""
    word = WORDS.get(error.get("code", 0), Failed.default_code)
    message = error.get("message") or "the server refused the call and gave no reason"
    return CLASSES.get(word, Failed)(str(message), code=word, data=error.get("data"))


def error_of_terminal(fields: Mapping[str, Any]) -> PlexusError | None:
    """The error that a run's last event stands for, or None if the run went well."""
    if fields["type"] == "cancelled":
        return RunCancelled(str(fields.get("reason") or "the run was cancelled"))
    if fields["type"] != "error":
        return None
    word = str(fields.get("code") or Failed.default_code)
    message = str(fields.get("message") or word)
    return CLASSES.get(word, Failed)(message, code=word, data=fields.get("data"))
