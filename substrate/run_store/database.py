"""The database of the run store, which is replaced if its files are corrupt or gone.

A corrupt file is set aside under another name, and a new one is begun: recording matters more than
access to a history that cannot be read. Processes that share the file notice that it was replaced,
and open the new one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from pathlib import Path
from typing import Final, TypeAlias

from plexus.errors import Failed, PlexusError
from plexus.storage.engine import Engine, is_postgres, open_engine, sqlite_path
from plexus.storage.sqlite.corrupt_files import set_aside
from plexus.storage.sqlite.file_checks import FileId, file_id
from substrate.run_store.schema import RUNS

__all__ = ("RunDatabase",)

logger = logging.getLogger("substrate.run_store")

#: Seconds between two replacements: a new database that is damaged as well is no help.
REPLACE_S: Final = 60.0
#: Codes of errors after which a SQLite database is opened again: it is corrupt and is set aside,
#: or its files were removed or replaced.
CORRUPT: Final = "storage_corrupt"
REPLACED: Final = "storage_damaged"
#: Seconds after which a change of the files is visible to readers, on a busy machine as well, the
#: list of runs was read since, and another change has another time.
SETTLED_S: Final = 2.0

#: The inode, the size and the time of the change of each file.
FileState: TypeAlias = tuple[tuple[int, int, int], ...]


class RunDatabase:
    """Opens the engine of the run store, and opens it again."""

    def __init__(self, database: str) -> None:
        self._database = database
        self.is_postgres: Final = is_postgres(database)
        self._engine: Engine | None = None
        self._file: FileId | None = None
        self._replacing = asyncio.Lock()
        self._replaced_at = -REPLACE_S

    @property
    def path(self) -> Path:
        """The file of a SQLite database."""
        return sqlite_path(self._database).absolute()

    @property
    def is_open(self) -> bool:
        """Whether there is an engine."""
        return self._engine is not None

    @property
    def engine(self) -> Engine:
        """The open database. Raises Failed if there is none."""
        if self._engine is None:
            raise Failed("The run store is not available.", code="storage_closed")
        return self._engine

    def settled_state(self) -> FileState | None:
        """Return the state of the files of SQLite, which differs after every commit.

        Returns None if it is unknown, or if a read may not find the last change yet.
        """
        if self.is_postgres:
            return None
        path = self.path
        try:
            found = [os.stat(each) for each in (path, f"{path}-wal")]  # noqa: PTH116 - is polled
        except OSError:
            return None
        if time.time() - max(each.st_mtime for each in found) < SETTLED_S:
            return None
        return tuple((each.st_ino, each.st_size, each.st_mtime_ns) for each in found)

    async def open(self) -> Engine:
        """Open the database. Raises PlexusError."""
        self._engine = await self._open()
        return self._engine

    def detach(self) -> Engine | None:
        """Return the engine to its last user, who closes it."""
        engine, self._engine = self._engine, None
        return engine

    async def replace(self, error: PlexusError, failed: Engine) -> bool:
        """Open the database again if its files are corrupt or gone. Returns whether it was opened.

        `failed` is the engine that has raised the error. The caller closes it if it is replaced.
        """
        if self.is_postgres or error.code not in (CORRUPT, REPLACED):
            return False
        async with self._replacing:
            if self._engine is not failed:
                return self._engine is not None
            if time.monotonic() - self._replaced_at < REPLACE_S:
                return False
            self._replaced_at = time.monotonic()
            if error.code == CORRUPT:
                await self._set_aside(self._file, error)
            else:
                logger.warning("the run store was removed or replaced, and is opened again")
            self._engine = await self._open()
        return True

    async def _open(self) -> Engine:
        if self.is_postgres:
            return await open_engine(self._database, RUNS)
        found = file_id(self.path)
        try:
            engine = await open_engine(self._database, RUNS)
        except Failed as error:
            if error.code != CORRUPT:
                raise
            await self._set_aside(found, error)
            engine = await open_engine(self._database, RUNS)
        self._file = file_id(self.path)
        return engine

    async def _set_aside(self, found: FileId | None, error: PlexusError) -> None:
        """Rename the corrupt file. The other processes use the new one from then on."""
        try:
            await asyncio.to_thread(set_aside, self.path, found)
        except OSError as failure:
            raise Failed(
                f"{error.message} It cannot be renamed: {failure}", code=error.code
            ) from error
