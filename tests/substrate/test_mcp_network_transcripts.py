"""The MCP transcripts over WebSocket, over the pair of routes, and over Streamable HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from mcp_wires import PairWire, SocketWire, StreamableWire, Wire
from network import Server, serving
from transcripts import MCP_TRANSCRIPTS, Transcript, replay

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


class Threaded:
    """A wire, which waits in threads, for whoever awaits."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def send(self, message: str) -> None:
        await asyncio.to_thread(self._wire.send, message)

    async def receive(self) -> Any:
        return await asyncio.to_thread(self._wire.receive)


async def replay_over(wire: Wire, transcript: Transcript) -> None:
    try:
        await replay(transcript, Threaded(wire))
        assert wire.rest() == []
    finally:
        await asyncio.to_thread(wire.close)


def is_handshake(transcript: Transcript) -> bool:
    """Whether no message of it does without a handshake."""
    return not any("protocolVersion" in _meta_of(step.get("send")) for step in transcript.steps)


def _meta_of(message: Any) -> str:
    if not isinstance(message, dict) or not isinstance(message.get("params"), dict):
        return ""
    return " ".join(message["params"].get("_meta", {}))


@pytest.mark.parametrize("name", MCP_TRANSCRIPTS)
async def test_a_websocket_speaks_mcp_as_the_transcript_says(name: str, server: Server) -> None:
    await replay_over(SocketWire(server.port), MCP_TRANSCRIPTS[name])


#: What does without a handshake is refused here: the matrix of revisions and transports says how.
@pytest.mark.parametrize("name", [name for name, t in MCP_TRANSCRIPTS.items() if is_handshake(t)])
async def test_the_pair_of_routes_speaks_mcp_as_the_transcript_says(
    name: str, server: Server
) -> None:
    await replay_over(PairWire(server.port), MCP_TRANSCRIPTS[name])


@pytest.mark.parametrize("name", MCP_TRANSCRIPTS)
async def test_streamable_http_speaks_mcp_as_the_transcript_says(name: str, server: Server) -> None:
    await replay_over(StreamableWire(server.port), MCP_TRANSCRIPTS[name])
