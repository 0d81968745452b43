"""Finds old files and asks a person before it deletes each batch of them.

    substrate --activation examples/cleaner.py call cleaner.clean --older-than-days 30

Only what is inside one folder is looked at: that of CLEANER_FOLDER, or the current one.
"""

from __future__ import annotations

import asyncio
import fnmatch
import os
import stat
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

from plexus import (
    Activation,
    Complete,
    Confirm,
    Context,
    Declined,
    Denied,
    Event,
    NotFound,
    Progress,
    method,
)
from plexus.errors import TooBig

__all__ = ("Cleaner",)

DAY_S = 24 * 3600.0
#: How many files of a batch a question names.
NAMED = 10
#: How many files are looked at before it is given up.
MOST_FILES = 100_000


class OldFile(NamedTuple):
    """A file as it was when it was found."""

    path: Path
    size: int
    modified_ns: int
    inode: int


class Found(Event):
    """How much there is to delete."""

    files: int
    bytes_: int

    def as_text(self) -> str:
        return f"{self.files} old files, {_size(self.bytes_)}\n"


class Deleted(Event):
    """One file that is gone."""

    path: str

    def as_text(self) -> str:
        return f"deleted {self.path}\n"


class Kept(Event):
    """One file that was left, and why."""

    path: str
    reason: str

    def as_text(self) -> str:
        return f"kept {self.path}: {self.reason}\n"


class Cleaned(Complete):
    """What came of it."""

    deleted: int
    kept: int
    freed_bytes: int

    def as_text(self) -> str:
        return f"{self.deleted} deleted, {self.kept} kept, {_size(self.freed_bytes)} freed"


class Cleaner(Activation):
    """Deletes old files of one folder, if a person agrees."""

    namespace = "cleaner"
    version = "1.0.0"
    scope = "cleaner"

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = (folder or Path(os.environ.get("CLEANER_FOLDER", "."))).resolve()

    @method(read_only=True, open_world=False)
    async def find(
        self, folder: str = ".", older_than_days: float = 30.0, pattern: str = "*"
    ) -> list[str]:
        """The files that `clean` would ask about, the oldest first.

        Args:
            folder: Where to look, inside the folder that is cleaned.
            older_than_days: For how long they must not have been changed.
            pattern: What their names must be like, as in *.log.
        """
        old = await asyncio.to_thread(self._old, folder, older_than_days, pattern)
        return [self._shown(file) for file in old]

    # A person may take their time for each batch; each question has a limit of its own.
    @method(destructive=True, open_world=False, scope="cleaner.delete", deadline_s=None)
    async def clean(
        self,
        folder: str = ".",
        older_than_days: float = 30.0,
        pattern: str = "*",
        batch: int = 20,
        *,
        ctx: Context,
    ) -> AsyncIterator[Found | Deleted | Kept | Progress | Cleaned]:
        """Delete old files, the oldest first. A person is asked before each batch; what they do
        not agree to is kept, and if they decline to answer, nothing more is deleted.

        Args:
            folder: Where to look, inside the folder that is cleaned.
            older_than_days: For how long they must not have been changed.
            pattern: What their names must be like, as in *.log.
            batch: How many to ask about at once.
        """
        old = await asyncio.to_thread(self._old, folder, older_than_days, pattern)
        yield Found(files=len(old), bytes_=sum(file.size for file in old))
        deleted = freed = 0
        for start in range(0, len(old), max(batch, 1)):
            files = old[start : start + max(batch, 1)]
            try:
                agreed = await ctx.ask(Confirm(self._question(files), default=False))
            except Declined:
                break
            for file in files:
                reason = "you did not agree"
                if agreed:
                    reason = await asyncio.to_thread(_delete, file)
                if reason:
                    yield Kept(path=self._shown(file), reason=reason)
                else:
                    deleted += 1
                    freed += file.size
                    yield Deleted(path=self._shown(file))
            yield Progress(done=min(start + len(files), len(old)), total=len(old))
        yield Cleaned(deleted=deleted, kept=len(old) - deleted, freed_bytes=freed)

    def _old(self, folder: str, days: float, pattern: str) -> list[OldFile]:
        """The old files, the oldest first. Blocks."""
        inside = (self._folder / folder).resolve()
        if not inside.is_relative_to(self._folder):
            raise Denied(f"{folder} is not inside {self._folder}")
        if not inside.is_dir():
            raise NotFound(f"there is no folder {folder}")
        before_ns = int((time.time() - days * DAY_S) * 1e9)
        found = [
            file
            for file in _files(inside)
            if file.modified_ns < before_ns and fnmatch.fnmatch(file.path.name, pattern)
        ]
        return sorted(found, key=lambda file: (file.modified_ns, file.path))

    def _question(self, files: list[OldFile]) -> str:
        names = [self._shown(file) for file in files[:NAMED]]
        more = [f"and {len(files) - NAMED} more"] if len(files) > NAMED else []
        what = "this file" if len(files) == 1 else f"these {len(files)} files"
        total = _size(sum(file.size for file in files))
        return "\n".join([f"Delete {what} ({total})?", *names, *more])

    def _shown(self, file: OldFile) -> str:
        return str(file.path.relative_to(self._folder))


def _files(folder: Path) -> Iterator[OldFile]:
    """Every regular file inside a folder; links are not followed, and not deleted."""
    seen = 0
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in names:
            seen += 1
            if seen > MOST_FILES:
                raise TooBig(f"{folder} has over {MOST_FILES} files", data={"limit": MOST_FILES})
            path = Path(parent, name)
            try:
                status = path.lstat()
            except OSError:  # gone while it was looked for
                continue
            if stat.S_ISREG(status.st_mode):
                yield OldFile(path, status.st_size, status.st_mtime_ns, status.st_ino)


def _delete(file: OldFile) -> str:
    """Delete a file if it still is what the person agreed to; else why it was not. Blocks."""
    try:
        status = file.path.lstat()
        if (status.st_mtime_ns, status.st_ino) != (file.modified_ns, file.inode):
            return "it was changed meanwhile"
        file.path.unlink()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
