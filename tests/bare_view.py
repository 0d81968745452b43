"""The two ends of a view, with no transport in between."""

from __future__ import annotations

import json
from typing import Any

from plexus import Plexus
from plexus.principal import LOCAL
from plexus.rpc.wire import Lines
from substrate.driver import Connection, View

__all__ = ("Bare",)


class Bare:
    """An exchange with a view and its driver alone."""

    def __init__(self, hub: Plexus, view: View) -> None:
        self._lines = Lines(hub.limits)
        self._connection = Connection(hub, view, LOCAL)
        self._frames: list[bytes] = []

    async def send(self, message: str) -> None:
        for decoded in self._lines.feed(message.encode() + b"\n"):
            self._connection.receive(decoded)

    async def receive(self) -> Any:
        while not self._frames:
            await self._connection.ready()
            self._frames = self._connection.collect()
        return json.loads(self._frames.pop(0))
