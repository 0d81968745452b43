"""What a client raises: the core's own errors, and three that only a client can meet.

The words and numbers on the wire come from the one table in `native_rpc.errors`, read backwards
here, and the classes from the one tree in `plexus.errors`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from native_rpc.errors import CODES
from plexus import errors
from plexus.errors import Failed, PlexusError

__all__ = ("ConnectionLost", "ProtocolError", "RunCancelled", "error_of_reply", "error_of_terminal")


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
