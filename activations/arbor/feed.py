"""Change feeds: of one tree for a caller, of all trees for the hub.

The store notifies its subscribers after commits by any process, so this module does not poll.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import suppress

from activations.arbor.model import (
    HEAD_KINDS,
    PAGE_ITEMS,
    ChangeKind,
    ChangeRow,
    node_uri,
    tree_uri,
)
from activations.arbor.store import Store
from plexus import Change, Plexus, PlexusError

__all__ = ("ChangePublisher", "follow", "publish_changes")

#: How long changes are collected before the hub is notified.
DEBOUNCE_S = 0.05
#: Minimum interval between two notifications that a list has changed: clients respond by reading
#: the whole list again.
LIST_INTERVAL_S = 1.0
#: Delay before a failed read of the store is retried.
RETRY_S = 1.0

RESOURCES = Change("resources")
PROMPTS = Change("prompts")
#: The changes that add to a list or remove from it. Plugins offer heads as prompts.
LIST_CHANGES: dict[ChangeKind, Change] = {
    "tree_created": RESOURCES,
    "tree_claimed": RESOURCES,
    "tree_archived": RESOURCES,
    "node_created": RESOURCES,
    "node_edited": RESOURCES,
    "node_deleted": RESOURCES,
    "head_created": PROMPTS,
    "head_renamed": PROMPTS,
    "head_deleted": PROMPTS,
}


async def follow(
    store: Store, principal: str, tree: str, after: int
) -> AsyncGenerator[ChangeRow, None]:
    """Yield the changes of a tree after this number, then every new change, indefinitely.

    Raises NotFound when the tree is removed, and Failed (`expired`) if some of the changes were
    purged.
    """
    changed = asyncio.Event()
    unsubscribe = store.subscribe(changed.set)
    try:
        while True:
            changed.clear()  # before reading, so that no change is missed
            rows = await store.changes(principal, tree, after, PAGE_ITEMS)
            for row in rows:
                yield row
                after = row.seq
            if len(rows) < PAGE_ITEMS:
                await changed.wait()
    finally:
        unsubscribe()


async def publish_changes(store: Store, hub: Plexus) -> ChangePublisher:
    """Start to notify the hub of every change."""
    return ChangePublisher(store, hub, await store.last_change())


class ChangePublisher:
    """The task that notifies the hub of changed resources and lists."""

    def __init__(self, store: Store, hub: Plexus, after: int) -> None:
        self._store = store
        self._hub = hub
        self._after = after
        self._changed = asyncio.Event()
        self._unsubscribe = store.subscribe(self._changed.set)
        #: The changed lists, and when the hub was last notified of changed lists.
        self._lists: set[Change] = set()
        self._notified_at = -LIST_INTERVAL_S
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop the task."""
        self._unsubscribe()
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._due_in()):
                    await self._changed.wait()
                    await asyncio.sleep(DEBOUNCE_S)
            self._changed.clear()
            try:
                await self._publish()
            except PlexusError:  # the callers of the store get it as well
                await asyncio.sleep(RETRY_S)

    def _due_in(self) -> float | None:
        """Return in how many seconds changed lists are due, None if none have changed."""
        if not self._lists:
            return None
        return max(self._notified_at + LIST_INTERVAL_S - time.monotonic(), 0)

    async def _publish(self) -> None:
        rows = await self._store.all_changes(self._after, PAGE_ITEMS)
        if rows:
            self._after = rows[-1].seq
            if len(rows) == PAGE_ITEMS:
                # Too many to report each. Clients that read a tree now see its latest state.
                self._after = max(self._after, await self._store.last_change())
                self._lists.update((RESOURCES, PROMPTS))
            self._lists.update(
                LIST_CHANGES[row.kind]._replace(principal=row.principal)
                for row in rows
                if row.kind in LIST_CHANGES
            )
            for change in dict.fromkeys(_changed_resources(rows)):
                self._hub.notify(change)
        if self._lists and self._due_in() == 0:
            lists, self._lists = self._lists, set()
            self._notified_at = time.monotonic()
            for each in sorted(lists, key=lambda change: (change.kind, change.principal or "")):
                for_all = each._replace(principal=None)
                if each == for_all or for_all not in lists:
                    self._hub.notify(each)


def _changed_resources(rows: Iterable[ChangeRow]) -> Iterable[Change]:
    """Yield the changed resources, each with its principal."""
    for row in rows:
        yield Change("resource", tree_uri(row.tree), row.principal)
        if row.node is not None and row.kind not in HEAD_KINDS:
            yield Change("resource", node_uri(row.tree, row.node), row.principal)
