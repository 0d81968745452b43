"""Tools for a scripted model to use."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from chat_hub import Step

from activations.chat.providers.provider import ToolCall
from plexus import Activation, Confirm, Content, Context, Failed, method

__all__ = ("EmptyKit", "Kit", "use")


class Kit(Activation):
    """Tools to try."""

    namespace = "kit"
    version = "1.0.0"

    @method(read_only=True)
    async def whoami(self, *, ctx: Context) -> str:
        """Say who calls."""
        return ctx.principal.name

    @method(destructive=False)
    async def add(self, a: int, b: int = 1) -> int:
        """Add two numbers.

        Args:
            a: One.
            b: The other.
        """
        return a + b

    @method
    async def fail(self) -> str:
        """Fail."""
        raise Failed("it cannot be done", code="impossible")

    @method
    async def break_down(self) -> str:
        """Have a defect."""
        raise RuntimeError("secret")

    @method
    async def flood(self, size: int) -> AsyncIterator[Content]:
        """Say much."""
        yield Content("<head>")
        for _ in range(size // 1000):
            yield Content("x" * 1000)
        yield Content("<tail>")

    @method
    async def silent(self) -> None:
        """Say nothing."""

    @method
    async def sure(self, *, ctx: Context) -> bool:
        """Ask."""
        return await ctx.ask(Confirm("Are you sure?"))

    @method(listed=False)
    async def hidden(self) -> None:
        """Not for everybody."""


class EmptyKit(Activation):
    """What takes the place of the tools when they are taken away."""

    namespace = "kit"
    version = "2.0.0"

    @method(read_only=True)
    async def nothing(self) -> None:
        """Do nothing."""


def use(name: str, id_: str = "1", **given: Any) -> list[Step]:
    """A round in which a model asks for a tool."""
    return [ToolCall(id_, name, given)]
