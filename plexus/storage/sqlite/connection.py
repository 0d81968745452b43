"""Connections to the file: how they wait for locks, what their errors become, and the
transactions on them."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import apsw

from plexus.errors import PlexusError
from plexus.storage.errors import corrupt, locked, read_only, storage_failed, storage_full
from plexus.storage.transaction import Dialect, Row

__all__ = (
    "BUSY_S",
    "BusyTimeout",
    "ReadTransaction",
    "SqliteTransaction",
    "connect",
    "error_of",
    "pragma",
)

#: How long an operation waits for the lock of another process.
BUSY_S: Final = 10.0
#: Rows after which a reader checks whether a writer is busy.
ROWS: Final = 16


def error_of(error: apsw.Error) -> PlexusError:
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
        self._began = 0.0

    def __call__(self, tries: int) -> bool:
        now = time.monotonic()
        if not tries:
            self._began = now
        # Irregular, so that processes which wait for each other do not do so in step.
        time.sleep(random.uniform(0.0005, 0.0015))
        return now - self._began < self.seconds


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
            while rows := list(itertools.islice(cursor, ROWS)):
                yield from rows
                if len(rows) == ROWS and (pause_s := self._pause_s()):
                    time.sleep(pause_s)
        finally:
            cursor.close()
