"""The folder that a project is written to.

Every path is opened below the folder, one part after the other and without following symbolic
links, so that nothing outside is read or written, whatever other processes do meanwhile. A file is
written under another name first: it appears whole or not at all, and it replaces another only if
that still has the expected content.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from activations.processes.sandbox.protected_paths import ALWAYS, IF_PRESENT
from activations.templates.model import PRIVATE_FOLDERS
from plexus import Failed, InvalidParams
from plexus.text import escape_controls, shorten

__all__ = ("Existing", "Moved", "ProjectFolder", "Workspace", "resolve_target")

#: Size of an existing file that is compared with a generated one.
EXISTING_BYTES: Final = 1024 * 1024
#: Missing folders that are created for a target.
MAX_NEW_FOLDERS: Final = 16
#: Seconds for another process that updates the record, and between attempts.
LOCK_S: Final = 5.0
LOCK_POLL_S: Final = 0.01
#: Characters of the path of a target.
MAX_TARGET: Final = 4096
#: Opened to look names up in it, which needs no permission to list it.
_FOLDER: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
#: Errors of file systems without hard links, where a killed server can leave an empty file.
_NO_LINKS: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class Moved(Exception):
    """A file has appeared, changed or vanished since it was read."""


@dataclass(frozen=True, slots=True)
class Existing:
    """What a path refers to."""

    #: The content of a regular file that is not too large.
    content: bytes | None
    #: Why the content is not known, such as "is a symbolic link".
    obstacle: str = ""


class ProjectFolder:
    """A folder to write to. It need not exist before the first file is written."""

    def __init__(self, path: Path) -> None:
        """Set the folder, whose path must not contain symbolic links: see `resolve_target`."""
        self.path = path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other holders of this lock out, in all processes. Raises Failed after a timeout."""
        folder = self._open(make=True)
        try:
            fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
        except OSError as error:
            raise _failed(str(self.path), error) from error
        finally:
            os.close(folder)
        try:
            _lock(fd)
            yield
        finally:
            os.close(fd)

    def read(self, path: str) -> Existing | None:
        """Return what a path refers to; None for nothing. Raises Failed outside of the folder."""
        try:
            with self._parent(path, make=False) as (folder, name):
                return _read(folder, name)
        except FileNotFoundError:
            return None

    def create(self, path: str, content: bytes) -> None:
        """Write a new file, with its folders. Raises Moved if it exists, and Failed."""
        with self._parent(path, make=True) as (folder, name), _Draft(folder, content) as draft:
            try:
                os.link(draft.name, name, src_dir_fd=folder, dst_dir_fd=folder)
            except FileExistsError as error:
                raise Moved from error
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise _failed(path, error) from error
                _claim(folder, name)
                draft.move_to(name)

    def replace(self, path: str, content: bytes, expected: bytes) -> None:
        """Replace a file that has this content, keeping its mode. Raises Moved and Failed."""
        with self._parent(path, make=False) as (folder, name):
            found = _read(folder, name)
            if found is None or found.content != expected:
                raise Moved
            mode = stat.S_IMODE(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
            with _Draft(folder, content, mode & 0o777) as draft:
                found = _read(folder, name)  # writing the draft took its time
                if found is None or found.content != expected:
                    raise Moved
                draft.move_to(name)

    @contextmanager
    def _parent(self, path: str, *, make: bool) -> Iterator[tuple[int, str]]:
        """Open the folder of a path, and yield it with the name in it.

        Raises FileNotFoundError for a missing folder, unless it is created, and Failed.
        """
        *folders, name = path.split("/")
        fd = self._open(make=make)
        try:
            for folder in folders:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(folder, dir_fd=fd)
                inner = os.open(folder, _FOLDER, dir_fd=fd)
                os.close(fd)
                fd = inner
            yield fd, name
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not make:
                raise
            raise _failed(path, error) from error
        finally:
            os.close(fd)

    def _open(self, *, make: bool) -> int:
        """Open the folder itself, part after part. Raises FileNotFoundError and Failed."""
        fd = os.open("/", _FOLDER)
        try:
            for part in self.path.parts[1:]:
                try:
                    inner = os.open(part, _FOLDER, dir_fd=fd)
                except FileNotFoundError:
                    if not make:
                        raise
                    with suppress(FileExistsError):
                        os.mkdir(part, dir_fd=fd)
                    inner = os.open(part, _FOLDER, dir_fd=fd)
                os.close(fd)
                fd = inner
        except FileNotFoundError:
            os.close(fd)
            raise
        except OSError as error:
            os.close(fd)
            raise _failed(str(self.path), error) from error
        return fd


class Workspace:
    """The only folder that may be written to while commands run in a sandbox."""

    def __init__(self, path: Path, protected: Iterable[str]) -> None:
        """Set the folder, and names in it that are executed or trusted."""
        self.path = path.resolve()
        self._names = frozenset(
            name.partition("/")[0].casefold() for name in (*ALWAYS, *IF_PRESENT, *protected)
        )

    def protects(self, path: Path) -> bool:
        """Return whether a path must not be written to."""
        if not path.is_relative_to(self.path):
            return True
        return any(part.casefold() in self._names for part in path.relative_to(self.path).parts)


def resolve_target(text: str, base: Path, workspace: Workspace | None) -> Path:
    """Return the absolute path of a target folder, without symbolic links.

    With a `workspace`, the target must be in it. Raises InvalidParams.
    """
    if not text or "\0" in text or len(text) > MAX_TARGET:
        raise InvalidParams.at("target", "must be the path of a folder")
    # Unlike Path.expanduser, this raises nothing for an unknown user.
    given = os.path.expanduser(text)  # noqa: PTH111
    path = Path(os.path.realpath(base / given))
    if workspace is not None and workspace.protects(path):
        raise InvalidParams.at(
            "target",
            f"{path} is outside of the workspace {workspace.path}, or protected; the sandbox is on",
        )
    private = [part for part in path.parts if part.casefold() in PRIVATE_FOLDERS]
    if private:
        raise InvalidParams.at("target", f"{path} is in {private[0]}, which is not a project")
    missing = [each for each in (path, *path.parents) if not os.path.lexists(each)]
    if len(missing) > MAX_NEW_FOLDERS:
        raise InvalidParams.at("target", f"more than {MAX_NEW_FOLDERS} of its folders are missing")
    existing = path if not missing else missing[-1].parent
    if not existing.is_dir():
        raise InvalidParams.at("target", f"{existing} is not a folder")
    return path


class _Draft:
    """A file under a temporary name, which is removed unless it was moved."""

    def __init__(self, folder: int, content: bytes, mode: int | None = None) -> None:
        self._folder = folder
        self._content = content
        self._mode = mode
        self.name = f".substrate-{os.urandom(8).hex()}.tmp"

    def __enter__(self) -> _Draft:
        # The kernel applies the umask to the mode of a new file.
        fd = os.open(self.name, _WRITE, 0o666, dir_fd=self._folder)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(self._content)
                if self._mode is not None:
                    os.fchmod(fd, self._mode)
                file.flush()
                os.fsync(fd)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def move_to(self, name: str) -> None:
        """Move the file over another."""
        os.replace(self.name, name, src_dir_fd=self._folder, dst_dir_fd=self._folder)

    def _remove(self) -> None:
        with suppress(OSError):
            os.unlink(self.name, dir_fd=self._folder)


def _lock(fd: int) -> None:
    """Lock a folder until it is closed. Raises Failed after a timeout."""
    deadline = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise Failed(
                    f"another process holds the folder for more than {LOCK_S:g} s", code="busy"
                ) from None
            time.sleep(LOCK_POLL_S)
        else:
            return


def _claim(folder: int, name: str) -> None:
    """Create an empty file, so that nothing that exists is replaced. Raises Moved."""
    try:
        os.close(os.open(name, _WRITE, 0o666, dir_fd=folder))
    except FileExistsError as error:
        raise Moved from error


def _read(folder: int, name: str) -> Existing | None:
    """Return what a name in a folder refers to. Raises OSError."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            return Existing(None, "is a symbolic link")
        if stat.S_ISDIR(status.st_mode):
            return Existing(None, "is a folder")
        if not stat.S_ISREG(status.st_mode):
            return Existing(None, "is not a regular file")
        fd = os.open(name, _READ, dir_fd=folder)
    except FileNotFoundError:
        return None
    except PermissionError:
        return Existing(None, "cannot be read")
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):  # it was exchanged meanwhile
            return Existing(None, "is not a regular file")
        content = file.read(EXISTING_BYTES + 1) or b""
    if len(content) > EXISTING_BYTES:
        return Existing(None, "is too large to compare")
    return Existing(content)


def _failed(path: str, error: OSError) -> Failed:
    """Return the error of a path that cannot be written to."""
    shown = escape_controls(shorten(path, 200))
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return Failed(
            f"{shown} was not written: one of its folders is a symbolic link, or not a folder",
            code="unsafe_path",
            data={"path": path},
        )
    return Failed(
        f"{shown} was not written: {error.strerror}", code="not_written", data={"path": path}
    )
