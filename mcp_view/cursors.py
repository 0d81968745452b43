"""Pages of a list, and the cursors between them.

A cursor is opaque to clients; to us it is the key of the last entry they have had, so that a
list which changes between two pages neither repeats nor skips what was there all the time.
"""

from __future__ import annotations

import binascii
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Final

from mcp_view.tables.errors import ProtocolError
from plexus.rpc import wire

__all__ = ("cursor_after", "cursor_key", "page_of")

#: What every cursor of ours begins with, under its encoding.
MARK: Final = "after:"


def cursor_after(key: str) -> str:
    """The cursor for what comes after this key."""
    return binascii.b2a_base64((MARK + key).encode(), newline=False).decode()


def cursor_key(params: dict[str, Any]) -> str | None:
    """The key in a request's cursor; None for the first page. Raises ProtocolError."""
    cursor = params.get("cursor")
    if cursor is None:
        return None
    try:
        text = binascii.a2b_base64(cursor, strict_mode=True).decode()
    except (TypeError, ValueError):
        text = ""
    if not text.startswith(MARK):
        raise ProtocolError(wire.INVALID_PARAMS, "Invalid cursor", {"cursor": cursor})
    return text.removeprefix(MARK)


def page_of(keys: Sequence[str], after: str | None, size: int) -> tuple[slice, str | None]:
    """Which of these sorted keys are on the page, and the cursor of the next one."""
    start = 0 if after is None else bisect_right(keys, after)
    end = start + size
    return slice(start, end), cursor_after(keys[end - 1]) if end < len(keys) else None
