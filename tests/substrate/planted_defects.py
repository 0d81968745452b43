"""An activation whose import plants exceptions in the routes of the server that loads it."""

from __future__ import annotations

import os
from typing import Any, NoReturn

import substrate.server.sse
import substrate.server.websocket
import substrate.telemetry.metrics
from plexus import Activation, method
from substrate.server.sse import start_stream

SECRET = "this text must stay in the log"


class Planted(Activation):
    """An activation with one trivial method."""

    namespace = "planted"
    version = "1.0.0"

    @method
    async def nothing(self) -> str:
        """Return an empty text."""
        return ""


def explode(*_: Any, **__: Any) -> NoReturn:
    raise ZeroDivisionError(SECRET)


async def explode_soon(*_: Any, **__: Any) -> NoReturn:
    explode()


async def explode_late(_: Any, __: Any, ___: Any, send: Any, *____: Any) -> NoReturn:
    await start_stream(send)
    await send({"type": "http.response.body", "body": b": begun\n\n", "more_body": True})
    explode()


#: Where the exception is raised, by the word in PLANTED_DEFECTS.
PLANTS: dict[str, tuple[Any, str, Any]] = {
    "route": (substrate.telemetry.metrics.Metrics, "__call__", explode_soon),
    "stream": (substrate.server.sse.EventWriter, "write", explode_late),
    "socket": (substrate.server.websocket.MessageSocket, "__call__", explode_soon),
    "frame": (substrate.server.websocket.MessageSocket, "_read", explode_soon),
}
for place in os.environ.get("PLANTED_DEFECTS", "").split():
    setattr(*PLANTS[place])
