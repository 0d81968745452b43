"""Measures of what an author's style and a host's tool list cost.

Calls are made in this process, without a wire: the differences between styles are microseconds. The
second side of a comparison is the class style, or the typed event. Tokens are the bytes of name,
description and input schema, divided by four.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

from bench.measure import Effort, Figure, Target, compare, interleave, single
from mcp_view.tool_sets import ALL_TOOLS, STANDARD_TOOLS, ToolSet
from plexus import Activation, Content, Plexus, method
from plexus.registry.lean_schema import lean_schema
from plexus.registry.schema import parameters_schema
from plexus.registry.signature import MethodSpec
from substrate.build_hub import built_in_hub
from substrate.settings import Settings

__all__ = ("calls", "tokens")

ITEMS = 100
#: The tools that every framework lists.
TOOLS = 10
#: Bytes per token, roughly.
TOKEN_BYTES = 4

plain = Activation("plain", version="1", description="The methods as functions.")


@plain.method
async def echo(text: str) -> str:
    """Return the text."""
    return text


@plain.method
async def texts() -> AsyncIterator[str]:
    """Yield texts."""
    for _ in range(ITEMS):
        yield "text"


@plain.method
def threaded(text: str) -> str:
    """Return the text from a worker thread."""
    return text


class Typed(Activation):
    """The same methods in a class."""

    namespace = "typed"
    version = "1"

    @method
    async def echo(self, text: str) -> str:
        """Return the text."""
        return text

    @method
    async def texts(self) -> AsyncIterator[Content]:
        """Yield events."""
        for _ in range(ITEMS):
            yield Content(text="text")

    @method
    async def hop(self, text: str) -> str:
        """Return the text from a worker thread, by hand."""
        return await asyncio.to_thread(str, text)


def calls(effort: Effort) -> list[Figure]:
    """Compare calls of functions with calls of methods, and texts with events."""
    params = {"text": "hello"}
    return [
        _compare("style_call", "plain.echo", "typed.echo", params, 1.05, effort),
        _compare("style_text", "plain.texts", "typed.texts", {}, 1.10, effort),
        _compare("style_thread", "plain.threaded", "typed.hop", params, None, effort),
    ]


def _compare(
    name: str,
    ours: str,
    other: str,
    params: Mapping[str, Any],
    target: float | None,
    effort: Effort,
) -> Figure:
    count = effort.single_calls
    mine, best = interleave(
        lambda: asyncio.run(_time_calls(ours, params, count)),
        lambda: asyncio.run(_time_calls(other, params, count)),
        effort.call_rounds,
    )
    wanted = None if target is None else Target("ratio", target)
    return compare(name, "us/call", mine, best, wanted, f"{count} calls of {ours}; {other}")


async def _time_calls(name: str, params: Mapping[str, Any], count: int) -> float:
    """Return the microseconds of one call."""
    hub = Plexus()
    hub.register(plain)
    hub.register(Typed)
    try:
        started = time.perf_counter()
        for _ in range(count):
            call = hub.call(name, {**params})
            async with aclosing(call.run.batches(call.after, owner=call.owned)) as batches:
                async for _ in batches:
                    pass
        return (time.perf_counter() - started) / count * 1e6
    finally:
        await hub.close()


def tokens(effort: Effort) -> list[Figure]:
    """Count the tokens of tool lists: ours, and the same ten tools in other frameworks."""
    del effort
    hub = built_in_hub(Settings(), Path.cwd())
    specs = [spec for spec in hub.methods() if spec.role == "method"]
    every = _of_set(specs, ALL_TOOLS)
    standard = _of_set(specs, STANDARD_TOOLS)
    ten = Activation("notes", version="1", description="Notes.")
    for number in range(TOOLS):
        ten.method(_tool(number))
    hub.register(ten)
    own = [spec for spec in hub.methods() if spec.name.startswith("notes.")]
    figures = [
        single("tokens_standard", "tokens", [sum(standard)], Target("value", 4000)),
        single("tokens_all", "tokens/tool", [sum(every) / len(every)], Target("value", 115)),
        single("tokens_ten_tools", "tokens", [sum(_of_set(own, ALL_TOOLS))]),
    ]
    for name, module, count in (("fastmcp", "fastmcp", _fastmcp), ("mcp_sdk", "mcp", _mcp_sdk)):
        if importlib.util.find_spec(module) is not None:
            figures.append(single(f"tokens_ten_tools_{name}", "tokens", [asyncio.run(count())]))
    return figures


def _tool(number: int) -> Callable[..., Coroutine[Any, Any, str]]:
    """Return one of the tools that every framework lists."""

    async def tool(text: str, limit: int = 10, tag: str | None = None) -> str:
        """Search the notes for words and return the best matches."""
        return f"{text} {limit} {tag}"

    tool.__name__ = f"search_{number}"
    return tool


async def _fastmcp() -> float:
    from fastmcp import FastMCP  # a peer, which may not be installed

    server: Any = FastMCP("bench")
    for number in range(TOOLS):
        server.tool(_tool(number))
    return _listed([tool.to_mcp_tool() for tool in await server.list_tools()])


async def _mcp_sdk() -> float:
    from mcp.server.mcpserver import MCPServer  # a peer, which may not be installed

    server: Any = MCPServer("bench")
    for number in range(TOOLS):
        server.add_tool(_tool(number))
    return _listed(await server.list_tools())


def _listed(tools: list[Any]) -> float:
    """Return the tokens of tools as they are sent."""
    sent = [tool.model_dump(by_alias=True) for tool in tools]
    return sum(
        _tokens(tool["name"], tool["description"] or "", tool["inputSchema"]) for tool in sent
    )


def _of_set(specs: list[MethodSpec], tools: ToolSet) -> list[float]:
    return [
        _tokens(spec.name, spec.description, lean_schema(parameters_schema(spec)))
        for spec in specs
        if tools.includes(spec)
    ]


def _tokens(name: str, description: str, schema: dict[str, Any]) -> float:
    text = json.dumps(schema, separators=(",", ":"))
    return len((name + description + text).encode()) / TOKEN_BYTES
