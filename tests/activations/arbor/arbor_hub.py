"""How the tests of arbor's methods call them: through a hub, over a real file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from hub_calls import call, register

from activations.arbor import Arbor
from activations.arbor.model import Retention
from plexus import Activation, Plexus, Principal
from plexus.events import ErrorEvent, Result
from plexus.principal import LOCAL
from plexus.rpc import wire
from plexus.runtime.builtin import PlexusItself

__all__ = ("Grove", "growing", "open_grove")


class Grove:
    """A hub with arbor, and everything else that a test wants in it."""

    def __init__(self, hub: Plexus, arbor: Arbor) -> None:
        self.hub = hub
        self.arbor = arbor

    async def events(self, method: str, _as: Principal = LOCAL, **params: Any) -> list[Any]:
        """All that a call says, as it is on a wire."""
        events: list[Any] = wire.decode_plain(await call(self.hub, f"arbor.{method}", params, _as))
        return events

    async def value(self, method: str, _as: Principal = LOCAL, **params: Any) -> Any:
        """What a call gives: its result, or its terminal if that is one with fields."""
        end = (await call(self.hub, f"arbor.{method}", params, _as))[-1]
        assert not isinstance(end, ErrorEvent), end
        return wire.decode_plain(end.result if isinstance(end, Result) else end)

    async def error(self, method: str, _as: Principal = LOCAL, **params: Any) -> ErrorEvent:
        """How a call fails; it must say nothing before."""
        events = await call(self.hub, f"arbor.{method}", params, _as)
        assert len(events) == 1, events
        assert isinstance(events[0], ErrorEvent), events
        return events[0]

    async def tree(self, **params: Any) -> str:
        """A new tree."""
        tree: str = (await self.value("tree_create", **params))["tree_id"]
        return tree

    async def text(self, tree: str, content: str, parent: str | None = None, **more: Any) -> str:
        """A new node."""
        made = await self.value(
            "node_create_text", tree_id=tree, content=content, parent=parent, **more
        )
        node: str = made["node_id"]
        return node

    async def nodes(self, tree: str) -> list[dict[str, Any]]:
        """All nodes of a tree, in the order they were made."""
        events = await self.events("tree_get", tree_id=tree)
        return [node for event in events if event["type"] == "nodes" for node in event["nodes"]]

    async def export(self, tree: str) -> str:
        """A tree as lines."""
        events = await self.events("tree_export", tree_id=tree)
        assert events[-1] == {"type": "complete"}, events[-1]
        return "".join(event["text"] for event in events if event["type"] == "content")


def open_grove(
    path: Path, *others: Activation | type[Activation], retention: Retention | None = None
) -> Grove:
    """A hub with arbor over this file; whoever opens it closes the hub."""
    hub = Plexus()
    arbor = Arbor(str(path), retention)
    register(hub, PlexusItself(hub), arbor, *others)
    return Grove(hub, arbor)


@asynccontextmanager
async def growing(
    path: Path, *others: Activation | type[Activation], retention: Retention | None = None
) -> AsyncIterator[Grove]:
    """A hub with arbor over this file, for as long as the block lasts."""
    grove = open_grove(path, *others, retention=retention)
    try:
        yield grove
    finally:
        await grove.hub.close()
