"""Methods for tests of the MCP view, one for each kind of content of a result."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Literal

from pydantic import BaseModel

from plexus import (
    Activation,
    Audio,
    Complete,
    Content,
    Context,
    Event,
    Failed,
    Image,
    Log,
    Progress,
    Resource,
    ToolResult,
    ToolUse,
    method,
)

__all__ = ("Found", "Show", "Watched")

PIXEL = "aW1hZ2U="
SOUND = "c291bmQ="
NO_TEXTS: tuple[str, ...] = ()


class Found(BaseModel):
    """The result of a search."""

    name: str
    size: int
    note: str | None = None


class Reading(Event):
    """A value without a text form."""

    value: int


class Counted(Complete):
    """The terminal of a count."""

    total: int


class Show(Activation):
    """Methods that yield one event of every kind."""

    namespace = "show"
    version = "1.0.0"

    @method(title="Say it", read_only=True, destructive=False, idempotent=True, open_world=False)
    async def words(self, texts: list[str]) -> AsyncIterator[Content]:
        """Say these texts.

        Args:
            texts: What to say.
        """
        for text in texts:
            yield Content(text)

    @method
    async def silence(self) -> AsyncIterator[Content]:
        """Yield nothing."""
        for text in NO_TEXTS:
            yield Content(text)

    @method
    async def value(self, kind: Literal["text", "list", "none", "number"] = "text") -> Any:
        """Return something."""
        return {"text": "a text", "list": [1, {"a": 2}], "none": None, "number": 5}[kind]

    @method(background="never")
    async def found(self, name: str, note: str | None = None) -> Found:
        """Find something."""
        if name == "nothing":
            raise Failed("there is nothing")
        return Found(name=name, size=len(name), note=note)

    @method
    async def loose(self) -> dict[str, int]:
        """Return an object with undeclared properties."""
        return {"a": 1}

    @method
    async def media(self) -> AsyncIterator[Content | Image | Audio | Resource]:
        """Yield an image, audio and three resources."""
        yield Content("before ")
        yield Image(PIXEL, "image/png")
        yield Audio(SOUND, "audio/wav")
        yield Resource("note://1", mime_type="text/plain", content="a note")
        yield Resource.of_bytes("note://2", b"bytes", "application/x-note")
        yield Resource("note://3", name="third")
        yield Content("after")

    @method
    async def tools(self) -> AsyncIterator[Content | ToolUse | ToolResult]:
        """Use two tools."""
        yield ToolUse("search", "t1", {"q": "x"})
        yield ToolResult("t1", "two hits")
        yield ToolResult("t2", "no route", is_error=True)
        yield Content("done")

    @method
    async def readings(self) -> AsyncIterator[Reading]:
        """Yield values without texts."""
        yield Reading(1)
        yield Reading(2)

    @method
    async def counted(self, aloud: bool) -> AsyncIterator[Content | Counted]:
        """End with a terminal that has a field."""
        if aloud:
            yield Content("three")
        yield Counted(3)

    @method
    async def fails(self) -> AsyncIterator[Content | Image]:
        """Fail after an image and some text."""
        yield Content("so far, ")
        yield Image(PIXEL, "image/png")
        yield Content("so good")
        raise Failed("and then it broke")

    @method
    async def crash(self) -> str:
        """Raise an unexpected exception."""
        raise RuntimeError("this text must stay in the log")

    @method
    async def steps(self) -> AsyncIterator[Content | Progress | Log]:
        """Declare progress events; tests create them directly."""
        yield Progress(1, 2)

    @method
    async def remarks(self, *, ctx: Context) -> str:
        """Log a message at every level."""
        levels: Any = (
            *("debug", "info", "notice", "warning"),
            *("error", "critical", "alert", "emergency"),
        )
        for level in levels:
            await ctx.log(level, f"this is {level}")
        return "done"


class Watched(Activation):
    """Methods that wait until cancelled, and record it."""

    namespace = "watched"
    version = "1.0.0"

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.stopped = asyncio.Event()
        self.calls = 0

    @method(deadline_s=None)
    async def wait(self) -> AsyncIterator[Content]:
        """Yield one event and wait until cancelled."""
        self.calls += 1
        try:
            yield Content("waiting")
            self.started.set()
            await asyncio.Event().wait()
        finally:
            self.stopped.set()

    @method(deadline_s=None)
    async def linger(self) -> str:
        """Ignore the cancellation and finish."""
        self.started.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "finished anyway"
