"""Calls of arbor's methods in tests: through a hub, over a real file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from hub_calls import Namespace, call, register

from activations.arbor import Arbor
from activations.arbor.model import Retention
from plexus import Activation, Plexus, Principal
from plexus.events import ErrorEvent
from plexus.principal import LOCAL
from plexus.runtime.builtin import PlexusActivation

__all__ = ("Grove", "growing", "open_grove")


class Grove(Namespace):
    """A hub with arbor and the other activations of a test."""

    def __init__(self, hub: Plexus, arbor: Arbor) -> None:
        super().__init__(hub, "arbor")
        self.arbor = arbor

    async def error(self, method: str, _as: Principal = LOCAL, **params: Any) -> ErrorEvent:
        """Return the error of a call, which must be its only event."""
        events = await call(self.hub, f"arbor.{method}", params, _as)
        assert len(events) == 1, events
        assert isinstance(events[0], ErrorEvent), events
        return events[0]

    async def tree(self, **params: Any) -> str:
        """Create a tree, and return its id."""
        tree: str = (await self.value("tree_create", **params))["tree_id"]
        return tree

    async def text(self, tree: str, content: str, parent: str | None = None, **more: Any) -> str:
        """Create a text node, and return its id."""
        made = await self.value(
            "node_create_text", tree_id=tree, content=content, parent=parent, **more
        )
        node: str = made["node_id"]
        return node

    async def nodes(self, tree: str) -> list[dict[str, Any]]:
        """Return all nodes of a tree in creation order."""
        events = await self.events("tree_get", tree_id=tree)
        return [node for event in events if event["type"] == "nodes" for node in event["nodes"]]

    async def export(self, tree: str) -> str:
        """Return a tree as exported lines."""
        events = await self.events("tree_export", tree_id=tree)
        assert events[-1] == {"type": "complete"}, events[-1]
        return "".join(event["text"] for event in events if event["type"] == "content")


def open_grove(
    path: Path, *others: Activation | type[Activation], retention: Retention | None = None
) -> Grove:
    """Open a hub with arbor over this file; the caller closes the hub."""
    hub = Plexus()
    arbor = Arbor(str(path), retention)
    register(hub, PlexusActivation(hub), arbor, *others)
    return Grove(hub, arbor)


@asynccontextmanager
async def growing(
    path: Path, *others: Activation | type[Activation], retention: Retention | None = None
) -> AsyncIterator[Grove]:
    """Open a hub with arbor over this file for the duration of the block."""
    grove = open_grove(path, *others, retention=retention)
    try:
        yield grove
    finally:
        await grove.hub.close()
