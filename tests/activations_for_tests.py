"""A deterministic activation for transcripts and for servers in separate processes.

Loaded from the repository's root by `--activation tests.activations_for_tests:Demo`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Literal

from plexus import Activation, Complete, Confirm, Content, Context, Failed, Progress, Select, method

__all__ = ("Demo",)


class Counted(Complete):
    """The terminal of `count`, with the last number."""

    total: int


class Demo(Activation):
    """Deterministic methods for tests."""

    namespace = "demo"
    version = "1.0.0"

    @method
    async def count(
        self, to: int, style: Literal["digits", "dots"] = "digits"
    ) -> AsyncIterator[Content | Progress | Counted]:
        """Count up to a number.

        Args:
            to: The last number.
            style: Whether numbers are written as digits or as dots.
        """
        for number in range(1, to + 1):
            yield Content(text=f"{number} " if style == "digits" else "." * number)
        yield Progress(done=to, total=to)
        yield Counted(total=to)

    @method
    async def echo(self, text: str, times: int = 1) -> str:
        """Return a text.

        Args:
            text: The text.
            times: How often the text is repeated.
        """
        return text * times

    @method
    async def fail(self, code: str, message: str) -> AsyncIterator[Content]:
        """Fail after the first event."""
        yield Content(text="so far, so good")
        raise Failed(message, code=code, data={"hint": "none"})

    @method
    async def crash(self) -> str:
        """Raise an unexpected exception."""
        raise RuntimeError("this text must stay in the log")

    @method
    async def wait(self, seconds: float | None = None) -> AsyncIterator[Content]:
        """Yield one event and wait, for a time or until cancelled.

        Args:
            seconds: How long to wait. Without it, the method waits indefinitely.
        """
        yield Content(text="waiting")
        if seconds is None:
            await asyncio.Event().wait()
        else:
            await asyncio.sleep(seconds)
        yield Content(text="waited")

    @method
    async def delete(self, *, ctx: Context) -> AsyncIterator[Content]:
        """Ask twice, then report what it would delete."""
        sure = await ctx.ask(Confirm("Delete 3 files?"))
        if not sure:
            yield Content(text="kept")
            return
        where = await ctx.ask(Select("Where?", options=["here", "there"]), timeout_s=60)
        yield Content(text=f"deleted {where}")

    @method
    async def shout(self, text: str) -> int:
        """Print to stdout, which belongs to the protocol, and to stderr."""
        print(text)  # noqa: T201
        print(text, file=sys.stderr)  # noqa: T201
        return sys.stdout.fileno()

    @method(deadline_s=None)
    async def flood(self, size: int = 1000) -> AsyncIterator[Content]:
        """Yield events without end, as fast as they are read."""
        word = Content(text="x" * size)
        while True:
            yield word

    @method(deadline_s=None)
    async def refuse_to_stop(self) -> AsyncIterator[Content]:
        """Ignore cancellation."""
        yield Content(text="never")
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue
