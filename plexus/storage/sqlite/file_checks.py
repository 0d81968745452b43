"""Checks of the files from outside of SQLite: room on the disk, replaced files, a damaged log.

SQLite does not check whether its files were replaced: after the database, its log or its shared
index was removed or replaced, it keeps using the files that it has open. Commits then succeed, and
are gone when the last process closes them.

SQLite reads a write-ahead log up to the first frame that does not fit and silently ignores the
rest: a crash in mid-write looks the same. What tells the two apart is what comes after. A
transaction is written only when the one before it is on the disk, so a commit that is followed by
further frames was acknowledged; if SQLite has recovered fewer frames than that, committed changes
are lost. Only the headers are read, which takes a few milliseconds for a log of the usual length.
What cannot be detected: damage to the last transaction of the log, a log that was cut off at its
end, and one that was removed while no process had it open.

Nothing here imports a driver, so that a health check can run before a database is opened.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from plexus.storage.errors import read_only, storage_full

__all__ = ("MIN_FREE_BYTES", "FileIdentity", "LogSummary", "check_disk", "read_log")

#: Below this the disk counts as full: the log of a busy database grows by as much between two
#: checkpoints, and a database that cannot write its log cannot commit.
MIN_FREE_BYTES: Final = 16 * 1024 * 1024
#: What is allocated to try: free space does not show quotas.
PROBE_BYTES: Final = 64 * 1024

#: The format of a write-ahead log.
HEADER_BYTES: Final = 32
FRAME_HEADER_BYTES: Final = 24
#: The two magic numbers, and the byte order of checksums that each stands for.
MAGICS: Final = {0x377F0682: "<", 0x377F0683: ">"}
LOG_VERSION: Final = 3_007_000
PAGE_BYTES: Final = frozenset(1 << power for power in range(9, 17))
#: Generations of a log before the current one that its rest may be from.
GENERATIONS: Final = 1 << 20


def check_disk(path: Path) -> None:
    """Raise Failed if the folder of this file, or its nearest existing parent, is full or cannot be
    written."""
    folder = next(each for each in path.absolute().parents if each.is_dir())
    room = os.statvfs(folder)
    free = room.f_bavail * room.f_frsize
    if free < MIN_FREE_BYTES:
        raise storage_full(f"{folder} has {free} bytes free, and {MIN_FREE_BYTES} are needed")
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
        os.posix_fallocate(trial, 0, PROBE_BYTES)
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

    def find_change(self) -> str | None:
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


# --- the write-ahead log --------------------------------------------------------------------------


class LogSummary(NamedTuple):
    """Summary of the headers of a log."""

    #: The two random numbers that mark a generation of the log; empty if the header is damaged.
    salts: bytes
    #: Whether bytes that are no log stand where frames should be.
    garbage: bool
    #: The last frame that is certainly part of an acknowledged transaction, counted from 1.
    acknowledged: int = 0

    def find_damage(self, recovered: int) -> str | None:
        """Return what is wrong with the log, given how many frames SQLite has recovered."""
        if self.garbage:
            return "the write-ahead log holds bytes that are no log, and SQLite ignored them"
        if recovered < self.acknowledged:
            lost = self.acknowledged - recovered
            return f"the write-ahead log is damaged, and {lost} pages of commits in it are lost"
        return None


def read_log(path: Path) -> LogSummary | None:
    """Return a summary of a log; None if there is none, or nothing in it. Raises OSError."""
    try:
        with path.open("rb") as log:
            header = log.read(HEADER_BYTES)
            page = _page_size(header)
            if page is None:
                # Zeros are what a crash leaves of a file that had just grown.
                rest = header + log.read(FRAME_HEADER_BYTES)
                whole = len(rest) == HEADER_BYTES + FRAME_HEADER_BYTES
                return LogSummary(b"", garbage=True) if whole and any(rest) else None
            return _read_frames(log, header[16:24], page)
    except FileNotFoundError:
        return None


def _page_size(header: bytes) -> int | None:
    """Return the size of a page, None if the header of the log is damaged."""
    if len(header) < HEADER_BYTES:
        return None
    magic, version, page = struct.unpack(">3I", header[:12])
    order = MAGICS.get(magic)
    if order is None or version != LOG_VERSION or page not in PAGE_BYTES:
        return None
    first = second = 0
    words = struct.unpack(f"{order}6I", header[:24])
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return page if struct.unpack(">2I", header[24:]) == (first, second) else None


def _read_frames(log: BinaryIO, salts: bytes, page: int) -> LogSummary:
    number = acknowledged = committed = 0
    garbage = False
    while len(frame := log.read(FRAME_HEADER_BYTES)) == FRAME_HEADER_BYTES:
        number += 1
        if frame[8:16] == salts:
            acknowledged = committed or acknowledged
            # The size of the database, which only the last frame of a commit has.
            if any(frame[4:8]):
                committed = number
        elif number == 1:
            garbage = any(frame) and not _is_older(frame[8:12], salts[:4])
        log.seek(page, 1)
    return LogSummary(salts, garbage and not acknowledged and not committed, acknowledged)


def _is_older(found: bytes, current: bytes) -> bool:
    """Whether a frame is from a former generation: each adds one to the first number."""
    age = (int.from_bytes(current) - int.from_bytes(found)) & 0xFFFFFFFF
    return 0 < age < GENERATIONS
