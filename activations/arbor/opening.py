"""Opening the store when it is first needed, once, and closing it.

A server that is asked nothing about trees touches no database: it imports none, makes no file
and starts no thread.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from activations.arbor.feed import Announcing, announce
from activations.arbor.model import Retention
from activations.arbor.schema import ARBOR
from activations.arbor.store import Store, open_store
from plexus import Activation, Failed
from plexus.private_files import data_folder
from plexus.storage.engine import is_postgres, sqlite_path

__all__ = ("WRITE", "WithStore", "default_path")

#: The scope of whatever changes a tree.
WRITE = "arbor.write"


def default_path() -> Path:
    """Return where the file is unless the operator chose another place."""
    return data_folder() / "arbor.db"


class WithStore(Activation):
    """What every part of arbor stands on: the store, opened at its first use."""

    def __init__(self, database: str = "", retention: Retention | None = None) -> None:
        """Say where trees are kept, and for how long; nothing is opened yet."""
        self._database = database
        self._retention = retention or Retention()
        self._opened: Store | None = None
        self._opening: asyncio.Lock | None = None
        self._announcing: Announcing | None = None
        self._closed = False

    async def store(self) -> Store:
        """The store; whoever comes first opens it, and the others wait."""
        if self._opened is not None:
            return self._opened
        if self._opening is None:
            self._opening = asyncio.Lock()
        async with self._opening:
            if self._closed:
                raise Failed("the store is closed", code="storage")
            if self._opened is None:
                database = self._database or str(default_path())
                store = await open_store(database, self._retention)
                if self._announces:
                    self._announcing = await announce(store, self.plexus)
                self._opened = store
            return self._opened

    @property
    def _announces(self) -> bool:
        """Whether there is a hub that may be told of changes."""
        return hasattr(self, "plexus")

    def is_empty(self) -> bool:
        """Whether it is known, without opening anything, that there are no trees: there is no
        file yet."""
        if self._opened is not None or is_postgres(self._database):
            return False
        return not self._path().exists()

    def place(self) -> str:
        """Where trees are kept, without anything secret."""
        if is_postgres(self._database):
            _, _, where = self._database.partition("://")
            where = where.rpartition("@")[2].partition("?")[0]
            return f"postgresql {where}, schema {ARBOR.version}"
        return f"sqlite {self._path()}, schema {ARBOR.version}"

    def size(self) -> int | None:
        """Bytes of the file and its log; None if none is open, or trees are kept elsewhere."""
        if self._opened is None or is_postgres(self._database):
            return None
        path = self._path()
        files = (path, path.with_name(path.name + "-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    def _path(self) -> Path:
        return sqlite_path(self._database or str(default_path()))

    async def close(self) -> None:
        """Give the store back; it is not opened again."""
        self._closed = True
        if self._opening is None:
            return
        async with self._opening:
            store, self._opened = self._opened, None
            if self._announcing is not None:
                await self._announcing.stop()
            if store is not None:
                await store.close()
