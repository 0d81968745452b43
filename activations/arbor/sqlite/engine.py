"""The engine as its callers see it, and what its threads do."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import queue
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import apsw

from activations.arbor.disk_space import check_disk
from activations.arbor.engine import Transaction, damaged, storage_failed, storage_full
from activations.arbor.sqlite.ear import Ear
from activations.arbor.sqlite.file import BUSY_S, Patience, connect, fault_of, make_file, migrate
from activations.arbor.sqlite.file_identity import FileIdentity
from activations.arbor.sqlite.jobs import ReadTransaction, Threads
from activations.arbor.sqlite.writer import GROUP, Writer
from plexus.errors import Failed
from plexus.private_files import data_folder, open_private

__all__ = ("SqliteEngine", "default_path", "open_engine")

T = TypeVar("T")

logger = logging.getLogger("activations.arbor")

READERS: Final = 4
#: How long each of the readers pauses for each of them while somebody writes.
PAUSE_S: Final = 0.00025


def default_path() -> Path:
    """Where the file is unless somebody says otherwise."""
    return data_folder() / "arbor.db"


def _path_of(database: str) -> Path:
    name = database.removeprefix("sqlite:///")
    return Path(name).expanduser().absolute() if name else default_path()


async def open_engine(database: str) -> SqliteEngine:
    """Open the file, make or migrate it, and be ready."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(None, SqliteEngine, _path_of(database), loop)


class SqliteEngine:
    """One file, open."""

    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop) -> None:
        self.path = path
        self._loop = loop
        self._rings: dict[object, Callable[[], None]] = {}
        self._writer = Threads(loop, self._write, 1)
        self._readers = Threads(loop, self._read, READERS)
        self._ear = Ear(path, self._ring_soon)
        self._closed = False
        self._identity = FileIdentity(path)
        #: What happened to the files from outside, before they were opened and since.
        self._left_damaged: str | None = None
        self._replaced: str | None = None
        make_file(path)
        try:
            self._left_damaged = migrate(path)
        except apsw.Error as error:
            raise fault_of(error) from error
        except OSError as error:
            raise storage_failed(f"{path}: {error.strerror}") from error
        if self._left_damaged is not None:
            logger.error("the store has lost changes: %s", self._left_damaged)

    async def write(self, work: Callable[[Transaction], T]) -> T:
        """Run the work in the next group; it is on the disk when this returns."""
        self._check_open()
        return await self._writer.submit(work)

    async def read(self, work: Callable[[Transaction], T]) -> T:
        """Run the work over a snapshot."""
        self._check_open()
        return await self._readers.submit(work)

    def _check_open(self) -> None:
        if self._closed:
            raise Failed("the store is closed", code="storage_closed")
        if self._replaced is not None:
            raise damaged(self._replaced)

    def subscribe(self, ring: Callable[[], None]) -> Callable[[], None]:
        """Call `ring` after commits, here or elsewhere; returns what ends it."""
        self._check_open()
        key = object()
        self._rings[key] = ring
        self._ear.listen()

        def end() -> None:
            self._rings.pop(key, None)
            if not self._rings:
                self._ear.rest()

        return end

    def _ring(self) -> None:
        for ring in list(self._rings.values()):
            ring()

    def _ring_soon(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._ring)

    async def backup(self, path: Path) -> None:
        """Copy the file as it is now; what was at `path` is replaced once the copy is whole."""
        self._check_open()
        await self._loop.run_in_executor(None, self._backup, path)

    async def check(self) -> None:
        """Look at the disk and the files. Raises Failed if they are not well."""
        self._check_open()
        await self._loop.run_in_executor(None, self._check_files)

    def _check_files(self) -> None:
        fault = self._look() or self._left_damaged
        if fault is not None:
            raise damaged(fault)
        check_disk(self.path)

    async def close(self) -> None:
        """Finish what waits; the last process to leave puts the log into the file."""
        if self._closed:
            return
        self._closed = True
        self._rings.clear()
        await self._loop.run_in_executor(None, self._finish)

    def _finish(self) -> None:
        self._ear.finish()
        self._readers.finish()
        self._writer.finish()

    # --- on the threads --------------------------------------------------------------------------

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
                replaced = self._look()
                job.error = fault_of(error) if replaced is None else damaged(replaced)
            except Failed as error:
                job.error = error
            self._readers.settle([job])
        if connection is not None:
            connection.close()

    def _open_reader(self) -> apsw.Connection:
        """Open a connection that reads. Raises Failed if it would read other files than those
        that the writer writes."""
        connection = connect(self.path, Patience(BUSY_S))
        connection.execute("PRAGMA query_only = ON")
        # From its first read on, a connection keeps the log and the index open.
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        self._identity.note()
        replaced = self._look()
        if replaced is not None:
            connection.close()
            raise damaged(replaced)
        return connection

    def _pause_s(self) -> float:
        return PAUSE_S * self._readers.busy if self._writer.busy else 0.0

    def _write(self) -> None:
        writer: Writer | None = None
        while (first := self._writer.jobs.get()) is not None:
            jobs = [first]
            with contextlib.suppress(queue.Empty):
                while len(jobs) < GROUP and (job := self._writer.jobs.get_nowait()) is not None:
                    jobs.append(job)
                if len(jobs) < GROUP:
                    self._writer.jobs.put(None)  # the end; there is nothing behind it
            wrote = False
            try:
                if writer is None:
                    writer = Writer(self.path)
                wrote = writer.commit(jobs)
                if wrote:
                    self._identity.note()
            except apsw.Error as error:
                for job in jobs:
                    job.error = fault_of(error)
            # Before anything is acknowledged: what was just written may be in a removed file.
            replaced = self._look()
            if replaced is not None:
                wrote = False
                for job in jobs:
                    job.error = damaged(replaced)
            self._writer.settle(jobs, self._ring if wrote else None)
            if writer is not None:
                writer.tidy()  # after the callers were told, so that nobody waits for it
        if writer is not None:
            writer.close()

    def _look(self) -> str | None:
        """Return which file was removed or replaced under us, now or before."""
        if self._replaced is None:
            self._replaced = self._identity.fault()
            if self._replaced is not None:
                logger.error("the store takes no more changes: %s", self._replaced)
        return self._replaced

    def _backup(self, path: Path) -> None:
        path = path.absolute()
        part = path.with_name(path.name + ".part")
        try:
            if path.exists() and path.samefile(self.path):
                raise Failed("a backup cannot take the place of the store itself", code="same_file")
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
            raise fault_of(error) from error
        finally:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)

    def _copy(self, part: Path) -> None:
        source = connect(self.path, Patience(BUSY_S))
        target = apsw.Connection(str(part), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            # In one step, over one snapshot: a copy in several begins anew at every commit.
            with target.backup("main", source, "main") as copy:
                while not copy.done:
                    copy.step(-1)
        finally:
            target.close()
            source.close()
