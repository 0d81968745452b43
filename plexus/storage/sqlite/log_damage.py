"""Whether a write-ahead log that a process left behind has lost commits to damage.

SQLite reads a log up to the first frame that does not fit and ignores the rest, without a word: a
crash in mid-write looks the same. What tells the two apart is what comes after. A transaction is
written only when the one before it is on the disk, so a commit that is followed by further frames
was acknowledged; if SQLite has recovered fewer frames than that, committed changes are lost.

Only the headers are read, which is a few milliseconds for a log of the usual length. What cannot be
told: damage to the last transaction of the log, a log that was cut off at its end, and one that was
removed while no process had it open.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

__all__ = ("LogSummary", "read_log")

HEADER_BYTES: Final = 32
FRAME_HEADER_BYTES: Final = 24
#: The two magic numbers: which of them says in which byte order checksums are calculated.
MAGICS: Final = {0x377F0682: "<", 0x377F0683: ">"}
VERSION: Final = 3_007_000
PAGE_BYTES: Final = frozenset(1 << power for power in range(9, 17))
#: Generations of a log before the current one that its rest may be from.
GENERATIONS: Final = 1 << 20


class LogSummary(NamedTuple):
    """What the headers of a log say."""

    #: The two random numbers that mark a generation of the log; empty if the header is damaged.
    salts: bytes
    #: Whether bytes that are no log stand where frames should be.
    garbage: bool
    #: The last frame that is certainly part of an acknowledged transaction, counted from 1.
    acknowledged: int = 0

    def fault(self, recovered: int) -> str | None:
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
            page = _page_bytes(header)
            if page is None:
                # Zeros are what a crash leaves of a file that had just grown.
                rest = header + log.read(FRAME_HEADER_BYTES)
                whole = len(rest) == HEADER_BYTES + FRAME_HEADER_BYTES
                return LogSummary(b"", garbage=True) if whole and any(rest) else None
            return _read_frames(log, header[16:24], page)
    except FileNotFoundError:
        return None


def _page_bytes(header: bytes) -> int | None:
    """Return the size of a page, None if the header of the log is damaged."""
    if len(header) < HEADER_BYTES:
        return None
    magic, version, page = struct.unpack(">3I", header[:12])
    order = MAGICS.get(magic)
    if order is None or version != VERSION or page not in PAGE_BYTES:
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
