"""Calls of the methods of `tasks` in tests: through a hub, over a real file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from hub_calls import Namespace, call, follow, register

from activations.tasks import Tasks
from plexus import Activation, Plexus, Principal
from plexus.caller_connection import CallerConnection
from plexus.events import ErrorEvent, Result
from plexus.principal import LOCAL
from plexus.runtime.builtin import PlexusActivation

__all__ = ("Board", "boarding")


class Board(Namespace):
    """A hub with tasks and the other activations of a test."""

    def __init__(self, hub: Plexus, tasks: Tasks) -> None:
        super().__init__(hub, "tasks")
        self.tasks = tasks

    async def error(self, method: str, _as: Principal = LOCAL, **params: Any) -> ErrorEvent:
        """Return the error of a call, which must be its only event."""
        [event] = await call(self.hub, f"tasks.{method}", params, _as)
        assert isinstance(event, ErrorEvent), event
        return event

    async def add(self, description: str, **more: Any) -> str:
        """Create a task, and return its id."""
        name: str = (await self.value("create_task", description=description, **more))["id"]
        return name

    async def through(
        self, connection: CallerConnection, method: str, client: str = "agent/1", **params: Any
    ) -> Any:
        """Return the result of a call on a connection."""
        made = self.hub.call(f"tasks.{method}", params, connection=connection, client=client)
        terminal = (await follow(made.run, owner=True))[-1]
        assert isinstance(terminal, Result), terminal
        return terminal.result


@asynccontextmanager
async def boarding(
    database: Path | str, *others: Activation | type[Activation]
) -> AsyncIterator[Board]:
    """Open a hub with tasks over this database for the duration of the block."""
    hub = Plexus()
    tasks = Tasks(str(database))
    register(hub, PlexusActivation(hub), tasks, *others)
    try:
        yield Board(hub, tasks)
    finally:
        await hub.close()
