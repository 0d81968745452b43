"""The purge: what is due is archived, removed and forgotten, in many small transactions.

Nobody waits long for it, and it may be interrupted anywhere: what is left is found by the next
one, whichever process that is in.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from activations.arbor.model import Purged, Retention
from activations.arbor.queries import purge
from activations.arbor.queries.purge import Cutoffs
from plexus.errors import PlexusError
from plexus.storage import Engine, Transaction

__all__ = ("PurgeTask", "purge_all")

logger = logging.getLogger("arbor.purge")


async def purge_all(engine: Engine, retention: Retention, now: int) -> Purged:
    """Do everything that is due at this time."""

    def before(seconds: float) -> int:
        return now - round(seconds * 1000)

    at = Cutoffs(
        now,
        before(retention.scheduled_s),
        before(retention.archived_s),
        before(retention.changes_s),
    )

    async def repeat(
        due: Callable[[Transaction, Cutoffs], bool], step: Callable[[Transaction, Cutoffs], int]
    ) -> int:
        total = 0
        # The look comes first, so that a purge with nothing to do locks nobody out.
        while await engine.read(lambda tx: due(tx, at)):
            total += await engine.write(lambda tx: step(tx, at))
        return total

    archived = await repeat(purge.archive_due, purge.archive)
    removed = await repeat(purge.retire_due, purge.retire)
    nodes = await repeat(purge.sweep_due, purge.sweep)
    await repeat(purge.bury_due, purge.bury)
    return Purged(archived, removed, nodes, await repeat(purge.forget_due, purge.forget))


class PurgeTask:
    """Purges at once and then every so often, until it is stopped."""

    def __init__(self, purge_now: Callable[[], Awaitable[Purged]], every_s: float) -> None:
        self._purge_now = purge_now
        self._every_s = every_s
        self._task = asyncio.get_running_loop().create_task(self._run(), name="arbor purge")

    async def _run(self) -> None:
        while True:
            try:
                done = await self._purge_now()
            except PlexusError as error:
                # A full disk or a locked file passes; the next round tries again.
                logger.warning("the purge failed: %s", error.message)
            else:
                if any(done):
                    logger.info("purged: %s", done)
            await asyncio.sleep(self._every_s)

    async def stop(self) -> None:
        """End it; a step under way is finished by the engine."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
