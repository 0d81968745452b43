"""Records in one private JSON file that several processes read and change.

Servers read the file again when it has changed, so a change made by a command takes effect with the
next request. A change is made under a lock, which is waited for within a bound.

A file that exists but cannot be read fails closed, after a grace period: the records that were read
last stay valid for `UNREADABLE_S` while every look tries again, and then there are none. So one
failed read (no free file descriptor, an editor that writes in place) cuts no client off, and a
file that stays unreadable keeps nothing valid. A file that was deleted holds no records.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from plexus.private_files import open_private
from substrate.security.private_files import lock_file, make_private, read_json, write_private

__all__ = ("RecordFile",)

logger = logging.getLogger(__name__)

#: How long the records that were read last stay valid while the file cannot be read, in seconds.
UNREADABLE_S: Final = 2.0

Record = TypeVar("Record")


class RecordFile(Generic[Record]):
    """The records of one file: `{key: [entry, ...]}`."""

    def __init__(
        self,
        path: Path,
        key: str,
        *,
        decode: Callable[[Any], Record],
        encode: Callable[[Record], dict[str, Any]],
        disposable: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Records that are `disposable` are given up when the file is damaged: the next change
        writes a new one."""
        self.path = path
        self._disposable = disposable
        self._key = key
        self._decode = decode
        self._encode = encode
        self._records: tuple[Record, ...] = ()
        self._clock = clock
        #: Since when the file cannot be read.
        self._unreadable_since: float | None = None
        #: Inode, size and times of the file when it was read last.
        self._seen: tuple[int, int, int, int] | None = None

    def look(self) -> bool:
        """Read the file if it has changed, or could not be read before; True if the records may be
        others now."""
        try:
            seen = self._stat()
            if seen == self._seen and self._unreadable_since is None:
                return False
            records = tuple(self.read())
        except (OSError, ValueError) as error:
            return self._keep_for_a_while(error)
        # The file may have been replaced after `stat`: then it is read again at the next look.
        self._seen = seen
        self._records = records
        self._unreadable_since = None
        return True

    def _stat(self) -> tuple[int, int, int, int] | None:
        """What tells one content of the file from another; None if there is no file. Raises
        OSError."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return None
        # The time of the last change of its status: a file that becomes unreadable changes so.
        return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns

    def _keep_for_a_while(self, error: Exception) -> bool:
        """Drop the records once the file has been unreadable for too long; True if that is now."""
        now = self._clock()
        if self._unreadable_since is None:
            self._unreadable_since = now
            logger.error(
                "%s cannot be used: %s; its %s are refused after %g s",
                self.path,
                error,
                self._key,
                UNREADABLE_S,
            )
        if not self._records or now - self._unreadable_since < UNREADABLE_S:
            return False
        self._records = ()
        return True

    @property
    def records(self) -> tuple[Record, ...]:
        """What the file held at the last look."""
        return self._records

    def read(self) -> list[Record]:
        """Return what the file holds now. Raises OSError, and ValueError for other content."""
        content = read_json(self.path)
        try:
            entries = [] if content is None else content[self._key]
            return list(map(self._decode, entries))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"the file does not hold {self._key}") from error

    @contextmanager
    def changing(self) -> Iterator[list[Record]]:
        """Yield the records to be changed in place; they are written when the block ends without
        an exception and they differ. Raises OSError, TimeoutError if another process holds the
        lock, and ValueError for other content unless that is disposable."""
        make_private(self.path.parent)
        # Not blocking: whatever stands in its place, opening it does not wait.
        fd = open_private(self.path.with_suffix(".lock"), os.O_RDWR | os.O_NONBLOCK)
        with os.fdopen(fd) as lock:
            lock_file(lock.fileno())
            try:
                records = self.read()
                before: list[Record] | None = list(records)
            except ValueError:
                if not self._disposable:
                    raise
                records, before = [], None
            yield records
            if records != before:
                write_private(self.path, {self._key: [self._encode(each) for each in records]})
