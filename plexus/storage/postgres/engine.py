"""The PostgreSQL engine: one writer thread and a few reader threads.

Every wait has a timeout: for a server that is down, for locks and statements, and for a server that
accepts a connection and never responds. A call fails with an error when the timeout has passed; the
next call tries again.

NOTIFY carries no data. One connection per engine listens and calls all subscribers, which then read
what is new. A notification can be lost if its sender dies after the commit or if this connection is
down. The table of writers, which every commit updates, is therefore polled as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

import psycopg

from plexus.errors import Failed
from plexus.storage.daemon_threads import run_in_daemon_thread
from plexus.storage.engine import Component, Transaction
from plexus.storage.errors import closed, corrupt
from plexus.storage.migrations import DatabaseVersion, migrate, stored_version
from plexus.storage.postgres.session import (
    CONNECT_S,
    ConnectionLost,
    PostgresSession,
    transaction,
)
from plexus.storage.postgres.writer import (
    CREATE_WRITERS,
    PostgresWriter,
    QueuedWork,
    channel_name,
    lock_key,
    retry_delays,
)

__all__ = ("UNAVAILABLE_S", "ChangeListener", "PostgresEngine", "open_engine")

T = TypeVar("T")

#: How long a call retries while the server is unavailable.
UNAVAILABLE_S = 10.0
READERS = 4
#: Interval of the check for an unresponsive server, while any call is in progress.
CHECK_S = 1.0
SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
#: Interval at which the table of writers is polled.
POLL_S = 1.0
#: Timeout of a poll.
POLL_TIMEOUT_S = 10.0
#: Every commit increments one of the numbers, or adds a row with the latest time.
POLL = "SELECT sum(last), max(at_ms), count(*) FROM writers"

#: The lock that migrations of all components acquire first: they share tables of this package.
MIGRATION_LOCK: Final = int.from_bytes(b"storage")


async def open_engine(database: str, component: Component) -> PostgresEngine:
    """Migrate a component's tables and return an engine. Raises Failed."""
    stop = threading.Event()
    session = PostgresSession(database)
    deadline = time.monotonic() + UNAVAILABLE_S
    try:
        await asyncio.to_thread(
            _retry, session, lambda: _migrate(session, component), deadline, stop
        )
    finally:
        stop.set()
    return PostgresEngine(database, component)


def _retry(
    session: PostgresSession, act: Callable[[], T], deadline: float, stop: threading.Event
) -> T:
    """Retry until the server responds or the deadline has passed."""
    for delay in retry_delays():
        try:
            return act()
        except ConnectionLost as lost:
            session.drop()
            if stop.is_set() or time.monotonic() + delay > deadline:
                raise lost.failure from lost
        stop.wait(delay)
    raise AssertionError  # the delays never end


# --- migrations ---------------------------------------------------------------------------------


def _migrate(session: PostgresSession, component: Component) -> None:
    """Run the pending migrations atomically. A database that is up to date is only read.

    Closes the session afterwards, which releases its locks and settings.
    """
    try:
        with transaction(session, "BEGIN READ ONLY") as tx:
            _check_encoding(tx)
            version = stored_version(tx, component, DATABASE_VERSION)
            if version == component.version and _has_table(tx, "writers"):
                return
        # Lock before the transaction begins: a transaction that began earlier might not see tables
        # that another process has just created. No timeouts, because a migration can take long.
        session.execute(
            "SET statement_timeout = 0; SET lock_timeout = 0;"
            f" SELECT pg_advisory_lock({MIGRATION_LOCK});"
            f" SELECT pg_advisory_lock({lock_key(component)})"
        )
        with transaction(session, "BEGIN") as tx:
            if not _has_table(tx, "writers"):
                tx.run(CREATE_WRITERS)
            migrate(tx, component, DATABASE_VERSION)
    finally:
        session.drop()


def _get_version(tx: Transaction) -> int:
    if not _has_table(tx, "schema_version"):
        return 0
    row = tx.one("SELECT version FROM schema_version")
    return int(row[0]) if row else 0


def _set_version(tx: Transaction, version: int) -> None:
    if not _has_table(tx, "schema_version"):
        tx.run("CREATE TABLE schema_version (version BIGINT NOT NULL)")
    if not tx.run("UPDATE schema_version SET version = ?", (version,)):
        tx.run("INSERT INTO schema_version (version) VALUES (?)", (version,))


def _has_table(tx: Transaction, name: str) -> bool:
    return tx.one("SELECT to_regclass(?) IS NOT NULL", (name,)) == (True,)


DATABASE_VERSION: Final = DatabaseVersion(_get_version, _set_version, _has_table)


def _check_encoding(tx: Transaction) -> None:
    row = tx.one("SELECT current_setting('server_encoding')")
    if row != ("UTF8",):
        found = row[0] if row else "unknown"
        raise corrupt(f"the database has the encoding {found}. Create a database with UTF8")


# --- changes --------------------------------------------------------------------------------------


