"""The HTTP app: its routes, inside the guard and the error boundary.

An exception in a route is logged and answered. The client gets a JSON 500 with the log reference of
the traceback and no other detail of the exception; a WebSocket is closed with 1011. A response that
has started cannot be replaced: returning before its end makes the HTTP server close the connection.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Final

from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.utils import ClientDisconnected

from mcp_view.protocol import McpConnection
from mcp_view.server import McpServer
from mcp_view.session import Session
from native_rpc.framing import MESSAGES
from native_rpc.protocol import NativeConnection
from plexus.errors import Internal, PlexusError
from plexus.registry.lazy import resolve
from plexus.rpc import wire
from plexus.runtime.hub import Plexus
from plexus.storage.engine import is_postgres
from substrate.security.authentication import Access
from substrate.security.credential_watch import CredentialWatch
from substrate.security.guard import Guard, allowed_names
from substrate.security.rate_limit import Admission
from substrate.security.routes import (
    OAuthMetadata,
    RotateToken,
    SessionEndpoint,
    SessionProof,
    TicketEndpoint,
)
from substrate.server.asgi import header, send_and_discard_body, send_bytes
from substrate.server.direct_calls import DirectCalls
from substrate.server.limits import ServerLimits
from substrate.server.listener import OpenConnections
from substrate.server.mcp.endpoint import McpEndpoint
from substrate.server.mcp.legacy_sse import MessagesEndpoint, SseEndpoint
from substrate.server.mcp.responder import chosen_tools
from substrate.server.mcp.sessions import Sessions
from substrate.server.page.static_files import PageFiles, send_page
from substrate.server.rpc_http import RpcEndpoint, RunEvents
from substrate.server.shutdown import OpenStreams
from substrate.server.websocket import MessageSocket
from substrate.settings import Settings
from substrate.telemetry.metrics import Metrics
from substrate.telemetry.refusals import Refusals

if TYPE_CHECKING:  # only servers on PostgreSQL import it
    from substrate.server.shared_state import SharedState

__all__ = ("IDENTITY", "ErrorBoundary", "HotRoutes", "build_app", "open_shared")

#: The name by which a client recognises a server of this program.
IDENTITY = "substrate"
#: The WebSocket close code for an unexpected condition in the server.
INTERNAL_ERROR: Final = 1011


class HotRoutes:
    """Routes in front of an app, by type of the connection and path, that bypass the router.

    A tool call is faster without it, and an open WebSocket smaller: each ASGI app around another
    one is a suspended coroutine. This is not: it only returns that of the endpoint.
    """

    def __init__(self, endpoints: Mapping[tuple[str, str], ASGIApp], app: ASGIApp) -> None:
        self.app = app
        self.endpoints = endpoints

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Call the endpoint of the path if there is one, otherwise the app."""
        endpoint = self.endpoints.get((scope["type"], scope["path"]), self.app)
        return endpoint(scope, receive, send)


class Index:
    """`GET /`: the web page for browsers, a JSON description of the server for other clients."""

    def __init__(self, version: str) -> None:
        body = {
            "name": IDENTITY,
            "version": version,
            "rpc": "/rpc",
            "events": "/runs/{run}/events",
            "mcp": "/mcp",
        }
        self._body = wire.encode_pretty(body) + b"\n"

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        """Answer without authentication: the response contains nothing secret."""
        if b"text/html" in header(scope, b"accept"):
            await send_page(scope, send)
        else:
            await send_bytes(send, 200, self._body)


async def open_shared(settings: Settings) -> SharedState | None:
    """Open the state that the servers of one PostgreSQL database share; None on SQLite.

    Raises Failed.
    """
    if not is_postgres(settings.database):
        return None
    opening: Awaitable[SharedState] = resolve("substrate.server.shared_state:open_shared_state")(
        settings.database, settings.limits
    )
    return await opening


