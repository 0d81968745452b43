"""The inside of a tool's result: what was said, and the same as data where there is any."""

from __future__ import annotations

from mcp_view.reducer import Reducer
from mcp_view.server import McpServer
from mcp_view.tables.revisions import Revision
from plexus.events import Result, Terminal
from plexus.registry.signature import MethodSpec
from plexus.rpc import wire

__all__ = ("structured_part", "tool_body")


def tool_body(reducer: Reducer, terminal: Terminal, run: int) -> bytes:
    """What a tool's result says."""
    content = wire.encode(reducer.content(terminal, f"run://{run}"))
    return b'"content":%b,"isError":%b' % (content, b"true" if terminal.failed else b"false")


def structured_part(
    server: McpServer, revision: Revision, spec: MethodSpec, terminal: Terminal
) -> bytes:
    """The same as data, for methods that return an object whose properties are known."""
    if spec.kind != "plain" or not revision.structured or not isinstance(terminal, Result):
        return b""
    if not server.structured(spec):
        return b""
    return b',"structuredContent":' + wire.encode(terminal.result)
