"""A plugin for the client's tests that counts, fails and asks; loaded with --activation PATH."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from plexus import Activation, Confirm, Content, Context, Failed, method


class Luna(Activation):
    """A moon."""

    namespace = "luna"
    version = "1.0.0"

    @method
    async def info(self) -> str:
        """Return a name."""
        return "the moon"


class Count(Activation):
    """Counts, out loud."""

    namespace = "count"
    version = "1.0.0"
    children = (Luna,)

    @method
    async def up(
        self, to: int, pause_ms: float = 0.0, size: int = 0, mark: Path | None = None
    ) -> AsyncIterator[Content]:
        """Count up to a number.

        Args:
            to: The last number.
            pause_ms: Milliseconds to wait before each number.
            size: The number of additional characters for each number.
            mark: A file to which a line is added when the count starts.
        """
        if mark is not None:
            with mark.open("a") as file:
                file.write("begun\n")
        for i in range(1, to + 1):
            if pause_ms:
                await asyncio.sleep(pause_ms / 1000)
            yield Content(text=str(i) + "x" * size)

    @method
    async def fail(self, code: str) -> AsyncIterator[Content]:
        """Yield an event and fail."""
        yield Content(text="before")
        raise Failed("it broke", code=code, data={"at": 1})

    @method
    async def confirm(self, *, ctx: Context) -> bool:
        """Ask whether to continue."""
        return await ctx.ask(Confirm("Continue?"))