def build_app(
    hub: Plexus,
    port: int,
    mcp: McpServer,
    access: Access,
    open_streams: OpenStreams | None = None,
    metrics: Metrics | None = None,
    *,
    rate_local: bool = False,
    connections: OpenConnections | None = None,
    shared: SharedState | None = None,
) -> ErrorBoundary:
    """Build the app that serves all routes.

    Open streams are registered in `open_streams` for shutdown, and connections are counted in
    `connections`. Only `Access.open()` admits callers without a token. Sessions are kept in
    memory, unless they are in the `shared` state of several servers.
    """
    metrics = metrics or Metrics(hub, Refusals())
    opened = OpenStreams() if open_streams is None else open_streams

    def native_view(_: Scope) -> NativeConnection:
        return NativeConnection(MESSAGES, hub.limits, hub.new_id)

    def mcp_view(scope: Scope) -> McpConnection:
        session, native = Session(chosen_tools(scope)), native_view(scope)
        return McpConnection(mcp, session, principal=scope["principal"], fallback=native)

    sessions = Sessions(hub.limits) if shared is None else shared.open_sessions(mcp)
    credentials = CredentialWatch(access, (hub.runs, sessions))
    legacy = SseEndpoint(mcp, opened, credentials, None if shared is None else shared.sse_streams)
    # Only the router: Starlette's application would answer exceptions before our error boundary.
    router = Router(
        routes=[
            Route("/", Index(hub.version), methods=["GET"]),
            Route("/page/{name:path}", PageFiles()),
            Route("/session", SessionEndpoint(access)),
            Route("/session/proof", SessionProof(access)),
            Route("/tickets", TicketEndpoint(access, ServerLimits.of(hub.limits))),
            Route("/token/rotate", RotateToken(access)),
            Route("/.well-known/oauth-protected-resource{path:path}", OAuthMetadata(access)),
            Route("/metrics", metrics),
            Route("/rpc", RpcEndpoint(hub, credentials)),
            Route("/runs/{run}/events", RunEvents(hub, credentials)),
            Route("/sse", legacy),
            Route("/messages", MessagesEndpoint(mcp, legacy)),
        ]
    )
    endpoint = McpEndpoint(mcp, sessions, opened, credentials)
    endpoints: dict[tuple[str, str], ASGIApp] = {
        ("http", "/mcp"): endpoint,
        ("websocket", "/rpc"): MessageSocket(hub, native_view, opened, credentials),
        ("websocket", "/mcp"): MessageSocket(hub, mcp_view, opened, credentials, "mcp"),
    }
    names = allowed_names(port, access.hosts, access.origins)
    on_refused = metrics.refusals.request
    admission = Admission(
        HotRoutes(endpoints, router),
        hub,
        rate_local=rate_local,
        on_refused=on_refused,
        connections=connections,
    )
    guard = Guard(admission, names, access, hub.limits, on_refused, credentials)
    app = ErrorBoundary(guard)
    if shared is None:  # otherwise every request waits for the database
        app.direct = DirectCalls(guard, admission, endpoint, ErrorBoundary)
    return app


class ErrorBoundary:
    """ASGI middleware that answers requests whose handler raised."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        #: Answers short calls for an HTTP server of ours without the app.
        self.direct: DirectCalls | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the app, and answer the request if it raises."""
        started, kind = False, scope["type"]

        async def tracked_send(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            handling = self._app(scope, receive, tracked_send)
            del scope  # a stream may stay open for hours, and its headers must not
            await handling
        except ClientDisconnected:
            raise  # from `send`, after the client disconnected; uvicorn ignores it
        except Exception as error:  # noqa: BLE001 - every request is answered
            # The path is not part of the text: it may contain secrets of the client.
            failed = Internal.report(f"a request ({kind})", error)
            # The client may have disconnected. Then no answer is possible.
            with contextlib.suppress(Exception):
                await _answer(kind, receive, send, failed, started=started)


async def _answer(
    kind: str, receive: Receive, send: Send, failed: PlexusError, *, started: bool
) -> None:
    if kind == "websocket":
        if not started:
            # Without an accepted handshake the client would not get the close code.
            await send({"type": "websocket.accept"})
        await send(
            {"type": "websocket.close", "code": INTERNAL_ERROR, "reason": failed.message[:120]}
        )
    elif not started:
        await send_and_discard_body(
            receive, send, 500, {"error": failed.message, "data": failed.data}
        )
