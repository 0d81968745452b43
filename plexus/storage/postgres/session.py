"""A connection owned by one thread, its transactions, and the translation of its errors.

Queries are written once for both engines, with `?` for each parameter. This module converts them to
the `$1` of the native protocol, so a percent sign has no special meaning.

PostgreSQL identifies errors by SQLSTATE, independent of the server's language. A failed connection
attempt has no SQLSTATE; there only the message can be checked.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.types.numeric import Int8Dumper

from plexus.errors import Busy, Failed, PlexusError
from plexus.storage.engine import Dialect
from plexus.storage.errors import read_only, storage_failed, storage_full

__all__ = (
    "CONNECT_S",
    "ConnectionLost",
    "PostgresSession",
    "PostgresTransaction",
    "convert_placeholders",
    "rollback",
    "transaction",
    "unknown_outcome",
)

#: Timeout of a statement, enforced by the server.
STATEMENT_S = 30
#: Timeout of a statement for the locks of other transactions.
LOCK_S = 10
#: The server ends a transaction that is idle for this long, and releases its locks.
IDLE_S = 5
#: Timeout of connecting, also to a server that accepts the connection and never responds.
CONNECT_S = 5
#: A server that has not responded this long counts as lost. Longer than the statement timeout.
UNRESPONSIVE_S = STATEMENT_S + 5

SETTINGS = f"""
SET client_encoding = 'UTF8';
SET statement_timeout = '{STATEMENT_S}s';
SET lock_timeout = '{LOCK_S}s';
SET idle_in_transaction_session_timeout = '{IDLE_S}s';
SELECT set_config('synchronous_commit', 'on', false)
    WHERE current_setting('synchronous_commit') = 'off';
