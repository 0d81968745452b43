"""The MCP transcripts, through the view and its driver alone: no transport, no process."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from activations_for_tests import Demo
from conftest import OpenHub
from transcripts import MCP_TRANSCRIPTS, replay

from mcp_view.protocol import McpConnection
from mcp_view.server import McpOptions, McpServer
from mcp_view.session import Session
from native_rpc.framing import MESSAGES
from native_rpc.protocol import NativeConnection
from plexus import LOCAL, Plexus
from plexus.wire import Lines
from substrate.driver import Connection

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]


class Bare:
    """The two ends of a view, with nothing in between."""

    def __init__(self, hub: Plexus) -> None:
        server = McpServer(
            hub,
            McpOptions(instructions="Try it."),
            secret=bytes(32),
            monotonic=time.monotonic,
            wall=time.time,
        )
        native = NativeConnection(MESSAGES, hub.limits, hub.new_id)
        view = McpConnection(server, Session(), fallback=native)
        self._lines = Lines(hub.limits)
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


@pytest.mark.parametrize("name", MCP_TRANSCRIPTS)
async def test_the_view_speaks_mcp_as_the_transcript_says(name: str, open_hub: OpenHub) -> None:
    await replay(MCP_TRANSCRIPTS[name], Bare(open_hub(Demo)))
