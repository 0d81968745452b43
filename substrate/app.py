"""The HTTP app: its routes, inside the guard."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from mcp_view.protocol import McpConnection
from mcp_view.server import McpServer
from mcp_view.session import Session
from native_rpc.framing import MESSAGES
from native_rpc.protocol import NativeConnection
from plexus import wire
from plexus.hub import Plexus
from substrate.guard import Guard, local_names
from substrate.http import RpcEndpoint, RunEvents
from substrate.mcp_http.endpoint import McpEndpoint
from substrate.mcp_http.pair import PairMessages, PairStream
from substrate.mcp_http.sessions import Sessions
from substrate.open_streams import OpenStreams
from substrate.websocket import MessageSocket

__all__ = ("IDENTITY", "HotRoute", "build_app")

#: How a client knows that whoever answers on this port is a server of ours.
IDENTITY = "substrate"


class HotRoute:
    """One HTTP route in front of an app: calls of tools are spared the router."""

    def __init__(self, path: str, endpoint: ASGIApp, app: ASGIApp) -> None:
        self.path = path
        self.app = app
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on to whom it is for."""
        if scope["type"] == "http" and scope["path"] == self.path:
            await self._endpoint(scope, receive, send)
        else:
            await self.app(scope, receive, send)


def build_app(
    hub: Plexus, port: int, mcp: McpServer, open_streams: OpenStreams | None = None
) -> ASGIApp:
    """Everything that is served on this port. What is open is entered in `open_streams`, for
    whoever ends the server."""
    opened = OpenStreams() if open_streams is None else open_streams

    async def index(_: Request) -> Response:
        body = {
            "name": IDENTITY,
            "version": hub.version,
            "rpc": "/rpc",
            "events": "/runs/{run}/events",
            "mcp": "/mcp",
        }
        return Response(wire.encode_pretty(body) + b"\n", media_type="application/json")

    def native_view() -> NativeConnection:
        return NativeConnection(MESSAGES, hub.limits, hub.new_id)

    def mcp_view() -> McpConnection:
        return McpConnection(mcp, Session(), fallback=native_view())

    pair = PairStream(mcp, opened)
    app = Starlette(
        routes=[
            Route("/", index),
            Route("/rpc", RpcEndpoint(hub)),
            Route("/runs/{run:int}/events", RunEvents(hub)),
            Route("/sse", pair),
            Route("/messages", PairMessages(mcp, pair)),
            WebSocketRoute("/rpc", MessageSocket(hub, native_view, opened)),
            WebSocketRoute("/mcp", MessageSocket(hub, mcp_view, opened, "mcp")),
        ]
    )
    endpoint = McpEndpoint(mcp, Sessions(hub.limits), opened)
    return Guard(HotRoute("/mcp", endpoint, app), local_names(port))
