"""The file: connections and transactions, creating it, and migrating a component's tables in it."""

from __future__ import annotations

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
    "BusyTimeout",
    "ReadTransaction",
    "SqliteTransaction",
    "connect",
    "create_file",
    "migrate_file",
    "pragma",
    "translate_error",
)

#: Marks a file as one of this program's, in its header. Never changed.
APPLICATION_ID: Final = 0x61726272
#: How long opening waits for locks: another process may be migrating the file.
OPEN_S: Final = 60.0
#: How long an operation waits for the lock of another process.
BUSY_S: Final = 10.0
#: Rows after which a reader checks whether a writer is busy.
ROWS_PER_PAUSE: Final = 16


def translate_error(error: apsw.Error) -> PlexusError:
    """Return the error that callers get in the place of one of SQLite's."""
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
        # Irregular, so that processes which wait for each other do not do so in step.
        time.sleep(random.uniform(0.0005, 0.0015))
        return now - self._started < self.seconds


def connect(path: Path, timeout: BusyTimeout) -> apsw.Connection:
    """Open a connection to a file that exists."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    connection.set_busy_handler(timeout)
    connection.execute("PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON")
    return connection


def pragma(connection: apsw.Connection, name: str) -> int:
    """Return the value of a pragma that is a number."""
    found = connection.pragma(name)
    assert isinstance(found, int)
    return found


class SqliteTransaction:
    """The transaction that is open on a connection."""

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
    """A transaction that reads, and yields to writers of the same process.

    Every row takes the interpreter's lock anew, and a writer that needs it for each of its few
    statements would come last each time. So a reader pauses now and then while a writer is busy.
    """

    __slots__ = ("_pause_s",)

    def __init__(self, connection: apsw.Connection, pause_s: Callable[[], float]) -> None:
        super().__init__(connection)
        #: How long to pause now.
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
    """Create the file, readable by its owner only, unless it exists. Raises Failed if it cannot be
    written."""
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


def migrate_file(path: Path, component: Component) -> str | None:
    """Migrate a component's tables; of several processes that try at once, one does it. Returns
    what is wrong with the write-ahead log that the last process left, None if nothing is."""
    log = path.with_name(path.name + "-wal")
    left = read_log(log)
    connection = connect(path, BusyTimeout(OPEN_S))
    transaction = SqliteTransaction(connection)
    try:
        _check_owner(connection, path)
        stored_version(transaction, component, DATABASE_VERSION)  # before anything is changed
        fault = None if left is None else _find_log_damage(connection, log, left)
        _enable_wal(connection)
        connection.execute("BEGIN IMMEDIATE")
        try:
            _check_owner(connection, path)
            if pragma(connection, "application_id") != APPLICATION_ID:
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            migrate(transaction, component, DATABASE_VERSION)
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
    finally:
        connection.close()
    return fault


def _check_owner(connection: apsw.Connection, path: Path) -> None:
    """Raise Failed if the file belongs to another program. An empty one has no owner yet."""
    application = pragma(connection, "application_id")
    version = pragma(connection, "user_version")
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()[0][0]
    if application != APPLICATION_ID and (application or version or tables):
        raise corrupt(f"{path} belongs to another program")


def _get_version(tx: Transaction) -> int:
    row = tx.one("PRAGMA user_version")
    return 0 if row is None else int(row[0])


def _set_version(tx: Transaction, version: int) -> None:
    tx.run(f"PRAGMA user_version = {version}")


def _has_table(tx: Transaction, name: str) -> bool:
    return tx.one("SELECT 1 FROM sqlite_schema WHERE name = ?", (name,)) is not None


DATABASE_VERSION: Final = DatabaseVersion(_get_version, _set_version, _has_table)


def _find_log_damage(connection: apsw.Connection, log: Path, left: LogSummary) -> str | None:
    """Compare what the log held with what SQLite has recovered from it."""
    if connection.pragma("journal_mode") != "wal":
        return None  # a file of that name, which SQLite has nothing to do with
    try:
        # It copies nothing, and only counts the frames.
        recovered, _ = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
    except apsw.BusyError:
        return None  # others use the log, and the first of them has checked it
    fault = left.find_damage(max(recovered, 0))
    now = read_log(log)
    if fault is None or now is None or now.salts != left.salts:
        return None  # no fault, or another process has started a new log meanwhile
    return f"{log}: {fault}"


def _enable_wal(connection: apsw.Connection) -> None:
    """Use the write-ahead log. The setting is stored in the file; the first switch needs exclusive
    access, and SQLite does not wait for that by itself."""
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
