"""A deterministic activation for transcripts and for servers in processes of their own.

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
    """How far it came."""

    total: int


class Demo(Activation):
    """Says the same things every time."""

    namespace = "demo"
    version = "1.0.0"

    @method
    async def count(
        self, to: int, style: Literal["digits", "dots"] = "digits"
    ) -> AsyncIterator[Content | Progress | Counted]:
        """Count up to a number, out loud.

        Args:
            to: The last number.
            style: Whether numbers are said or shown.
        """
        for number in range(1, to + 1):
            yield Content(text=f"{number} " if style == "digits" else "." * number)
        yield Progress(done=to, total=to)
        yield Counted(total=to)

    @method
    async def echo(self, text: str, times: int = 1) -> str:
        """Say a text again.

        Args:
            text: The text.
            times: How often.
        """
        return text * times

    @method
    async def fail(self, code: str, message: str) -> AsyncIterator[Content]:
        """Fail after a first word."""
        yield Content(text="so far, so good")
        raise Failed(message, code=code, data={"hint": "none"})

    @method
    async def crash(self) -> str:
        """Have a defect."""
        raise RuntimeError("this text must stay in the log")

    @method
    async def wait(self, seconds: float | None = None) -> AsyncIterator[Content]:
        """Say one word and wait, for so long or until stopped.

        Args:
            seconds: How long; left out for ever.
        """
        yield Content(text="waiting")
        if seconds is None:
            await asyncio.Event().wait()
        else:
            await asyncio.sleep(seconds)
        yield Content(text="waited")

    @method
    async def delete(self, *, ctx: Context) -> AsyncIterator[Content]:
        """Ask twice before it says what it would do."""
        sure = await ctx.ask(Confirm("Delete 3 files?"))
        if not sure:
            yield Content(text="kept")
            return
        where = await ctx.ask(Select("Where?", options=["here", "there"]), timeout_s=60)
        yield Content(text=f"deleted {where}")

    @method
    async def shout(self, text: str) -> int:
        """Print to stdout, where only the protocol may be, and to stderr."""
        print(text)  # noqa: T201
        print(text, file=sys.stderr)  # noqa: T201
        return sys.stdout.fileno()

    @method(deadline_s=None)
    async def flood(self, size: int = 1000) -> AsyncIterator[Content]:
        """Say something for ever, as fast as it is taken."""
        word = Content(text="x" * size)
        while True:
            yield word

    @method(deadline_s=None)
    async def refuse_to_stop(self) -> AsyncIterator[Content]:
        """Ignore being cancelled."""
        yield Content(text="never")
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue
