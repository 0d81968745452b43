"""The write connection: group commit, and checkpoints of the write-ahead log."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import apsw

from plexus.storage.engine import Component
from plexus.storage.sqlite.file import (
    BUSY_S,
    BusyTimeout,
    SqliteTransaction,
    connect,
    translate_error,
)
from plexus.storage.sqlite.workers import Job

__all__ = ("MAX_GROUP", "SqliteWriter")

#: Maximum number of jobs that one transaction commits.
MAX_GROUP: Final = 256
#: Growth of the write-ahead log, in pages of 4 KiB, before it is copied into the file, and before
#: a checkpoint waits for readers and other writers in order to restart the log.
CHECKPOINT_PAGES: Final = 1_000
RESTART_PAGES: Final = 4_000
#: Past this length (32 MiB) a writer does not write again before the log is restarted or the time
#: is over. Several processes that write as fast as they can would otherwise postpone the restart
#: indefinitely: only one can perform it, and only while no other writes.
LIMIT_PAGES: Final = 8_000
#: How long a checkpoint may wait before it is postponed until the log has grown again.
CHECKPOINT_S: Final = 0.05
LIMIT_S: Final = 2.0
#: The pause before the next attempt, while another process performs a checkpoint.
PAUSE_S: Final = 0.002
#: The file of the log is cut to this size when the log is restarted.
LOG_BYTES: Final = 16 * 1024 * 1024


#: Maximum memory for pages. A component with normal durability writes much and reads little.
CACHE_KIB: Final = 16_384
SMALL_CACHE_KIB: Final = 2_048


class SqliteWriter:
    """The write connection and its transactions."""

    def __init__(self, path: Path, component: Component) -> None:
        self._timeout = BusyTimeout(BUSY_S)
        self._connection = connect(path, self._timeout)
        cache_kib = SMALL_CACHE_KIB if component.durability == "normal" else CACHE_KIB
        self._connection.execute(f"PRAGMA cache_size = -{cache_kib}")
        self._connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}").fetchall()
        if component.durability == "normal":
            self._connection.execute("PRAGMA synchronous = NORMAL")
        if component.erases:
            self._connection.execute("PRAGMA secure_delete = ON").fetchall()
        self._connection.set_wal_hook(self._committed)
        self._transaction = SqliteTransaction(self._connection)
        self._log_pages = 0
        #: The length of the log at the last checkpoint. If readers blocked that checkpoint,
        #: retrying after every commit would only delay writers.
        self._checkpointed_pages = 0

    def _committed(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        self._log_pages = pages
        return apsw.SQLITE_OK

    def commit(self, jobs: Sequence[Job]) -> bool:
        """Commit all jobs together; if a job fails, commit each job separately.

        Returns whether anything was committed.
        """
        if not self._begin(jobs):
            return False
        if self._end(jobs):
            return True
        if len(jobs) == 1:
            return False
        # Queries validate before they write, so this is rare: a full disk or a defect.
        wrote = False
        for job in jobs:
            if self._begin([job]) and self._end([job]):
                wrote = True
        return wrote

    def _begin(self, jobs: Sequence[Job]) -> bool:
        """Acquire the write lock. Returns whether that succeeded."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except apsw.Error as error:
            for job in jobs:
                job.error = translate_error(error)
            return False
        return True

    def _end(self, jobs: Sequence[Job]) -> bool:
        """Run and commit the jobs. Returns False if all were rolled back.

        A job that fails before it writes needs no rollback.
        """
        connection = self._connection
        try:
            for job in jobs:
                before = connection.total_changes()
                if not job.run(self._transaction) and (
                    connection.total_changes() != before or not connection.in_transaction
                ):
                    return False
            connection.execute("COMMIT")
        except apsw.Error as error:
            for job in jobs:
                job.error = translate_error(error)
            return False
        finally:
            if connection.in_transaction:  # some errors roll back automatically
                connection.execute("ROLLBACK")
        return True

    def checkpoint(self) -> None:
        """Copy the log into the file if it has grown enough."""
        pages, self._log_pages = self._log_pages, 0
        if 0 < pages < self._checkpointed_pages:
            self._checkpointed_pages = 0  # the log was restarted
        if pages < self._checkpointed_pages + CHECKPOINT_PAGES:
            return
        mode = apsw.SQLITE_CHECKPOINT_PASSIVE
        if pages // RESTART_PAGES > self._checkpointed_pages // RESTART_PAGES:
            mode = apsw.SQLITE_CHECKPOINT_RESTART
        self._checkpointed_pages = pages
        self._timeout.seconds = CHECKPOINT_S if pages < LIMIT_PAGES else LIMIT_S
        # Pages that cannot be copied now stay in the log, which is equally durable.
        with contextlib.suppress(apsw.Error):
            if pages < LIMIT_PAGES:
                self._connection.wal_checkpoint(mode=mode)
            else:
                self._restart_log()
        self._timeout.seconds = BUSY_S

    def _restart_log(self) -> None:
        """Restart the log, or wait until another process has done it."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            try:
                # Copies nothing, only returns the number of pages.
                pages, _ = self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
                if pages >= LIMIT_PAGES:
                    self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
            except apsw.BusyError:
                # Another process performs a checkpoint; SQLite does not wait for that.
                time.sleep(PAUSE_S)
            else:
                return

    def close(self) -> None:
        self._connection.close()
