"""FastMCP, as its documentation shows it: functions as tools."""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable

import anyio
from fastmcp import Context, FastMCP
from fastmcp.tools import Tool


async def echo(text: str) -> str:
    """Say TEXT again."""
    return text


async def count(to: int, ctx: Context) -> str:
    """Count from 1 up to TO."""
    parts: list[str] = []
    for i in range(1, to + 1):
        parts.append(f"{i} ")
        await ctx.report_progress(i, message=parts[-1])
    return "".join(parts)


async def ticks(times: int, ctx: Context) -> str:
    """Report the time in nanoseconds, every millisecond."""
    for i in range(1, times + 1):
        await anyio.sleep(0.001)
        await ctx.report_progress(i, message=f"{time.monotonic_ns()} ")
    return ""


async def hold(ctx: Context) -> str:
    """Say one thing and then nothing until cancelled."""
    await ctx.report_progress(1, message="held ")
    await anyio.sleep_forever()
    return "held "


def build(tools: int) -> FastMCP:
    """Return a server with these tools, or with this number of other tools."""
    server: FastMCP = FastMCP("bench")
    named: dict[str, Callable[..., Awaitable[str]]] = {
        "bench.echo": echo,
        "bench.count": count,
        "bench.ticks": ticks,
        "bench.hold": hold,
    }
    if tools:
        named = {f"many.tool_{number}": echo for number in range(tools)}
    for name, function in named.items():
        server.add_tool(Tool.from_function(function, name=name, output_schema=None))
    return server


def main(transport: str, tools: int) -> None:
    """Serve on stdio, or over HTTP with responses as `json` or `sse`."""
    server = build(tools)
    if transport == "stdio":
        server.run("stdio", show_banner=False)
        return
    from bench.uvicorn_server import serve

    serve(server.http_app(path="/mcp", json_response=transport == "json"))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
