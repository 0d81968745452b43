"""`substrate --stdio --mcp`: MCP on stdin and stdout, and namespaced methods beside it."""

from __future__ import annotations

from mcp_view.protocol import McpConnection
from mcp_view.session import Session
from native_rpc.framing import LINES
from native_rpc.protocol import NativeConnection
from plexus.runtime.hub import Plexus
from substrate.build_hub import NO_FILES, MakeHub, build_hub
from substrate.driver import View
from substrate.mcp_server import make_mcp_server, mcp_options
from substrate.settings import ProjectFiles, Settings
from substrate.stdio.transport import serve_view

__all__ = ("serve_mcp_stdio",)


def serve_mcp_stdio(
    settings: Settings, files: ProjectFiles = NO_FILES, make_hub: MakeHub = build_hub
) -> None:
    """Serve until the input ends."""
    serve_view(settings, _mcp_view, files, make_hub)


def _mcp_view(hub: Plexus, settings: Settings) -> View:
    server = make_mcp_server(hub, mcp_options(settings))
    native = NativeConnection(LINES, hub.limits, hub.new_id)
    return McpConnection(server, Session(), LINES, fallback=native)
