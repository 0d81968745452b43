"""What the tests under load call, and how they look into the server.

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
    """Answers with what it was given, and says how the server is."""

    namespace = "load"
    version = "1.0.0"

    @method
    async def echo(self, nonce: str, turns: int = 0, *, principal: Principal) -> str:
        """Say a text again, with whoever sent it.

        Args:
            nonce: The text.
            turns: For how many turns of the loop the answer is held back.
        """
        for _ in range(turns):
            await asyncio.sleep(0)
        return f"{principal.name}/{nonce}"

    @method(deadline_s=None)
    async def wait(self) -> AsyncIterator[Content]:
        """Say one word and wait until stopped."""
        yield Content(text="waiting")
        await asyncio.Event().wait()

    @method(deadline_s=None)
    async def flood(self, size: int = 1000) -> AsyncIterator[Content]:
        """Say something for ever, as fast as it is taken."""
        word = Content(text="x" * size)
        while True:
            yield word

    @method
    async def state(self, *, ctx: Context) -> dict[str, Any]:
        """What this process holds, after everything that can be let go of was."""
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
        """How many objects there are that the collector looks at, which from now on it does not."""
        gc.disable()
        return len(gc.get_objects())
