"""The MCP view as this program serves it: its options from the settings, and its clocks."""

from __future__ import annotations

import os
import time

from mcp_view.catalogue import SPELLINGS
from mcp_view.protocol import McpConnection
from mcp_view.server import McpOptions, McpServer
from mcp_view.session import Session
from native_rpc.framing import LINES
from native_rpc.protocol import NativeConnection
from plexus.runtime.hub import Plexus
from substrate.settings import Settings

__all__ = ("make_mcp_server", "mcp_options", "stdio_view")

INSTRUCTIONS = (
    "Every tool is a method that streams; the result holds all it said. "
    "Long output is cut in the middle, and the link in the result leads to the whole of it."
)


def mcp_options(settings: Settings) -> McpOptions:
    """What the settings say about this view."""
    return McpOptions(
        names=SPELLINGS[settings.mcp_tool_names],
        progress_rate=settings.mcp_progress_rate,
        progress_always=settings.mcp_progress == "always",
        result_chars=settings.mcp_result_chars,
        page_size=settings.mcp_page_size,
        stream_s=settings.mcp_stream_s or None,
        instructions=INSTRUCTIONS,
    )


def make_mcp_server(hub: Plexus, options: McpOptions) -> McpServer:
    """The view of this hub; its secret lives as long as the process, as the runs do."""
    if hub.notices:
        texts = (f"{each.message} {each.next}" for each in hub.notices)
        instructions = " ".join([*filter(None, [options.instructions]), *texts])
        options = options._replace(instructions=instructions)
    server = McpServer(
        hub, options, secret=os.urandom(32), monotonic=time.monotonic, wall=time.time
    )
    hub.on_change(server.on_change)
    return server


def stdio_view(hub: Plexus, settings: Settings) -> McpConnection:
    """The view of a client on stdin and stdout, with namespaced methods beside MCP."""
    server = make_mcp_server(hub, mcp_options(settings))
    native = NativeConnection(LINES, hub.limits, hub.new_id)
    return McpConnection(server, Session(), LINES, fallback=native)
