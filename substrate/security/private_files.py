"""Files that are their owner's alone: written whole or not at all, and shared by processes.

A `RecordFile` holds records in one JSON file that several processes read and change.

Servers read the file again when it has changed, so a change made by a command takes effect with the
next request. A change is made under a lock, which is waited for within a bound.

A file that exists but cannot be read fails closed, after a grace period: the records that were read
last stay valid for `UNREADABLE_S` while every request tries again, and then there are none. So one
failed read (no free file descriptor, an editor that writes in place) cuts no client off, and a
file that stays unreadable keeps nothing valid. A file that was deleted holds no records.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

from plexus.errors import PlexusError
from plexus.limits import Limits
from plexus.private_files import make_folders, open_private
from plexus.rpc import wire

__all__ = ("UNREADABLE_S", "RecordFile", "lock_file", "make_private", "read_json", "write_private")

logger = logging.getLogger(__name__)


class HasDigest(Protocol):
    """A record that is known by a digest."""

    @property
    def digest(self) -> bytes: ...


Record = TypeVar("Record", bound=HasDigest)

#: How long the records that were read last stay valid while the file cannot be read, in seconds.
UNREADABLE_S: Final = 2.0
#: What a file of ours may hold; thousands of tokens take less.
MOST_BYTES: Final = 1024 * 1024
#: How long another process may hold a lock; it holds one for a write or two.
LOCK_S: Final = 5.0
LOCK_POLL_S: Final = 0.01

#: A text in a file of ours may hold any number of brackets, which are counted before it is read.
OURS: Final = Limits(message_containers=10_000_000)


def make_private(folder: Path) -> None:
    """See that the folder exists and that nobody else can look into it; raises OSError."""
    make_folders(folder)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(0, "it is not a folder of yours", str(folder))
    if stat.S_IMODE(found.st_mode) != 0o700:
        folder.chmod(0o700)


def write_private(file: Path, value: Any) -> None:
    """Write a value as JSON for its owner alone: whoever reads the file finds all of the old one
    or all of the new one. Raises OSError."""
    unfinished = file.with_name(f".{file.name}.{os.urandom(8).hex()}")
    # Never into a file, nor through a link, that somebody put there.
    fd = open_private(unfinished, os.O_WRONLY | os.O_EXCL)
    try:
        with os.fdopen(fd, "wb") as out:
            out.write(wire.encode_pretty(value) + b"\n")
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)


def lock_file(fd: int) -> None:
    """Lock an open file or folder until it is closed. Raises OSError if another process holds the
    lock for too long: a stopped one would hold it for ever."""
    deadline = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                reason = f"another process has held the lock for {LOCK_S:g} s; try again"
                raise TimeoutError(errno.ETIMEDOUT, reason) from None
            time.sleep(LOCK_POLL_S)
        else:
            return


def read_json(file: Path) -> Any:
    """Return the value in a file, None if there is no such file. Raises OSError, and ValueError
    if there is no value in it.

    Whatever stands at the path, reading it neither waits nor takes more memory than a value may.
    """
    try:
        # A pipe without a writer would be waited for otherwise.
        fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with os.fdopen(fd, "rb") as opened:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("it is not a regular file")
        text = opened.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        raise ValueError(f"it is over {MOST_BYTES} bytes")
    try:
        return wire.decode_value(text, OURS)
    except PlexusError as error:
        raise ValueError(error.message) from error


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
        #: By digest, in the order of the file.
        self._records: dict[bytes, Record] = {}
        self._clock = clock
        #: Since when the file cannot be read.
        self._unreadable_since: float | None = None
        #: Inode, size and times of the file when it was read last.
        self._seen: tuple[int, int, int, int] | None = None

    def records(self) -> Collection[Record]:
        """Return the records, after reading the file if it has changed."""
        self._refresh()
        return self._records.values()

    def get(self, digest: bytes) -> Record | None:
        """Return the record with this digest, after reading the file if it has changed."""
        self._refresh()
        return self._records.get(digest)

    def _refresh(self) -> None:
        """Read the file if it has changed, or could not be read before."""
        try:
            seen = self._stat()
            if seen == self._seen and self._unreadable_since is None:
                return
            records = {each.digest: each for each in self.read()}
        except (OSError, ValueError) as error:
            self._keep_for_a_while(error)
            return
        # The file may have been replaced after `stat`: then it is read again the next time.
        self._seen = seen
        self._records = records
        self._unreadable_since = None

    def _stat(self) -> tuple[int, int, int, int] | None:
        """What tells one content of the file from another; None if there is no file. Raises
        OSError."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return None
        # The time of the last change of its status: a file that becomes unreadable changes so.
        return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns

    def _keep_for_a_while(self, error: Exception) -> None:
        """Drop the records once the file has been unreadable for too long."""
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
        if now - self._unreadable_since >= UNREADABLE_S:
            self._records = {}

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

    def remove(self, matches: Callable[[Record], bool]) -> bool:
        """Remove the records that match; False if none does. Raises like `changing`."""
        with self.changing() as records:
            kept = [each for each in records if not matches(each)]
            found = len(kept) < len(records)
            records[:] = kept
        return found
