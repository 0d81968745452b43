"""Setting a corrupt database aside, for a component that prefers to start with an empty one.

Only for derived data, which can be created again. The corrupt files are kept under another name for
inspection. This module imports no driver.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from plexus.private_files import open_private
from plexus.storage.sqlite.file_checks import FileId, file_id

__all__ = ("set_aside",)

logger = logging.getLogger("plexus.storage")

#: The files that follow the database: the write-ahead log and its shared index.
SUFFIXES: Final = ("-wal", "-shm")


def set_aside(path: Path, found: FileId | None = None) -> Path | None:
    """Rename a corrupt database to `NAME.corrupt-<time>`, with its log and shared index.

    `found` is the id of the file that the caller found to be corrupt. A renamed file keeps its id:
    if the file has another one, another process has set the corrupt file aside already. Nothing is
    renamed then, and the caller uses the new file. Returns the new path, or None if nothing was
    renamed. Raises OSError.
    """
    with _locked(path):
        current = file_id(path)
        if current is None or (found is not None and current != found):
            return None
        target = _free_name(path)
        # Recorded before the database is renamed: from then on another process may create a new
        # one, with a log that must not be renamed. SQLite ignores the log of an empty database.
        others = {suffix: file_id(_with(path, suffix)) for suffix in SUFFIXES}
        path.rename(target)
        for suffix, known in others.items():
            other = _with(path, suffix)
            if known is not None and file_id(other) == known:
                with contextlib.suppress(FileNotFoundError):  # its last process has closed it
                    other.rename(_with(target, suffix))
        logger.warning("set aside a corrupt database: %s is now %s", path, target.name)
        return target


def _with(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _free_name(path: Path) -> Path:
    """Return a name with the current time that no file has."""
    while True:
        time = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        target = _with(path, f".corrupt-{time}")
        if not any(os.path.lexists(_with(target, suffix)) for suffix in ("", *SUFFIXES)):
            return target


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Exclude other processes that set the same file aside.

    The lock file stays: if it were removed, two processes could lock different files of its name.
    """
    lock = open_private(_with(path, ".lock"), os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