class ChangeListener:
    """The subscribers of an engine, and the task that listens while any are subscribed."""

    def __init__(self, url: str, channel: str, writer: str) -> None:
        self._url = url
        self._channel = channel
        #: The payload of this engine's own notifications; its commits notify subscribers directly.
        self._writer = writer
        self._listeners: dict[object, Callable[[], None]] = {}
        self._task: asyncio.Task[None] | None = None

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` on the event loop after commits. Returns a function that unsubscribes."""
        key = object()
        self._listeners[key] = listener
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._listen())

        def unsubscribe() -> None:
            self._listeners.pop(key, None)
            if not self._listeners and self._task is not None:
                self._task.cancel()
                self._task = None

        return unsubscribe

    def notify(self) -> None:
        """Call all subscribers."""
        for listener in list(self._listeners.values()):
            listener()

    async def close(self) -> None:
        """Stop listening."""
        self._listeners.clear()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _listen(self) -> None:
        delays = retry_delays()
        while True:
            try:
                connection = await psycopg.AsyncConnection.connect(
                    self._url, autocommit=True, connect_timeout=CONNECT_S
                )
                async with connection:
                    await connection.execute(f"LISTEN {self._channel}".encode())
                    delays = retry_delays()
                    await self._follow(connection)
            except (psycopg.Error, TimeoutError):
                # Reads and writes report the error. After reconnecting, subscribers are called.
                await asyncio.sleep(next(delays))

    async def _follow(self, connection: psycopg.AsyncConnection[tuple[object, ...]]) -> None:
        seen: object = None
        while True:
            async with asyncio.timeout(POLL_TIMEOUT_S):
                cursor = await connection.execute(POLL)
                row = await cursor.fetchone()
            if row != seen:
                seen = row
                self.notify()
            async for notice in connection.notifies(timeout=POLL_S):
                if notice.payload != self._writer:
                    self.notify()


# --- the engine ---------------------------------------------------------------------------------


class PostgresEngine:
    """A PostgreSQL database that is open for one component."""

    def __init__(self, url: str, component: Component) -> None:
        self._url = url
        self._loop = asyncio.get_running_loop()
        self._writer = PostgresWriter(url, component, self._on_settled)
        self._changes = ChangeListener(url, channel_name(component), self._writer.name)
        self._readers = ThreadPoolExecutor(READERS, f"{component.name} reader")
        self._thread_local = threading.local()
        self._sessions = [self._writer.session]
        self._open_calls = 0
        self._checking = False
        self._closing = threading.Event()

    async def write(self, work: Callable[[Transaction], T]) -> T:
        """Run a unit of work in the next group commit. On return, its changes are durable."""
        self._check_open()
        future: asyncio.Future[T] = self._loop.create_future()
        with self._watched():
            self._writer.submit(QueuedWork(work, future, time.monotonic() + UNAVAILABLE_S))
            return await future

    async def read(self, work: Callable[[Transaction], T]) -> T:
        """Run a unit of work on a snapshot."""
        self._check_open()
        deadline = time.monotonic() + UNAVAILABLE_S
        with self._watched():
            return await self._loop.run_in_executor(self._readers, self._read, work, deadline)

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` on the event loop after commits. Returns a function that unsubscribes."""
        self._check_open()
        return self._changes.subscribe(listener)

    async def backup(self, path: Path) -> None:  # noqa: ARG002 - part of the protocol
        """Raise Failed: a PostgreSQL server has its own backup tools."""
        raise Failed(
            "PostgreSQL databases cannot be backed up here. Use pg_dump.", code="unsupported"
        )

    async def erase(self) -> None:
        """Do nothing: the server removes deleted rows with its own vacuum."""

    async def vacuum(self, pages: int) -> int:  # noqa: ARG002 - part of the protocol
        """Do nothing: the server vacuums its tables."""
        return 0

    async def check(self) -> None:
        """Do nothing: the server is responsible for its disk and files."""

    async def close(self) -> None:
        """Finish queued work if the server responds, and close all connections.

        If the caller is cancelled, it disconnects, so that no thread waits for the server.
        """
        self._closing.set()
        try:
            await self._changes.close()
            await run_in_daemon_thread(self._stop, "postgres closing")
        except asyncio.CancelledError:
            for session in self._sessions:
                session.disconnect()
            raise

    def _stop(self) -> None:
        self._writer.close()
        self._readers.shutdown()
        for session in self._sessions:
            session.drop()

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise closed()

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Check the sessions for an unresponsive server while a call is in progress."""
        self._open_calls += 1
        if not self._checking:
            self._checking = True
            self._loop.call_later(CHECK_S, self._check_sessions)
        try:
            yield
        finally:
            self._open_calls -= 1

    def _check_sessions(self) -> None:
        for session in self._sessions:
            session.disconnect_if_unresponsive()
        self._checking = self._open_calls > 0
        if self._checking:
            self._loop.call_later(CHECK_S, self._check_sessions)

    def _on_settled(self, group: Sequence[QueuedWork], wrote: bool) -> None:
        """Resolve the futures of a transaction. Called on the writer thread."""
        with contextlib.suppress(RuntimeError):  # the event loop is closed, and no task waits
            self._loop.call_soon_threadsafe(self._resolve_futures, group, wrote)

    def _resolve_futures(self, group: Sequence[QueuedWork], wrote: bool) -> None:
        for work in group:
            if work.future.done():
                continue  # the caller was cancelled
            if work.error is None:
                work.future.set_result(work.result)
            else:
                work.future.set_exception(work.error)
        if wrote:
            self._changes.notify()

    def _read(self, work: Callable[[Transaction], T], deadline: float) -> T:
        """Run a unit of work on a reader thread. Reads can always be retried."""
        session: PostgresSession | None = getattr(self._thread_local, "session", None)
        if session is None:
            session = self._thread_local.session = PostgresSession(self._url)
            self._sessions.append(session)
        own = session

        def act() -> T:
            with transaction(own, SNAPSHOT) as tx:
                return work(tx)

        return _retry(own, act, deadline, self._closing)
