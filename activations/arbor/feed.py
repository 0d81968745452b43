"""Following what happens to trees: one tree for a caller, all of them for the hub.

Nothing is asked again and again: the store rings when there may be something new, made here or
by another process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import suppress

from activations.arbor.addresses import node_uri, tree_uri
from activations.arbor.model import HEAD_KINDS, PAGE_ITEMS, ChangeKind, ChangeRow
from activations.arbor.store import Store
from plexus import Change, Plexus, PlexusError

__all__ = ("Announcing", "announce", "follow")

#: How long changes are gathered before the hub is told of them.
GATHER_S = 0.05
#: How often, at most, the hub is told that something has come or gone: clients that hear it read
#: the whole list again.
LISTS_S = 1.0
#: How long a store that failed is left alone.
FAILED_S = 1.0

RESOURCES = Change("resources")
PROMPTS = Change("prompts")
#: What makes something come or go, and in whose list. Heads are what plugins offer as prompts.
COMES_AND_GOES: dict[ChangeKind, Change] = {
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
    """What happened to a tree after this number, and then what happens, without an end.

    Raises NotFound when the tree is gone, and Failed, `expired`, if some of it is forgotten.
    """
    bell = asyncio.Event()
    unsubscribe = store.subscribe(bell.set)
    try:
        while True:
            bell.clear()  # before reading, so that what comes meanwhile is read too
            rows = await store.changes(principal, tree, after, PAGE_ITEMS)
            for row in rows:
                yield row
                after = row.seq
            if len(rows) < PAGE_ITEMS:
                await bell.wait()
    finally:
        unsubscribe()


async def announce(store: Store, hub: Plexus) -> Announcing:
    """Tell the hub of every change from now on, until stopped."""
    return Announcing(store, hub, await store.last_change())


class Announcing:
    """Tells the hub which resources and lists are no longer what they were."""

    def __init__(self, store: Store, hub: Plexus, after: int) -> None:
        self._store = store
        self._hub = hub
        self._after = after
        self._bell = asyncio.Event()
        self._unsubscribe = store.subscribe(self._bell.set)
        #: Which lists are no longer what they were, and when the hub was last told of any.
        self._lists: set[Change] = set()
        self._told_at = -LISTS_S
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Tell nothing more."""
        self._unsubscribe()
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._due_in()):
                    await self._bell.wait()
                    await asyncio.sleep(GATHER_S)
            self._bell.clear()
            try:
                await self._tell()
            except PlexusError:  # the store's trouble is its callers' to hear of
                await asyncio.sleep(FAILED_S)

    def _due_in(self) -> float | None:
        """When the hub is to be told about lists, whatever else happens; None for never."""
        if not self._lists:
            return None
        return max(self._told_at + LISTS_S - time.monotonic(), 0)

    async def _tell(self) -> None:
        rows = await self._store.all_changes(self._after, PAGE_ITEMS)
        if rows:
            self._after = rows[-1].seq
            if len(rows) == PAGE_ITEMS:
                # Nobody can follow this: whoever looks at a tree now sees what it has become.
                self._after = max(self._after, await self._store.last_change())
                self._lists.update((RESOURCES, PROMPTS))
            self._lists.update(
                COMES_AND_GOES[row.kind]._replace(principal=row.principal)
                for row in rows
                if row.kind in COMES_AND_GOES
            )
            for change in dict.fromkeys(_touched(rows)):
                self._hub.notify(change)
        if self._lists and self._due_in() == 0:
            lists, self._lists = self._lists, set()
            self._told_at = time.monotonic()
            for each in sorted(lists, key=lambda change: (change.kind, change.principal or "")):
                everybody = each._replace(principal=None)
                if each == everybody or everybody not in lists:
                    self._hub.notify(each)


def _touched(rows: Iterable[ChangeRow]) -> Iterable[Change]:
    """What has changed, by its address, for whom it belongs to."""
    for row in rows:
        yield Change("resource", tree_uri(row.tree), row.principal)
        if row.node is not None and row.kind not in HEAD_KINDS:
            yield Change("resource", node_uri(row.tree, row.node), row.principal)
