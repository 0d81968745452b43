"""The file: making it, opening it, migrating it, and what its errors are called."""

from __future__ import annotations

import errno
import os
import random
import stat
import time
from pathlib import Path
from typing import Final

import apsw

from activations.arbor.engine import (
    SQLITE,
    corrupt,
    locked,
    newer,
    read_only,
    storage_failed,
    storage_full,
)
from activations.arbor.schema import VERSION, statements
from activations.arbor.sqlite.log_damage import LogSummary, read_log
from plexus.errors import PlexusError
from plexus.private_files import make_folders, open_private

__all__ = ("BUSY_S", "Patience", "connect", "fault_of", "make_file", "migrate", "pragma")

#: Says in the file's header whose it is ("arbr").
APPLICATION_ID: Final = 0x61726272
#: How long the lock of another process is waited for: at work, and while a file is opened, when
#: another one may be migrating it.
BUSY_S: Final = 10.0
OPENING_S: Final = 60.0


def fault_of(error: apsw.Error) -> PlexusError:
    """What an error of the database is called here."""
    reason = str(error)
    match error:
        case apsw.BusyError() | apsw.LockedError():
            return locked(BUSY_S)
        case apsw.FullError():
            return storage_full(reason)
        case apsw.ReadOnlyError() | apsw.PermissionsError():
            return read_only(reason)
        case apsw.CorruptError() | apsw.NotADBError():
            return corrupt(reason)
        case _:
            return storage_failed(reason)


def make_file(path: Path) -> None:
    """The file is its owner's alone; that it can be written is found out here."""
    try:
        make_folders(path.parent)
        if not path.exists():
            os.close(open_private(path, os.O_RDWR | os.O_NONBLOCK))
        # Not opened again: closing a file drops the locks that this process has on it, which those
        # of another engine would be.
        mode = path.stat().st_mode
        is_file = stat.S_ISREG(mode)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not os.access(path, os.R_OK | os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        reason = f"{path}: {error.strerror}"
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise read_only(reason) from error
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise storage_full(reason) from error
        raise storage_failed(reason) from error
    if not is_file:
        raise corrupt(f"{path} is not a regular file")


class Patience:
    """How a locked file is waited for: often and not for ever."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._began = 0.0

    def __call__(self, tries: int) -> bool:
        now = time.monotonic()
        if not tries:
            self._began = now
        # Irregular, so that processes which wait for each other do not do so in step.
        time.sleep(random.uniform(0.0005, 0.0015))
        return now - self._began < self.seconds


def connect(path: Path, patience: Patience) -> apsw.Connection:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    connection.set_busy_handler(patience)
    connection.execute("PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON")
    return connection


def pragma(connection: apsw.Connection, name: str) -> int:
    found = connection.pragma(name)
    assert isinstance(found, int)
    return found


def _pragma_text(connection: apsw.Connection, name: str) -> str:
    found = connection.pragma(name)
    assert isinstance(found, str)
    return found


def migrate(path: Path) -> str | None:
    """Bring the file to our version; of several processes that try at once, one does it. Returns
    what is wrong with the log that the last process left, None if nothing is."""
    patience = Patience(OPENING_S)
    log = path.with_name(path.name + "-wal")
    left = read_log(log)
    connection = connect(path, patience)
    try:
        _check_header(connection, path)
        fault = None if left is None else _log_fault(connection, log, left)
        _switch_to_log(connection)
        connection.execute("BEGIN IMMEDIATE")
        try:
            version = _check_header(connection, path)
            for sql in statements(SQLITE, version):
                connection.execute(sql)
            if version < VERSION:
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {VERSION}")
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
    finally:
        connection.close()
    return fault


def _log_fault(connection: apsw.Connection, log: Path, left: LogSummary) -> str | None:
    """Compare what the log held with what SQLite has recovered from it."""
    if _pragma_text(connection, "journal_mode") != "wal":
        return None  # a file of that name, which SQLite has nothing to do with
    try:
        # It copies nothing, and only says how many frames there are.
        recovered, _ = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
    except apsw.BusyError:
        return None  # others use the log, and the first of them has looked
    fault = left.fault(max(recovered, 0))
    now = read_log(log)
    if fault is None or now is None or now.salts != left.salts:
        return None  # all is well, or another process has begun a new log meanwhile
    return f"{log}: {fault}"


def _check_header(connection: apsw.Connection, path: Path) -> int:
    """The version of the file; raises if it is not ours or from the future."""
    application = pragma(connection, "application_id")
    version = pragma(connection, "user_version")
    strangers = connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()[0][0]
    if application != APPLICATION_ID and (application or version or strangers):
        raise corrupt(f"{path} belongs to another program")
    if version > VERSION:
        raise newer(version, VERSION)
    return version


def _switch_to_log(connection: apsw.Connection) -> None:
    """Use the write-ahead log. The file remembers; the first switch needs the file alone, and
    SQLite does not wait for that by itself."""
    deadline = time.monotonic() + OPENING_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
        except apsw.BusyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.005)
        else:
            return
