"""The listener that editor clients connect to, on a separate port.

The clients expect a WebSocket at the root path, and read the token of the listener in its lock
file. It is not a token of the server: its principal is the local user with the scopes of the
editor's tools only, and the listener serves nothing but these tools. So a client that is asked for
its changes cannot answer the question itself.

Connections have no idle timeout, because a change may wait for days; a dead peer is noticed by
pings.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace
from starlette.types import ASGIApp, Receive, Scope, Send

from mcp_view.editor import EditorConnection, EditorServer
from native_rpc.framing import MESSAGES
from plexus.caller_connection import CallerConnection
from plexus.errors import Failed
from plexus.principal import LOCAL, Principal
from plexus.rpc.effects import View
from plexus.runtime.hub import Plexus
from substrate.driver import Connection
from substrate.security.authentication import Access, Credential
from substrate.security.credential_watch import CredentialWatch
from substrate.security.guard import Guard, allowed_names
from substrate.security.rate_limit import Admission
from substrate.security.tokens import new_token
from substrate.server.app import ErrorBoundary
from substrate.server.asgi import send_json
from substrate.server.connections import LimitedConfig
from substrate.server.ide.lock_files import NAME, LockFiles
from substrate.server.ide.tools import EDITOR_TOOLS
from substrate.server.limits import ServerLimits
from substrate.server.listener import OpenConnections
from substrate.server.serve import Server, bind
from substrate.server.shutdown import OpenStreams
from substrate.server.websocket import MessageSocket
from substrate.telemetry.refusals import OnRefused

__all__ = ("ConnectedClient", "Endpoint")

logger = logging.getLogger(__name__)

#: Paths of the WebSocket: that of Claude Code, and that of other clients.
PATHS: Final = frozenset({"/", "/mcp"})
#: What the tools need. Everything else is refused, whatever a client calls.
SCOPES: Final = frozenset({"ide", "python"})
#: Maximum size of a message: it contains a whole file.
MESSAGE_BYTES: Final = 8 * 1024 * 1024
#: Maximum connections: one for each session of an agent.
CONNECTIONS: Final = 64
#: Unsent bytes past which a client misses notifications.
UNSENT_BYTES: Final = 1024 * 1024
#: Seconds to close the connections when the listener is switched off.
STOP_S: Final = 5.0


class ConnectedClient:
    """A connected program."""

    def __init__(self, number: int, connection: Connection, view: EditorConnection) -> None:
        self.number = number
        self.connected_ms = int(time.time() * 1000)
        #: Whether it was notified that the connection is complete.
        self.is_greeted = False
        self._connection = connection
        self._view = view

    @property
    def client(self) -> str | None:
        """Its name and version; None before the handshake."""
        return self._view.client

    @property
    def pid(self) -> int | None:
        """Its process; None if it is unknown."""
        return self._view.pid

    @property
    def is_ready(self) -> bool:
        """Whether it can be notified."""
        return self._view.is_ready

    @property
    def is_claude_code(self) -> bool:
        """Whether it is Claude Code, by the name that it gives itself."""
        return (self.client or "").lower().startswith("claude")

    @property
    def connection(self) -> CallerConnection | None:
        """The connection that its calls come from."""
        return self._connection.lifetime

    def notify(self, method: str, params: dict[str, Any]) -> bool:
        """Send a notification, unless the client does not read. Returns whether it was sent."""
        if not self.is_ready or self._connection.unsent > UNSENT_BYTES:
            return False
        self._connection.perform(self._view.notification(method, params))
        return True


class Endpoint:
    """The listener, which can be switched on and off."""

    def __init__(
        self,
        hub: Plexus,
        project: Path,
        *,
        lock_in_project: bool = False,
        on_refused: OnRefused | None = None,
    ) -> None:
        self._hub = hub
        self._project = project
        self._lock_in_project = lock_in_project
        self._on_refused = on_refused
        self._limits = replace(
            ServerLimits.of(hub.limits), message_bytes=MESSAGE_BYTES, connections=CONNECTIONS
        )
        self._mcp = EditorServer(
            hub,
            EDITOR_TOOLS,
            NAME,
            secret=os.urandom(32),
            monotonic=time.monotonic,
            wall=time.time,
        )
        self._switching = asyncio.Lock()
        self._server: Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._lock: LockFiles | None = None
        self._clients: dict[int, ConnectedClient] = {}
        self._last_number = 0
        self._listeners: list[Callable[[], None]] = []
        self.port: int | None = None
        self.reason: str | None = None

    @property
    def lock_file(self) -> str | None:
        """The path of the lock file; None while the listener is off."""
        return None if self._lock is None else str(self._lock.path)

    @property
    def clients(self) -> list[ConnectedClient]:
        """The connected programs, in the order of their connections."""
        return list(self._clients.values())

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after every change. Returns a function that unsubscribes."""
        self._listeners.append(listener)
        return partial(self._listeners.remove, listener)

    # --- on and off ---------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen and write the lock file; nothing if it is on. Raises Failed."""
        async with self._switching:
            if self._server is not None:
                return
            try:
                await self._start()
            except OSError as error:
                self.reason = f"{error.filename or 'the port'}: {error.strerror or error}"
                raise Failed(
                    f"The listener for editor clients cannot start: {self.reason}", code="ide"
                ) from error
            finally:
                self._changed()

    async def _start(self) -> None:
        sock = bind(0)
        port = sock.getsockname()[1]
        token = new_token()
        lock = LockFiles(port, self._project, in_project=self._lock_in_project)
        open_streams = OpenStreams()
        connections = OpenConnections(self._limits.connections)
        app = self._make_app(port, token, open_streams, connections)
        config = LimitedConfig(
            app,
            self._limits,
            self._on_refused,
            connections,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws_per_message_deflate=False,
            timeout_graceful_shutdown=STOP_S,
        )
        server = Server(config, open_streams)
        loop = asyncio.get_running_loop()
        self._serving = loop.create_task(server.serve([sock]))
        try:
            # After listening: a client connects as soon as it finds the file.
            await asyncio.to_thread(lock.write, token)
        except BaseException:
            await asyncio.to_thread(lock.remove)
            await self._end(server)
            raise
        self._server, self._lock, self.port, self.reason = server, lock, port, None

    async def stop(self) -> None:
        """Remove the lock file and close all connections; nothing if it is off."""
        async with self._switching:
            server, lock = self._server, self._lock
            if server is None or lock is None:
                return
            self._server = self._lock = self.port = None
            await asyncio.to_thread(lock.remove)
            await self._end(server)
            self._changed()

    async def _end(self, server: Server) -> None:
        """End a listener and its connections. Raises nothing of the listener."""
        server.should_exit = True
        serving, self._serving = self._serving, None
        if serving is not None:
            done, _ = await asyncio.wait((serving,), timeout=2 * STOP_S)
            if not done:
                serving.cancel()
                await asyncio.wait((serving,))
            elif serving.exception() is not None:
                logger.error("the listener for editor clients failed", exc_info=serving.exception())

    def _changed(self) -> None:
        for listener in self._listeners.copy():
            listener()

    # --- connections --------------------------------------------------------------------------

    def _make_app(
        self, port: int, token: str, open_streams: OpenStreams, connections: OpenConnections
    ) -> ASGIApp:
        access = Access(token, port=port, limits=self._limits)
        credentials = CredentialWatch(access)
        socket = MessageSocket(
            self._hub,
            self._make_view,
            open_streams,
            credentials,
            "mcp",
            limits=self._limits,
            on_open=self._on_open,
        )
        admission = Admission(
            _Restricted(socket), self._hub, on_refused=self._on_refused, connections=connections
        )
        names = allowed_names(port)
        return ErrorBoundary(
            Guard(admission, names, access, self._limits, self._on_refused, credentials)
        )

    def _make_view(self, scope: Scope) -> EditorConnection:
        return EditorConnection(self._mcp, MESSAGES, scope["principal"], self._on_client_change)

    def _on_client_change(self) -> None:
        """Greet clients that have completed the handshake. Claude Code expects no greeting."""
        for client in self.clients:
            if client.is_ready and not client.is_greeted:
                client.is_greeted = True
                if not client.is_claude_code:
                    params = {"project_path": str(self._project)}
                    client.notify("notifications/ide_connected", params)
        self._changed()

    def _on_open(self, connection: Connection, view: View, _: Scope) -> Callable[[], None]:
        assert isinstance(view, EditorConnection), "this endpoint made it"
        self._last_number += 1
        number = self._last_number
        self._clients[number] = ConnectedClient(number, connection, view)
        self._changed()

        def on_closed() -> None:
            del self._clients[number]
            self._changed()

        return on_closed


class _Restricted:
    """Serves the WebSocket to the principal of the tools, and nothing else."""

    def __init__(self, socket: MessageSocket) -> None:
        self._socket = socket

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a connection; answer everything else with an error."""
        if scope["type"] != "websocket":
            reason = "This port is for editor clients, over WebSocket."
            await send_json(send, 404, {"error": reason})
            return
        if scope["path"] not in PATHS:
            reason = f"no such path; connect to {min(PATHS)}"
            await send({"type": "websocket.close", "code": 1008, "reason": reason})
            return
        credential: Credential = scope["credential"]
        principal = Principal(LOCAL.name, SCOPES, credential.principal.credential)
        restricted = {
            "principal": principal,
            "credential": credential._replace(principal=principal),
        }
        await self._socket({**scope, **restricted}, receive, send)
