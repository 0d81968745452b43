"""What a handle stands for, as text: asked of the plugin that it names, through the hub.

A plugin that can say so has a method `resolve_handle(handle: str) -> str`, marked `read_only`.
Nothing else of a plugin is called: a handle is data, and may name any method at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from activations.arbor.model import Handle
from activations.arbor.render import Resolve
from plexus import Context, PlexusError

__all__ = ("resolver",)

METHOD = "resolve_handle"
#: How long all handles of a drawing may take together.
RESOLVE_S = 5.0


def resolver(ctx: Context) -> Resolve:
    """What asks on behalf of this call."""

    async def resolve(handles: Sequence[Handle]) -> list[str | None]:
        texts: list[str | None] = []
        try:
            async with asyncio.timeout(RESOLVE_S):
                for handle in handles:
                    texts.append(await _resolve(ctx, handle))  # noqa: PERF401 - kept at a timeout
        except TimeoutError:
            pass
        return texts + [None] * (len(handles) - len(texts))

    return resolve


async def _resolve(ctx: Context, handle: Handle) -> str | None:
    try:
        spec = ctx.plexus.resolve(f"{handle.plugin}.{METHOD}")
        if not spec.hints.read_only:
            return None
        text = await ctx.call(spec.name, handle=str(handle))
    except PlexusError:
        return None
    return text if isinstance(text, str) else None
