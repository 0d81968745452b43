"""Everything that a method should not do, for a server that must not mind.

Loaded by `--activation` with the path of this file.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

from plexus import Activation, Complete, Content, Context, Failed, method

__all__ = ("Odd",)

#: What must stay in the log.
SECRET = "the password is swordfish"


class Done(Complete):
    """A terminal with something to say."""

    words: str


class Stray(BaseException):
    """What no `except Exception` catches."""


class Odd(Activation):
    """Misbehaves."""

    namespace = "odd"
    version = "1.0.0"

    def __init__(self) -> None:
        self._left: list[asyncio.Task[None]] = []

    # --- it raises ----------------------------------------------------------------------------

    @method
    async def raises(self) -> str:
        """Have a defect."""
        raise RuntimeError(SECRET)

    @method
    async def raises_late(self) -> AsyncIterator[Content]:
        """Have a defect after a word."""
        yield Content(text="so far")
        raise KeyError(SECRET)

    @method
    async def fails_oddly(self) -> str:
        """Fail with what has no JSON form."""
        raise Failed("no", data=object())

    @method
    async def raises_stray(self) -> str:
        """Raise what nobody catches."""
        raise Stray(SECRET)

    @method
    async def exits(self) -> str:
        """End the process, it thinks."""
        sys.exit(3)

    @method
    async def interrupts(self) -> str:
        """Say that a person pressed a key."""
        raise KeyboardInterrupt

    @method
    async def stops(self) -> AsyncIterator[Content]:
        """Raise what ends iterations."""
        yield Content(text="x")
        raise StopAsyncIteration

    @method(deadline_s=0.2)
    async def raises_what_closes(self) -> str:
        """Raise what generators are closed with."""
        raise GeneratorExit

    @method
    async def recurses(self) -> str:
        """Go down without end."""
        return await self.recurses()

    @method
    async def has_no_memory(self) -> str:
        """Ask for more than there is."""
        raise MemoryError

    @method
    async def cancels_itself(self) -> str:
        """Cancel the task that it runs in."""
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(10)
        return "never"

    # --- it says what it should not -----------------------------------------------------------

    @method
    async def yields_nonsense(self) -> AsyncIterator[Content]:
        """Yield what is no event."""
        nonsense: Any = {"type": "content"}
        yield nonsense

    @method
    async def returns_nonsense(self) -> Any:
        """Return what has no JSON form."""
        return {1: object()}

    @method
    async def returns_a_surrogate(self) -> str:
        """Return half a character."""
        return "\ud800"

    @method
    async def yields_after_the_end(self) -> AsyncIterator[Content | Done]:
        """Go on after its terminal."""
        yield Done(words="the end")
        yield Content(text="and more")
        yield Done(words="the end again")

    @method
    async def yields_too_much(self) -> AsyncIterator[Content]:
        """Yield one event that is larger than any may be."""
        yield Content(text="x" * (2 * 1024 * 1024))

    @method
    async def returns_too_much(self) -> str:
        """Return a value that is larger than any may be."""
        return "x" * (11 * 1024 * 1024)

    @method
    async def logs_after_the_end(self, *, ctx: Context) -> str:
        """Leave a task behind that goes on talking."""

        async def talk() -> None:
            for number in range(20):
                await ctx.log("info", f"still here {number}")
                await asyncio.sleep(0.01)

        self._left.append(asyncio.create_task(talk()))
        return "done"

    @method
    async def prints(self) -> str:
        """Write to wherever it can."""
        os.write(1, b"to stdout\n")
        print("to stdout again")  # noqa: T201
        return "printed"

    # --- it does not end ----------------------------------------------------------------------

    @method(deadline_s=0.2)
    async def hangs(self) -> AsyncIterator[Content]:
        """Wait for what never comes."""
        yield Content(text="waiting")
        await asyncio.Event().wait()

    @method(deadline_s=0.2)
    async def never_waits(self) -> AsyncIterator[Content]:
        """Talk without ever waiting."""
        word = Content(text="x")
        while True:
            yield word

    @method(deadline_s=0.2)
    async def ignores_the_end(self) -> AsyncIterator[Content]:
        """Ignore being cancelled."""
        yield Content(text="never")
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    @method(deadline_s=0.2)
    async def yields_when_closed(self) -> AsyncIterator[Content]:
        """Go on talking when it is closed."""
        while True:
            try:
                yield Content(text="x")
                await asyncio.sleep(0.01)
            except (GeneratorExit, asyncio.CancelledError):
                yield Content(text="no")

    @method(deadline_s=0.2)
    async def cleans_up_for_ever(self) -> AsyncIterator[Content]:
        """Never be done with cleaning up."""
        try:
            yield Content(text="x")
            await asyncio.Event().wait()
        finally:
            await asyncio.Event().wait()

    @method(deadline_s=0.2)
    async def raises_when_cancelled(self) -> AsyncIterator[Content]:
        """Have a defect in its cleanup."""
        try:
            yield Content(text="x")
            await asyncio.Event().wait()
        finally:
            raise RuntimeError(SECRET)

    @method
    async def stands_still(self) -> str:
        """Hold the whole loop for a moment."""
        time.sleep(0.3)  # noqa: ASYNC251 - that is the point
        return "awake"

    @method
    async def calls_itself(self, depth: int = 0, *, ctx: Context) -> str:
        """Call itself through the hub, thirty deep."""
        if depth >= 30:
            return "deep"
        return str(await ctx.call("odd.calls_itself", depth=depth + 1))
