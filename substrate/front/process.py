"""The front: a process on stdio that lets the server of its project execute the runs.

It finds the server, or starts one, passes its stdin and stdout to it as descriptors, and waits for
the end. If no server can be used, it reports that on stderr and executes the runs itself: a host
that starts it works in any case.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

from plexus.registry.lazy import resolve
from substrate.front.address import connect, server_key
from substrate.front.hello import Hello, view_settings
from substrate.settings import ProjectFiles, Settings
from substrate.standard_streams import open_missing_descriptors
from substrate.telemetry.logging import announce

__all__ = ("serve_front",)

#: Timeout for a server to accept a front.
ACCEPT_S: Final = 5.0
#: Longest reply of a server.
REPLY_BYTES: Final = 4096
#: Exit code if the server died or stopped.
SERVER_LOST: Final = 1
#: Imported only if no server is running.
START_AND_WAIT: Final = "substrate.project_server:start_and_wait"
LOG_FILE: Final = "substrate.project_server:log_file"
#: Imported only with the setting `watch`.
ANNOUNCE_ADDRESS: Final = "substrate.project_server:announce_address"
FIND_RUNNING: Final = "substrate.security.lockfile:find_running"


class _Unusable(Exception):
    """No server can execute the runs. The message is the reason."""


class _Server(NamedTuple):
    """A server that has accepted this front."""

    sock: socket.socket
    port: int


def serve_front(
    settings: Settings, files: ProjectFiles, protocol: str, serve_here: Callable[[], None]
) -> None:
    """`substrate --stdio --background`: let a server execute the runs, and exit at the end.

    `protocol` is `native` or `mcp`. `serve_here` serves in this process instead.
    """
    os.close(open_missing_descriptors())
    project = Path.cwd()
    hello = Hello(protocol, str(project), view_settings(settings), os.environ)
    try:
        server = _find_or_start(settings, files, project, hello.encode())
    except (_Unusable, OSError) as error:
        announce(
            f"Cannot run in a server, so runs end with this process: {error}",
            "WARNING",
            code="run_in_process",
        )
        serve_here()
        return
    if settings.watch and (found := resolve(FIND_RUNNING)(server.port)) is not None:
        resolve(ANNOUNCE_ADDRESS)(found)
    # The default action of a signal ends this process, which is a disconnect for the server.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    server.sock.settimeout(None)
    _wait(server.sock)


def _find_or_start(settings: Settings, files: ProjectFiles, project: Path, hello: bytes) -> _Server:
    """Return a server that has accepted this front. Raises _Unusable and OSError."""
    key = server_key(settings, files, project)
    server = _find(key, hello)
    if server is None:
        start_and_wait = resolve(START_AND_WAIT)
        find = partial(_find, key, hello)
        server = asyncio.run(start_and_wait(settings, files, project, key, find))
    if server is None:
        raise _Unusable(f"the server did not start. See {resolve(LOG_FILE)(key)}")
    return server


def _find(key: str, hello: bytes) -> _Server | None:
    """Return the server with this digest if it runs and accepts this front.

    Raises _Unusable and OSError.
    """
    try:
        sock = connect(key, ACCEPT_S)
        if sock is None:
            return None
        reply = _introduce(sock, hello)
    except TimeoutError:
        raise _Unusable(f"the server does not respond within {ACCEPT_S:g} s") from None
    answer, _, text = reply.partition(" ")
    if answer == "OK":
        return _Server(sock, int(text))
    sock.close()
    if answer == "NO":
        raise _Unusable(f"the server refused: {text}")
    return None  # it is stopping


def _introduce(sock: socket.socket, hello: bytes) -> str:
    """Send the hello and return the reply, which is empty if the server is stopping."""
    try:
        sock.sendall(hello)
        return _read_line(sock)
    except (BrokenPipeError, ConnectionResetError):
        return ""
    except OSError:
        sock.close()
        raise


def _read_line(sock: socket.socket) -> str:
    """Return the next line, or what was received of it at the end of the connection."""
    data = b""
    while len(data) < REPLY_BYTES and not data.endswith(b"\n"):
        received = sock.recv(REPLY_BYTES - len(data))
        if not received:
            break
        data += received
    return data.decode(errors="replace").strip()


def _wait(sock: socket.socket) -> NoReturn:
    """Pass stdin and stdout to the server, wait until it ends the session, and exit."""
    try:
        socket.send_fds(sock, [b"+"], [0, 1])
        reply = _read_line(sock)
    except (BrokenPipeError, ConnectionResetError):
        reply = ""
    end, _, text = reply.partition(" ")
    if end != "END":
        announce("The server that executed the runs has died.", "WARNING", code="server_lost")
        sys.exit(SERVER_LOST)
    code, _, message = text.partition(" ")
    if message:
        announce(message, "WARNING", code="server_stopped")
    sys.exit(int(code))
