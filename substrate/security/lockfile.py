"""The lock file of a server: where it listens and what its token is, for programs of this user.

One file for each port, in a folder that nobody else can look into. It is removed when the server
ends; one that a server left behind because it was killed is removed by whoever finds it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from plexus.private_files import state_folder
from plexus.process_identity import is_running, start_time
from plexus.version import __version__
from substrate.security.private_files import (
    lock_file,
    make_private,
    read_json,
    write_private,
)

__all__ = (
    "LockFile",
    "Running",
    "find_of_project",
    "find_running",
    "is_gone",
    "lock_folder",
)

TRANSPORTS: Final = ("http", "websocket")


class Running(NamedTuple):
    """A server that runs."""

    port: int
    token: str
    pid: int


class LockFile:
    """The lock file of the server that is this process."""

    def __init__(self, port: int, project: Path) -> None:
        self.path = lock_folder() / f"{port}.json"
        self._port = port
        self._project = project

    def write(self, token: str) -> None:
        """Say, also in place of what was said before, what the token is; raises OSError."""
        make_private(self.path.parent)
        for path in self.path.parent.glob("*.json"):
            _find(path)  # which removes what nobody stands behind
        entry = {
            "port": self._port,
            "authToken": token,
            "projectPath": str(self._project),
            "pid": os.getpid(),
            "startTime": start_time(os.getpid()),
            "version": __version__,
            "transports": TRANSPORTS,
        }
        with _alone(self.path.parent):
            write_private(self.path, entry)

    def remove(self) -> None:
        """The server ends. What another one has written meanwhile is left alone."""
        with contextlib.suppress(OSError, ValueError), _alone(self.path.parent):
            entry = _read(self.path)
            if entry is not None and entry.pid == os.getpid():
                self.path.unlink(missing_ok=True)


def lock_folder() -> Path:
    """Where the lock files of this user's servers are."""
    return state_folder() / "servers"


def find_running(port: int) -> Running | None:
    """The server of this user on this port, if there is one; a file without one is removed."""
    path = lock_folder() / f"{port}.json"
    entry = _find(path)
    return None if entry is None else Running(port, entry.token, entry.pid)


def find_of_project(project: Path) -> Running | None:
    """The server of this user in this project folder, if there is one; of several the one with the
    lowest port."""
    # Decimal digits only: there are others, which Python does not read as a number.
    files = (path for path in lock_folder().glob("*.json") if path.stem.isdecimal())
    for path in sorted(files, key=lambda path: int(path.stem)):
        entry = _find(path)
        if entry is not None and entry.project == str(project):
            return Running(int(path.stem), entry.token, entry.pid)
    return None


def is_gone(pid: int, started: int | None) -> bool:
    """Whether the process that started then has ended, or its number was reused."""
    return _is_gone(pid) or not is_running(pid, started)


# --- reading ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Entry:
    token: str = dataclasses.field(repr=False)
    pid: int
    start_time: int | None
    project: str | None = None

    @property
    def stale(self) -> bool:
        """Whether that process is gone, or its number is another's by now."""
        return is_gone(self.pid, self.start_time)


def _find(path: Path) -> _Entry | None:
    """What the file says, if that server is running; else the file is removed."""
    try:
        entry = _read(path)
        if entry is None or not entry.stale:
            return entry
        with _alone(path.parent):
            # A new server may have written it by now.
            entry = _read(path)
            if entry is None or not entry.stale:
                return entry
            path.unlink(missing_ok=True)
    except (OSError, ValueError):
        pass
    return None


def _read(path: Path) -> _Entry | None:
    """What the file says; None if there is none. Raises OSError and ValueError."""
    content: Any = read_json(path)
    if content is None:
        return None
    match content:
        case {"authToken": str(token), "pid": int(pid), "startTime": int() | None as start} if (
            pid > 0
        ):
            return _Entry(token, pid, start, content.get("projectPath"))
    raise ValueError("it is no lock file")


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Nobody else writes or removes files of this folder meanwhile."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        lock_file(fd)
        yield
    finally:
        os.close(fd)


def _is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (OSError, OverflowError):
        # No such process, or one of somebody else, which cannot be a server of ours.
        return True
    return False
