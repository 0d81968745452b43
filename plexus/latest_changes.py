"""Changes for watchers that may be slow.

A watcher that does not read keeps the newest state of each subject, within a bound: it misses what
was replaced meanwhile, and never holds up the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Final, Generic, TypeVar

__all__ = ("LatestChanges", "Subscription")

#: Maximum changes that wait for a watcher. The oldest are dropped beyond it.
MAX_CHANGES: Final = 1000

T = TypeVar("T")


class Subscription(Generic[T]):
    """The changes that a watcher has not read yet, at most one for each subject."""

    def __init__(self, principal: str, subject: Callable[[T], Hashable]) -> None:
        self.principal = principal
        self._subject = subject
        self._changes: dict[Hashable, T] = {}
        self._event = asyncio.Event()

    def add(self, change: T) -> None:
        """Replace what is waiting about the same subject."""
        subject = self._subject(change)
        self._changes.pop(subject, None)
        self._changes[subject] = change
        if len(self._changes) > MAX_CHANGES:
            del self._changes[next(iter(self._changes))]
        self._event.set()

    async def take(self) -> list[T]:
        """Wait for changes, and return all of them."""
        await self._event.wait()
        self._event.clear()
        changes = list(self._changes.values())
        self._changes.clear()
        return changes


class LatestChanges(Generic[T]):
    """The subscriptions of all watchers. `subject` returns what a change is about."""

    def __init__(self, subject: Callable[[T], Hashable]) -> None:
        self._subject = subject
        self._subscriptions: list[Subscription[T]] = []

    @contextmanager
    def subscribe(self, principal: str) -> Iterator[Subscription[T]]:
        """Collect the changes that this principal may see."""
        subscription = Subscription(principal, self._subject)
        self._subscriptions.append(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.remove(subscription)

    def notify(self, change: T, principal: str | None = None) -> None:
        """Pass a change to all watchers, or to those of one principal."""
        for each in self._subscriptions:
            if principal is None or each.principal == principal:
                each.add(change)
