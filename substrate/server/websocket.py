"""Either view over WebSocket: one JSON-RPC message a frame, text both ways."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from starlette.types import Receive, Scope, Send

from plexus.principal import Principal
from plexus.rpc import wire
from plexus.runtime.hub import Plexus
from substrate.driver import Connection, View
from substrate.security.authentication import Credential
from substrate.security.credential_watch import CredentialWatch
from substrate.server.shutdown import OpenStreams

__all__ = ("MessageSocket",)

#: How much may wait to be written before no more requests are read.
UNSENT_BYTES = 1024 * 1024
POLICY_VIOLATION = 1008
GOING_AWAY = 1001
#: How long saying good-bye to a peer that does not read may take.
CLOSE_S = 1.0
#: How long the last frames for a peer whose credential is no longer valid may take.
LAST_WRITE_S = 0.4


class MessageSocket:
    """A route that is a WebSocket; every peer gets a view of its own."""

    def __init__(
        self,
        hub: Plexus,
        make_view: Callable[[Principal], View],
        open_streams: OpenStreams,
        credentials: CredentialWatch,
        subprotocol: str | None = None,
    ) -> None:
        self._hub = hub
        self._make_view = make_view
        self._open = open_streams
        self._credentials = credentials
        self._subprotocol = subprotocol

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one peer until it is gone, or until it has not read for too long."""
        await receive()  # "websocket.connect", always the first
        offered = self._subprotocol in scope["subprotocols"]
        await send(
            {"type": "websocket.accept", "subprotocol": self._subprotocol if offered else None}
        )
        credential: Credential = scope["credential"]
        principal = credential.principal
        connection = Connection(self._hub, self._make_view(principal), principal)
        socket = _Socket(connection)
        self._open.add(connection)
        self._credentials.add(credential, socket)
        try:
            await self._serve(socket, receive, send)
        finally:
            self._credentials.discard(credential, socket)
            self._open.discard(connection)

    async def _serve(self, socket: _Socket, receive: Receive, send: Send) -> None:
        connection = socket.connection
        loop = asyncio.get_running_loop()
        reader = loop.create_task(self._read(connection, receive))
        writer = loop.create_task(self._write(connection, send))
        both: list[asyncio.Future[None]] = [reader, writer]
        try:
            await asyncio.wait([*both, socket.revoked], return_when=asyncio.FIRST_COMPLETED)
            if connection.revoked is not None and not reader.done():
                await asyncio.wait([writer], timeout=LAST_WRITE_S)
        finally:
            finished = connection.finished
            connection.lost()
            reader.cancel()
            writer.cancel()
            await asyncio.wait(both)
        if not reader.cancelled() and (error := reader.exception()) is not None:
            raise error
        if connection.revoked is not None:
            await _close(send, POLICY_VIOLATION, connection.revoked)
        elif not writer.cancelled() and writer.exception() is None:
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


class _Socket:
    """One peer, as far as its credential is concerned."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.revoked: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def revoke(self, reason: str, *, refreshed: bool) -> None:  # noqa: ARG002 - it is gone anyway
        """End the connection: a client with a newer token opens another."""
        self.connection.revoke(reason)
        if not self.revoked.done():
            self.revoked.set_result(None)


async def _close(send: Send, code: int, reason: str) -> None:
    """Say why, if the peer takes that at least; its pings will go unanswered otherwise."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_S):
            await send({"type": "websocket.close", "code": code, "reason": reason})
