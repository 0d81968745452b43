"""Tools for a scripted model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from chat_hub import Step

from activations.chat.providers.provider import ToolCall
from plexus import Activation, Confirm, Content, Context, Failed, method

__all__ = ("EmptyKit", "Kit", "use")


class Kit(Activation):
    """Tools for tests."""

    namespace = "kit"
    version = "1.0.0"

    @method(read_only=True)
    async def whoami(self, *, ctx: Context) -> str:
        """Return the name of the calling principal."""
        return ctx.principal.name

    @method(destructive=False)
    async def add(self, a: int, b: int = 1) -> int:
        """Add two numbers.

        Args:
            a: The first number.
            b: The second number.
        """
        return a + b

    @method
    async def fail(self) -> str:
        """Fail."""
        raise Failed("it cannot be done", code="impossible")

    @method
    async def break_down(self) -> str:
        """Raise an unexpected exception."""
        raise RuntimeError("secret")

    @method
    async def flood(self, size: int) -> AsyncIterator[Content]:
        """Return a long text."""
        yield Content("<head>")
        for _ in range(size // 1000):
            yield Content("x" * 1000)
        yield Content("<tail>")

    @method
    async def silent(self) -> None:
        """Return nothing."""

    @method
    async def sure(self, *, ctx: Context) -> bool:
        """Ask."""
        return await ctx.ask(Confirm("Are you sure?"))

    @method(listed=False)
    async def hidden(self) -> None:
        """Do nothing; this method is not listed."""


class EmptyKit(Activation):
    """A replacement of the tools without their methods."""

    namespace = "kit"
    version = "2.0.0"

    @method(read_only=True)
    async def nothing(self) -> None:
        """Do nothing."""


def use(name: str, id_: str = "1", **given: Any) -> list[Step]:
    """Return a round in which a model calls a tool."""
    return [ToolCall(id_, name, given)]
