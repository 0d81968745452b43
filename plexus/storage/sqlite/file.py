"""The file: creating it, checking whose it is, and migrating a component's tables in it."""

from __future__ import annotations

import errno
import os
import stat
import time
from pathlib import Path
from typing import Final

import apsw

from plexus.private_files import make_folders, open_private
from plexus.storage.errors import corrupt, read_only, storage_failed, storage_full
from plexus.storage.migrations import Component, DatabaseVersion, migrate, version_of
from plexus.storage.sqlite.connection import BusyTimeout, SqliteTransaction, connect, pragma
from plexus.storage.sqlite.log_damage import LogSummary, read_log
from plexus.storage.transaction import Transaction

__all__ = ("APPLICATION_ID", "make_file", "migrate_file")

#: Marks a file as one of this program's, in its header. Never changed.
APPLICATION_ID: Final = 0x61726272
#: How long opening waits for locks: another process may be migrating the file.
OPENING_S: Final = 60.0


def make_file(path: Path) -> None:
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
    connection = connect(path, BusyTimeout(OPENING_S))
    transaction = SqliteTransaction(connection)
    try:
        _check_owner(connection, path)
        version_of(transaction, component, DATABASE_VERSION)  # before anything is changed
        fault = None if left is None else _log_fault(connection, log, left)
        _switch_to_log(connection)
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


def _log_fault(connection: apsw.Connection, log: Path, left: LogSummary) -> str | None:
    """Compare what the log held with what SQLite has recovered from it."""
    if connection.pragma("journal_mode") != "wal":
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


def _switch_to_log(connection: apsw.Connection) -> None:
    """Use the write-ahead log. The setting is stored in the file; the first switch needs exclusive
    access, and SQLite does not wait for that by itself."""
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
