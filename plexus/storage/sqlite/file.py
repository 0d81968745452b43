"""The database file: connections, transactions, creation and migration."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import apsw

from plexus.errors import PlexusError
from plexus.private_files import make_folders, open_private
from plexus.storage.engine import Component, Dialect, Row, Transaction
from plexus.storage.errors import corrupt, locked, read_only, storage_failed, storage_full
from plexus.storage.migrations import DatabaseVersion, migrate, stored_version
from plexus.storage.sqlite.file_checks import LogSummary, read_log

__all__ = (
    "APPLICATION_ID",
    "BUSY_S",
    "OPEN_S",
    "BusyTimeout",
    "ReadTransaction",
    "SqliteTransaction",
    "connect",
    "create_file",
    "migrate_file",
    "pragma",
    "translate_error",
)

#: The application id in the header of this program's database files. Never changed.
APPLICATION_ID: Final = 0x61726272
#: Timeout for locks while opening: another process may be migrating the file.
OPEN_S: Final = 60.0
#: Timeout of an operation for the lock of another process.
BUSY_S: Final = 10.0
#: Number of rows after which a reader checks whether a writer is busy.
ROWS_PER_PAUSE: Final = 16


def translate_error(error: apsw.Error) -> PlexusError:
    """Translate a SQLite error to an error for callers."""
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


class BusyTimeout:
    """Busy handler: retry a locked file every millisecond, up to a timeout."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._started = 0.0

    def __call__(self, tries: int) -> bool:
        now = time.monotonic()
        if not tries:
            self._started = now
        # Jitter, so that competing processes do not retry in step.
        time.sleep(random.uniform(0.0005, 0.0015))
        return now - self._started < self.seconds


def connect(path: Path, timeout: BusyTimeout) -> apsw.Connection:
    """Open a connection to an existing file."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    connection.set_busy_handler(timeout)
    connection.execute("PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON")
    return connection


def pragma(connection: apsw.Connection, name: str) -> int:
    """Return the value of an integer pragma."""
    found = connection.pragma(name)
    assert isinstance(found, int)
    return found


class SqliteTransaction:
    """The open transaction of a connection."""

    __slots__ = ("_execute", "connection")

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection
        self._execute = connection.execute

    @property
    def dialect(self) -> Dialect:
        return "sqlite"

    def all(self, sql: str, params: Sequence[Any] = ()) -> list[Row]:
        return self._execute(sql, params).fetchall()

    def each(self, sql: str, params: Sequence[Any] = ()) -> Iterator[Row]:
        cursor = self._execute(sql, params)
        try:
            yield from cursor
        finally:
            cursor.close()

    def one(self, sql: str, params: Sequence[Any] = ()) -> Row | None:
        rows = self._execute(sql, params).fetchall()
        return rows[0] if rows else None

    def run(self, sql: str, params: Sequence[Any] = ()) -> int:
        self._execute(sql, params)
        return self.connection.changes()

    def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        self.connection.executemany(sql, rows)


class ReadTransaction(SqliteTransaction):
    """A read transaction that yields to writers of the same process.

    Reading a row acquires the interpreter lock, so a long read would starve a writer, which needs
    the lock for each of its few statements. A reader therefore pauses regularly while a writer is
    busy.
    """

    __slots__ = ("_pause_s",)

    def __init__(self, connection: apsw.Connection, pause_s: Callable[[], float]) -> None:
        super().__init__(connection)
        #: Returns how long to pause.
        self._pause_s = pause_s

    def all(self, sql: str, params: Sequence[Any] = ()) -> list[Row]:
        return list(self.each(sql, params))

    def each(self, sql: str, params: Sequence[Any] = ()) -> Iterator[Row]:
        cursor = self._execute(sql, params)
        try:
            while rows := list(itertools.islice(cursor, ROWS_PER_PAUSE)):
                yield from rows
                if len(rows) == ROWS_PER_PAUSE and (pause_s := self._pause_s()):
                    time.sleep(pause_s)
        finally:
            cursor.close()


# --- creating and migrating -----------------------------------------------------------------------


def create_file(path: Path) -> None:
    """Create the file with access for its owner only, unless it exists.

    Raises Failed if the file is not writable.
    """
    try:
        make_folders(path.parent)
        if not path.exists():
            os.close(open_private(path, os.O_RDWR | os.O_NONBLOCK))
        # Do not open the file to check it: closing it would drop all POSIX locks that this process
        # has on the file, including those of another engine.
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


def migrate_file(path: Path, component: Component) -> str | None:
    """Migrate a component's tables. Concurrent processes are serialized.

    Returns a description of the damage if the existing write-ahead log is damaged, else None.
    """
    log = path.with_name(path.name + "-wal")
    left = read_log(log)
    connection = connect(path, BusyTimeout(OPEN_S))
    if component.erases:
        # Takes effect only in an empty file.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL; PRAGMA secure_delete = ON").fetchall()
    transaction = SqliteTransaction(connection)
    try:
        # Fails before any change. In one transaction: another process may be creating the tables.
        with _transaction(connection, "DEFERRED"):
            _check_owner(connection, path)
            stored_version(transaction, component, DATABASE_VERSION)
        fault = None
        # Without a sync per commit, a power failure damages the log like a defect would.
        if left is not None and component.durability == "full":
            fault = _find_log_damage(connection, log, left)
        _enable_wal(connection)
        with _transaction(connection, "IMMEDIATE"):
            _check_owner(connection, path)
            if pragma(connection, "application_id") != APPLICATION_ID:
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            migrate(transaction, component, DATABASE_VERSION)
    finally:
        connection.close()
    return fault


@contextlib.contextmanager
def _transaction(connection: apsw.Connection, mode: str) -> Iterator[None]:
    """Commit what the block does; roll it back if the block raises."""
    connection.execute(f"BEGIN {mode}")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _check_owner(connection: apsw.Connection, path: Path) -> None:
    """Raise Failed if the file belongs to another program. An empty file belongs to none."""
    application = pragma(connection, "application_id")
    version = pragma(connection, "user_version")
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()[0][0]
    if application != APPLICATION_ID and (application or version or tables):
        raise corrupt(f"{path} is a database of another program")


def _get_version(tx: Transaction) -> int:
    row = tx.one("PRAGMA user_version")
    return 0 if row is None else int(row[0])


def _set_version(tx: Transaction, version: int) -> None:
    tx.run(f"PRAGMA user_version = {version}")


def _has_table(tx: Transaction, name: str) -> bool:
    return tx.one("SELECT 1 FROM sqlite_schema WHERE name = ?", (name,)) is not None


DATABASE_VERSION: Final = DatabaseVersion(_get_version, _set_version, _has_table)


def _find_log_damage(connection: apsw.Connection, log: Path, left: LogSummary) -> str | None:
    """Compare the frames in the log with those that SQLite has recovered. Returns the damage."""
    if connection.pragma("journal_mode") != "wal":
        return None  # a file of that name that SQLite does not use
    try:
        # Copies nothing, only returns the number of frames.
        recovered, _ = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
    except apsw.BusyError:
        return None  # another process uses the log; the first to open it has checked it
    fault = left.find_damage(max(recovered, 0))
    now = read_log(log)
    if fault is None or now is None or now.salts != left.salts:
        return None  # no damage, or another process has started a new log meanwhile
    return f"{log}: {fault}"


def _enable_wal(connection: apsw.Connection) -> None:
    """Enable the write-ahead log. The setting is stored in the file.

    The first switch needs exclusive access, for which SQLite does not wait automatically.
    """
    deadline = time.monotonic() + OPEN_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
        except apsw.BusyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.005)
        else:
            return
