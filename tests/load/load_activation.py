"""Methods for load tests, and for inspecting the server process.

Loaded by `--activation` with the path of this file.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from plexus import Activation, Content, Context, Principal, method

__all__ = ("Load",)


class Load(Activation):
    """Echo, streams and process statistics."""

    namespace = "load"
    version = "1.0.0"

    @method
    async def echo(self, nonce: str, turns: int = 0, *, principal: Principal) -> str:
        """Return a text with the name of the principal that sent it.

        Args:
            nonce: The text.
            turns: For how many iterations of the loop the answer is delayed.
        """
        for _ in range(turns):
            await asyncio.sleep(0)
        return f"{principal.name}/{nonce}"

    @method(deadline_s=None)
    async def wait(self) -> AsyncIterator[Content]:
        """Yield one event and wait until cancelled."""
        yield Content(text="waiting")
        await asyncio.Event().wait()

    @method(deadline_s=None)
    async def flood(self, size: int = 1000) -> AsyncIterator[Content]:
        """Yield events without end, as fast as they are read."""
        word = Content(text="x" * size)
        while True:
            yield word

    @method
    async def state(self, *, ctx: Context) -> dict[str, Any]:
        """Return memory, descriptors, tasks and runs of this process after a garbage collection."""
        gc.collect()
        folder = Path("/proc/self")
        resident = (folder / "statm").read_text().split()[1]
        spent = (folder / "stat").read_text().rpartition(")")[2].split()[11:13]
        return {
            "resident": int(resident) * os.sysconf("SC_PAGE_SIZE"),
            "descriptors": len(list((folder / "fd").iterdir())),
            "tasks": len(asyncio.all_tasks()),
            "runs": len(ctx.plexus.runs.running()),
            "cpu_s": sum(map(int, spent)) / os.sysconf("SC_CLK_TCK"),
        }

    @method
    async def objects(self) -> int:
        """Disable the garbage collector and return the number of objects that it tracks."""
        gc.disable()
        return len(gc.get_objects())
