"""The MCP server of this program: its options from the settings, its clocks and its secret."""

from __future__ import annotations

import time

from mcp_view.catalogue import SPELLINGS
from mcp_view.protocol import McpConnection
from mcp_view.server import McpOptions, McpServer
from mcp_view.session import Session
from mcp_view.tool_sets import ToolSet
from native_rpc.framing import LINES
from native_rpc.protocol import NativeConnection
from plexus.registry.lazy import resolve
from plexus.runtime.hub import Plexus
from substrate.settings import Settings

__all__ = ("create_mcp_server", "line_view", "make_mcp_server", "mcp_options", "stdio_view")

#: Sent to models when a client connects, with the names of tools as the client sees them.
INSTRUCTIONS = (
    "Every tool call is a run with a number, and its result contains the complete output of the "
    "run. If the output is long, the result omits the middle and links to all of it as the "
    "resource run://NUMBER. If a run asks a question, the result tells you how to answer it with "
    "{respond}; ask the user first if you do not know the answer. Use {runs} to list runs, "
    "{attach} to read a run that is still in progress, and {cancel} to stop a run. Only the most "
    "common tools are listed: find others with {search}, and call them with {call} or by their own "
    "name."
)
#: The methods of the server itself that the instructions name.
NAMED = ("attach", "call", "cancel", "respond", "runs", "search")


def mcp_options(settings: Settings) -> McpOptions:
    """Return the options of the MCP view from the settings."""
    names = SPELLINGS[settings.mcp_tool_names]
    tools = {each: names.name_of(f"plexus.{each}") for each in NAMED}
    return McpOptions(
        names=names,
        progress_rate=settings.mcp_progress_rate,
        progress_always=settings.mcp_progress == "always",
        result_chars=settings.mcp_result_chars,
        page_size=settings.mcp_page_size,
        stream_s=settings.mcp_stream_s or None,
        instructions=INSTRUCTIONS.format_map(tools),
        tools=ToolSet.parse(settings.mcp_tools),
        call_all=settings.plexus_call == "all",
    )


def make_mcp_server(hub: Plexus, options: McpOptions, secret: bytes | None = None) -> McpServer:
    """Create the MCP server of a hub, which is notified of changes as long as the hub exists.

    `secret` signs request states; without one, all processes of the user share one in a file.
    """
    server = create_mcp_server(hub, options, secret)
    hub.on_change(server.on_change)
    return server


def create_mcp_server(hub: Plexus, options: McpOptions, secret: bytes | None = None) -> McpServer:
    """Create an MCP server. Subscribe its `on_change` to the hub."""
    if hub.notices:
        texts = (f"{each.message} {each.next}" for each in hub.notices)
        instructions = " ".join([*filter(None, [options.instructions]), *texts])
        options = options._replace(instructions=instructions)
    return McpServer(
        hub, options, secret=secret or _stored_secret, monotonic=time.monotonic, wall=time.time
    )


def _stored_secret() -> bytes:
    """Return the secret in the user's data folder. It is read when it is first needed."""
    secret: bytes = resolve("substrate.security.secret_file:read_secret")()
    return secret


def stdio_view(hub: Plexus, settings: Settings) -> McpConnection:
    """Create the view of a client on stdio: MCP, and namespaced methods in addition."""
    return line_view(make_mcp_server(hub, mcp_options(settings)))


def line_view(server: McpServer) -> McpConnection:
    """Create the view of one client of an MCP server, for messages in lines."""
    hub = server.hub
    native = NativeConnection(LINES, hub.limits, hub.new_id)
    return McpConnection(server, Session(), LINES, fallback=native)
