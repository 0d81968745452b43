"""The official SDK at its low level: a `Server` with one handler for each request."""

from __future__ import annotations

import sys
import time
from typing import Any

import anyio
import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server


def tool(name: str, description: str, **parameters: str) -> types.Tool:
    """Return a tool whose parameters are all required."""
    schema = {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in parameters.items()},
        "required": list(parameters),
    }
    return types.Tool(name=name, description=description, input_schema=schema)


TOOLS = [
    tool("bench.echo", "Say TEXT again.", text="string"),
    tool("bench.count", "Count from 1 up to TO.", to="integer"),
    tool("bench.ticks", "Report the time in nanoseconds, every millisecond.", times="integer"),
    tool("bench.hold", "Say one thing and then nothing until cancelled."),
]


async def call(
    context: ServerRequestContext[Any], params: types.CallToolRequestParams
) -> types.CallToolResult:
    """Run one of the tools."""
    arguments = params.arguments or {}
    if params.name == "bench.echo":
        text = arguments["text"]
    elif params.name == "bench.count":
        parts: list[str] = []
        for i in range(1, arguments["to"] + 1):
            parts.append(f"{i} ")
            await context.session.report_progress(i, message=parts[-1])
        text = "".join(parts)
    elif params.name == "bench.ticks":
        text = ""
        for i in range(1, arguments["times"] + 1):
            await anyio.sleep(0.001)
            await context.session.report_progress(i, message=f"{time.monotonic_ns()} ")
    else:
        text = "held "
        await context.session.report_progress(1, message=text)
        await anyio.sleep_forever()
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)])


def build(number: int) -> Server[Any]:
    """Return a server with the tools, or with this number of other tools."""
    tools = [
        tool(f"many.tool_{i}", "Say TEXT again.", text="string") for i in range(number)
    ] or TOOLS

    async def list_tools(
        _context: ServerRequestContext[Any], _params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=tools)

    return Server("bench", on_list_tools=list_tools, on_call_tool=call)


async def serve_stdio(server: Server[Any]) -> None:
    """Serve until the input ends."""
    async with stdio_server() as (read_stream, write_stream):
        await server.run(read_stream, write_stream, server.create_initialization_options())


def main(transport: str, tools: int) -> None:
    """Serve on stdio, or over HTTP with responses as `json` or `sse`."""
    server = build(tools)
    if transport == "stdio":
        anyio.run(serve_stdio, server)
        return
    from bench.uvicorn_server import serve

    serve(server.streamable_http_app(json_response=transport == "json"))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
