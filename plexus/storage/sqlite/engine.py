"""The embedded engine: one SQLite file, which several processes can share.

- One thread writes. It runs all queued jobs in one transaction and commits once, before any caller
  gets a result. Meanwhile a file lock excludes the writers of other processes and components.
- A few threads read, each with its own connection. They see the last commit and never wait for a
  writer.
- One thread polls `PRAGMA data_version` for commits of other connections, while there are
  subscribers.

No other copy of SQLite in this process, such as `sqlite3`, must open the file: closing it would
release the locks of this copy and unmap its shared memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import queue
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import apsw

from plexus.errors import Failed
from plexus.private_files import open_private
from plexus.storage.daemon_threads import run_in_daemon_thread
from plexus.storage.engine import Component, Transaction, sqlite_path
from plexus.storage.errors import closed, damaged, storage_failed, storage_full
from plexus.storage.sqlite.erasure import Eraser
from plexus.storage.sqlite.file import (
    BUSY_S,
    BusyTimeout,
    ReadTransaction,
    connect,
    create_file,
    migrate_file,
    pragma,
    translate_error,
)
from plexus.storage.sqlite.file_checks import FileIdentity, check_disk
from plexus.storage.sqlite.workers import WorkerPool
from plexus.storage.sqlite.writer import MAX_GROUP, SqliteWriter

__all__ = ("ChangeWatcher", "SqliteEngine", "open_engine")

T = TypeVar("T")

logger = logging.getLogger("plexus.storage")

READERS: Final = 4
#: The pause of a reader while a writer is busy, multiplied by the number of busy readers.
PAUSE_S: Final = 0.00025
#: The poll interval, and how long a poll may wait for a lock.
POLL_S: Final = 0.04
LOCK_S: Final = 0.05


async def open_engine(database: str, component: Component) -> SqliteEngine:
    """Open a file for a component, creating and migrating it if necessary. Raises Failed."""
    loop = asyncio.get_running_loop()
    path = sqlite_path(database).absolute()
    # A thread of an executor would not end, and keep the memory that opening needs.
    opening = partial(SqliteEngine, path, component, loop)
    return await run_in_daemon_thread(opening, f"{component.name} opening")


class SqliteEngine:
    """A database file that is open for one component."""

    def __init__(self, path: Path, component: Component, loop: asyncio.AbstractEventLoop) -> None:
        self.path = path
        self._component = component
        self._loop = loop
        self._listeners: dict[object, Callable[[], None]] = {}
        self._writer = WorkerPool(f"{component.name} writer", loop, self._write, 1)
        self._readers = WorkerPool(f"{component.name} reader", loop, self._read, READERS)
        self._watcher = ChangeWatcher(path, self._notify_soon, f"{component.name} watcher")
        self._erasing = asyncio.Lock()
        self._closed = False
        self._identity = FileIdentity(path)
        #: Damage to the log found while opening, and a file that was removed or replaced since.
        self._log_damage: str | None = None
        self._replaced: str | None = None
        create_file(path)
        try:
            self._log_damage = migrate_file(path, component)
        except apsw.Error as error:
            raise translate_error(error) from error
        except OSError as error:
            raise storage_failed(f"{path}: {error.strerror}") from error
        if self._log_damage is not None:
            logger.error("storage has lost committed changes: %s", self._log_damage)

    async def write(self, work: Callable[[Transaction], T]) -> T:
        """Run a unit of work in the next group commit. On return, its changes are durable."""
        self._check_open()
        return await self._writer.submit(work)

    async def read(self, work: Callable[[Transaction], T]) -> T:
        """Run a unit of work on a snapshot."""
        self._check_open()
        return await self._readers.submit(work)

    def _check_open(self) -> None:
        if self._closed:
            raise closed()
        if self._replaced is not None:
            raise damaged(self._replaced)

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` on the event loop after commits. Returns a function that unsubscribes."""
        self._check_open()
        key = object()
        self._listeners[key] = listener
        self._watcher.start()

        def unsubscribe() -> None:
            self._listeners.pop(key, None)
            if not self._listeners:
                self._watcher.pause()

        return unsubscribe

    def _notify(self) -> None:
        for listener in list(self._listeners.values()):
            listener()

    def _notify_soon(self) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._notify)

    async def backup(self, path: Path) -> None:
        """Write a copy of the current state. Replaces `path` only when the copy is complete."""
        self._check_open()
        await self._loop.run_in_executor(None, self._backup, path)

    async def erase(self) -> None:
        """Remove the bytes of deleted rows from the files. Raises Busy."""
        self._check_open()
        async with self._erasing:
            await self._loop.run_in_executor(None, self._erase)

    def _erase(self) -> None:
        try:
            Eraser(self.path).run()
        except apsw.Error as error:
            raise translate_error(error) from error

    async def vacuum(self, pages: int) -> int:
        """Return up to this many free pages to the file system, and how many it was."""

        def work(tx: Transaction) -> int:
            before = tx.one("PRAGMA freelist_count")
            tx.all(f"PRAGMA incremental_vacuum({max(pages, 1)})")
            after = tx.one("PRAGMA freelist_count")
            return int(before[0] - after[0]) if before and after else 0

        return await self.write(work)

    async def check(self) -> None:
        """Check the disk and the database files. Raises Failed on damage or if the disk is full."""
        self._check_open()
        await self._loop.run_in_executor(None, self._check_files)

    def _check_files(self) -> None:
        fault = self._check_identity() or self._log_damage
        if fault is not None:
            raise damaged(fault)
        check_disk(self.path)

    async def close(self) -> None:
        """Finish queued jobs. The last process to close copies the log into the file."""
        if self._closed:
            return
        self._closed = True
        self._listeners.clear()
        await run_in_daemon_thread(self._stop, f"{self._component.name} closing")

    def _stop(self) -> None:
        self._watcher.stop()
        self._readers.stop()
        self._writer.stop()

    # --- on worker threads -----------------------------------------------------------------------

    def _read(self) -> None:
        connection: apsw.Connection | None = None
        while (job := self._readers.jobs.get()) is not None:
            try:
                if connection is None:
                    connection = self._open_reader()
                connection.execute("BEGIN")
                job.run(ReadTransaction(connection, self._pause_s))
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            except apsw.Error as error:
                replaced = self._check_identity()
                job.error = translate_error(error) if replaced is None else damaged(replaced)
            except Failed as error:
                job.error = error
            self._readers.settle([job])
        if connection is not None:
            connection.close()

    def _open_reader(self) -> apsw.Connection:
        """Open a read connection. Raises Failed if its files are not those of the writer."""
        connection = connect(self.path, BusyTimeout(BUSY_S))
        connection.execute("PRAGMA query_only = ON")
        # A connection opens the log and the shared index at its first read.
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        self._identity.record()
        replaced = self._check_identity()
        if replaced is not None:
            connection.close()
            raise damaged(replaced)
        return connection

    def _pause_s(self) -> float:
        return PAUSE_S * self._readers.busy if self._writer.busy else 0.0

    def _write(self) -> None:
        writer: SqliteWriter | None = None
        while (first := self._writer.jobs.get()) is not None:
            jobs = [first]
            with contextlib.suppress(queue.Empty):
                while len(jobs) < MAX_GROUP and (job := self._writer.jobs.get_nowait()) is not None:
                    jobs.append(job)
                if len(jobs) < MAX_GROUP:
                    self._writer.jobs.put(None)  # the end marker: the queue is empty behind it
            wrote = False
            try:
                if writer is None:
                    writer = SqliteWriter(self.path, self._component)
                wrote = writer.commit(jobs)
                if wrote:
                    self._identity.record()
            except apsw.Error as error:
                for job in jobs:
                    job.error = translate_error(error)
            # Checked before any acknowledgement: the changes may be in a removed file.
            replaced = self._check_identity()
            if replaced is not None:
                wrote = False
                for job in jobs:
                    job.error = damaged(replaced)
            self._writer.settle(jobs, self._notify if wrote else None)
            if writer is not None:
                writer.checkpoint()  # after the results are sent, so that no caller waits for it
        if writer is not None:
            writer.close()

    def _check_identity(self) -> str | None:
        """Return which file was removed or replaced, now or earlier. None if unchanged."""
        if self._replaced is None:
            self._replaced = self._identity.find_change()
            if self._replaced is not None:
                logger.error("storage accepts no more changes: %s", self._replaced)
        return self._replaced

    def _backup(self, path: Path) -> None:
        path = path.absolute()
        part = path.with_name(path.name + ".part")
        try:
            if path.exists() and path.samefile(self.path):
                raise Failed(
                    f"Cannot back up to {path}: it is the database itself. Choose another path.",
                    code="same_file",
                )
            part.unlink(missing_ok=True)
            os.close(open_private(part, os.O_RDWR | os.O_EXCL))
            self._copy(part)
            part.replace(path)
            folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise (storage_full if full else storage_failed)(f"{path}: {error.strerror}") from error
        except apsw.Error as error:
            raise translate_error(error) from error
        finally:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)

    def _copy(self, part: Path) -> None:
        source = connect(self.path, BusyTimeout(BUSY_S))
        target = apsw.Connection(str(part), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            # One step over one snapshot: a copy in several steps restarts at every commit.
            with target.backup("main", source, "main") as copy:
                while not copy.done:
                    copy.step(-1)
        finally:
            target.close()
            source.close()


class ChangeWatcher:
    """A thread that calls `notify` after commits of other connections."""

    def __init__(self, path: Path, notify: Callable[[], None], name: str) -> None:
        self._path = path
        self._notify = notify
        self._name = name
        self._active = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start or resume polling. The first call starts the thread."""
        self._active.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def pause(self) -> None:
        """Stop polling until the next start."""
        self._active.clear()

    def stop(self) -> None:
        """Stop and join the thread."""
        self._stopped.set()
        self._active.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        connection: apsw.Connection | None = None
        seen: int | None = None
        while self._active.wait() and not self._stopped.is_set():
            # Errors are temporary, or are reported by reads and writes; here, retry.
            with contextlib.suppress(apsw.Error):
                if connection is None:
                    connection = connect(self._path, BusyTimeout(LOCK_S))
                version = pragma(connection, "data_version")
                if version != seen:
                    seen = version
                    self._notify()
            self._stopped.wait(POLL_S)
        if connection is not None:
            connection.close()
