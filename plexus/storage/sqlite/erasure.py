"""Erasure: remove the bytes of deleted rows from the files of a database.

With `secure_delete` SQLite overwrites deleted rows and freed pages with zeros. Two places remain:

- The write-ahead log keeps earlier versions of pages until it is truncated.
- When SQLite moves rows to a neighbour page, it leaves a copy of them in the page that they came
  from, in the unused gap between the cell pointers and the cells. The copy outlives the row: a
  later deletion overwrites only the row itself.

SQLite has no statement that clears the gaps, except VACUUM, which locks the file for as long as it
takes to copy it. They are therefore cleared directly in the file, a bounded number of pages at a
time. This is safe because of the state in which it is done, and stays effective:

- A step has the write lock, and the log is empty. No process writes the database file meanwhile:
  writers wait, and a checkpoint has nothing to copy. There is no earlier version of a page in the
  log either.
- Only bytes that SQLite never interprets are written, so that readers are not affected, and a crash
  at any time leaves a valid file.
- A step ends with a commit. It makes every other connection discard the pages that it has cached,
  with gaps that are not cleared.

The file is accessed through SQLite: closing a file descriptor of any other origin would release the
locks of this process.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import apsw

from plexus.storage.sqlite.file import (
    APPLICATION_ID,
    BUSY_S,
    OPEN_S,
    BusyTimeout,
    connect,
    pragma,
)

__all__ = ("DatabaseLayout", "Eraser", "unused_ranges")

#: The pages that one step clears while it has the write lock, a few milliseconds.
STEP_PAGES: Final = 256
#: The bytes that are read at a time, of which SQLite allows 128 KiB.
READ_BYTES: Final = 64 * 1024
#: How long one attempt to truncate the log waits for readers. Writers wait meanwhile.
ATTEMPT_S: Final = 0.02
#: The pause between two attempts, in which other writers work.
PAUSE_S: Final = 0.005
#: Scans of a file that another process shortens meanwhile, which moves pages.
MAX_SCANS: Final = 3

#: The file format: the page that SQLite uses for locks, and the types of pages.
LOCK_BYTE: Final = 0x40000000
HEADER_BYTES: Final = 100
INTERIOR: Final = frozenset({2, 5})
LEAVES: Final = frozenset({10, 13})
#: The types in the pointer map: the root of a b-tree, and its other pages.
ROOT_PAGE: Final = 1
TREE_PAGE: Final = 5
MAP_ENTRY_BYTES: Final = 5


def unused_ranges(page: bytes, usable: int) -> list[tuple[int, int]] | None:
    """Return the unused ranges of a b-tree page that are not zero, None if it is not valid.

    Does not apply to the first page, which begins with the header of the file.
    """
    kind, free, cells, content, fragments = struct.unpack_from(">BHHHB", page)
    if kind not in INTERIOR and kind not in LEAVES:
        return None
    content = content or 65536
    start = (12 if kind in INTERIOR else 8) + 2 * cells
    if not start <= content <= usable or fragments > 60:
        return None
    ranges = [(start, content)]
    while free:
        if not content <= free <= usable - 4:
            return None
        following, size = struct.unpack_from(">HH", page, free)
        if size < 4 or free + size > usable or (following and following < free + size):
            return None
        ranges.append((free + 4, free + size))
        free = following
    return [(first, last) for first, last in ranges if page.count(0, first, last) < last - first]


class DatabaseLayout:
    """The positions of b-tree pages in a file with `auto_vacuum`, by its pointer map."""

    def __init__(self, file: apsw.VFSFile) -> None:
        header = file.xRead(HEADER_BYTES, 0)
        size = int.from_bytes(header[16:18])
        self._file = file
        self.page_bytes = 65536 if size == 1 else size
        self.usable = self.page_bytes - header[20]
        self._lock_page = LOCK_BYTE // self.page_bytes + 1
        #: The pages of a group: one page of the pointer map, and those that it describes.
        self.group = self.usable // MAP_ENTRY_BYTES + 1

    @property
    def pages(self) -> int:
        """The current number of pages."""
        return self._file.xFileSize() // self.page_bytes

    def groups(self) -> range:
        """Return the first page of each group, last group first."""
        return range(2, self.pages + 1, self.group)[::-1]

    def tree_pages(self, first: int) -> list[int]:
        """Return the pages of b-trees in a group, last page first."""
        map_page = first + (first == self._lock_page)
        last = min(first + self.group - 1, self.pages)
        if map_page > last:
            return []
        types = self.read(map_page)[: MAP_ENTRY_BYTES * (last - map_page) : MAP_ENTRY_BYTES]
        return [
            map_page + offset
            for offset in range(len(types), 0, -1)
            if types[offset - 1] in (ROOT_PAGE, TREE_PAGE) and map_page + offset != self._lock_page
        ]

    def read(self, page: int) -> bytes:
        """Return the bytes of a page."""
        return self._file.xRead(self.page_bytes, (page - 1) * self.page_bytes)

    def dirty_pages(self, first: int) -> Iterator[int]:
        """Yield the pages of a group with unused ranges that are not zero, last page first."""
        start, block = 0, b""
        for page in self.tree_pages(first):
            offset = (page - 1) * self.page_bytes
            if not start <= offset < start + len(block):
                start = max(offset + self.page_bytes - READ_BYTES, 0)
                block = self._file.xRead(offset + self.page_bytes - start, start)
            content = block[offset - start : offset - start + self.page_bytes]
            if len(content) == self.page_bytes and unused_ranges(content, self.usable):
                yield page

    def clear(self, page: int) -> None:
        """Overwrite the unused ranges of a page with zeros."""
        offset = (page - 1) * self.page_bytes
        for first, last in unused_ranges(self.read(page), self.usable) or ():
            self._file.xWrite(bytes(last - first), offset + first)


class Eraser:
    """Removes the bytes of deleted rows from a database, its log and its shared index.

    Used on one thread, and closed by `run`. Other connections can be open, in any process.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log = path.with_name(path.name + "-wal")
        self._timeout = BusyTimeout(ATTEMPT_S)
        self._connection = connect(path, self._timeout)
        # A checkpoint is durable nevertheless; the commit of a step contains nothing to be lost.
        self._connection.execute("PRAGMA synchronous = NORMAL")
        # A connection opens the log at its first read; before that, a checkpoint does nothing.
        self._connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()

    def run(self) -> None:
        """Erase. Raises BusyError if another process has the log in use for the timeout."""
        with contextlib.closing(self._connection):
            self._truncate_log()
            if not pragma(self._connection, "auto_vacuum"):
                self._copy_file()
            else:
                flags = apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READWRITE
                file = apsw.VFSFile("", str(self._path), [flags, 0])
                try:
                    self._clear_file(file)
                finally:
                    file.xClose()
            self._truncate_log()

    def _clear_file(self, file: apsw.VFSFile) -> None:
        layout = DatabaseLayout(file)
        for _ in range(MAX_SCANS):
            before = layout.pages
            # Last page first: if the file is shortened meanwhile, its last pages move to the front.
            for group in layout.groups():
                dirty = list(layout.dirty_pages(group))
                for first in range(0, len(dirty), STEP_PAGES):
                    self._clear_pages(layout, group, dirty[first : first + STEP_PAGES])
            if layout.pages >= before:
                break
        file.xSync(apsw.SQLITE_SYNC_NORMAL)

    def _clear_pages(self, layout: DatabaseLayout, group: int, pages: Sequence[int]) -> None:
        """Clear pages, with the write lock and an empty log."""
        self._lock_with_empty_log()
        try:
            # Pages may have been freed since they were found.
            for page in set(pages).intersection(layout.tree_pages(group)):
                layout.clear(page)
            self._connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            self._connection.execute("COMMIT")
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def _lock_with_empty_log(self) -> None:
        deadline = time.monotonic() + BUSY_S
        while True:
            self._truncate_log()
            with contextlib.suppress(apsw.BusyError):
                self._connection.execute("BEGIN IMMEDIATE")
                if not self._log.stat().st_size:
                    return
                self._connection.execute("ROLLBACK")  # another writer was first
            if time.monotonic() > deadline:
                raise apsw.BusyError("the write-ahead log is in use")
            time.sleep(PAUSE_S)

    def _truncate_log(self) -> None:
        """Copy the log into the file and truncate it."""
        deadline = time.monotonic() + BUSY_S
        while True:
            try:
                # Copies the most without the write lock.
                self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
                self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            except apsw.BusyError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(PAUSE_S)
            else:
                return

    def _copy_file(self) -> None:
        """Copy all rows, which also enables `auto_vacuum` for the next time.

        Only for a file that a component without erasure has created: writers wait until it is done.
        """
        self._timeout.seconds = OPEN_S
        self._connection.execute("PRAGMA auto_vacuum = INCREMENTAL; VACUUM")
        self._timeout.seconds = ATTEMPT_S
