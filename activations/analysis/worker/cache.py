"""Measurements on disk, by the content of the file and the version of the analysers.

The cache is derived data: a damaged or locked file is not used, and the figures are measured again.
Its size is bounded; the entries that were not used for the longest time are deleted first.
"""

from __future__ import annotations

import time
from contextlib import suppress
from hashlib import blake2b
from typing import Final

import apsw

__all__ = ("MAX_CACHE_BYTES", "Cache")

#: Maximum size of the cache on disk. A measurement of a file has about a kilobyte.
MAX_CACHE_BYTES: Final = 256 * 1024 * 1024
#: The layout of an entry. A change makes all entries unknown.
FORMAT: Final = "4"
#: Bytes of the checksum before each value: a file can be damaged where SQLite does not notice.
CHECK_BYTES: Final = 8
DAY_S: Final = 24 * 3600
BUSY_MS: Final = 2000
_CREATE: Final = (
    "CREATE TABLE IF NOT EXISTS entries"
    " (key BLOB PRIMARY KEY, value BLOB NOT NULL, day INTEGER NOT NULL) WITHOUT ROWID"
)


class Cache:
    """The measurements of earlier analyses. `path` empty: none are kept."""

    def __init__(self, path: str, versions: str) -> None:
        self._versions = versions
        self._today = int(time.time()) // DAY_S
        self._new: dict[bytes, bytes] = {}
        self._used: list[bytes] = []
        self._database: apsw.Connection | None = None
        if path:
            self._database = _open(path)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known, or nothing is kept."""
        if self._database is None:
            return True
        try:
            return self._database.execute("SELECT 1 FROM entries LIMIT 1").fetchone() is None
        except apsw.Error:
            return True

    def get(self, digest: bytes, section: str) -> bytes | None:
        """Return a measurement of a content as JSON, None if it is not known."""
        if self._database is None:
            return None
        key = self._key(digest, section)
        try:
            row = self._database.execute(
                "SELECT value, day FROM entries WHERE key = ?", (key,)
            ).fetchone()
        except apsw.Error:
            return None
        if row is None:
            return None
        check, found = row[0][:CHECK_BYTES], bytes(row[0][CHECK_BYTES:])
        if check != _checksum(found):
            return None
        if row[1] != self._today:
            self._used.append(key)
        return found

    def put(self, digest: bytes, section: str, value: bytes) -> None:
        """Keep a measurement, as JSON, until the next `flush`."""
        if self._database is not None:
            self._new[self._key(digest, section)] = _checksum(value) + value

    def flush(self) -> None:
        """Write the kept measurements in one transaction."""
        if self._database is None or not (self._new or self._used):
            return
        # If the file is full, locked for long or damaged, nothing is lost.
        with suppress(apsw.Error), self._database:
            self._database.executemany(
                "INSERT OR REPLACE INTO entries VALUES (?, ?, ?)",
                [(key, value, self._today) for key, value in self._new.items()],
            )
            self._database.executemany(
                "UPDATE entries SET day = ? WHERE key = ?",
                [(self._today, key) for key in self._used],
            )
        self._new.clear()
        self._used.clear()

    def close(self) -> None:
        """Write what is left, delete old entries past the size, and close the file."""
        if self._database is None:
            return
        self.flush()
        with suppress(apsw.Error):
            self._prune(MAX_CACHE_BYTES)
        self._database.close()
        self._database = None

    def _prune(self, limit: int) -> None:
        """Delete the entries that were used longest ago until a quarter of the size is free."""
        assert self._database is not None
        page: int = self._database.execute("PRAGMA page_size").get
        pages: int = self._database.execute("PRAGMA page_count").get
        free: int = self._database.execute("PRAGMA freelist_count").get
        if (pages - free) * page <= limit:
            return
        total: int = self._database.execute("SELECT count(*) FROM entries").get
        with self._database:
            self._database.execute(
                "DELETE FROM entries WHERE key IN"
                " (SELECT key FROM entries ORDER BY day, key LIMIT ?)",
                (max(total // 4, 1),),
            )

    def _key(self, digest: bytes, section: str) -> bytes:
        whole = b"\0".join((FORMAT.encode(), section.encode(), self._versions.encode(), digest))
        return blake2b(whole, digest_size=20).digest()


def _checksum(value: bytes) -> bytes:
    return blake2b(value, digest_size=CHECK_BYTES).digest()


def _open(path: str) -> apsw.Connection | None:
    try:
        database = apsw.Connection(path)
        database.set_busy_timeout(BUSY_MS)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = OFF")  # lost entries are measured again
        database.execute(_CREATE)
    except apsw.Error:
        return None
    return database
