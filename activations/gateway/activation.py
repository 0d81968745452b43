"""mounts: the MCP servers that are mounted, and what waits for the approval of a person.

Registered with the first mount of a hub. Its lifespan is that of all mounts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from activations.gateway.gateway import Gateway
from activations.gateway.mount import Mount
from activations.gateway.visible_text import has_invisible, show_invisible
from plexus import Activation, Context, method

__all__ = ("Mounts", "describe_held")


class Mounts(Activation):
    """The MCP servers that are mounted here: their state, their tools and their approval."""

    namespace = "mounts"
    version = "1.0.0"
    audience = "client"

    def __init__(self, gateway: Gateway) -> None:
        super().__init__()
        self._gateway = gateway

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Follow changes while the hub is open, and end all servers with it."""
        self._gateway.start()
        try:
            yield
        finally:
            await self._gateway.close()

    @method(
        name="list",
        title="List mounts",
        read_only=True,
        open_world=False,
        control=True,
        scope="mounts",
    )
    async def list_mounts(self) -> list[dict[str, Any]]:
        """Return each mounted server with its state, tools, latency, errors and held tools."""
        mounts = [each.describe_state() for each in self._gateway.mounts.values()]
        broken = [
            {"name": name, "state": "not mounted", "error": reason}
            for name, reason in self._gateway.broken.items()
            if name not in self._gateway.mounts
        ]
        return sorted([*mounts, *broken], key=lambda each: str(each["name"]))

    @method(title="Show held tools", read_only=True, open_world=False, scope="mounts")
    async def held(self, mount: str) -> list[dict[str, Any]]:
        """Return the tools of a mount that wait for approval, with what has changed.

        Args:
            mount: Name of the mount.
        """
        return describe_held(self._gateway.find(mount))

    @method(title="Approve tools", destructive=True, needs_person=True, scope="mounts")
    async def approve(self, mount: str, tools: list[str] | None = None) -> list[str]:
        """Approve tools of a mount that are new or have changed; returns their names.

        Only a person should decide this, after reading what has changed.

        Args:
            mount: Name of the mount.
            tools: Names of held tools. Default: all of them.
        """
        return await self._gateway.approve(mount, tools)

    @method(title="List a server again", destructive=False, deadline_s=600, scope="mounts")
    async def refresh(self, ctx: Context, mount: str) -> dict[str, Any]:
        """Restart the sessions of a mount, list its server again, and return its state.

        Asks you to sign in if the server requires it.

        Args:
            mount: Name of the mount.
        """
        refreshed = await self._gateway.refresh(mount, ctx)
        await asyncio.sleep(0)
        return refreshed.describe_state()


def describe_held(mount: Mount) -> list[dict[str, Any]]:
    """Return the tools of a mount that wait for approval."""
    if mount.catalogue is None:
        return []
    return [
        {
            "tool": show_invisible(name),
            "change": held.change,
            "difference": held.difference(),
            "invisible": any(has_invisible(text) for text in _texts(held.definition)),
        }
        for name, held in sorted(mount.catalogue.held.items())
    ]


def _texts(value: Any) -> list[str]:
    """Return all texts inside of a JSON value."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for each in inner for text in _texts(each)]
