"""The native view over WebSocket: one JSON-RPC message a frame, text both ways."""

from __future__ import annotations

import asyncio

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
GOING_AWAY = 1001


class RpcSocket:
    """`/rpc` as a WebSocket."""

    def __init__(self, hub: Plexus) -> None:
        self._hub = hub

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Serve one peer until it is gone."""
        await receive()  # "websocket.connect", always the first
        await send({"type": "websocket.accept"})
        view = NativeConnection(MESSAGES, self._hub.limits, self._hub.new_id)
        connection = Connection(self._hub, view, LOCAL)
        writer = asyncio.get_running_loop().create_task(self._write(connection, send))
        writer.add_done_callback(lambda _: connection.finish())
        try:
            await self._read(connection, receive, writer)
        finally:
            connection.finish()
            connection.lost()
            writer.cancel()
            await asyncio.wait([writer])

    async def _read(
        self, connection: Connection, receive: Receive, writer: asyncio.Task[None]
    ) -> None:
        limits = self._hub.limits
        while not writer.done():
            message = await receive()
            if message["type"] == "websocket.disconnect":
                return
            text = message.get("text")
            data = message["bytes"] if text is None else text.encode()
            connection.receive(wire.decode(data, limits))
            if connection.unsent > UNSENT_BYTES:
                await connection.collected()

    async def _write(self, connection: Connection, send: Send) -> None:
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
                await send(
                    {"type": "websocket.close", "code": POLICY_VIOLATION, "reason": "lagged"}
                )
                return
