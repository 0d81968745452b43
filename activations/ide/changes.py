"""What watchers of the editor are notified of."""

from __future__ import annotations

from typing import TypeAlias

from activations.ide.events import (
    DiffClosed,
    DiffInfo,
    DocumentClosed,
    DocumentInfo,
    FileDiagnostics,
    IdeStatus,
    Mentioned,
    Reveal,
    SnapshotEnd,
)

__all__ = ("Change", "subject_of")

Change: TypeAlias = (
    IdeStatus
    | DocumentInfo
    | DocumentClosed
    | DiffInfo
    | DiffClosed
    | FileDiagnostics
    | Mentioned
    | Reveal
    | SnapshotEnd
)


def subject_of(change: Change) -> tuple[str, str]:
    """Return what a change is about."""
    if isinstance(change, DocumentInfo | DocumentClosed):
        return "document", change.path
    if isinstance(change, DiffInfo | DiffClosed):
        return "diff", change.diff
    if isinstance(change, FileDiagnostics):
        return "diagnostics", change.path
    return type(change).__name__, ""
