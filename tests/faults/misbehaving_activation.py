"""Methods that misbehave in every way that a server must tolerate.

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

#: A text that must appear only in the log.
SECRET = "the password is swordfish"


class Done(Complete):
    """A terminal with a field."""

    words: str


class Stray(BaseException):
    """An exception that `except Exception` does not catch."""


class Odd(Activation):
    """Methods that misbehave."""

    namespace = "odd"
    version = "1.0.0"

    def __init__(self) -> None:
        self._left: list[asyncio.Task[None]] = []

    # --- exceptions ---------------------------------------------------------------------------

    @method
    async def raises(self) -> str:
        """Raise an unexpected exception."""
        raise RuntimeError(SECRET)

    @method
    async def raises_late(self) -> AsyncIterator[Content]:
        """Raise an unexpected exception after the first event."""
        yield Content(text="so far")
        raise KeyError(SECRET)

    @method
    async def fails_oddly(self) -> str:
        """Fail with data that has no JSON form."""
        raise Failed("no", data=object())

    @method
    async def raises_stray(self) -> str:
        """Raise an exception that is not an Exception."""
        raise Stray(SECRET)

    @method
    async def exits(self) -> str:
        """Try to exit the process."""
        sys.exit(3)

    @method
    async def interrupts(self) -> str:
        """Raise KeyboardInterrupt."""
        raise KeyboardInterrupt

    @method
    async def stops(self) -> AsyncIterator[Content]:
        """Raise StopAsyncIteration."""
        yield Content(text="x")
        raise StopAsyncIteration

    @method(deadline_s=0.2)
    async def raises_what_closes(self) -> str:
        """Raise GeneratorExit."""
        raise GeneratorExit

    @method
    async def recurses(self) -> str:
        """Recurse without end."""
        return await self.recurses()

    @method
    async def has_no_memory(self) -> str:
        """Raise MemoryError."""
        raise MemoryError

    @method
    async def cancels_itself(self) -> str:
        """Cancel the task that it runs in."""
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(10)
        return "never"

    # --- invalid events -----------------------------------------------------------------------

    @method
    async def yields_nonsense(self) -> AsyncIterator[Content]:
        """Yield a value that is not an event."""
        nonsense: Any = {"type": "content"}
        yield nonsense

    @method
    async def returns_nonsense(self) -> Any:
        """Return a value that has no JSON form."""
        return {1: object()}

    @method
    async def returns_a_surrogate(self) -> str:
        """Return a lone surrogate."""
        return "\ud800"

    @method
    async def yields_after_the_end(self) -> AsyncIterator[Content | Done]:
        """Yield more events after the terminal."""
        yield Done(words="the end")
        yield Content(text="and more")
        yield Done(words="the end again")

    @method
    async def yields_too_much(self) -> AsyncIterator[Content]:
        """Yield an event over the size limit."""
        yield Content(text="x" * (2 * 1024 * 1024))

    @method
    async def returns_too_much(self) -> str:
        """Return a value over the size limit."""
        return "x" * (11 * 1024 * 1024)

    @method
    async def logs_after_the_end(self, *, ctx: Context) -> str:
        """Leave a task behind that continues to log."""

        async def talk() -> None:
            for number in range(20):
                await ctx.log("info", f"still here {number}")
                await asyncio.sleep(0.01)

        self._left.append(asyncio.create_task(talk()))
        return "done"

    @method
    async def prints(self) -> str:
        """Write to stdout in every way."""
        os.write(1, b"to stdout\n")
        print("to stdout again")  # noqa: T201
        return "printed"

    # --- methods that do not end --------------------------------------------------------------

    @method(deadline_s=0.2)
    async def hangs(self) -> AsyncIterator[Content]:
        """Wait without end."""
        yield Content(text="waiting")
        await asyncio.Event().wait()

    @method(deadline_s=0.2)
    async def never_waits(self) -> AsyncIterator[Content]:
        """Yield events without ever suspending."""
        word = Content(text="x")
        while True:
            yield word

    @method(deadline_s=0.2)
    async def ignores_the_end(self) -> AsyncIterator[Content]:
        """Ignore cancellation."""
        yield Content(text="never")
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    @method(deadline_s=0.2)
    async def yields_when_closed(self) -> AsyncIterator[Content]:
        """Yield events while it is being closed."""
        while True:
            try:
                yield Content(text="x")
                await asyncio.sleep(0.01)
            except (GeneratorExit, asyncio.CancelledError):
                yield Content(text="no")

    @method(deadline_s=0.2)
    async def never_finishes_cleanup(self) -> AsyncIterator[Content]:
        """Never finish its cleanup."""
        try:
            yield Content(text="x")
            await asyncio.Event().wait()
        finally:
            await asyncio.Event().wait()

    @method(deadline_s=0.2)
    async def raises_when_cancelled(self) -> AsyncIterator[Content]:
        """Raise an exception in its cleanup."""
        try:
            yield Content(text="x")
            await asyncio.Event().wait()
        finally:
            raise RuntimeError(SECRET)

    @method
    async def stands_still(self) -> str:
        """Block the event loop for 0.3 s."""
        time.sleep(0.3)  # noqa: ASYNC251 - that is the point
        return "awake"

    @method
    async def calls_itself(self, depth: int = 0, *, ctx: Context) -> str:
        """Call itself through the hub, thirty deep."""
        if depth >= 30:
            return "deep"
        return str(await ctx.call("odd.calls_itself", depth=depth + 1))
