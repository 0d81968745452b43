"""What would stay open for ever: streams and sockets that are told to end when the server does."""

from __future__ import annotations

import asyncio
import contextlib

from substrate.driver import Connection

__all__ = ("OpenStreams",)


class OpenStreams:
    """The connections of one server that are open at the moment."""

    def __init__(self) -> None:
        self._connections: set[Connection] = set()
        self._all_ended: asyncio.Event | None = None

    def add(self, connection: Connection) -> None:
        """This one is open from now on."""
        self._connections.add(connection)

    def discard(self, connection: Connection) -> None:
        """This one is not open any more."""
        self._connections.discard(connection)
        if self._all_ended is not None and not self._connections:
            self._all_ended.set()

    async def finish(self, within_s: float) -> None:
        """Tell all of them to say what is left and to end, and wait for it for a while."""
        if not self._connections:
            return
        self._all_ended = asyncio.Event()
        for connection in list(self._connections):
            connection.finish()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._all_ended.wait(), within_s)
