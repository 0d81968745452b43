"""The methods of the transcripts with bounded work, for fuzzers.

A mutated argument is often valid, so no argument causes large or endless work. No method has a
defect: an internal error is always a finding.
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
    """The terminal of `count`, with the last number."""

    total: int


class Fuzzed(Activation):
    """Deterministic methods with small results."""

    namespace = "demo"
    version = "1.0.0"

    @method
    async def count(
        self, to: int, style: Literal["digits", "dots"] = "digits"
    ) -> AsyncIterator[Content | Progress | Counted]:
        """Count up to a number, at most to 50."""
        for number in range(1, min(to, MOST) + 1):
            yield Content(text=f"{number} " if style == "digits" else "." * number)
        yield Progress(done=to, total=to)
        yield Counted(total=to)

    @method
    async def echo(self, text: str, times: int = 1) -> str:
        """Return a text, repeated."""
        return text * min(times, MOST)

    @method
    async def fail(self, code: str, message: str) -> AsyncIterator[Content]:
        """Fail after the first event."""
        yield Content(text="so far, so good")
        raise Failed(message, code=code, data={"hint": "none"})

    @method
    async def wait(self, seconds: float | None = None) -> AsyncIterator[Content]:
        """Yield one event and wait, for a time or until cancelled."""
        yield Content(text="waiting")
        await asyncio.sleep(LONG_S if seconds is None else min(seconds, LONG_S))
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

    @prompt
    async def letter(self, name: str) -> str:
        """Write a letter."""
        return f"Dear {name}"

    @completer("letter", "name")
    async def names(self, value: str, _given: dict[str, str]) -> list[str]:
        """Complete a name."""
        return [name for name in ("Ada", "Alan") if name.startswith(value)]

    @resource("note://{name}{?after}")
    async def note(self, name: str, after: int = 0) -> str:
        """Return a note."""
        return f"{name} {after}"
