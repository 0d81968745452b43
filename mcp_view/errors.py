"""The table of errors: from error codes of the core to JSON-RPC error numbers of MCP."""

from __future__ import annotations

from typing import Any, Final

from mcp_view.revisions import Revision
from plexus.errors import PlexusError
from plexus.rpc import wire

__all__ = (
    "BUSY",
    "DENIED",
    "HEADER_MISMATCH",
    "MISSING_CAPABILITY",
    "NOT_INITIALIZED",
    "UNSUPPORTED_REVISION",
    "ProtocolError",
    "RunNotLoaded",
    "code_of",
    "protocol_error",
)

#: A limit on work in progress is reached.
BUSY: Final = -32003
#: A request before `initialize`. The specification does not define the number.
NOT_INITIALIZED: Final = -32002
#: The client's scopes do not allow the request. MCP defines no number for this; this range is free.
DENIED: Final = -31001
HEADER_MISMATCH: Final = -32020
MISSING_CAPABILITY: Final = -32021
UNSUPPORTED_REVISION: Final = -32022

CODES: Final[dict[str, int]] = {
    "invalid_params": wire.INVALID_PARAMS,
    "unknown_method": wire.INVALID_PARAMS,  # an unknown tool or prompt
    "unsupported": MISSING_CAPABILITY,
    "denied": DENIED,
    "busy": BUSY,
    "stopping": BUSY,
}


class ProtocolError(Exception):
    """A JSON-RPC error that answers a request."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


class RunNotLoaded(ProtocolError):
    """The run of a request is not in memory; this is the error if it cannot be loaded either.

    `run` is its number, or None for all runs with a guaranteed retention.
    """

    def __init__(self, run: int | None, error: ProtocolError) -> None:
        super().__init__(error.code, error.message, error.data)
        self.run = run


def code_of(word: str, revision: Revision) -> int:
    """Return the JSON-RPC error number for an error code of the core."""
    if word == "not_found":
        return revision.missing_resource
    if word == "unsupported" and revision.handshake:
        return wire.INTERNAL_ERROR
    return CODES.get(word, wire.INTERNAL_ERROR)


def protocol_error(error: PlexusError, revision: Revision) -> ProtocolError:
    """Convert an error of the core to an error of the protocol."""
    return ProtocolError(code_of(error.code, revision), error.message, error.data)
