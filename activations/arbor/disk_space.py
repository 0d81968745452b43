"""Whether there is room for the store's file to grow."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Final

from activations.arbor.engine import read_only, storage_full

__all__ = ("check_disk",)

#: Below this the disk counts as full: the log of a busy store grows by as much between two
#: checkpoints, and a store that cannot write its log cannot commit.
LOW_BYTES: Final = 16 * 1024 * 1024
#: What is allocated to try: free space says nothing of quotas.
TRIAL_BYTES: Final = 64 * 1024


def check_disk(path: Path) -> None:
    """Raise Failed if the folder of this file, or its nearest parent, has no room or cannot be
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
