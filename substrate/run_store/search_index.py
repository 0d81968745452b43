"""An index of the words of recorded output: which runs of a principal have all of some words.

On SQLite the index has its own file, with its own write lock, so that it never delays recording. On
PostgreSQL its tables are in the database of the runs. It is derived data: a corrupt file is set
aside, and an empty index takes its place. Its `identity` shows that: it is different then.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from plexus.errors import Failed, PlexusError
from plexus.storage import Engine, Transaction, open_engine
from plexus.storage.engine import is_postgres, sqlite_path
from plexus.storage.sqlite.corrupt_files import set_aside
from plexus.storage.sqlite.file_checks import FileId, file_id
from substrate.run_store.search_queries import (
    SEARCH_INDEX,
    Hit,
    Posting,
    add_run,
    delete_runs,
    get_identity,
    read_size,
    search_runs,
)
from substrate.run_store.search_words import PROJECT, word_hasher, words_of

__all__ = ("Entry", "Hit", "IndexSize", "SearchIndex", "words_of")

T = TypeVar("T")

logger = logging.getLogger("substrate.run_store")

#: The words that one transaction adds or deletes, about 50 ms.
TRANSACTION_WORDS: Final = 10_000
#: The pages that one transaction returns to the file system.
VACUUM_PAGES: Final = 500
#: The words of a search; further ones are ignored.
SEARCH_WORDS: Final = 16

CORRUPT: Final = "storage_corrupt"
#: Another process has set the file aside, or it was removed.
REPLACED: Final = "storage_damaged"


class Entry(NamedTuple):
    """A text of a run: a chunk of its output, or its summary and arguments with `from_seq` 0."""

    run: int
    from_seq: int
    started_ms: int
    principal: str
    project: str
    text: str


class IndexSize(NamedTuple):
    """The size of an index."""

    runs: int
    #: The different words of each run, added up.
    words: int
    bytes: int


class SearchIndex:
    """The open index of a database. Create it with `SearchIndex.open`."""

    def __init__(self, database: str, engine: Engine, identity: str, file: FileId | None) -> None:
        self._database = database
        self._engine = engine
        self._file = file
        self._reopening = asyncio.Lock()
        #: A random name of this index. An index with another name has to be filled again.
        self.identity = identity

    @classmethod
    async def open(cls, database: str) -> SearchIndex:
        """Open or create the index of a database, given as a path or URL. Raises Failed."""
        engine, identity, file = await _open(database)
        return cls(database, engine, identity, file)

    async def close(self) -> None:
        """Close the database."""
        async with self._reopening:
            await self._engine.close()

    async def add(self, entries: Sequence[Entry]) -> None:
        """Add the words of these texts to their runs.

        The chunks of a run are added in order. Adding a text again has no effect.
        """
        postings = await asyncio.to_thread(_postings, entries)
        for group in _groups(postings):
            await self._write(functools.partial(_add, group))

    async def search(
        self,
        words: Sequence[str],
        principal: str,
        project: str | None,
        limit: int,
        before: tuple[int, int] | None = None,
    ) -> list[Hit]:
        """Return the runs of a principal, or of one of its projects, that have all words.

        The newest run is the first. `before` is the start time and the run of the last hit of the
        previous page. Words are compared whole, without case; a text of several words counts as
        all of them. Without any word nothing is found.
        """
        number = word_hasher(principal)
        wanted = sorted(set().union(*map(words_of, words)))[:SEARCH_WORDS]
        if not wanted or limit < 1:
            return []
        numbers = [number(word) for word in wanted]
        of_project = None if project is None else number(PROJECT + project)

        def work(tx: Transaction) -> list[Hit]:
            return search_runs(tx, numbers, of_project, limit, before)

        return await self._run(lambda engine: engine.read(work))

    async def delete(self, runs: Collection[int]) -> None:
        """Delete runs. On return, none of their words is in the files, except words of other runs.

        Raises Busy if other processes prevent the last step, which any later call repeats.
        """
        left = list(runs)
        while left:
            done = await self._write(functools.partial(_delete, left))
            left = left[done:]
        while await self._run(lambda engine: engine.vacuum(VACUUM_PAGES)):
            pass
        await self._run(lambda engine: engine.erase())

    async def size(self) -> IndexSize:
        """Return the size of the index."""
        return IndexSize(*await self._run(lambda engine: engine.read(read_size)))

    async def _write(self, work: Callable[[Transaction], T]) -> T:
        return await self._run(lambda engine: engine.write(work))

    async def _run(self, operation: Callable[[Engine], Awaitable[T]]) -> T:
        """Run an operation. If the file is corrupt or was replaced, run it on a new one."""
        engine = self._engine
        try:
            return await operation(engine)
        except Failed as error:
            if is_postgres(self._database) or error.code not in (CORRUPT, REPLACED):
                raise
            await self._reopen(engine, error.code)
        return await operation(self._engine)

    async def _reopen(self, engine: Engine, code: str) -> None:
        async with self._reopening:
            if self._engine is not engine:
                return  # another call has done it
            with contextlib.suppress(PlexusError):
                await engine.close()
            if code == CORRUPT:
                await _set_aside(sqlite_path(self._database), self._file)
            self._engine, self.identity, self._file = await _open(self._database)


async def _open(database: str) -> tuple[Engine, str, FileId | None]:
    """Open a database. Returns the engine, the identity of the index, and the id of its file."""
    new = secrets.token_hex(8)
    if is_postgres(database):
        engine = await open_engine(database, SEARCH_INDEX)
        return engine, await engine.write(lambda tx: get_identity(tx, new)), None
    path = sqlite_path(database)
    for attempt in itertools.count():
        found = await asyncio.to_thread(file_id, path)
        try:
            engine = await open_engine(database, SEARCH_INDEX)
            identity = await engine.write(lambda tx: get_identity(tx, new))
        except Failed as error:
            if error.code not in (CORRUPT, REPLACED) or attempt:
                raise
            await _set_aside(path, found)
        else:
            return engine, identity, await asyncio.to_thread(file_id, path)
    raise AssertionError  # the second attempt is the last


async def _set_aside(path: Path, found: FileId | None) -> None:
    aside = await asyncio.to_thread(set_aside, path, found)
    if aside is not None:
        logger.warning(
            "the search index was corrupt and is empty now; the corrupt file is %s", aside
        )


def _postings(entries: Sequence[Entry]) -> list[Posting]:
    """Split the texts into words."""
    postings = []
    for entry in entries:
        number = word_hasher(entry.principal)
        words = {number(word) for word in words_of(entry.text)}
        words.add(number(PROJECT + entry.project))
        postings.append(Posting(entry.run, entry.from_seq, entry.started_ms, words))
    return postings


def _add(group: Sequence[Posting], tx: Transaction) -> None:
    for posting in group:
        add_run(tx, posting)


def _delete(runs: Sequence[int], tx: Transaction) -> int:
    return delete_runs(tx, runs, TRANSACTION_WORDS)


def _groups(postings: Sequence[Posting]) -> Iterator[list[Posting]]:
    """Yield groups of postings, each for one transaction."""
    group: list[Posting] = []
    size = 0
    for posting in postings:
        if group and size + len(posting.words) > TRANSACTION_WORDS:
            yield group
            group, size = [], 0
        group.append(posting)
        size += len(posting.words)
    if group:
        yield group
