"""Activations inside another ASGI application, such as one of Starlette or FastAPI.

    tools = asgi_app(count)
    app = FastAPI(lifespan=tools.lifespan)
    app.mount("/tools", tools)               # MCP is at /tools/mcp, JSON-RPC at /tools/rpc

Requests pass the same guard as on a server of our own: a token, known Host names, allowed origins.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from starlette.types import ASGIApp, Receive, Scope, Send

from plexus.registry.plugin_namespaces import Registrable
from plexus.runtime.hub import Plexus
from substrate.build_hub import build_hub, open_hub
from substrate.mcp_server import make_mcp_server, mcp_options
from substrate.security.authentication import Access
from substrate.security.exposure import is_local
from substrate.server.app import build_app, open_shared
from substrate.server.asgi import send_json
from substrate.server.websocket import POLICY_VIOLATION
from substrate.settings import TOKEN, ProjectFiles, Settings
from substrate.telemetry.logging import announce

if TYPE_CHECKING:  # only servers on PostgreSQL import it
    from substrate.server.shared_state import SharedState

__all__ = ("EmbeddedApp", "asgi_app")


def asgi_app(
    *activations: Registrable,
    path: str = "",
    auth: Literal["token", "off"] = "token",
    token: str | None = None,
    hosts: Sequence[str] = (),
    origins: Sequence[str] = (),
    settings: Settings | None = None,
) -> EmbeddedApp:
    """Return an ASGI application that serves these activations.

    `path` is a prefix that a proxy leaves in place; a framework's `mount` needs none. `token` is by
    default the variable `SUBSTRATE_TOKEN`. With `auth="off"` only clients on this machine are
    served. `hosts` and `origins` are allowed in addition to those of this machine. Raises
    ValueError without a token.
    """
    secret = "" if auth == "off" else token or os.environ.get(TOKEN, "")
    if auth == "token" and not secret:
        raise ValueError(f'pass token="...", set {TOKEN}, or pass auth="off" for local clients')
    return EmbeddedApp(
        activations, settings or Settings(), path.rstrip("/"), secret, hosts, origins
    )


class EmbeddedApp:
    """ASGI application with a separate hub, which is built on the event loop."""

    def __init__(
        self,
        activations: Sequence[Registrable],
        settings: Settings,
        path: str,
        token: str,
        hosts: Sequence[str],
        origins: Sequence[str],
    ) -> None:
        """Configure the application as `asgi_app` describes.

        `token` is empty if authentication is off.
        """
        self._files = ProjectFiles(activations=tuple(activations))
        self._settings = settings
        self._path = path
        self._token = token
        self._hosts = tuple(hosts)
        self._origins = tuple(origins)
        self._lock: asyncio.Lock | None = None
        self._hub: Plexus | None = None
        self._shared: SharedState | None = None
        self._apps: dict[int, ASGIApp] = {}

    @asynccontextmanager
    async def lifespan(self, _: Any = None) -> AsyncIterator[None]:
        """Start the activations, and stop them at the end. Pass it to the outer application."""
        await self._open()
        try:
            yield
        finally:
            hub, self._hub = self._hub, None
            if hub is not None:
                hub.load_history.stop()
                await hub.drain(self._settings.limits.cancel_s)
                await hub.close()
            shared, self._shared = self._shared, None
            if shared is not None:
                await shared.close()
            self._apps.clear()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; under a prefix, as if it were at the root."""
        if scope["type"] == "lifespan":
            await self._serve_lifespan(receive, send)
            return
        client = scope.get("client")
        if not self._token and (client is None or not is_local(client[0])):
            await _refuse(scope, send)
            return
        hub = self._hub or await self._open()
        server = scope.get("server") or ("", 0)
        port = server[1] or 0
        app = self._apps.get(port)
        if app is None:
            app = self._apps[port] = self._make_app(hub, port)
        await app(self._at_root(scope), receive, send)

    def _at_root(self, scope: Scope) -> Scope:
        path: str = scope["path"]
        for prefix in (scope.get("root_path", ""), self._path):
            if prefix and (path == prefix or path.startswith(f"{prefix}/")):
                path = path[len(prefix) :] or "/"
        return {**scope, "path": path, "root_path": ""}

    def _make_app(self, hub: Plexus, port: int) -> ASGIApp:
        shared = self._shared
        access = Access(
            self._token,
            port=port,
            hosts=self._hosts,
            origins=self._origins,
            tickets=None if shared is None else shared.tickets,
        )
        secret = None if shared is None else shared.secret
        mcp = make_mcp_server(hub, mcp_options(self._settings), secret)
        return build_app(hub, port, mcp, access, shared=shared)

    async def _open(self) -> Plexus:
        if self._lock is None:
            self._lock = asyncio.Lock()
        async with self._lock:
            if self._hub is None:
                hub, broken = build_hub(self._settings, Path.cwd(), self._files)
                for each in (*broken, *await open_hub(hub)):
                    announce(f"Plugin skipped: {each.source}: {each.reason}")
                self._shared = await open_shared(self._settings)
                self._hub = hub
                hub.load_history.start()
            return self._hub

    async def _serve_lifespan(self, receive: Receive, send: Send) -> None:
        """Start and stop with a server that runs this application itself."""
        await receive()
        try:
            async with self.lifespan():
                await send({"type": "lifespan.startup.complete"})
                await receive()
        # The server reports it and ends.
        except Exception as error:  # noqa: BLE001
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.shutdown.complete"})


async def _refuse(scope: Scope, send: Send) -> None:
    """Refuse a client on another machine while authentication is off."""
    reason = 'authentication is off, so only clients on this machine are served; pass token="..."'
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": reason})
    else:
        await send_json(send, 403, {"error": reason})
