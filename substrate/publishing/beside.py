"""`--watch`: a server beside a process on stdio, so that its runs can be watched in a browser.

The server is a process of its own. It outlives the one that started it for as long as anybody is
connected to it, because other processes of the same project tell it of their runs too, and ends
by itself a minute after the last of them and the last browser is gone.
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

__all__ = ("see_to_server",)

#: How long nobody may be connected before the server ends.
IDLE_S: Final = 60
#: How long it may take to start, and how often it is looked for meanwhile.
START_S: Final = 20.0
LOOK_S: Final = 0.05


async def see_to_server(
    settings: Settings, files: ProjectFiles, project: Path, found: Callable[[], None]
) -> None:
    """See that a server of the project runs, say where it is, and that it is `found`."""
    try:
        server = find_by_project(project) or await _started(settings, files, project)
    except OSError as error:
        announce(f"No server could be started to watch the runs: {error}")
        return
    if server is None:
        announce(f"No server came up to watch the runs; see {_log_file(project)}.")
        return
    found()
    address = f"http://127.0.0.1:{server.port}/"
    # What is not a terminal may be a log, and a token is never logged.
    if sys.stderr.isatty():
        click.echo(f"Watch the runs at {address}#token={server.token}", err=True)
    else:
        announce(f"Watch the runs at {address}")
        announce(f"`substrate --port {server.port} token` prints the token that it asks for.")


async def _started(settings: Settings, files: ProjectFiles, project: Path) -> RunningServer | None:
    """Start a server, unless another process is just doing that, and wait until it is there."""
    with _alone(project) as alone:
        # Reaped by the system when this process ends, which is soon enough.
        wanted = alone and find_by_project(project) is None
        child = _start(settings, files, project) if wanted else None
        for _ in range(round(START_S / LOOK_S)):
            server = find_by_project(project)
            if server is not None or (child is not None and child.poll() is not None):
                return server
            await asyncio.sleep(LOOK_S)
    return None


def _start(settings: Settings, files: ProjectFiles, project: Path) -> subprocess.Popen[bytes]:
    file = _log_file(project)
    ensure_private_folder(file.parent)
    log = open_private(file, os.O_WRONLY | os.O_TRUNC)
    # Without -P Python would import modules of the project folder in place of ours.
    command = [sys.executable, "-P", "-m", "substrate", "--port", "0", "--bind", "127.0.0.1"]
    command += ["--auth", "token", "--idle-exit", str(IDLE_S)]
    # It can run commands too, and must not do so more freely than this process.
    command += ["--bash-sandbox", settings.bash_sandbox, "--log-level", settings.log_level]
    if settings.database:
        command += ["--database", settings.database]
    if files.once:
        command.append("--trust")
    # What substrate.toml names, that server finds there itself, if the folder is trusted.
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
def _alone(project: Path) -> Iterator[bool]:
    """Whether nobody else starts a server of this project meanwhile; raises OSError."""
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
