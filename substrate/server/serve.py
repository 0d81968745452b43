"""The HTTP server: its socket, uvicorn, and an orderly shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import click
import uvicorn
import uvloop

from mcp_view.server import McpOptions
from plexus.errors import PlexusError
from plexus.registry.lazy import resolve
from plexus.runtime.hub import Plexus
from plexus.runtime.run_record import ENDED_STATES
from substrate.build_hub import (
    NO_FILES,
    MakeHub,
    build_hub,
    close_runner,
    notify_of_recording,
    open_hub,
)
from substrate.front.address import server_key
from substrate.front.listener import FrontListener
from substrate.mcp_server import make_mcp_server, mcp_options
from substrate.run_store.lazy_store import LazyRunStore
from substrate.security.authentication import Access, Credential
from substrate.security.exposure import check_exposure, connect_address, is_loopback, url_host
from substrate.security.lockfile import LockFile
from substrate.security.oauth import OAuth
from substrate.security.page_sessions import SessionFile
from substrate.security.tickets import TicketStore
from substrate.security.tokens import TokenFile, new_token
from substrate.server.app import build_app, open_shared
from substrate.server.connections import HttpProtocol, LimitedConfig
from substrate.server.limits import ServerLimits
from substrate.server.listener import Listener, OpenConnections
from substrate.server.peers import watch_for_dead_peers
from substrate.server.shutdown import (
    OpenStreams,
    StopSignals,
    drain,
    wait_for_first,
)
from substrate.settings import ProjectFiles, Settings, SettingsError
from substrate.telemetry.logging import announce
from substrate.telemetry.metrics import Metrics
from substrate.telemetry.observers import Observers
from substrate.telemetry.refusals import Refusals
from substrate.telemetry.tracing import OriginMiddleware

if TYPE_CHECKING:
    from substrate.cli.terminal.run_lines import RunLines
    from substrate.server.ide.endpoint import Endpoint
    from substrate.server.shared_state import SharedState

__all__ = ("Server", "bind", "serve_http")

#: Imported only where activations include `ide`.
ENDPOINT = "substrate.server.ide.endpoint:Endpoint"
#: Imported only on a terminal.
RUN_LINES = "substrate.cli.terminal.run_lines:RunLines"
#: Seconds that connections may take to close after all runs have ended.
CLOSE_S = 3
#: Seconds after which open connections are aborted. The app notices within the rest of `CLOSE_S`.
ABORT_S = 2.0
#: Seconds to send the final messages to clients with an open stream.
FINISH_S = 1.0


class Server(uvicorn.Server):
    """uvicorn with our listener and without its signal handlers.

    Our signal handlers end the runs first, so that streams end too.
    """

    def __init__(self, config: LimitedConfig, open_streams: OpenStreams) -> None:
        super().__init__(config)
        self._config = config
        self._open = open_streams
        self._listeners: list[Listener] = []
        self._stopping = False
        #: Set when the server has stopped.
        self.ended = asyncio.Event()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve on these sockets until `should_exit` is set."""
        try:
            await super().serve(sockets)
        finally:
            self.ended.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start accepting connections on these sockets."""
        self.servers = []  # uvicorn closes these at shutdown
        for sock in sockets or []:
            if not self._stopping:
                watch_for_dead_peers(sock, self._config.limits.ping_s)
                self._listeners.append(Listener(sock, self._open_client))
        self.started = True

    async def _open_client(self, client: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(self._make_protocol, client)
        except OSError:  # the client has disconnected already
            client.close()

    def _make_protocol(self) -> HttpProtocol:
        return HttpProtocol(
            config=self._config, server_state=self.server_state, app_state=self.lifespan.state
        )

    @property
    def open_connections(self) -> int:
        """The number of open connections."""
        return len(self.server_state.connections)

    def stop_accepting(self) -> None:
        """Close the listening sockets. Open connections stay open."""
        self._stopping = True
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End open streams, then close all connections."""
        self.stop_accepting()
        await self._open.finish(FINISH_S)
        abort_timer = asyncio.get_running_loop().call_later(ABORT_S, self._abort_connections)
        try:
            await super().shutdown(sockets)
        finally:
            abort_timer.cancel()

    def _abort_connections(self) -> None:
        """Abort all open connections, which ends the app's tasks for them.

        uvicorn would cancel the tasks and log that as an error of the app.
        """
        for connection in list(self.server_state.connections):
            connection.transport.abort()


