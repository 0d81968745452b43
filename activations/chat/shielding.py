"""Work that is not left in the middle, whoever is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ("seen_through",)

T = TypeVar("T")


async def seen_through(work: Coroutine[Any, Any, T]) -> T:
    """Await this to its end, also if the caller is cancelled meanwhile."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
