"""Either view over WebSocket: one JSON-RPC message a frame, text both ways."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from starlette.types import Receive, Scope, Send

from plexus import wire
from plexus.hub import Plexus
from plexus.principal import Principal
from substrate.driver import Connection, View
from substrate.open_streams import OpenStreams

__all__ = ("MessageSocket",)

#: How much may wait to be written before no more requests are read.
UNSENT_BYTES = 1024 * 1024
POLICY_VIOLATION = 1008
GOING_AWAY = 1001
#: How long saying good-bye to a peer that does not read may take.
CLOSE_S = 1.0


class MessageSocket:
    """A route that is a WebSocket; every peer gets a view of its own."""

    def __init__(
        self,
        hub: Plexus,
        make_view: Callable[[Principal], View],
        open_streams: OpenStreams,
        subprotocol: str | None = None,
    ) -> None:
        self._hub = hub
        self._make_view = make_view
        self._open = open_streams
        self._subprotocol = subprotocol

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one peer until it is gone, or until it has not read for too long."""
        await receive()  # "websocket.connect", always the first
        offered = self._subprotocol in scope["subprotocols"]
        await send(
            {"type": "websocket.accept", "subprotocol": self._subprotocol if offered else None}
        )
        principal: Principal = scope["principal"]
        connection = Connection(self._hub, self._make_view(principal), principal)
        self._open.add(connection)
        try:
            await self._serve(connection, receive, send)
        finally:
            self._open.discard(connection)

    async def _serve(self, connection: Connection, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        reader = loop.create_task(self._read(connection, receive))
        writer = loop.create_task(self._write(connection, send))
        try:
            await asyncio.wait([reader, writer], return_when=asyncio.FIRST_COMPLETED)
        finally:
            finished = connection.finished
            connection.lost()
            reader.cancel()
            writer.cancel()
            await asyncio.wait([reader, writer])
        if not reader.cancelled() and (error := reader.exception()) is not None:
            raise error
        if not writer.cancelled() and writer.exception() is None:
            if finished:
                await _close(send, GOING_AWAY, "the server is stopping")
            else:
                await _close(send, POLICY_VIOLATION, "lagged")

    async def _read(self, connection: Connection, receive: Receive) -> None:
        limits = self._hub.limits
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                return
            text = message.get("text")
            data = message["bytes"] if text is None else text.encode()
            connection.receive(wire.decode(data, limits))
            if connection.unsent > UNSENT_BYTES:
                await connection.collected()

    async def _write(self, connection: Connection, send: Send) -> None:
        """Write what there is as it comes; returns when the peer does not take it in time, and
        when no more will come."""
        while not connection.finished:
            frames = connection.collect()
            if not frames:
                await connection.ready()
                continue
            try:
                async with asyncio.timeout(self._hub.limits.write_s):
                    for frame in frames:
                        await send({"type": "websocket.send", "text": frame.decode()})
            except TimeoutError:
                return


async def _close(send: Send, code: int, reason: str) -> None:
    """Say why, if the peer takes that at least; its pings will go unanswered otherwise."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_S):
            await send({"type": "websocket.close", "code": code, "reason": reason})
