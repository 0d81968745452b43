"""The client at the other end of a response: notices when it hangs up."""

from __future__ import annotations

import asyncio

from starlette.types import Receive

from substrate.driver import Connection

__all__ = ("Peer",)


class Peer:
    """Whoever reads a response. Watching begins when somebody has to wait: an answer that is
    given at once needs nobody to look."""

    __slots__ = ("_connection", "_receive", "_watching", "gone")

    def __init__(self, receive: Receive, connection: Connection) -> None:
        self._receive = receive
        self._connection = connection
        self._watching: asyncio.Task[None] | None = None
        #: Whether nothing more is to be written for it.
        self.gone = False

    def watch(self) -> None:
        """Begin to watch, once."""
        if self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.dismiss()

    def dismiss(self) -> None:
        """Have whoever writes for it stop."""
        self.gone = True
        self._connection.wake()

    def leave(self) -> None:
        """Stop watching."""
        if self._watching is not None:
            self._watching.cancel()
            # The two would keep each other, and all of the connection, until a collection.
            self._watching = None

    async def __aenter__(self) -> Peer:
        return self

    async def __aexit__(self, *_: object) -> None:
        """With the peer goes its connection."""
        self.leave()
        self._connection.lost()
