"""The transcripts over WebSocket and HTTP: the same messages on every transport."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from network import Server, serving
from transcripts import TRANSCRIPTS, replay
from websockets.asyncio.client import ClientConnection, connect

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


class Socket:
    """One WebSocket."""

    def __init__(self, peer: ClientConnection) -> None:
        self._peer = peer

    async def send(self, message: str) -> None:
        await self._peer.send(message)

    async def receive(self) -> Any:
        return json.loads(await self._peer.recv())


class Posts:
    """Sends each message as a POST; each answer is an event stream or JSON."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._received: asyncio.Queue[Any] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []

    async def send(self, message: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        body = message.encode()
        writer.write(
            b"POST /rpc HTTP/1.0\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
            b"Accept: application/json, text/event-stream\r\nContent-Length: %d\r\n\r\n%b"
            % (self._port, len(body), body)
        )
        self._tasks.append(asyncio.create_task(self._read(reader, writer)))

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            streamed = b"text/event-stream" in head
            while line := await reader.readline() if streamed else await reader.read():
                data = line.removeprefix(b"data: ")
                if data.startswith((b"{", b"[")):
                    self._received.put_nowait(json.loads(data))
        finally:
            writer.close()
            await writer.wait_closed()

    async def receive(self) -> Any:
        return await self._received.get()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@pytest.mark.parametrize("name", TRANSCRIPTS)
async def test_a_websocket_follows_the_transcript(name: str, server: Server) -> None:
    async with connect(server.ws, user_agent_header=None) as peer:
        await replay(TRANSCRIPTS[name], Socket(peer))


@pytest.mark.parametrize("name", [name for name, t in TRANSCRIPTS.items() if not t.connection])
async def test_event_streams_follow_the_transcript(name: str, server: Server) -> None:
    posts = Posts(server.port)
    try:
        await replay(TRANSCRIPTS[name], posts)
    finally:
        await posts.close()
