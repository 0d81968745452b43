"""What an error of the MCP view means to HTTP: a status, or a challenge for a scope.

The status is that of a request without a session; with one, see `substrate.server.mcp.responder`.
"""

from __future__ import annotations

from typing import Final

from mcp_view.tables.errors import (
    DENIED,
    HEADER_MISMATCH,
    MISSING_CAPABILITY,
    UNSUPPORTED_REVISION,
    ProtocolError,
)
from plexus.rpc import wire

__all__ = ("STATUSES", "http_status", "missing_scope")

#: By code. What has no row here is answered with 200, as JSON-RPC has it.
STATUSES: Final[dict[int, int]] = {
    wire.PARSE_ERROR: 400,
    wire.INVALID_REQUEST: 400,
    wire.INVALID_PARAMS: 400,
    wire.METHOD_NOT_FOUND: 404,
    DENIED: 403,
    HEADER_MISMATCH: 400,
    MISSING_CAPABILITY: 400,
    UNSUPPORTED_REVISION: 400,
}


def http_status(code: int) -> int:
    """Return the status of an answer with this error code."""
    return STATUSES.get(code, 200)


def missing_scope(error: ProtocolError | None) -> str | None:
    """Return the scope that a request was denied for; None if it was not."""
    if error is None or error.code != DENIED or not isinstance(error.data, dict):
        return None
    scope: str | None = error.data.get("scope")
    return scope
