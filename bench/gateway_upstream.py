"""The MCP server behind a gateway: one tool that streams, and one that asks.

`count` records in a file how each call ended, so that a probe sees what reached the function and
not only what the gateway answered.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

from plexus import Activation, Confirm, Context

__all__ = ("upstream",)

upstream = Activation("upstream")


def note(log: str, line: str) -> None:
    """Append a line to a file."""
    with Path(log).open("a") as file:
        file.write(f"{line}\n")


@upstream.method
async def count(to: int, log: str) -> AsyncIterator[str]:
    """Count from 1 to TO, a number every 0.2 s. Write the process and the end into LOG."""
    note(log, str(os.getpid()))
    end = "cancelled"
    try:
        for number in range(1, to + 1):
            yield f"{number} "
            await asyncio.sleep(0.2)
        end = "finished"
    finally:
        note(log, end)


@upstream.method
async def ask(ctx: Context) -> str:
    """Ask whether to delete files, and return the answer."""
    answer = await ctx.ask(Confirm("Delete 3 files?"))
    return f"the answer is {answer}"


if __name__ == "__main__":
    upstream.serve()
