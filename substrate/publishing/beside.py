"""`--watch`: a server next to a stdio process, so that its runs can be watched in a browser.

The server is a separate process. Other processes of the same project publish their runs to it too,
so it outlives the process that started it. It stops one minute after the last process and the last
browser have disconnected.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import click

from plexus.private_files import open_private, state_folder
from substrate.security.lockfile import RunningServer, find_by_project
from substrate.security.private_files import ensure_private_folder
from substrate.settings import ProjectFiles, Settings
from substrate.telemetry.logging import announce

__all__ = ("ensure_server",)

#: Seconds without connections after which the server stops.
IDLE_S: Final = 60
#: Timeout of the start, and the interval of checks for the server.
START_S: Final = 20.0
POLL_S: Final = 0.05


async def ensure_server(
    settings: Settings, files: ProjectFiles, project: Path, found: Callable[[], None]
) -> None:
    """Start a server of the project unless one is running, print its address, call `found`."""
    try:
        server = find_by_project(project) or await _start_and_wait(settings, files, project)
    except OSError as error:
        announce(f"Cannot start a server to watch the runs: {error}")
        return
    if server is None:
        announce(f"The server to watch the runs did not start. See {_log_file(project)}.")
        return
    found()
    address = f"http://127.0.0.1:{server.port}/"
    # If stderr is not a terminal it may be a log, and a token is never logged.
    if sys.stderr.isatty():
        click.echo(f"Watch the runs at {address}#token={server.token}", err=True)
    else:
        announce(f"Watch the runs at {address}")
        announce(f"Print its token with `substrate --port {server.port} token`.")


async def _start_and_wait(
    settings: Settings, files: ProjectFiles, project: Path
) -> RunningServer | None:
    """Start a server, unless another process is doing so, and wait until it is running."""
    with _start_lock(project) as has_lock:
        # The child is not waited for. The system reaps it when this process ends.
        needs_start = has_lock and find_by_project(project) is None
        child = _start(settings, files, project) if needs_start else None
        for _ in range(round(START_S / POLL_S)):
            server = find_by_project(project)
            if server is not None or (child is not None and child.poll() is not None):
                return server
            await asyncio.sleep(POLL_S)
    return None


def _start(settings: Settings, files: ProjectFiles, project: Path) -> subprocess.Popen[bytes]:
    file = _log_file(project)
    ensure_private_folder(file.parent)
    log = open_private(file, os.O_WRONLY | os.O_TRUNC)
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


def _log_file(project: Path) -> Path:
    digest = hashlib.sha256(os.fsencode(project)).hexdigest()[:12]
    return state_folder() / "beside" / f"{digest}.log"


@contextlib.contextmanager
def _start_lock(project: Path) -> Iterator[bool]:
    """Lock the start of the project's server. Yields False if another process has the lock.

    Raises OSError.
    """
    file = _log_file(project).with_suffix(".lock")
    ensure_private_folder(file.parent)
    fd = open_private(file, os.O_WRONLY)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(fd)
