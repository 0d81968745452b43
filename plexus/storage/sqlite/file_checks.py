"""Checks of the files from outside of SQLite: room on the disk, and whether they are still ours.

SQLite does not check whether its files were replaced: after the database, its log or its shared
index was removed or replaced, it keeps using the files that it has open. Commits then succeed, and
are gone when the last process closes them.

Nothing here imports a driver, so that a health check can run before a database is opened.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Final

from plexus.storage.errors import read_only, storage_full

__all__ = ("LOW_BYTES", "FileIdentity", "check_disk")

#: Below this the disk counts as full: the log of a busy database grows by as much between two
#: checkpoints, and a database that cannot write its log cannot commit.
LOW_BYTES: Final = 16 * 1024 * 1024
#: What is allocated to try: free space says nothing of quotas.
TRIAL_BYTES: Final = 64 * 1024


def check_disk(path: Path) -> None:
    """Raise Failed if the folder of this file, or its nearest existing parent, is full or cannot be
    written."""
    folder = next(each for each in path.absolute().parents if each.is_dir())
    room = os.statvfs(folder)
    free = room.f_bavail * room.f_frsize
    if free < LOW_BYTES:
        raise storage_full(f"{folder} has {free} bytes free, and {LOW_BYTES} are needed")
    if sys.platform != "linux":
        return  # others have no files without a name
    try:
        # It has no name, and is gone when it is closed.
        trial = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise read_only(f"{folder}: {error.strerror}") from error
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise storage_full(f"{folder}: {error.strerror}") from error
        return  # not every file system has such files
    try:
        os.posix_fallocate(trial, 0, TRIAL_BYTES)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise storage_full(f"{folder}: {error.strerror}") from error
    finally:
        os.close(trial)


class FileIdentity:
    """The device and inode of each file of a database, as of its first use."""

    def __init__(self, path: Path) -> None:
        self._paths = [path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm")]
        self._known: dict[Path, tuple[int, int]] = {}

    def record(self) -> None:
        """Record the files as they are now, once.

        Called while a connection has all of them open: before that SQLite creates and
        removes the log and the index by itself.
        """
        if len(self._known) < len(self._paths):
            for path in self._paths:
                found = _identity(path)
                if found is not None:
                    self._known.setdefault(path, found)

    def fault(self) -> str | None:
        """Return what was removed or replaced since, None if nothing was."""
        for path, known in list(self._known.items()):
            found = _identity(path)
            if found != known:
                return f"{path} was {'removed' if found is None else 'replaced'}"
        return None


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
