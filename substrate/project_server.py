"""The server of a project, which processes on stdio start on demand.

`--watch` starts one next to a process on stdio, so that its runs can be watched in a browser.
`--background` starts one that executes the runs itself (`substrate.front`).

The server is a separate process that outlives the one that started it. It stops one minute after
its last connection and its last run have ended.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, TypeVar

import click

from plexus.private_files import open_private, state_folder
from substrate.security.lockfile import RunningServer, find_by_project
from substrate.security.private_files import ensure_private_folder
from substrate.settings import ProjectFiles, Settings
from substrate.telemetry.logging import announce

__all__ = ("announce_address", "ensure_server", "log_file", "start_and_wait")

T = TypeVar("T")

#: Seconds without connections after which the server stops.
IDLE_S: Final = 60
#: Timeout of the start, and the interval of checks for the server.
START_S: Final = 20.0
POLL_S: Final = 0.05


async def ensure_server(
    settings: Settings, files: ProjectFiles, project: Path, *, announced: bool = False
) -> None:
    """Start a server of the project unless one is running, and print its address.

    Nothing is printed if it was `announced` before.
    """
    name = hashlib.sha256(os.fsencode(project)).hexdigest()[:12]
    try:
        server = await start_and_wait(
            settings, files, project, name, lambda: find_by_project(project)
        )
    except OSError as error:
        announce(f"Cannot start a server to watch the runs: {error}")
        return
    if server is None:
        announce(f"The server to watch the runs did not start. See {log_file(name)}.")
        return
    if not announced:
        announce_address(server)


def announce_address(server: RunningServer) -> None:
    """Print where the runs of a server can be watched."""
    address = f"http://127.0.0.1:{server.port}/"
    # If stderr is not a terminal it may be a log, and a token is never logged.
    if sys.stderr.isatty():
        click.echo(f"Watch the runs at {address}#token={server.token}", err=True)
    else:
        announce(f"Watch the runs at {address}")
        announce(f"Print its token with `substrate --port {server.port} token`.")


async def start_and_wait(
    settings: Settings,
    files: ProjectFiles,
    project: Path,
    name: str,
    find: Callable[[], T | None],
) -> T | None:
    """Return what `find` finds, after starting a server if it finds nothing.

    Of all processes that use the same `name` at the same time, one starts a server and the others
    wait for it. Returns None if the server exits or is not found in time. Raises OSError.
    """
    if (found := find()) is not None:
        return found
    child: subprocess.Popen[bytes] | None = None
    with _StartLock(name) as lock:
        for _ in range(round(START_S / POLL_S)):
            # Another process may have started a server, or may have been killed while it did so.
            if child is None and lock.acquire():
                if (found := find()) is not None:
                    return found
                # The child is not waited for. The system reaps it when this process ends.
                child = _start(settings, files, project, name)
            await asyncio.sleep(POLL_S)
            found = find()
            if found is not None or (child is not None and child.poll() is not None):
                return found
    return None


def log_file(name: str) -> Path:
    """Return the file with the output of the server that was started under this name."""
    return state_folder() / "project_servers" / f"{name}.log"


def _start(
    settings: Settings, files: ProjectFiles, project: Path, name: str
) -> subprocess.Popen[bytes]:
    log = open_private(log_file(name), os.O_WRONLY | os.O_TRUNC)
    # Without -P, Python would import modules of the project folder instead of ours.
    command = [*(files.command or (sys.executable, "-P", "-m", "substrate"))]
    command += ["--port", "0", "--bind", "127.0.0.1", "--auth", "token"]
    command += ["--idle-exit", str(IDLE_S), "--log-level", settings.log_level]
    # The server can run commands too, and must not have fewer restrictions than this process.
    command += ["--bash-sandbox", settings.bash_sandbox]
    for flag, patterns in (("--only", settings.only), ("--without", settings.without)):
        if patterns:
            command += [flag, ",".join(patterns)]
    if settings.database:
        command += ["--database", settings.database]
    if files.once:
        command.append("--trust")
    # The server reads activations in substrate.toml itself, if the folder is trusted.
    for activation in () if files.names_activations else settings.activation:
        command += ["--activation", activation]
    try:
        return subprocess.Popen(
            command,
            cwd=project,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    finally:
        os.close(log)


class _StartLock:
    """The right to start the server with this name. The system releases it if the process dies."""

    def __init__(self, name: str) -> None:
        self._file = log_file(name).with_suffix(".lock")

    def __enter__(self) -> _StartLock:
        ensure_private_folder(self._file.parent)
        self._fd = open_private(self._file, os.O_WRONLY)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._fd)

    def acquire(self) -> bool:
        """Return whether this process has the lock."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
