"""Wait for the first mount of a user: a server without mounts imports nothing for them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

from plexus.errors import PlexusError
from plexus.runtime.hub import Plexus

__all__ = ("watch_for_mounts",)

logger = logging.getLogger("substrate.mounts")

#: How often the file is looked for.
POLL_S: Final = 1.0


@contextlib.asynccontextmanager
async def watch_for_mounts(
    hub: Plexus, find: Callable[[], Path | None], register: Callable[[], None]
) -> AsyncIterator[None]:
    """Register the mounts of a user when `find` returns their file, while this is open."""
    task = asyncio.create_task(_wait(hub, find, register), name="mount file")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _wait(hub: Plexus, find: Callable[[], Path | None], register: Callable[[], None]) -> None:
    while (file := find()) is None:  # noqa: ASYNC110 - the file is written by another process
        await asyncio.sleep(POLL_S)
    try:
        register()
        await hub.open()
    except (PlexusError, OSError) as error:
        logger.warning("the mounts of %s: %s", file, error)
