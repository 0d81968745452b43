"""The tools of a FastMCP server as an activation, in the same process.

    from activations.fastmcp_server import from_fastmcp
    tools = from_fastmcp(server)             # an Activation; serve it, or leave it in a plugin file

Every tool becomes a method with the tool's own schema. Its progress and log messages are events of
the run, and what it elicits is a question of the run. A server of the official SDK
(`mcp.server.MCPServer`) works too. FastMCP itself has to be installed.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from plexus import Activation, Audio, Content, Context, Event, Failed, Form, Image, Resource
from plexus.events import Result

__all__ = ("from_fastmcp",)

#: How long listing the tools of a server may take, in seconds.
LIST_S: Final = 30.0


def from_fastmcp(server: Any, namespace: str | None = None) -> Activation:
    """Return an activation with the tools of a FastMCP server.

    The namespace is by default the name of the server in lower case. Raises ImportError without
    FastMCP, and TypeError for what is no server.
    """
    import fastmcp  # an optional package

    tools = _run_apart(_list_tools, fastmcp.Client, server)
    name = namespace or re.sub(r"\W+", "_", str(getattr(server, "name", ""))).strip("_").lower()
    instructions = getattr(server, "instructions", None) or ""
    activation = Activation(
        name or "fastmcp", version=getattr(server, "version", None) or "", description=instructions
    )
    for tool in tools:
        _add_tool(activation, fastmcp.Client, server, tool)
    return activation


async def _list_tools(client: Callable[..., Any], server: Any) -> list[Any]:
    async with asyncio.timeout(LIST_S), client(server) as connected:
        tools: list[Any] = await connected.list_tools()
        return tools


def _run_apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a coroutine function on a separate loop: registration may happen on a loop."""
    outcome: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(asyncio.run(function(*arguments)))
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    thread = threading.Thread(target=run, name="fastmcp", daemon=True)
    thread.start()
    thread.join(LIST_S + 1)
    if errors:
        raise errors[0]
    if not outcome:
        raise TimeoutError(f"the server did not list its tools within {LIST_S:g} s")
    return outcome[0]


def _add_tool(activation: Activation, client: Callable[..., Any], server: Any, tool: Any) -> None:
    async def call(ctx: Context, **arguments: Any) -> AsyncIterator[Any]:
        for event in _events_of(await _call_tool(client, server, tool.name, arguments, ctx)):
            yield event

    call.__name__ = _method_name(tool.name)
    call.__doc__ = tool.description or ""
    del call.__annotations__["return"]  # what it yields depends on the tool
    hints = tool.annotations
    activation.method(
        title=tool.title,
        schema=tool.input_schema,
        read_only=getattr(hints, "read_only_hint", None),
        destructive=getattr(hints, "destructive_hint", None),
        idempotent=getattr(hints, "idempotent_hint", None),
        open_world=getattr(hints, "open_world_hint", None),
    )(call)


def _method_name(tool: str) -> str:
    name = re.sub(r"\W+", "_", tool).strip("_") or "tool"
    name = name[:1].lower() + name[1:]
    return name if name[:1].isalpha() else f"tool_{name}"


async def _call_tool(
    client: Callable[..., Any], server: Any, name: str, arguments: dict[str, Any], ctx: Context
) -> Any:
    """Call a tool and return its result; its progress, logs and questions go to the context."""

    async def on_progress(done: float, total: float | None, message: str | None) -> None:
        await ctx.progress(done, total, message)

    async def on_log(message: Any) -> None:
        data = message.data
        text = data.get("msg") if isinstance(data, dict) and "msg" in data else data
        await ctx.log(message.level, str(text))

    async def on_question(message: str, _: Any, params: Any, __: Any) -> Any:
        fields = getattr(params, "requested_schema", None) or {"type": "object", "properties": {}}
        return await ctx.ask(Form(message, fields))

    # With the handshake: without one, servers cannot ask in the middle of a call.
    async with client(
        server,
        mode="legacy",
        progress_handler=on_progress,
        log_handler=on_log,
        elicitation_handler=on_question,
    ) as connected:
        return await connected.call_tool(name, arguments, raise_on_error=False)


def _events_of(result: Any) -> list[Event]:
    """Return the blocks of a result as events, or its structured value as the terminal.

    Raises Failed for a result that is an error.
    """
    if result.is_error:
        texts = [getattr(block, "text", "") for block in result.content]
        raise Failed("\n".join(filter(None, texts)) or "the tool failed")
    value = result.structured_content
    if value is not None:
        wrapped = (result.meta or {}).get("fastmcp", {}).get("wrap_result")
        return [Result(value["result"] if wrapped and "result" in value else value)]
    return [event for event in map(_event_of, result.content) if event is not None]


def _event_of(block: Any) -> Event | None:
    match block.type:
        case "text":
            return Content(block.text)
        case "image":
            return Image(block.data, block.mime_type)
        case "audio":
            return Audio(block.data, block.mime_type)
        case "resource_link":
            return Resource(str(block.uri), block.name, block.mime_type)
        case "resource":
            inner = block.resource
            text, blob = getattr(inner, "text", None), getattr(inner, "blob", None)
            return Resource(str(inner.uri), None, inner.mime_type, text, blob)
    return None
