"""A server over HTTP on the official SDK: its sessions end with its process.

Its resource can be subscribed, and its tools show the subscriptions of a session and report an
update to it. It answers clients with a handshake only, as programs on earlier versions of the SDK.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from typing import Any

import mcp_types as types
import uvicorn
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server

URI = "note://tea"
TOOLS = [
    types.Tool(name=name, description=name, input_schema={"type": "object"})
    for name in ("subscribed", "touch")
]
#: The subscribed resources by session.
subscriptions: dict[int, set[str]] = defaultdict(set)


async def list_tools(_: Any, __: Any) -> types.ListToolsResult:
    return types.ListToolsResult(tools=TOOLS)


async def list_resources(_: Any, __: Any) -> types.ListResourcesResult:
    return types.ListResourcesResult(resources=[types.Resource(name="tea", uri=URI)])


async def read_resource(_: Any, __: Any) -> types.ReadResourceResult:
    return types.ReadResourceResult(contents=[types.TextResourceContents(uri=URI, text="green")])


def session_of(context: ServerRequestContext[Any]) -> int:
    assert context.request is not None
    return hash(context.request.headers["mcp-session-id"])


async def subscribe(
    context: ServerRequestContext[Any], params: types.SubscribeRequestParams
) -> types.EmptyResult:
    subscriptions[session_of(context)].add(str(params.uri))
    return types.EmptyResult()


async def unsubscribe(
    context: ServerRequestContext[Any], params: types.UnsubscribeRequestParams
) -> types.EmptyResult:
    subscriptions[session_of(context)].discard(str(params.uri))
    return types.EmptyResult()


async def call(
    context: ServerRequestContext[Any], params: types.CallToolRequestParams
) -> types.CallToolResult:
    found = sorted(subscriptions[session_of(context)])
    if params.name == "touch" and URI in found:
        await context.session.send_resource_updated(URI)
    text = types.TextContent(type="text", text=json.dumps(found))
    return types.CallToolResult(content=[text])


def with_handshake(app: Any) -> Any:
    """Refuse the probe of clients that know a revision without a handshake."""

    async def handle(scope: Any, receive: Any, send: Any) -> None:
        if (b"mcp-method", b"server/discover") not in scope.get("headers", ()):
            await app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 400, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    return handle


def main() -> None:
    server: Server[Any] = Server(
        "notes",
        on_list_tools=list_tools,
        on_call_tool=call,
        on_list_resources=list_resources,
        on_read_resource=read_resource,
        on_subscribe_resource=subscribe,
        on_unsubscribe_resource=unsubscribe,
    )
    app = with_handshake(server.streamable_http_app())
    uvicorn.run(app, port=int(sys.argv[1]), log_level="warning")


if __name__ == "__main__":
    main()
