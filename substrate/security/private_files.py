"""Files that only their owner can use: written atomically and shared by processes.

A `RecordFile` stores records in one JSON file that several processes read and update.

Servers read the file again when it has changed, so an update by a command takes effect with the
next request. Updates are serialized by a lock, which is acquired within a timeout.

A file that exists but cannot be read fails closed, after a grace period: the last records stay
valid for `UNREADABLE_S` while every request tries again, and then none are. So a single failed read
(no free file descriptor, an editor that writes in place) disconnects no client, and a file that
stays unreadable keeps nothing valid. A deleted file contains no records.
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

__all__ = (
    "UNREADABLE_S",
    "RecordFile",
    "ensure_private_folder",
    "lock_file",
    "read_json",
    "write_private",
    "write_private_bytes",
)

logger = logging.getLogger(__name__)


class HasDigest(Protocol):
    """A record that is identified by a digest."""

    @property
    def digest(self) -> bytes: ...


Record = TypeVar("Record", bound=HasDigest)

#: How long the last records stay valid while the file cannot be read, in seconds.
UNREADABLE_S: Final = 2.0
#: Maximum size of a file; thousands of tokens take less.
MAX_BYTES: Final = 1024 * 1024
#: Timeout for the lock; it is held for a write or two.
LOCK_S: Final = 5.0
LOCK_POLL_S: Final = 0.01

#: A string in such a file may contain any number of brackets, which are counted before parsing.
JSON_LIMITS: Final = Limits(message_containers=10_000_000)


def ensure_private_folder(folder: Path) -> None:
    """Create the folder if needed, and restrict it to its owner. Raises OSError."""
    make_folders(folder)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(0, "it is not a folder that you own", str(folder))
    if stat.S_IMODE(found.st_mode) != 0o700:
        folder.chmod(0o700)


def write_private(file: Path, value: Any) -> None:
    """Write a value as JSON, readable by its owner only. Raises OSError."""
    write_private_bytes(file, wire.encode_pretty(value) + b"\n")


def write_private_bytes(file: Path, content: bytes) -> None:
    """Write a file that only its owner can read. Raises OSError.

    Atomic: a reader finds either the whole old content or the whole new content.
    """
    unfinished = file.with_name(f".{file.name}.{os.urandom(8).hex()}")
    # Never write into an existing file or through a link: another user may have created it.
    fd = open_private(unfinished, os.O_WRONLY | os.O_EXCL)
    try:
        with os.fdopen(fd, "wb") as out:
            out.write(content)
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)


def lock_file(fd: int) -> None:
    """Lock an open file or folder until it is closed.

    Raises OSError if another process holds the lock for too long: a stopped process would hold it
    indefinitely.
    """
    deadline = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                reason = f"another process has held the lock for {LOCK_S:g} s; try again later"
                raise TimeoutError(errno.ETIMEDOUT, reason) from None
            time.sleep(LOCK_POLL_S)
        else:
            return


def read_json(file: Path) -> Any:
    """Return the value in a file, or None if the file does not exist.

    Raises OSError, and ValueError if it contains no valid value. Reading never blocks and never
    uses more memory than a value may, whatever kind of file the path names.
    """
    try:
        # Opening a pipe without a writer would block otherwise.
        fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with os.fdopen(fd, "rb") as opened:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("it is not a regular file")
        text = opened.read(MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise ValueError(f"it is over {MAX_BYTES} bytes")
    try:
        return wire.decode_value(text, JSON_LIMITS)
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
        """Use this file.

        `disposable` records are discarded if the file is damaged: the next update writes a new one.
        """
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
        #: Inode, size and times of the file at the last read.
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
        """Read the file if it has changed or could not be read before."""
        try:
            seen = self._stat()
            if seen == self._seen and self._unreadable_since is None:
                return
            records = {each.digest: each for each in self.read()}
        except (OSError, ValueError) as error:
            self._apply_grace_period(error)
            return
        # The file may have been replaced after `stat`: then it is read again the next time.
        self._seen = seen
        self._records = records
        self._unreadable_since = None

    def _stat(self) -> tuple[int, int, int, int] | None:
        """Return what identifies a version of the file; None if it does not exist.

        Raises OSError.
        """
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return None
        # ctime, because it also changes when the file becomes unreadable.
        return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns

    def _apply_grace_period(self, error: Exception) -> None:
        """Drop the records once the file has been unreadable for too long."""
        now = self._clock()
        if self._unreadable_since is None:
            self._unreadable_since = now
            logger.error(
                "%s cannot be read: %s; its %s become invalid after %g s",
                self.path,
                error,
                self._key,
                UNREADABLE_S,
            )
        if now - self._unreadable_since >= UNREADABLE_S:
            self._records = {}

    def read(self) -> list[Record]:
        """Return the current records. Raises OSError, and ValueError for invalid content."""
        content = read_json(self.path)
        try:
            entries = [] if content is None else content[self._key]
            return list(map(self._decode, entries))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"the file does not contain valid {self._key}") from error

    @contextmanager
    def update(self) -> Iterator[list[Record]]:
        """Yield the records, to be modified in place.

        They are written if the block ends without an exception and they differ. Raises OSError,
        TimeoutError if another process holds the lock, and ValueError for invalid content unless
        the records are disposable.
        """
        ensure_private_folder(self.path.parent)
        # Non-blocking: opening it never waits, whatever kind of file it is.
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
        """Remove the records that match. False if none does. Raises like `update`."""
        with self.update() as records:
            kept = [each for each in records if not matches(each)]
            found = len(kept) < len(records)
            records[:] = kept
        return found
