"""A connection that belongs to one thread, the transactions on it, and what its errors mean.

The queries are written once for both engines, with `?` for each parameter; here that becomes the
`$1` of the server's own protocol, so that a per cent sign means nothing special anywhere.

PostgreSQL names its errors by SQLSTATE, in every language alike. Only a connection that never
came about has none; there the server's text is all there is.
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
#: How long a statement waits for the locks of other transactions.
LOCK_S = 10
#: After this the server ends an idle transaction, and releases its locks.
IDLE_S = 10
#: Timeout of connecting, also to a server that accepts and never answers.
CONNECT_S = 5
#: Past the timeout of a statement, a server that still has not answered counts as lost.
UNRESPONSIVE_S = STATEMENT_S + 5

SETTINGS = f"""
SET client_encoding = 'UTF8';
SET statement_timeout = '{STATEMENT_S}s';
SET lock_timeout = '{LOCK_S}s';
SET idle_in_transaction_session_timeout = '{IDLE_S}s';
SELECT set_config('synchronous_commit', 'on', false)
    WHERE current_setting('synchronous_commit') = 'off';
"""  # what is acknowledged is on disk, whatever the server's default is

READ_ONLY = "25006"
DISK_FULL = "53100"
#: A lock or statement timeout.
TIMED_OUT = ("55P03", "57014")
#: The server, or our connection to it, ends or cannot begin: 08 connection, 57P shutdown and
#: crash, 25P03 and 25P04 an idle transaction, 53300 no connection left.
UNAVAILABLE = ("08", "57P", "25P03", "25P04", "53300")
#: A conflict with another transaction; a retry succeeds.
SERIALIZATION = ("40001", "40P01")
#: The role lacks a permission, or may not log in.
DENIED = ("28", "42501", "3D000")
#: In the text of a connection that was refused for good. With a server in another language the
#: connection is retried until the timeout, and its text is reported then.
REFUSED = ("authentication failed", "does not exist", "pg_hba.conf", "permission denied")

#: How much is fetched at a time from a cursor on the server: as many rows as have about so much
#: text, going by those before them. And the names of such cursors.
FETCHED_CHARACTERS = 1024 * 1024
FIRST_ROWS = 20
MAX_ROWS = 1000
_CURSOR_NUMBERS = itertools.count(1)

#: Text, quoted names and comments, in which a question mark is itself; and the question mark.
TOKENS = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/|\?", re.DOTALL)


# --- errors ---------------------------------------------------------------------------------------


class ConnectionLost(Exception):
    """The connection is lost, or there is none yet; what was not committed can be retried."""

    def __init__(self, failure: PlexusError) -> None:
        super().__init__(failure.message)
        #: What the caller gets once no time is left to retry.
        self.failure = failure


def _translate_error(error: psycopg.Error) -> ConnectionLost | PlexusError:
    """Return the meaning of an error on an established connection."""
    state = error.sqlstate or ""
    text = error.diag.message_primary or str(error).strip() or type(error).__name__
    if state == DISK_FULL:
        return storage_full(text)
    if state == READ_ONLY:
        return read_only(text)
    if state in TIMED_OUT:
        return Busy(f"the database was too busy: {text}; try again")
    if state.startswith(DENIED):
        return _denied(text)
    lost = not state and isinstance(error, psycopg.OperationalError)
    if lost or state.startswith(UNAVAILABLE) or state in SERIALIZATION:
        return ConnectionLost(storage_failed(text))
    return storage_failed(text)


def _translate_connect_error(error: psycopg.OperationalError) -> ConnectionLost | PlexusError:
    """Return the meaning of an error while connecting."""
    text = str(error).strip()
    needs_password = error.pgconn is not None and error.pgconn.needs_password
    if needs_password or any(words in text for words in REFUSED):
        return _denied(text)
    return ConnectionLost(storage_failed(f"the database does not answer: {text}"))


def unknown_outcome(failure: PlexusError) -> Failed:
    """The connection was lost in mid-commit, and did not come back in time to ask."""
    return Failed(
        f"the connection was lost while this was committed, so it may be stored or not:"
        f" {failure.message}",
        code="storage",
        data={"outcome": "unknown"},
    )


def _denied(text: str) -> Failed:
    return Failed(f"the database refuses us: {text}", code="storage_denied")


# --- sessions and transactions --------------------------------------------------------------------


@functools.cache
def convert_placeholders(sql: str) -> bytes:
    """Return a statement with the server's placeholders. Cached: statements are constants."""
    number = 0

    def replace(found: re.Match[str]) -> str:
        nonlocal number
        if found[0] != "?":
            return found[0]
        number += 1
        return f"${number}"

    return TOKENS.sub(replace, sql).encode()