def bind(port: int, address: str = "127.0.0.1") -> socket.socket:
    """Return a listening socket. Port 0 selects a free port. Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
        sock.listen(512)
    except OSError:
        sock.close()
        raise
    return sock


def make_server(
    hub: Plexus,
    port: int,
    *,
    mcp_options: McpOptions,
    access: Access,
    rate_local: bool = False,
    refusals: Refusals | None = None,
    origins: bool = False,
    shared: SharedState | None = None,
) -> Server:
    """Create a server for a hub. Run it with `serve(sockets=[...])`.

    `rate_local` applies the rate limit to clients on this machine too. `origins` records the
    transport and trace of each call for observers. `shared` is the state of several servers.
    """
    limits = ServerLimits.of(hub.limits)
    open_streams = OpenStreams()
    metrics = Metrics(hub, refusals or Refusals())
    mcp = make_mcp_server(hub, mcp_options, None if shared is None else shared.secret)
    connections = OpenConnections(limits.connections)
    app = build_app(
        hub,
        port,
        mcp,
        access,
        open_streams,
        metrics,
        rate_local=rate_local,
        connections=connections,
        shared=shared,
    )
    server = Server(
        LimitedConfig(
            OriginMiddleware(app) if origins else app,
            limits,
            metrics.refusals.request,
            connections,
            # Origins are recorded per task.
            None if origins or app.direct is None else app.direct.take,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            # Clients on this machine connect without a proxy, and could forge its headers.
            proxy_headers=False,
            # Compressing small events costs more than sending them to the same machine.
            ws_per_message_deflate=False,
            timeout_graceful_shutdown=CLOSE_S,
        ),
        open_streams,
    )
    metrics.add_gauge("open_connections", "Open connections.", lambda: server.open_connections)
    return server


def serve_http(
    settings: Settings, files: ProjectFiles = NO_FILES, make_hub: MakeHub = build_hub
) -> None:
    """`substrate`: serve over HTTP until a signal arrives."""
    try:
        check_exposure(settings)
        sock = bind(settings.port, settings.bind)
    except SettingsError as error:
        raise click.UsageError(str(error)) from error
    except OSError as error:
        raise click.ClickException(
            f"Cannot listen on {settings.bind}:{settings.port}: {error.strerror}. "
            "If another server uses the port, choose a different one with --port."
        ) from error
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    try:
        hub = runner.run(_serve(settings, files, sock, make_hub))
    except SettingsError as error:
        raise click.ClickException(str(error)) from error
    close_runner(runner, hub)


async def _serve(
    settings: Settings, files: ProjectFiles, sock: socket.socket, make_hub: MakeHub
) -> Plexus:
    hub, broken = make_hub(settings, Path.cwd(), files)
    # A server that reloads its activations, as `substrate dev` does, is for its author only.
    for_author = make_hub is not build_hub
    # Without tokens, a client behind a proxy could pass for the operator.
    hub.runs.shows_defects = settings.auth == "token" and is_loopback(settings.bind)
    hub.runs.shows_defects_to_all = hub.runs.shows_defects and for_author
    store = LazyRunStore(hub, settings, Path.cwd())
    broken += await open_hub(hub)
    port = sock.getsockname()[1]
    try:
        shared = await open_shared(settings)
    except PlexusError as error:
        await hub.close()
        raise SettingsError(f"Cannot use the database of --database: {error.message}") from error
    tickets = None if shared is None else shared.tickets
    with (
        _open_access(settings, hub, port, Path.cwd(), tickets) as (access, token),
        hub.load_history.sampling(),
    ):
        observers = Observers(hub, settings)
        lines = _run_lines(hub, settings)
        server = make_server(
            hub,
            port,
            mcp_options=mcp_options(settings),
            access=access,
            rate_local=settings.rate_local == "on",
            refusals=observers.refusals,
            origins=observers.needs_origins,
            shared=shared,
        )
        editors = _editor_endpoint(hub, settings, observers.refusals)
        signals = StopSignals()
        fronts = FrontListener(hub, settings, port)
        if not for_author:
            fronts.open(server_key(settings, files, Path.cwd()))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [sock])
            for plugin in broken:
                announce(f"Plugin skipped: {plugin.source}: {plugin.reason}")
            address = f"http://{url_host(connect_address(settings.bind))}:{port}"
            hub.find_page = lambda: f"{address}/"
            # Imported when it is first asked for: it imports the run store.
            hub.describe_server = lambda: resolve("substrate.server.server_facts:server_facts")(
                settings, Path.cwd(), address
            )
            _print_address(address, hub.version, token)
            notify_of_recording(settings)
            store.open_later()
            await _start_editor_endpoint(editors, settings)
            reasons: list[Callable[[], Awaitable[object]]] = [
                signals.stop_requested.wait,
                server.ended.wait,
            ]
            if settings.idle_exit_s:
                reasons.append(
                    partial(_wait_idle, server, fronts, hub, editors, settings.idle_exit_s)
                )
            try:
                await wait_for_first(*reasons)
            finally:
                # Even if the server failed, the runs end in order.
                with anyio.CancelScope(shield=True):
                    server.stop_accepting()
                    fronts.stop_accepting()
                    if editors is not None:
                        await editors.stop()
                    await drain(hub, signals.stop_now)
                    await store.hand_over()
                    await hub.close()
                    await fronts.finish(FINISH_S)
                    server.should_exit = True
        observers.close()
        if lines is not None:
            lines.close()
    if shared is not None:
        await shared.close()
    return hub


@contextlib.contextmanager
def _open_access(
    settings: Settings,
    hub: Plexus,
    port: int,
    project: Path,
    tickets: TicketStore[Credential] | None = None,
) -> Iterator[tuple[Access, str]]:
    """Create the access control and the server's token, which is empty with `auth` off.

    The lock file exists while the context is open. Raises SettingsError.
    """
    if settings.auth == "off":
        yield Access("", port=port, hosts=settings.hosts, origins=settings.origins), ""
        return
    limits = ServerLimits.of(hub.limits)
    lock = LockFile(port, project)
    token = new_token()
    try:
        lock.write(token)
    except OSError as error:
        raise SettingsError(
            f"Cannot write the lock file {lock.path}: {error.strerror or error}. Set "
            "XDG_STATE_HOME to another folder, or start with --auth off."
        ) from error
    try:
        access = Access(
            token,
            TokenFile(),
            SessionFile(limits=limits),
            port=port,
            hosts=settings.hosts,
            origins=settings.origins,
            oauth=_oauth(settings, hub, port),
            publish=lock.write,
            tickets=tickets,
            limits=limits,
        )
        yield access, token
    finally:
        lock.remove()


def _oauth(settings: Settings, hub: Plexus, port: int) -> OAuth | None:
    if not settings.oauth_issuer:
        return None
    # A server with host names runs behind a proxy that terminates TLS.
    own = f"http://{url_host(connect_address(settings.bind))}:{port}"
    address = f"https://{settings.hosts[0]}" if settings.hosts else own
    return OAuth(
        settings.oauth_issuer,
        f"{address}/mcp",
        hub.scopes,
        audience=settings.oauth_audience or None,
    )


def _run_lines(hub: Plexus, settings: Settings) -> RunLines | None:
    """Print a line for each run if a person can see it, unless the log does so already."""
    logs_runs = logging.getLogger("substrate.runs").isEnabledFor(logging.INFO)
    if not sys.stderr.isatty() or settings.log_format == "json" or logs_runs:
        return None
    make: Callable[[Plexus], RunLines] = resolve(RUN_LINES)
    return make(hub)


def _editor_endpoint(hub: Plexus, settings: Settings, refusals: Refusals) -> Endpoint | None:
    """Return the listener for editor clients, which is off; None if `ide` is switched off."""
    if hub.find_method("ide.open_diff") is None:
        return None
    make: Callable[..., Endpoint] = resolve(ENDPOINT)
    endpoint = make(
        hub,
        Path.cwd(),
        lock_in_project=settings.ide_lock == "seed",
        on_refused=refusals.request,
    )
    hub.services["editor_endpoint"] = endpoint
    return endpoint


async def _start_editor_endpoint(editors: Endpoint | None, settings: Settings) -> None:
    """Switch the listener on if the operator has asked for it. A failure is only announced."""
    if settings.ide != "on":
        return
    if editors is None:
        announce("The IDE is not available: `ide` is switched off by --only or --without.")
        return
    try:
        await editors.start()
    except PlexusError as error:
        announce(error.message)
    else:
        announce("The IDE is on. Connect with `claude --ide`; `substrate ide` explains more.")


async def _wait_idle(
    server: Server, fronts: FrontListener, hub: Plexus, editors: Endpoint | None, idle_s: float
) -> None:
    """Wait until there was no connection, no front and no run for `idle_s` seconds."""
    last_used = time.monotonic()
    while time.monotonic() - last_used < idle_s:
        await anyio.sleep(min(idle_s / 4, 1.0))
        idle_for_s = time.monotonic() - last_used
        if (
            server.open_connections
            or len(fronts)
            or hub.runs.running()
            or (editors is not None and editors.clients)
            or (idle_for_s >= idle_s and await _has_runs_elsewhere(hub))
        ):
            last_used = time.monotonic()


async def _has_runs_elsewhere(hub: Plexus) -> bool:
    """Return whether another process of the project has runs in progress, which people watch."""
    if hub.runs.stored is None:
        return False
    try:
        await hub.runs.stored.refresh()
    except PlexusError:
        return False
    return any(run.state not in ENDED_STATES for run in hub.runs.stored.all())


def _print_address(address: str, version: str, token: str) -> None:
    """Print the address of the server, and on a terminal the URL with the token.

    If stderr is not a terminal it may be a log, and a token is never logged.
    """
    announce(f"Substrate {version} on {address}  (press Ctrl-C to stop)")
    if token and sys.stderr.isatty():
        click.echo(f"Open {address}/#token={token}", err=True)
    elif token:
        announce("Print the token for clients with `substrate token`.")
