"""Lock file of a server: its address and token, for programs of the same user.

Each port has a file, in a folder that only the user can read. It is removed when the server exits;
a stale file of a killed server is removed by the next program that reads it.
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
    ensure_private_folder,
    lock_file,
    read_json,
    write_private,
)

__all__ = (
    "LockFile",
    "RunningServer",
    "find_by_project",
    "find_running",
    "has_exited",
    "link_file",
    "lock_folder",
)

TRANSPORTS: Final = ("http", "websocket")


class RunningServer(NamedTuple):
    """A running server."""

    port: int
    token: str
    pid: int


class LockFile:
    """The lock file of the server in this process."""

    def __init__(self, port: int, project: Path) -> None:
        self.path = lock_folder() / f"{port}.json"
        self._port = port
        self._project = project

    def write(self, token: str) -> None:
        """Write the token, replacing an earlier one. Raises OSError."""
        ensure_private_folder(self.path.parent)
        for path in self.path.parent.glob("*.json"):
            _find(path)  # removes stale files
        entry = {
            "port": self._port,
            "authToken": token,
            "projectPath": str(self._project),
            "pid": os.getpid(),
            "startTime": start_time(os.getpid()),
            "version": __version__,
            "transports": TRANSPORTS,
        }
        with _exclusive(self.path.parent):
            write_private(self.path, entry)

    def remove(self) -> None:
        """Remove the file when the server exits, unless another server has written it meanwhile."""
        with contextlib.suppress(OSError, ValueError), _exclusive(self.path.parent):
            entry = _read(self.path)
            if entry is not None and entry.pid == os.getpid():
                self.path.unlink(missing_ok=True)
                link_file(self._port).unlink(missing_ok=True)


def lock_folder() -> Path:
    """Return the folder of the lock files of this user's servers."""
    return state_folder() / "servers"


def link_file(port: int) -> Path:
    """Return the path of the private page that forwards a browser to the server on this port."""
    return lock_folder() / f"open-{port}.html"


def find_running(port: int) -> RunningServer | None:
    """Return this user's server on this port, or None. Removes a stale file."""
    path = lock_folder() / f"{port}.json"
    entry = _find(path)
    return None if entry is None else RunningServer(port, entry.token, entry.pid)


def find_by_project(project: Path) -> RunningServer | None:
    """Return this user's server in this project folder, or None; the lowest port of several."""
    # Decimal digits only: Python's int() rejects other characters that count as digits.
    files = (path for path in lock_folder().glob("*.json") if path.stem.isdecimal())
    for path in sorted(files, key=lambda path: int(path.stem)):
        entry = _find(path)
        if entry is not None and entry.project == str(project):
            return RunningServer(int(path.stem), entry.token, entry.pid)
    return None


def has_exited(pid: int, started: int | None) -> bool:
    """Return whether the process that started then has exited, also if its pid was reused."""
    return _is_dead(pid) or not is_running(pid, started)


# --- reading ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Entry:
    token: str = dataclasses.field(repr=False)
    pid: int
    start_time: int | None
    project: str | None = None

    @property
    def stale(self) -> bool:
        """Whether the process has exited or its pid was reused."""
        return has_exited(self.pid, self.start_time)


def _find(path: Path) -> _Entry | None:
    """Return the content of the file if that server is running; otherwise remove the file."""
    try:
        entry = _read(path)
        if entry is None or not entry.stale:
            return entry
        with _exclusive(path.parent):
            # A new server may have replaced it meanwhile.
            entry = _read(path)
            if entry is None or not entry.stale:
                return entry
            path.unlink(missing_ok=True)
    except (OSError, ValueError):
        pass
    return None


def _read(path: Path) -> _Entry | None:
    """Return the content of the file; None if it does not exist. Raises OSError and ValueError."""
    content: Any = read_json(path)
    if content is None:
        return None
    match content:
        case {"authToken": str(token), "pid": int(pid), "startTime": int() | None as start} if (
            pid > 0
        ):
            return _Entry(token, pid, start, content.get("projectPath"))
    raise ValueError("it is not a lock file")


@contextlib.contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Lock the folder, so that no other process writes or removes files in it meanwhile."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        lock_file(fd)
        yield
    finally:
        os.close(fd)


def _is_dead(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (OSError, OverflowError):
        # No such process, or a process of another user, which cannot be our server.
        return True
    return False
