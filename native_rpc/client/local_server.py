"""Finds the running server of a project, for a client in the same user's account.

Each server has a lock file, which only its user can read, with its port, its token and its project
folder (`substrate.security.lockfile` writes it). The server of the current folder is preferred,
then that of the nearest folder above. A project with several servers means the lowest port.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from native_rpc.errors import ConnectionLost
from plexus.errors import PlexusError
from plexus.limits import Limits
from plexus.private_files import state_folder
from plexus.process_identity import is_running
from plexus.rpc import wire

__all__ = ("LocalServer", "find_local_server")

#: Maximum size of a lock file; longer ones are ignored.
MAX_BYTES = 64 * 1024


class LocalServer(NamedTuple):
    """A running server of this user."""

    port: int
    token: str
    project: Path

    @property
    def url(self) -> str:
        """The address for `connect`."""
        return f"ws://127.0.0.1:{self.port}"


def find_local_server(folder: Path | None = None) -> LocalServer:
    """Return the server of a folder, by default the current one, or of a folder above it.

    If none of them has a server and exactly one server of this user runs, return that one. Raises
    ConnectionLost if no server is found.
    """
    folder = (folder or Path.cwd()).resolve()
    servers = _running_servers()
    for each in (folder, *folder.parents):
        if found := [server for server in servers if server.project == each]:
            return found[0]
    if len(servers) == 1:
        return servers[0]
    if not servers:
        raise ConnectionLost("No server is running. Start one with `substrate`.")
    ports = ", ".join(f"{server.port} ({server.project})" for server in servers)
    raise ConnectionLost(
        f"No server of {folder} is running, and several others are: ports {ports}. Pass the URL "
        "and the token of one: connect('ws://127.0.0.1:PORT', token=...)."
    )


def _running_servers() -> list[LocalServer]:
    files = (state_folder() / "servers").glob("*.json")
    found = [server for file in files if (server := _read(file)) is not None]
    return sorted(found)


def _read(file: Path) -> LocalServer | None:
    """Return the server of a lock file; None if it is not a lock file, or the server has ended."""
    try:
        # Opening a pipe without a writer would block otherwise.
        fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as opened:
            entry: Any = wire.decode_value(opened.read(MAX_BYTES), Limits())
    except (OSError, ValueError, PlexusError):
        return None
    match entry:
        case {
            "port": int(port),
            "authToken": str(token),
            "pid": int(pid),
            "projectPath": str(project),
        }:
            if is_running(pid, entry.get("startTime")):
                return LocalServer(port, token, Path(project))
    return None
