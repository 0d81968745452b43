"""Notifies watchers of changes of sessions and their evaluations.

A watcher that does not read keeps the last state of each session and of each evaluation, within a
bound; older evaluations are then missing from its stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

from activations.evaluate.events import Cell, SessionClosed, SessionInfo

__all__ = ("Change", "SessionChanges", "Subscription")

Change: TypeAlias = SessionInfo | Cell | SessionClosed

#: Maximum changes that wait for a watcher.
MAX_CHANGES: Final = 1000


class Subscription:
    """The changes that a watcher has not read yet, at most one for each subject."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self._changes: dict[tuple[str, int], Change] = {}
        self._event = asyncio.Event()

    def add(self, change: Change) -> None:
        """Replace what is waiting about the same subject."""
        key = change.session, change.execution if isinstance(change, Cell) else 0
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


class SessionChanges:
    """The subscriptions of all watchers."""

    def __init__(self) -> None:
        self._subscriptions: list[Subscription] = []

    @contextmanager
    def subscribe(self, owner: str) -> Iterator[Subscription]:
        """Collect the changes of a principal's sessions."""
        subscription = Subscription(owner)
        self._subscriptions.append(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.remove(subscription)

    def notify(self, owner: str, change: Change) -> None:
        """Pass a change to the watchers of this principal."""
        for each in self._subscriptions:
            if each.owner == owner:
                each.add(change)
