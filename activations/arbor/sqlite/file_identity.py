"""Whether the files that are open are still those at the store's path.

SQLite does not look: after the database, its log or its shared index was removed or replaced, it
keeps using the files that it has open. Commits then succeed, and are gone when the last process
closes them.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ("FileIdentity",)


class FileIdentity:
    """The device and inode of each file of a store, as they were when it was first used."""

    def __init__(self, path: Path) -> None:
        self._paths = [path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm")]
        self._known: dict[Path, tuple[int, int]] = {}

    def note(self) -> None:
        """Take the files as they are now for the right ones, once.

        To be called while a connection has all of them open: before that SQLite creates and
        removes the log and the index by itself.
        """
        if len(self._known) < len(self._paths):
            for path in self._paths:
                found = _identity(path)
                if found is not None:
                    self._known.setdefault(path, found)

    def fault(self) -> str | None:
        """Return what was removed or replaced since, None if nothing was."""
        for path, known in list(self._known.items()):
            found = _identity(path)
            if found != known:
                return f"{path} was {'removed' if found is None else 'replaced'}"
        return None


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
