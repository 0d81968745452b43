"""The write connection: group commit, and checkpoints of the write-ahead log."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import apsw

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
#: How long a checkpoint may wait for readers before it is postponed: this long for every
#: `RESTART_PAGES` in the log, up to a maximum. The longer the log, the more important a restart.
CHECKPOINT_S: Final = 0.05
LONGEST_CHECKPOINT_S: Final = 1.0
#: Growth of the write-ahead log, in pages of 4 KiB, before it is copied into the file, and before
#: a checkpoint waits for readers in order to restart the log.
CHECKPOINT_PAGES: Final = 1_000
RESTART_PAGES: Final = 4_000


class SqliteWriter:
    """The write connection and its transactions."""

    def __init__(self, path: Path) -> None:
        self._timeout = BusyTimeout(BUSY_S)
        self._connection = connect(path, self._timeout)
        self._connection.execute("PRAGMA cache_size = -16384")
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
        waits = max(pages // RESTART_PAGES, 1)
        self._timeout.seconds = min(CHECKPOINT_S * waits, LONGEST_CHECKPOINT_S)
        # Pages that cannot be copied now stay in the log, which is equally durable.
        with contextlib.suppress(apsw.Error):
            self._connection.wal_checkpoint(mode=mode)
        self._timeout.seconds = BUSY_S

    def close(self) -> None:
        self._connection.close()
