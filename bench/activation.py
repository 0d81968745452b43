"""The measured activations. No method waits, except where waiting is measured."""

from __future__ import annotations

import time
from asyncio import Event, sleep
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from plexus import Activation, Content, method
from plexus.events import Event as TypedEvent

__all__ = ("Bench", "Few", "Thousand")


class Stdout(TypedEvent):
    """A line, like those of `bash.execute`."""

    data: str


class Bench(Activation):
    """Streams small events as fast as the client reads them."""

    namespace = "bench"
    version = "1.0.0"

    @method(max_result_chars=1_000_000)  # ten thousand events fit into a buffered result
    async def count(self, to: int) -> AsyncIterator[Content]:
        """Count from 1 up to TO.

        Args:
            to: The last number.
        """
        for i in range(1, to + 1):
            yield Content(text=f"{i} ")

    @method(deadline_s=None)
    async def lines(self, to: int) -> AsyncIterator[Stdout]:
        """Write coloured lines.

        Args:
            to: The number of lines.
        """
        for i in range(1, to + 1):
            yield Stdout(data=f"\x1b[3{i % 7 + 1}mline\x1b[0m {i}\n")

    @method(deadline_s=None)
    async def clock(self, times: int) -> AsyncIterator[Content]:
        """Report the time in nanoseconds, about 40 times a second.

        Args:
            times: How often.
        """
        for i in range(times):
            # Not a multiple of any interval of the run store.
            await sleep(0.02 + i % 11 / 1000)
            yield Content(text=f"{time.monotonic_ns()} ")

    @method(deadline_s=None)
    async def ticks(self, times: int) -> AsyncIterator[Content]:
        """Report the time in nanoseconds, every millisecond.

        Args:
            times: How often.
        """
        for _ in range(times):
            await sleep(0.001)
            yield Content(text=f"{time.monotonic_ns()} ")

    @method
    async def echo(self, text: str) -> str:
        """Say TEXT again.

        Args:
            text: What to say.
        """
        return text

    @method(deadline_s=None)
    async def hold(self) -> AsyncIterator[Content]:
        """Say one thing and then nothing until cancelled."""
        yield Content(text="held ")
        await Event().wait()


def _tool(number: int) -> Callable[..., Awaitable[str]]:
    async def tool(self: Activation, text: str) -> str:  # noqa: ARG001 - a method
        """Say TEXT again.

        Args:
            text: What to say.
        """
        return text

    tool.__name__ = f"tool_{number}"
    tool.__qualname__ = f"Many.tool_{number}"
    return method(tool)


def _many(name: str, tools: int) -> type[Activation]:
    """Create an activation class with this number of identical methods."""
    members: dict[str, Any] = {
        "__doc__": "Says things again, in many ways.",
        "__module__": __name__,
        "namespace": "many",
        "version": "1.0.0",
    }
    return type(name, (Activation,), members | {f"tool_{i}": _tool(i) for i in range(tools)})


Few = _many("Few", 20)
Thousand = _many("Thousand", 1_000)
