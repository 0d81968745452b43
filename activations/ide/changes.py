"""The watchers of the editor's state.

A watcher that does not read keeps the newest state of each subject, within a bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

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

__all__ = ("Change", "Changes", "Subscription")

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
#: Maximum changes that wait for a watcher. There are fewer subjects than that.
MAX_CHANGES: Final = 1000


class Subscription:
    """The changes that a watcher has not read yet, at most one for each subject."""

    def __init__(self, principal: str) -> None:
        self.principal = principal
        self._changes: dict[tuple[str, str], Change] = {}
        self._event = asyncio.Event()

    def add(self, change: Change) -> None:
        """Replace what is waiting about the same subject."""
        key = _subject(change)
        self._changes.pop(key, None)
        self._changes[key] = change
        if len(self._changes) > MAX_CHANGES:
            del self._changes[next(iter(self._changes))]
        self._event.set()

    async def take(self) -> list[Change]:
        """Wait for changes, and return all of them."""
        await self._event.wait()
        self._event.clear()
        changes = list(self._changes.values())
        self._changes.clear()
        return changes


class Changes:
    """The subscriptions of all watchers."""

    def __init__(self) -> None:
        self._subscriptions: list[Subscription] = []

    @contextmanager
    def subscribe(self, principal: str) -> Iterator[Subscription]:
        """Collect the changes that this principal may see."""
        subscription = Subscription(principal)
        self._subscriptions.append(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.remove(subscription)

    def notify(self, change: Change, only: str | None = None) -> None:
        """Pass a change to all watchers, or to those of one principal."""
        for each in self._subscriptions:
            if only is None or each.principal == only:
                each.add(change)


def _subject(change: Change) -> tuple[str, str]:
    if isinstance(change, DocumentInfo | DocumentClosed):
        return "document", change.path
    if isinstance(change, DiffInfo | DiffClosed):
        return "diff", change.diff
    if isinstance(change, FileDiagnostics):
        return "diagnostics", change.path
    return type(change).__name__, ""
