"""Methods for tests of MCP over HTTP: they change the hub, ask questions, and take time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from pydantic import Field

from plexus import Activation, Confirm, Content, Context, Progress, method
from plexus.runtime.changes import Change

__all__ = ("Extra", "Remote")


class Extra(Activation):
    """An activation that is registered later."""

    namespace = "extra"
    version = "1.0.0"

    @method
    async def nothing(self) -> str:
        """Do nothing."""
        return "nothing"


class Remote(Activation):
    """Methods for remote clients."""

    namespace = "remote"
    version = "1.0.0"

    def __init__(self) -> None:
        self._gate = asyncio.Event()

    @method
    async def deploy(
        self,
        region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})] = "here",
        copies: Annotated[int | None, Field(json_schema_extra={"x-mcp-header": "Copies"})] = None,
        fast: Annotated[bool | None, Field(json_schema_extra={"x-mcp-header": "Fast"})] = None,
    ) -> str:
        """Return the arguments of a deployment."""
        return f"{region} {copies} {fast}"

    @method
    async def grow(self, *, ctx: Context) -> str:
        """Register another activation."""
        ctx.plexus.register(Extra)
        return "grown"

    @method
    async def touch(self, uri: str, *, ctx: Context) -> str:
        """Notify subscribers that a resource has changed."""
        ctx.plexus.notify(Change("resource", uri))
        return "touched"

    @method(deadline_s=None)
    async def steps(self, to: int, every_s: float = 0.05) -> AsyncIterator[Progress | Content]:
        """Report progress in steps, with a pause after each."""
        for number in range(1, to + 1):
            yield Progress(done=number, total=to, message=f"step {number}")
            await asyncio.sleep(every_s)
        yield Content(text="arrived")

    @method
    async def pass_gate(self) -> AsyncIterator[Progress | Content]:
        """Report progress, then wait until the gate is opened."""
        self._gate.clear()
        yield Progress(done=1, message="at the gate")
        await self._gate.wait()
        yield Content(text="through")

    @method
    async def open_gate(self) -> str:
        """Open the gate for waiting runs."""
        self._gate.set()
        return "open"

    @method
    async def burn(self, *, ctx: Context) -> str:
        """Ask for confirmation."""
        return "burnt" if await ctx.ask(Confirm("Really?")) else "kept"
