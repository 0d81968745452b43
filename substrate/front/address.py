"""Where a front finds a server: a Unix socket whose name is a digest.

The digest contains all that a run depends on: the project folder, the program, every setting that
does not belong to a single connection or listener, the trusted files and the keys of model
providers. A front therefore never finds a server with other restrictions than its own; it starts
another one.

The folder of the sockets is private to the user. Both sides check the user of the other in
addition, where the system supports that.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from plexus.private_files import data_folder, open_private, state_folder
from plexus.version import __version__
from substrate.front.hello import VIEW_SETTINGS
from substrate.security.private_files import ensure_private_folder
from substrate.settings import ProjectFiles, Settings, operator_folder

__all__ = ("FrontSocket", "connect", "is_same_user", "server_key")

#: Settings without an effect on runs: how the server listens, logs and stops, and how the process
#: on stdio finds it. All others, including those that are added later, are part of the digest.
UNRELATED: Final = frozenset(
    {
        *("port", "bind", "auth", "hosts", "origins", "oauth_issuer", "oauth_audience"),
        *("rate_local", "idle_exit_s", "log_level", "log_format", "watch", "run_in"),
        *VIEW_SETTINGS,
    }
)
#: Variables that the server itself reads when it calls model providers.
PROVIDER_SUFFIXES: Final = ("_API_KEY", "_BASE_URL")
#: The longest path of a socket that every system accepts. A longer one is used through a
#: descriptor of its folder.
MAX_PATH_BYTES: Final = 100
BACKLOG: Final = 128
CREDENTIALS: Final = struct.Struct("3i")


def server_key(settings: Settings, files: ProjectFiles, project: Path) -> str:
    """Return the digest of everything that fronts of one server must have in common."""
    parts = [
        __version__,
        sys.executable,
        *files.command,
        str(project),
        str(data_folder()),
        *(
            f"{name}={getattr(settings, name)!r}"
            for name in settings.__struct_fields__
            if name not in UNRELATED
        ),
        *(
            f"{name}={value}"
            for name, value in sorted(os.environ.items())
            if name.endswith(PROVIDER_SUFFIXES)
        ),
        f"trust: {files.live} {files.once} {files.plugins} {files.replaced}",
        f"skipped: {files.skipped}",
        *_versions(settings, files, project),
    ]
    digest = hashlib.sha256()
    for part in parts:
        text = os.fsencode(part)
        digest.update(b"%d:%b" % (len(text), text))
    for name, source in sorted(files.sources.items()):
        digest.update(hashlib.sha256(os.fsencode(name) + b"\0" + source).digest())
    return digest.hexdigest()[:32]


def _versions(settings: Settings, files: ProjectFiles, project: Path) -> Iterator[str]:
    """Yield a text for each file that is loaded from disk, which changes with the file."""
    folder = files.folder or operator_folder()
    named = [Path(name) for name in settings.activation if name.endswith(".py") or "/" in name]
    script = [Path(files.command[-1])] if files.command else []
    for path in (*script, *named, *(sorted(folder.glob("*.py")) if folder is not None else ())):
        try:
            status = (project / path).stat()
        except OSError:
            yield f"{path} missing"
        else:
            yield f"{path} {status.st_mtime_ns} {status.st_size}"


# --- sockets ----------------------------------------------------------------------------------


def socket_folder() -> Path:
    """Return the folder of the sockets of this user's servers."""
    return state_folder() / "fronts"


def connect(key: str, timeout_s: float) -> socket.socket | None:
    """Connect to the server with this digest; None if there is none.

    Raises OSError, TimeoutError among others.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(timeout_s)
    try:
        with _address(socket_folder(), f"{key}.sock") as address:
            sock.connect(address)
        if is_same_user(sock):
            return sock
    except (FileNotFoundError, ConnectionRefusedError):  # never started, or killed
        pass
    except OSError:
        sock.close()
        raise
    sock.close()
    return None


def is_same_user(sock: socket.socket) -> bool:
    """Return whether the peer of a Unix socket is a process of this user."""
    if sys.platform != "linux":
        return True  # the folder is private
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    user: int = CREDENTIALS.unpack(credentials)[1]
    return user == os.getuid()


class FrontSocket:
    """The listening socket of a server. Only one server listens for fronts with the same digest."""

    def __init__(self, key: str) -> None:
        self._path = socket_folder() / f"{key}.sock"
        self._lock: int | None = None

    def open(self) -> socket.socket | None:
        """Return the listening socket; None if another server has it. Raises OSError."""
        folder, name = self._path.parent, f"{self._path.stem}.{os.getpid()}"
        ensure_private_folder(folder)
        lock = open_private(self._path.with_suffix(".lock"), os.O_WRONLY)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(FileNotFoundError):
                (folder / name).unlink()
            with _address(folder, name) as address:
                sock.bind(address)
            (folder / name).chmod(0o600)
            sock.listen(BACKLOG)
            # A front that finds the socket can connect. A stale one of a killed server is replaced.
            (folder / name).rename(self._path)
        except BlockingIOError:
            os.close(lock)
            sock.close()
            return None
        except OSError:
            os.close(lock)
            sock.close()
            raise
        self._lock = lock
        return sock

    def release(self) -> None:
        """Let another server listen for these fronts."""
        if self._lock is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None


@contextlib.contextmanager
def _address(folder: Path, name: str) -> Iterator[str]:
    """Yield an address of a socket that is short enough. Raises OSError."""
    path = folder / name
    if len(os.fsencode(path)) <= MAX_PATH_BYTES:
        yield str(path)
        return
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{name}"
    finally:
        os.close(fd)
