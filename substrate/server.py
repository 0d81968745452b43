"""The server on 127.0.0.1: a socket, uvicorn, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import click
import uvicorn
import uvloop

from mcp_view.server import McpOptions
from plexus.hub import Plexus
from substrate.app import build_app
from substrate.assembly import build_hub
from substrate.loop import close_runner
from substrate.mcp import make_mcp_server, mcp_options
from substrate.open_streams import OpenStreams
from substrate.settings import Settings

__all__ = ("Server", "bind", "serve_http")

HOST = "127.0.0.1"
#: How long connections may take to close after every run has ended.
CLOSE_S = 3
#: How long clients that only listen may take to be told of the end.
FAREWELL_S = 1.0


class Server(uvicorn.Server):
    """uvicorn without its signal handlers: ours end the runs first, so that streams end too."""

    def __init__(self, config: uvicorn.Config, open_streams: OpenStreams) -> None:
        super().__init__(config)
        self._open = open_streams

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End what does not end with the runs, and then everything."""
        await self._open.finish(FAREWELL_S)
        await super().shutdown(sockets)


def bind(port: int) -> socket.socket:
    """A listening socket on this port, or on any if it is 0; raises OSError."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((HOST, port))
        sock.listen(512)
    except OSError:
        sock.close()
        raise
    return sock


def make_server(hub: Plexus, port: int, *, mcp_options: McpOptions) -> Server:
    """A server for this hub; run it with `serve(sockets=[...])`."""
    open_streams = OpenStreams()
    return Server(
        uvicorn.Config(
            build_app(hub, port, make_mcp_server(hub, mcp_options), open_streams),
            http="httptools",
            ws="websockets-sansio",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            # There is no proxy between a client and its own machine.
            proxy_headers=False,
            # Compressing each small event costs more than sending it to the same machine.
            ws_per_message_deflate=False,
            ws_max_size=hub.limits.message_bytes,
            timeout_graceful_shutdown=CLOSE_S,
        ),
        open_streams,
    )


def serve_http(settings: Settings) -> None:
    """`substrate`: serve until a signal comes."""
    try:
        sock = bind(settings.port)
    except OSError as error:
        raise click.ClickException(
            f"cannot listen on {HOST}:{settings.port}: {error.strerror}. "
            "Is a server running already? Choose another with --port."
        ) from error
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    close_runner(runner, runner.run(_serve(settings, sock)))


async def _serve(settings: Settings, sock: socket.socket) -> Plexus:
    hub, broken = build_hub(settings, Path.cwd())
    port = sock.getsockname()[1]
    server = make_server(hub, port, mcp_options=mcp_options(settings))
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    serving = loop.create_task(server.serve(sockets=[sock]))
    for plugin in broken:
        click.echo(f"Plugin skipped: {plugin.source}: {plugin.reason}", err=True)
    click.echo(f"Substrate {hub.version} on http://{HOST}:{port}  (Ctrl-C stops it)", err=True)
    stop = loop.create_task(stopping.wait())
    await asyncio.wait([serving, stop], return_when=asyncio.FIRST_COMPLETED)
    await hub.close()
    server.should_exit = True
    await serving
    stop.cancel()
    return hub
