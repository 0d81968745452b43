"""The view's one table of errors: from the core's words to the protocol's numbers."""

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
    "code_of",
    "protocol_error",
)

#: A limit on work under way is reached.
BUSY: Final = -32003
#: Before `initialize`; the specification leaves the number open.
NOT_INITIALIZED: Final = -32002
#: What the client's scopes do not allow; the protocol has no number for it and leaves these free.
DENIED: Final = -31001
HEADER_MISMATCH: Final = -32020
MISSING_CAPABILITY: Final = -32021
UNSUPPORTED_REVISION: Final = -32022

CODES: Final[dict[str, int]] = {
    "invalid_params": wire.INVALID_PARAMS,
    "unknown_method": wire.INVALID_PARAMS,  # a tool or prompt that is not there
    "unsupported": MISSING_CAPABILITY,
    "denied": DENIED,
    "busy": BUSY,
    "stopping": BUSY,
}


class ProtocolError(Exception):
    """A request is answered with a JSON-RPC error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


def code_of(word: str, revision: Revision) -> int:
    """The number for a word of the core."""
    if word == "not_found":
        return revision.missing_resource
    if word == "unsupported" and revision.handshake:
        return wire.INTERNAL_ERROR
    return CODES.get(word, wire.INTERNAL_ERROR)


def protocol_error(error: PlexusError, revision: Revision) -> ProtocolError:
    """An error of the core as one of the protocol."""
    return ProtocolError(code_of(error.code, revision), error.message, error.data)
