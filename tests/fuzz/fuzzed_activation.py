"""What fuzzers call: the names of the transcripts, with bounded work behind them.

A mutated argument is a good argument as often as not, so nothing here may be large or for ever
because of one, and nothing has a defect: an internal error is always a finding.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Literal

from plexus import (
    Activation,
    Complete,
    Confirm,
    Content,
    Context,
    Failed,
    Progress,
    Select,
    completer,
    method,
    prompt,
    resource,
)

__all__ = ("Fuzzed",)

MOST = 50
LONG_S = 3600.0


class Counted(Complete):
    """How far it came."""

    total: int


class Fuzzed(Activation):
    """Says the same things every time, and never much."""

    namespace = "demo"
    version = "1.0.0"

    @method
    async def count(
        self, to: int, style: Literal["digits", "dots"] = "digits"
    ) -> AsyncIterator[Content | Progress | Counted]:
        """Count up to a number, but not far."""
        for number in range(1, min(to, MOST) + 1):
            yield Content(text=f"{number} " if style == "digits" else "." * number)
        yield Progress(done=to, total=to)
        yield Counted(total=to)

    @method
    async def echo(self, text: str, times: int = 1) -> str:
        """Say a text again."""
        return text * min(times, MOST)

    @method
    async def fail(self, code: str, message: str) -> AsyncIterator[Content]:
        """Fail after a first word."""
        yield Content(text="so far, so good")
        raise Failed(message, code=code, data={"hint": "none"})

    @method
    async def wait(self, seconds: float | None = None) -> AsyncIterator[Content]:
        """Say one word and wait, for so long or until stopped."""
        yield Content(text="waiting")
        await asyncio.sleep(LONG_S if seconds is None else min(seconds, LONG_S))
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

    @prompt
    async def letter(self, name: str) -> str:
        """A letter to somebody."""
        return f"Dear {name}"

    @completer("letter", "name")
    async def names(self, value: str, _given: dict[str, str]) -> list[str]:
        """Everybody is called so."""
        return [name for name in ("Ada", "Alan") if name.startswith(value)]

    @resource("note://{name}{?after}")
    async def note(self, name: str, after: int = 0) -> str:
        """A note."""
        return f"{name} {after}"
