"""An activation that knows how many of its generators are open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from plexus import Activation, Content, Context, method

__all__ = ("Leaving",)


class Leaving(Activation):
    """Speaks until nobody listens."""

    namespace = "leaving"
    version = "1.0.0"

    def __init__(self) -> None:
        self._open = 0

    @method(deadline_s=None)
    async def speak(self, pause_s: float = 0.005) -> AsyncIterator[Content]:
        """Say numbers for ever."""
        self._open += 1
        try:
            number = 0
            while True:
                number += 1
                yield Content(text=f"<{number}>")
                await asyncio.sleep(pause_s)
        finally:
            self._open -= 1

    @method(read_only=True)
    async def open(self) -> int:
        """How many generators are open."""
        return self._open

    @method
    async def delegate(self, after_s: float, *, ctx: Context) -> int:
        """Wait, and then have another run say something."""
        await asyncio.sleep(after_s)
        found: int = await ctx.call("leaving.open")
        return found
