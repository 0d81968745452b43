"""The native view's one table: from the core's error codes to JSON-RPC's numbers.

The five of the specification, and a few of the range it leaves to servers. The word itself is
on the wire too, in a terminal's `code`; the number is for JSON-RPC clients.
"""

from __future__ import annotations

from typing import Final

from plexus.rpc import wire

__all__ = ("CODES", "code_of")

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
