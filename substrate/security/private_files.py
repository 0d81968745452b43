"""Files that are their owner's alone: where they are, and writing them whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from pathlib import Path
from typing import Any, Final

from plexus.errors import PlexusError
from plexus.limits import Limits
from plexus.private_files import make_folders, open_private
from plexus.rpc import wire

__all__ = ("lock_file", "make_private", "read_json", "write_private")

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
