"""A view and its driver without a transport."""

from __future__ import annotations

import json
from typing import Any

from plexus import Plexus
from plexus.principal import LOCAL
from plexus.rpc.effects import View
from plexus.rpc.wire import LineDecoder
from substrate.driver import Connection

__all__ = ("Bare",)


class Bare:
    """Exchange of messages with a view through its driver."""

    def __init__(self, hub: Plexus, view: View) -> None:
        self._lines = LineDecoder(hub.limits)
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
