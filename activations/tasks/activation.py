"""tasks: a to-do list that agents and people of a project share.

Guarantees:
- Acknowledged changes are durable, and every window, process and replica on the database sees them.
- A task has at most one holder. Of several callers that claim it, exactly one succeeds.
- A claim never outlives its holder: it is leased to the caller's connection or run, and over HTTP
  to the time since its last call. Claims of people stay.
- A task belongs to the principal that created it. To all others it does not exist.
"""

from __future__ import annotations

import asyncio

from activations.tasks.methods.client import ClientMethods
from activations.tasks.methods.work import WorkMethods
from plexus.storage.sqlite.file_checks import check_disk

__all__ = ("Tasks",)


class Tasks(WorkMethods, ClientMethods):
    """A to-do list that agents and people share, with dependencies and claims."""

    namespace = "tasks"
    audience = "client"
    version = "1.0.0"

    async def check_health(self) -> str:
        """Report the location of the store and the number of tasks.

        Does not open a store that does not exist yet. Raises Failed if the store is unhealthy.
        """
        if self.is_empty():
            await asyncio.to_thread(check_disk, self.path())
            return "no tasks stored yet"
        store = await self.store()
        await store.check()
        counts = await store.counts()
        waiting, running = counts["pending"], counts["in_progress"]
        return f"{self.location()}, {waiting} pending, {running} in progress"
