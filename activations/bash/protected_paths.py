"""Files of a workspace that a confined command cannot change: they are run outside the sandbox.

A command may write its workspace, and the next start of the server, of git or of an editor runs
some of what is there. Those paths are mounted read-only for the command, and the folders that lead
to them are mount points too, because the parent of a mount point can be renamed and a mount point
cannot.

A path that does not exist can not be mounted, and a command must not be able to create it. So a
placeholder is there while a confined command runs, and is removed after the last one: an empty
folder, also in place of a file, as git ignores it and every reader takes it for "not a file".
Its mode distinguishes it from any other folder, also when a server was killed and could not
remove it. Each call holds a shared lock on the placeholders that it relies on, because a mount
goes with the file it is on. The command itself sees an empty file system in its place, and so it
cannot hold the lock.
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

__all__ = ("ALWAYS", "COMMON_DIR_TEXT", "IF_THERE", "Mounts", "ProtectedPaths", "Unprotectable")

#: What is run without anybody asking for it, whether it exists or not.
ALWAYS = (
    ".venv",  # the usual place of the environment that programs of the project are started from
    ".git/hooks",
    ".git/config",  # core.fsmonitor, core.hooksPath, aliases, filters
    ".git/config.worktree",
    ".git/commondir",  # names another folder whose config is obeyed
    ".claude",  # hooks in its settings
)
#: What a program asks its user about when it is new, but not when it has changed.
IF_THERE = (".mcp.json", ".vscode", ".cursor")

#: With both, and a HEAD, the workspace itself is a repository to git. One that is missing stays so.
BARE_REPOSITORY = ("refs", "objects")

#: A mode that no other folder has: it can be read and entered by its owner, and is sticky.
PLACEHOLDER_MODE = 0o1500
#: git reads this file if it exists, and cannot do without it then: "the folder is this one".
COMMON_DIR = ".git/commondir"
COMMON_DIR_TEXT = b".\n"

#: How often to try again when a placeholder is removed by another call at the same moment.
ATTEMPTS = 100

#: What in a repository's config leads to files that are run or obeyed.
_LEADS_TO = re.compile(r'(?im)^\s*(hooksPath|path)\s*=\s*"?([^"\n;#]+?)"?\s*$')
#: More of a config is not looked at. Real ones have a few kilobytes.
CONFIG_BYTES = 256 * 1024


class Unprotectable(Exception):
    """Something in the workspace cannot be protected; the message says what and why."""


class Mounts(NamedTuple):
    """What to mount over a workspace."""

    #: Folders that lead to a protected path: mount points that stay writable.
    pinned: tuple[Path, ...]
    #: What exists and is to be read-only.
    read_only: tuple[Path, ...]
    #: Placeholders that are to be covered by an empty, read-only file system.
    empty: tuple[Path, ...]
    #: Placeholders that are to be covered by `COMMON_DIR_TEXT`.
    common_dir: tuple[Path, ...]


class ProtectedPaths:
    """The protected paths of a workspace, held for one command until `release()`."""

    def __init__(self, workspace: Path, always: Iterable[str], if_there: Iterable[str]) -> None:
        """Look at the workspace and create placeholders.

        Raises Unprotectable, and OSError if a placeholder cannot be created.
        """
        self._workspace = workspace
        self._locks: dict[Path, int] = {}
        self._pinned: dict[Path, None] = {}
        self._read_only: dict[Path, None] = {}
        with contextlib.ExitStack() as undo:
            undo.callback(self.release)
            hooks, includes = _of_git_config(workspace)
            for name in (*always, *hooks, *_missing(workspace, BARE_REPOSITORY)[:1]):
                self._protect(name, create=True)
            for name in (*if_there, *includes):
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
        """Remove the placeholders that no other command relies on. May be repeated."""
        while self._locks:
            path, lock = self._locks.popitem()
            try:
                with contextlib.suppress(OSError):  # another command holds it, or it is not empty
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
            found = self._look(path, create)
            if found is None:
                return
            if stat.S_ISLNK(found.st_mode):
                # A mount goes where a link leads, and the link itself could be replaced.
                raise Unprotectable(
                    f"{path} is a symbolic link, which cannot be protected from the command;"
                    " put the file or folder itself there"
                )
            if place == len(parts) - 1 or not stat.S_ISDIR(found.st_mode):
                self._read_only[path] = None
            else:
                self._pinned[path] = None

    def _look(self, path: Path, create: bool) -> os.stat_result | None:
        """Return what is there; None if there is a placeholder, or nothing and none is wanted."""
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
        raise Unprotectable(f"{path} is created and removed by another program all the time")

    def _lock(self, path: Path) -> bool:
        """Take a share of a placeholder; False if it is being removed."""
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
    """Return those that do not exist, or only as a placeholder."""
    missing = []
    for name in names:
        try:
            if _is_placeholder((workspace / name).lstat()):
                missing.append(name)
        except FileNotFoundError:
            missing.append(name)
    return missing


def _of_git_config(workspace: Path) -> tuple[list[str], list[str]]:
    """Return the folders of hooks and the further configs that the repository's config names.

    Raises Unprotectable for a config that does not exist: git can not do with a placeholder there.
    """
    try:
        with (workspace / ".git" / "config").open(errors="surrogateescape") as file:
            text = file.read(CONFIG_BYTES)
    except OSError:  # there is none, or `.git` is a file
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
                f"the config of the repository includes {path}, which does not exist and could be"
                " created by the command; create it, or remove the include"
            )
        (hooks if is_hooks else includes).append(str(path.relative_to(workspace)))
    return hooks, includes


def _create(path: Path, *, is_file: bool) -> None:
    if not is_file:
        path.mkdir(PLACEHOLDER_MODE)
        return
    # Whole or not at all, as git may read it at any moment.
    unfinished = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, COMMON_DIR_TEXT)
        os.fchmod(fd, PLACEHOLDER_MODE)
        path.hardlink_to(unfinished)  # unlike a rename, it replaces nothing
    finally:
        os.close(fd)
        unfinished.unlink()


def _is_placeholder(found: os.stat_result) -> bool:
    return stat.S_IMODE(found.st_mode) == PLACEHOLDER_MODE and found.st_uid == os.geteuid()


def _is_same(path: Path, fd: int) -> bool:
    """Whether the path still leads to the placeholder that is open."""
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