"""  # acknowledged commits must be durable, whatever the server's default is

READ_ONLY = "25006"
DISK_FULL = "53100"
#: A lock or statement timeout.
TIMED_OUT = ("55P03", "57014")
#: The server or the connection is unavailable: 08 connection failure, 57P shutdown and crash,
#: 25P03 and 25P04 idle transaction, 53300 too many connections.
UNAVAILABLE = ("08", "57P", "25P03", "25P04", "53300")
#: A conflict with another transaction. A retry succeeds.
SERIALIZATION = ("40001", "40P01")
#: Authentication or authorization failure, or an unknown database.
DENIED = ("28", "42501", "3D000")
#: Parts of the message of a connection that was permanently refused. If the server uses another
#: language, connecting is retried until the timeout, and the message is reported then.
REFUSED = ("authentication failed", "does not exist", "pg_hba.conf", "permission denied")

#: Target size of one fetch from a server-side cursor. The number of rows is adapted to the size of
#: the previous rows, within these limits.
FETCHED_CHARACTERS = 1024 * 1024
FIRST_ROWS = 20
MAX_ROWS = 1000
_CURSOR_NUMBERS = itertools.count(1)

#: String literals, quoted names and comments, in which `?` is no placeholder; and the placeholder.
TOKENS = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/|\?", re.DOTALL)


# --- errors ---------------------------------------------------------------------------------------


class ConnectionLost(Exception):
    """The connection is lost or was never established. Uncommitted work can be retried."""

    def __init__(self, failure: PlexusError) -> None:
        super().__init__(failure.message)
        #: The error for the caller after the deadline for retries.
        self.failure = failure


def _translate_error(error: psycopg.Error) -> ConnectionLost | PlexusError:
    """Translate an error of an established connection."""
    state = error.sqlstate or ""
    text = error.diag.message_primary or str(error).strip() or type(error).__name__
    if state == DISK_FULL:
        return storage_full(text)
    if state == READ_ONLY:
        return read_only(text)
    if state in TIMED_OUT:
        return Busy(f"The database is busy: {text}. Retry later.")
    if state.startswith(DENIED):
        return _denied(text)
    lost = not state and isinstance(error, psycopg.OperationalError)
    if lost or state.startswith(UNAVAILABLE) or state in SERIALIZATION:
        return ConnectionLost(storage_failed(text))
    return storage_failed(text)


def _translate_connect_error(error: psycopg.OperationalError) -> ConnectionLost | PlexusError:
    """Translate an error of a connection attempt."""
    text = str(error).strip()
    needs_password = error.pgconn is not None and error.pgconn.needs_password
    if needs_password or any(words in text for words in REFUSED):
        return _denied(text)
    return ConnectionLost(storage_failed(f"the database does not respond: {text}"))


def unknown_outcome(failure: PlexusError) -> Failed:
    """The connection was lost during a commit, and the outcome could not be determined."""
    return Failed(
        "The connection was lost during the commit. The change may or may not be stored:"
        f" {failure.message}",
        code="storage",
        data={"outcome": "unknown"},
    )


def _denied(text: str) -> Failed:
    return Failed(f"The database refused access: {text}", code="storage_denied")


# --- sessions and transactions --------------------------------------------------------------------


@functools.cache
def convert_placeholders(sql: str) -> bytes:
    """Return a statement with native placeholders. Cached, because statements are constants."""
    number = 0

    def replace(found: re.Match[str]) -> str:
        nonlocal number
        if found[0] != "?":
            return found[0]
        number += 1
        return f"${number}"

    return TOKENS.sub(replace, sql).encode()


class PostgresSession:
    """The connection of one thread. Opened on demand, and reopened after it was lost."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        #: When the running statement started, on the monotonic clock.
        self._started: float | None = None

    def connect(self) -> None:
        """Connect unless connected. Raises ConnectionLost or Failed."""
        if self._connection is not None and not self._connection.closed:
            return
        try:
            connection = psycopg.connect(self._url, autocommit=True, connect_timeout=CONNECT_S)
        except psycopg.OperationalError as error:
            raise _translate_connect_error(error) from error
        except psycopg.Error as error:
            raise Failed(f"Invalid database URL: {error}", code="storage") from error
        # Integers are always sent as bigint, so that query plans do not depend on their size.
        connection.adapters.register_dumper(int, Int8Dumper)
        self._connection = connection
        self.execute(SETTINGS)

    @property
    def connection(self) -> psycopg.Connection[tuple[Any, ...]]:
        """The open connection. Never reconnects, because that would lose the transaction."""
        if self._connection is None or self._connection.closed:
            raise ConnectionLost(Failed("The connection to the database was lost.", code="storage"))
        return self._connection

    def execute(self, sql: str) -> psycopg.Cursor[tuple[Any, ...]]:
        """Run statements without parameters in one round trip. Returns the cursor of the last."""
        with self.timed():
            cursor = self.connection.execute(sql.encode(), prepare=False)
            while cursor.nextset():
                pass
            return cursor

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Time a request to the server and translate its errors."""
        self._started = time.monotonic()
        try:
            yield
        except psycopg.Error as error:
            fault = _translate_error(error)
            if isinstance(fault, Failed) and self.connection.closed:
                fault = ConnectionLost(fault)  # the transaction is lost with the connection
            raise fault from error
        finally:
            self._started = None

    def disconnect_if_unresponsive(self) -> None:
        """Disconnect from a server that does not respond. Called from another thread."""
        began = self._started
        if began is not None and time.monotonic() - began >= UNRESPONSIVE_S:
            self.disconnect()

    def disconnect(self) -> None:
        """Make the call in progress fail. Called from another thread."""
        connection = self._connection
        if connection is None:
            return
        # Not `close`: the other thread is using the connection, and shutdown makes its call fail.
        with contextlib.suppress(OSError, psycopg.Error):
            duplicate = socket.socket(fileno=os.dup(connection.fileno()))
            duplicate.shutdown(socket.SHUT_RDWR)
            duplicate.close()

    def drop(self) -> None:
        """Close the connection. The next use opens a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class PostgresTransaction:
    """The open transaction of a session, used on the session's thread."""

    __slots__ = ("_cursor", "_session", "wrote")

    dialect: Dialect = "postgres"

    def __init__(self, session: PostgresSession) -> None:
        self._session = session
        self._cursor = psycopg.RawCursor(session.connection)
        #: Whether a statement changed rows.
        self.wrote = False

    @property
    def failed(self) -> bool:
        """Whether a statement failed, so that the transaction must be rolled back."""
        return self._session.connection.info.transaction_status == TransactionStatus.INERROR

    def all(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return every row."""
        return self._execute(sql, params).fetchall()

    def each(self, sql: str, params: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        """Iterate over the rows of a server-side cursor, fetched in batches."""
        session = self._session
        with session.timed():
            cursor = psycopg.RawServerCursor(session.connection, f"rows_{next(_CURSOR_NUMBERS)}")
            cursor.execute(convert_placeholders(sql), params)
        count = FIRST_ROWS
        try:
            while True:
                with session.timed():
                    rows = cursor.fetchmany(count)
                yield from rows
                if len(rows) < count:
                    return
                size = sum(len(value) for row in rows for value in row if isinstance(value, str))
                count = max(1, min(MAX_ROWS, count * FETCHED_CHARACTERS // max(1, size)))
        finally:
            with contextlib.suppress(psycopg.Error):  # closed with the transaction at the latest
                cursor.close()

    def one(self, sql: str, params: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        """Return the first row, or None."""
        return self._execute(sql, params).fetchone()

    def run(self, sql: str, params: Sequence[Any] = ()) -> int:
        """Run a statement that changes rows. Returns the number of changed rows."""
        return self._execute(sql, params).rowcount

    def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run a statement once for each row of parameters, pipelined."""
        with self._session.timed():
            self._cursor.executemany(convert_placeholders(sql), rows)
        self.wrote = True

    def _execute(self, sql: str, params: Sequence[Any]) -> psycopg.Cursor[tuple[Any, ...]]:
        with self._session.timed():
            cursor = self._cursor.execute(convert_placeholders(sql), params)
        self.wrote |= cursor.rowcount > 0 and not str(cursor.statusmessage).startswith("SELECT")
        return cursor


@contextlib.contextmanager
def transaction(session: PostgresSession, begin: str) -> Iterator[PostgresTransaction]:
    """Run a transaction. Commits at the end, rolls back on an exception."""
    session.connect()
    done = False
    try:
        session.execute(begin)
        yield PostgresTransaction(session)
        session.execute("COMMIT")
        done = True
    finally:
        if not done:
            rollback(session)


def rollback(session: PostgresSession) -> None:
    """Roll back the transaction. Closes the connection if that fails."""
    try:
        session.execute("ROLLBACK")
    except (ConnectionLost, Failed):
        session.drop()
