"""The MCP transcripts through the view and its driver, without a transport or process."""

from __future__ import annotations

import time

import pytest
from activations_for_tests import Demo
from bare_view import Bare
from conftest import OpenHub
from transcripts import MCP_TRANSCRIPTS, replay

from mcp_view.protocol import McpConnection
from mcp_view.server import McpOptions, McpServer
from mcp_view.session import Session
from native_rpc.framing import MESSAGES
from native_rpc.protocol import NativeConnection
from plexus import Plexus

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]


def mcp_view_of(hub: Plexus) -> McpConnection:
    server = McpServer(
        hub,
        McpOptions(instructions="Try it."),
        secret=bytes(32),
        monotonic=time.monotonic,
        wall=time.time,
    )
    native = NativeConnection(MESSAGES, hub.limits, hub.new_id)
    return McpConnection(server, Session(), fallback=native)


@pytest.mark.parametrize("name", MCP_TRANSCRIPTS)
async def test_the_view_answers_as_in_the_transcript(name: str, open_hub: OpenHub) -> None:
    hub = open_hub(Demo)
    await replay(MCP_TRANSCRIPTS[name], Bare(hub, mcp_view_of(hub)))