class PostgresSession:
    """One thread's connection: opened when it is needed, and again after it was lost."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        #: When the statement that is under way began, on the monotonic clock.
        self._started: float | None = None

    def connect(self) -> None:
        """Connect, unless connected. Raises ConnectionLost or Failed."""
        if self._connection is not None and not self._connection.closed:
            return
        try:
            connection = psycopg.connect(self._url, autocommit=True, connect_timeout=CONNECT_S)
        except psycopg.OperationalError as error:
            raise _translate_connect_error(error) from error
        except psycopg.Error as error:
            raise Failed(f"This is no address of a database: {error}", code="storage") from error
        # A number is always a bigint, so that no plan depends on how large it happens to be.
        connection.adapters.register_dumper(int, Int8Dumper)
        self._connection = connection
        self.execute(SETTINGS)

    @property
    def connection(self) -> psycopg.Connection[tuple[Any, ...]]:
        """The open connection; never a new one, which would not have the transaction."""
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
        """Time an exchange with the server, and translate its errors."""
        self._started = time.monotonic()
        try:
            yield
        except psycopg.Error as error:
            fault = _translate_error(error)
            if isinstance(fault, Failed) and self.connection.closed:
                fault = ConnectionLost(fault)  # in any case the transaction was lost with it
            raise fault from error
        finally:
            self._started = None

    def disconnect_if_unresponsive(self) -> None:
        """From another thread: end the wait for a server that does not answer."""
        began, connection = self._started, self._connection
        if began is None or connection is None or time.monotonic() - began < UNRESPONSIVE_S:
            return
        # Not `close`: the other thread is inside of the connection, and is woken by an error.
        with contextlib.suppress(OSError, psycopg.Error):
            line = socket.socket(fileno=os.dup(connection.fileno()))
            line.shutdown(socket.SHUT_RDWR)
            line.close()

    def drop(self) -> None:
        """Close the connection; the next use opens a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class PostgresTransaction:
    """The transaction that is open on a session, used on the session's thread."""

    __slots__ = ("_cursor", "_session", "wrote")

    dialect: Dialect = "postgres"

    def __init__(self, session: PostgresSession) -> None:
        self._session = session
        self._cursor = psycopg.RawCursor(session.connection)
        #: Whether any statement changed rows.
        self.wrote = False

    @property
    def failed(self) -> bool:
        """Whether a statement failed, so that all has to be rolled back."""
        return self._session.connection.info.transaction_status == TransactionStatus.INERROR

    def all(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return every row."""
        return self._execute(sql, params).fetchall()

    def each(self, sql: str, params: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        """Iterate over the rows of a cursor on the server, fetched a few at a time."""
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
            with contextlib.suppress(psycopg.Error):  # it ends with the transaction
                cursor.close()

    def one(self, sql: str, params: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        """Return the first row, or None."""
        return self._execute(sql, params).fetchone()

    def run(self, sql: str, params: Sequence[Any] = ()) -> int:
        """Change rows. Returns how many."""
        return self._execute(sql, params).rowcount

    def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run a statement once for each row, without waiting in between."""
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
    """Run a transaction: committed at the end, rolled back if anything was raised."""
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
    """Roll back. A connection that cannot is closed."""
    try:
        session.execute("ROLLBACK")
    except (ConnectionLost, Failed):
        session.drop()
