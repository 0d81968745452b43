"""The native view over WebSocket: one JSON-RPC message a frame, text both ways."""

from __future__ import annotations

import asyncio
import contextlib

from starlette.types import Receive, Scope, Send

from native_rpc.framing import MESSAGES
from native_rpc.protocol import NativeConnection
from plexus import wire
from plexus.hub import Plexus
from plexus.principal import LOCAL
from substrate.driver import Connection

__all__ = ("RpcSocket",)

#: How much may wait to be written before no more requests are read.
UNSENT_BYTES = 1024 * 1024
POLICY_VIOLATION = 1008
#: How long saying good-bye to a peer that does not read may take.
CLOSE_S = 1.0


class RpcSocket:
    """`/rpc` as a WebSocket."""

    def __init__(self, hub: Plexus) -> None:
        self._hub = hub

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Serve one peer until it is gone, or until it has not read for too long."""
        await receive()  # "websocket.connect", always the first
        await send({"type": "websocket.accept"})
        view = NativeConnection(MESSAGES, self._hub.limits, self._hub.new_id)
        connection = Connection(self._hub, view, LOCAL)
        loop = asyncio.get_running_loop()
        reader = loop.create_task(self._read(connection, receive))
        writer = loop.create_task(self._write(connection, send))
        try:
            await asyncio.wait([reader, writer], return_when=asyncio.FIRST_COMPLETED)
        finally:
            connection.lost()
            reader.cancel()
            writer.cancel()
            await asyncio.wait([reader, writer])
        if not writer.cancelled() and writer.exception() is None:
            await _close_lagging(send)

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
        """Write what there is as it comes; returns when the peer does not take it in time."""
        while True:
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


async def _close_lagging(send: Send) -> None:
    """Say why, if the peer takes that at least; its pings will go unanswered otherwise."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_S):
            await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": "lagged"})
