"""The HTTP app: its routes, inside the guard."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp

from plexus import wire
from plexus.hub import Plexus
from substrate.guard import Guard, local_names
from substrate.http import RpcEndpoint, RunEvents
from substrate.websocket import RpcSocket

__all__ = ("IDENTITY", "build_app")

#: How a client knows that whoever answers on this port is a server of ours.
IDENTITY = "substrate"


def build_app(hub: Plexus, port: int) -> ASGIApp:
    """Everything that is served on this port."""

    async def index(_: Request) -> Response:
        body = {
            "name": IDENTITY,
            "version": hub.version,
            "rpc": "/rpc",
            "events": "/runs/{run}/events",
        }
        return Response(wire.encode_pretty(body) + b"\n", media_type="application/json")

    app = Starlette(
        routes=[
            Route("/", index),
            Route("/rpc", RpcEndpoint(hub)),
            Route("/runs/{run:int}/events", RunEvents(hub)),
            WebSocketRoute("/rpc", RpcSocket(hub)),
        ]
    )
    return Guard(app, local_names(port))
