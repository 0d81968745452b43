"""The feed of changed tasks for a watcher.

A watcher gets the current state of every task that changed, not each single change. One that falls
behind gets fewer states of the same task, and no gap.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from activations.tasks.model import PAGE_ITEMS, Filter, Task
from activations.tasks.store import Store

__all__ = ("BATCH", "CLOSED_SHOWN", "Change", "follow", "snapshot")

#: Maximum number of tasks in a batch: its descriptions are short, so it fits into an event.
BATCH = 100
#: How many closed tasks a snapshot contains, the most recently changed.
CLOSED_SHOWN = 100

#: A batch of tasks, and the number of the last change in it.
Change = tuple[list[Task], int]


async def snapshot(store: Store, principal: str, project: str | None) -> AsyncGenerator[Change]:
    """Yield the open tasks and the latest closed ones, in batches."""
    seq = await store.last_change()  # before reading, so that no change is missed
    after: str | None = None
    while True:
        page, after, _ = await store.list_tasks(
            principal, Filter(project, "open"), after, PAGE_ITEMS
        )
        for start in range(0, len(page), BATCH):
            yield page[start : start + BATCH], seq
        if after is None:
            break
    yield await store.closed(principal, project, CLOSED_SHOWN), seq


async def follow(
    store: Store, principal: str, project: str | None, after: int
) -> AsyncGenerator[Change]:
    """Yield the tasks that change after this number, indefinitely."""
    changed = asyncio.Event()
    unsubscribe = store.subscribe(changed.set)
    try:
        while True:
            changed.clear()  # before reading, so that no change is missed
            rows = await store.changed(principal, project, after, BATCH)
            if rows:
                after = rows[-1][0]
                yield [task for _, _, task in rows], after
            if len(rows) < BATCH:
                await changed.wait()
    finally:
        unsubscribe()
