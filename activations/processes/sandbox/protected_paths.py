"""Workspace files that a sandboxed command cannot change: they are run outside the sandbox.

A command may write to its workspace, and the next start of the server, of git or of an editor
executes some of the files there. Those paths are mounted read-only for the command. Their parent
folders are mount points too, because the parent of a mount point can be renamed and a mount point
cannot.

A missing path cannot be mounted, and a command must not be able to create it. So a placeholder
exists while a sandboxed command runs, and is removed after the last one: an empty folder, also
instead of a file, because git ignores it and every reader treats it as "not a file". Its mode
distinguishes it from any other folder, also after a server was killed and could not remove it. Each
call acquires a shared lock on its placeholders, because a mount disappears with the file it is on.
The command itself sees an empty file system instead, so it cannot acquire the lock.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

__all__ = ("ALWAYS", "COMMON_DIR_TEXT", "IF_PRESENT", "Mounts", "ProtectedPaths", "Unprotectable")

#: Paths that are executed without confirmation, whether they exist or not.
ALWAYS = (
    ".venv",  # the usual place of the environment that runs the project's programs
    ".git/hooks",
    ".git/config",  # core.fsmonitor, core.hooksPath, aliases, filters
    ".git/config.worktree",
    ".git/commondir",  # names another folder whose config git reads
    ".claude",  # hooks in its settings
)
#: Paths for which programs require confirmation when they are new, but not when they change.
IF_PRESENT = (".mcp.json", ".vscode", ".cursor")

#: With both and a HEAD, git treats the workspace itself as a repository. A missing one stays
#: missing.
BARE_REPOSITORY = ("refs", "objects")

#: A mode that no other folder has: readable and searchable by its owner, and sticky.
PLACEHOLDER_MODE = 0o1500
#: If this file exists, git requires it to be readable. The content means "this folder".
COMMON_DIR = ".git/commondir"
COMMON_DIR_TEXT = b".\n"

#: Maximum attempts when another call removes a placeholder at the same moment.
ATTEMPTS = 100

#: Keys of a repository's config that name files which git executes or reads.
_LEADS_TO = re.compile(r'(?im)^\s*(hooksPath|path)\s*=\s*"?([^"\n;#]+?)"?\s*$')
#: Maximum bytes of a config that are read. Real ones have a few kilobytes.
CONFIG_BYTES = 256 * 1024


class Unprotectable(Exception):
    """A path in the workspace cannot be protected. The message says which and why."""


class Mounts(NamedTuple):
    """Mounts over a workspace."""

    #: Parents of protected paths: mount points that stay writable.
    pinned: tuple[Path, ...]
    #: Existing paths to mount read-only.
    read_only: tuple[Path, ...]
    #: Placeholders to cover with an empty, read-only file system.
    empty: tuple[Path, ...]
    #: Placeholders to cover with `COMMON_DIR_TEXT`.
    common_dir: tuple[Path, ...]


class ProtectedPaths:
    """The protected paths of a workspace, locked for one command until `release()`."""

    def __init__(self, workspace: Path, always: Iterable[str], if_present: Iterable[str]) -> None:
        """Inspect the workspace and create placeholders.

        Raises Unprotectable, and OSError if a placeholder cannot be created.
        """
        self._workspace = workspace
        self._locks: dict[Path, int] = {}
        self._pinned: dict[Path, None] = {}
        self._read_only: dict[Path, None] = {}
        with contextlib.ExitStack() as undo:
            undo.callback(self.release)
            hooks, includes = _read_git_config(workspace)
            for name in (*always, *hooks, *_missing(workspace, BARE_REPOSITORY)[:1]):
                self._protect(name, create=True)
            for name in (*if_present, *includes):
                self._protect(name, create=False)
            undo.pop_all()

    def mounts(self) -> Mounts:
        """Return what to mount, outer paths before inner ones."""
        common = self._workspace / COMMON_DIR
        return Mounts(
            tuple(self._pinned),
            tuple(self._read_only),
            tuple(path for path in self._locks if path != common),
            tuple(path for path in self._locks if path == common),
        )

    def release(self) -> None:
        """Remove the placeholders that no other command uses. Idempotent."""
        while self._locks:
            path, lock = self._locks.popitem()
            try:
                with contextlib.suppress(OSError):  # another command uses it, or it is not empty
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if _is_same(path, lock):
                        _remove(path)
            finally:
                os.close(lock)

    def _protect(self, name: str, *, create: bool) -> None:
        parts = Path(name).parts
        path = self._workspace
        for place, part in enumerate(parts):
            path /= part
            found = self._stat_or_create(path, create)
            if found is None:
                return
            if stat.S_ISLNK(found.st_mode):
                # A mount follows the link, and the link itself could be replaced.
                raise Unprotectable(
                    f"{path} is a symbolic link, which cannot be protected from the command;"
                    " replace it with the file or folder itself"
                )
            if place == len(parts) - 1 or not stat.S_ISDIR(found.st_mode):
                self._read_only[path] = None
            else:
                self._pinned[path] = None

    def _stat_or_create(self, path: Path, create: bool) -> os.stat_result | None:
        """Return the status of the path.

        None if it is a placeholder, is covered by a protected folder, or is missing and not to be
        created.
        """
        if path in self._locks or any(path.is_relative_to(above) for above in self._read_only):
            return None
        for _ in range(ATTEMPTS):
            try:
                found = path.lstat()
            except FileNotFoundError:
                if not create:
                    return None
                try:
                    _create(path, is_file=path == self._workspace / COMMON_DIR)
                except FileExistsError:
                    pass
                except OSError as error:
                    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                        return None  # the command cannot create it either
                    raise
                continue
            if not _is_placeholder(found):
                return found
            if self._lock(path):
                return None
        raise Unprotectable(f"{path} is continually created and removed by another program")

    def _lock(self, path: Path) -> bool:
        """Acquire a shared lock on a placeholder. False if it is being removed."""
        try:
            lock = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return False
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if _is_same(path, lock):
                self._locks[path] = lock
                return True
        os.close(lock)
        return False


def _missing(workspace: Path, names: Iterable[str]) -> list[str]:
    """Return the names that do not exist, or exist only as a placeholder."""
    missing = []
    for name in names:
        try:
            if _is_placeholder((workspace / name).lstat()):
                missing.append(name)
        except FileNotFoundError:
            missing.append(name)
    return missing


def _read_git_config(workspace: Path) -> tuple[list[str], list[str]]:
    """Return the hook folders and the included configs that the repository's config names.

    Raises Unprotectable for a missing config: git fails on a placeholder there.
    """
    try:
        with (workspace / ".git" / "config").open(errors="surrogateescape") as file:
            text = file.read(CONFIG_BYTES)
    except OSError:  # it does not exist, or `.git` is a file
        return [], []
    hooks: list[str] = []
    includes: list[str] = []
    for key, value in _LEADS_TO.findall(text):
        is_hooks = key.lower() == "hookspath"
        path = Path(os.path.normpath((workspace if is_hooks else workspace / ".git") / value))
        if path == workspace or not path.is_relative_to(workspace):
            continue
        if not is_hooks and not os.path.lexists(path):
            raise Unprotectable(
                f"the repository's config includes {path}, which does not exist, so the command"
                " could create it; create it first, or remove the include"
            )
        (hooks if is_hooks else includes).append(str(path.relative_to(workspace)))
    return hooks, includes


def _create(path: Path, *, is_file: bool) -> None:
    if not is_file:
        path.mkdir(PLACEHOLDER_MODE)
        return
    # Atomic, because git may read it at any moment.
    unfinished = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, COMMON_DIR_TEXT)
        os.fchmod(fd, PLACEHOLDER_MODE)
        path.hardlink_to(unfinished)  # unlike a rename, it never replaces a file
    finally:
        os.close(fd)
        unfinished.unlink()


def _is_placeholder(found: os.stat_result) -> bool:
    return stat.S_IMODE(found.st_mode) == PLACEHOLDER_MODE and found.st_uid == os.geteuid()


def _is_same(path: Path, fd: int) -> bool:
    """Return whether the path still refers to the open placeholder."""
    try:
        there = path.lstat()
    except FileNotFoundError:
        return False
    return os.path.samestat(there, os.fstat(fd)) and _is_placeholder(there)


def _remove(path: Path) -> None:
    if path.is_dir():
        path.rmdir()
    else:
        path.unlink()
