"""An activation that counts its open generators."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from plexus import Activation, Content, Context, method

__all__ = ("Leaving",)


class Leaving(Activation):
    """Streams until the client disconnects."""

    namespace = "leaving"
    version = "1.0.0"

    def __init__(self) -> None:
        self._open = 0

    @method(deadline_s=None)
    async def speak(self, pause_s: float = 0.005) -> AsyncIterator[Content]:
        """Yield numbers without end."""
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
        """Return the number of open generators."""
        return self._open

    @method
    async def delegate(self, after_s: float, *, ctx: Context) -> int:
        """Wait, then call another method."""
        await asyncio.sleep(after_s)
        found: int = await ctx.call("leaving.open")
        return found
