"""Stored comments on diffs, which outlive the diff and the server.

A diff with comments is one key of the storage of a principal, below a prefix for the workspace.
Keys are ordered so that the newest diff is first.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Final

from activations.ide.diff import Diff
from activations.ide.events import Comment
from plexus.context import Storage

__all__ = ("MAX_COMMENTS", "MAX_STORED", "list_stored", "store_comments")

#: Comments on one diff, and diffs with comments that are kept.
MAX_COMMENTS: Final = 200
MAX_STORED: Final = 500
#: Times are subtracted from this, so that newer keys come first.
LAST_MS: Final = 10**15


async def store_comments(storage: Storage, workspace: Path, diff: Diff) -> None:
    """Store the comments of a diff, and delete those of the oldest diffs past the maximum."""
    prefix = _prefix(workspace)
    key = f"{prefix}{LAST_MS - diff.asked_ms:015d}.{diff.id}"
    if not diff.comments:
        await storage.delete(key)
        return
    entry = {
        "diff": diff.id,
        "path": diff.path,
        "at_ms": diff.asked_ms,
        "outcome": None if diff.closed is None else diff.closed.outcome,
        "comments": [_encode(each) for each in diff.comments],
    }
    await storage.set(key, entry)
    keys = await storage.keys(prefix, limit=MAX_STORED + 10)
    for old in keys[MAX_STORED:]:
        await storage.delete(old)


async def list_stored(
    storage: Storage, workspace: Path, path: str | None, limit: int
) -> list[dict[str, Any]]:
    """Return the diffs with comments, newest first."""
    found: list[dict[str, Any]] = []
    for key in await storage.keys(_prefix(workspace), limit=MAX_STORED):
        entry = await storage.get(key)
        if isinstance(entry, dict) and path in (None, entry.get("path")):
            found.append(entry)
            if len(found) == limit:
                break
    return found


def _prefix(workspace: Path) -> str:
    return f"comments/{hashlib.sha256(str(workspace).encode()).hexdigest()[:16]}/"


def _encode(comment: Comment) -> dict[str, Any]:
    return {name: getattr(comment, name) for name in comment.fields}
