"""Checks that SQLite does not do: free disk space, replaced files, a damaged write-ahead log.

SQLite does not detect that its files were replaced. After the database, its log or its shared
index was removed or replaced, it keeps using the open files: commits succeed, and are lost when
the last process closes the files.

SQLite reads a write-ahead log up to the first invalid frame and silently ignores the rest, because
a crash during a write looks the same. The frames that follow distinguish the two. A transaction is
written only after the previous transaction is durable, so a commit that is followed by more frames
was acknowledged; if SQLite has recovered fewer frames, committed changes are lost. Only headers are
read, which takes a few milliseconds for a log of typical length. Not detectable are damage to the
last transaction of the log, a log truncated at its end, and a log that was removed while no process
had it open.

This module imports no driver, so that a health check can run before a database is opened.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, TypeAlias

from plexus.storage.errors import read_only, storage_full

__all__ = (
    "MIN_FREE_BYTES",
    "FileId",
    "FileIdentity",
    "LogSummary",
    "check_disk",
    "file_id",
    "read_log",
)

#: The device and inode of a file.
FileId: TypeAlias = tuple[int, int]

#: Below this much free space the disk counts as full. The log of a busy database can grow this much
#: between two checkpoints, and a database that cannot write its log cannot commit.
MIN_FREE_BYTES: Final = 16 * 1024 * 1024
#: Size of the trial allocation, which detects quotas; free space does not show them.
PROBE_BYTES: Final = 64 * 1024

#: The format of a write-ahead log.
HEADER_BYTES: Final = 32
FRAME_HEADER_BYTES: Final = 24
#: The two magic numbers, each with the byte order of its checksums.
MAGICS: Final = {0x377F0682: "<", 0x377F0683: ">"}
LOG_VERSION: Final = 3_007_000
PAGE_BYTES: Final = frozenset(1 << power for power in range(9, 17))
#: How many generations old the leftover frames of a log may be.
GENERATIONS: Final = 1 << 20


def check_disk(path: Path) -> None:
    """Check that the folder of this file, or its nearest existing parent, has space.

    Raises Failed if the disk is full or the folder is not writable.
    """
    folder = next(each for each in path.absolute().parents if each.is_dir())
    stats = os.statvfs(folder)
    free = stats.f_bavail * stats.f_frsize
    if free < MIN_FREE_BYTES:
        raise storage_full(f"{folder} has {free} bytes free, {MIN_FREE_BYTES} are required")
    if sys.platform != "linux":
        return  # other systems have no unnamed files
    try:
        # An unnamed file, deleted when it is closed.
        trial = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise read_only(f"{folder}: {error.strerror}") from error
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise storage_full(f"{folder}: {error.strerror}") from error
        return  # not every file system supports O_TMPFILE
    try:
        os.posix_fallocate(trial, 0, PROBE_BYTES)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise storage_full(f"{folder}: {error.strerror}") from error
    finally:
        os.close(trial)


class FileIdentity:
    """The device and inode of each database file, recorded at first use."""

    def __init__(self, path: Path) -> None:
        self._paths = [path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm")]
        self._known: dict[Path, FileId] = {}

    def record(self) -> None:
        """Record the files that are not recorded yet.

        Called while a connection has all files open: before that, SQLite itself creates and removes
        the log and the shared index.
        """
        if len(self._known) < len(self._paths):
            for path in self._paths:
                found = file_id(path)
                if found is not None:
                    self._known.setdefault(path, found)

    def find_change(self) -> str | None:
        """Return which file was removed or replaced since, or None."""
        for path, known in list(self._known.items()):
            found = file_id(path)
            if found != known:
                return f"{path} was {'removed' if found is None else 'replaced'}"
        return None


def file_id(path: Path) -> FileId | None:
    """Return the id of a file, or None if it does not exist or cannot be accessed."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


# --- the write-ahead log --------------------------------------------------------------------------


class LogSummary(NamedTuple):
    """Summary of the frame headers of a write-ahead log."""

    #: The salts that identify a generation of the log; empty if the header is damaged.
    salts: bytes
    #: Whether the file contains bytes that are not frames.
    garbage: bool
    #: The last frame that is certain to belong to an acknowledged transaction, counted from 1.
    acknowledged: int = 0

    def find_damage(self, recovered: int) -> str | None:
        """Return the damage to the log, given the number of recovered frames. None if intact."""
        if self.garbage:
            return "the write-ahead log contains invalid data, which SQLite ignored"
        if recovered < self.acknowledged:
            lost = self.acknowledged - recovered
            return f"the write-ahead log is damaged; {lost} pages of committed changes are lost"
        return None


def read_log(path: Path) -> LogSummary | None:
    """Return a summary of a log, or None if it is missing or empty. Raises OSError."""
    try:
        with path.open("rb") as log:
            header = log.read(HEADER_BYTES)
            page = _page_size(header)
            if page is None:
                # A crash right after a file has grown leaves zeros.
                rest = header + log.read(FRAME_HEADER_BYTES)
                whole = len(rest) == HEADER_BYTES + FRAME_HEADER_BYTES
                return LogSummary(b"", garbage=True) if whole and any(rest) else None
            return _read_frames(log, header[16:24], page)
    except FileNotFoundError:
        return None


def _page_size(header: bytes) -> int | None:
    """Return the page size, or None if the log header is damaged."""
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
            # The database size, which is set only in the last frame of a commit.
            if any(frame[4:8]):
                committed = number
        elif number == 1:
            garbage = any(frame) and not _is_older(frame[8:12], salts[:4])
        log.seek(page, 1)
    return LogSummary(salts, garbage and not acknowledged and not committed, acknowledged)


def _is_older(found: bytes, current: bytes) -> bool:
    """Return whether a frame is from an earlier generation. Each increments the first salt."""
    age = (int.from_bytes(current) - int.from_bytes(found)) & 0xFFFFFFFF
    return 0 < age < GENERATIONS
