"""Find old files, and ask a person before deleting each batch of them.

    substrate --activation examples/cleaner.py call cleaner.clean --older-than-days 30

Only files inside one folder are considered: CLEANER_FOLDER, or the current folder.
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
#: Maximum number of file names in a question.
MAX_NAMES = 10
#: Maximum number of files to scan.
MAX_FILES = 100_000


class OldFile(NamedTuple):
    """A file and its metadata at the time it was found."""

    path: Path
    size: int
    modified_ns: int
    inode: int


class Found(Event):
    """Number and size of the files to delete."""

    files: int
    bytes_: int

    def as_text(self) -> str:
        return f"{self.files} old files, {_size(self.bytes_)}\n"


class Deleted(Event):
    """A deleted file."""

    path: str

    def as_text(self) -> str:
        return f"deleted {self.path}\n"


class Kept(Event):
    """A file that was not deleted, and the reason."""

    path: str
    reason: str

    def as_text(self) -> str:
        return f"kept {self.path}: {self.reason}\n"


class Cleaned(Complete):
    """Totals of the run."""

    deleted: int
    kept: int
    freed_bytes: int

    def as_text(self) -> str:
        return f"{self.deleted} deleted, {self.kept} kept, {_size(self.freed_bytes)} freed"


class Cleaner(Activation):
    """Deletes old files in a folder after confirmation by a person."""

    namespace = "cleaner"
    version = "1.0.0"
    scope = "cleaner"

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = (folder or Path(os.environ.get("CLEANER_FOLDER", "."))).resolve()

    @method(read_only=True, open_world=False)
    async def find(
        self, folder: str = ".", older_than_days: float = 30.0, pattern: str = "*"
    ) -> list[str]:
        """List the files that `clean` would ask about, oldest first.

        Args:
            folder: Subfolder to search, relative to the cleaner's folder.
            older_than_days: Minimum age since the last change, in days.
            pattern: File name pattern, as in *.log.
        """
        old = await asyncio.to_thread(self._find_old, folder, older_than_days, pattern)
        return [self._relative(file) for file in old]

    # No deadline for the run: each question has a separate timeout.
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
        """Delete old files, oldest first, after a person confirms each batch.

        Files of a rejected batch are kept. If the person declines to answer, nothing more is
        deleted.

        Args:
            folder: Subfolder to search, relative to the cleaner's folder.
            older_than_days: Minimum age since the last change, in days.
            pattern: File name pattern, as in *.log.
            batch: Number of files per question.
        """
        old = await asyncio.to_thread(self._find_old, folder, older_than_days, pattern)
        yield Found(files=len(old), bytes_=sum(file.size for file in old))
        deleted = freed = 0
        for start in range(0, len(old), max(batch, 1)):
            files = old[start : start + max(batch, 1)]
            try:
                agreed = await ctx.ask(Confirm(self._question(files), default=False))
            except Declined:
                break
            for file in files:
                reason = "not confirmed"
                if agreed:
                    reason = await asyncio.to_thread(_delete, file)
                if reason:
                    yield Kept(path=self._relative(file), reason=reason)
                else:
                    deleted += 1
                    freed += file.size
                    yield Deleted(path=self._relative(file))
            yield Progress(done=min(start + len(files), len(old)), total=len(old))
        yield Cleaned(deleted=deleted, kept=len(old) - deleted, freed_bytes=freed)

    def _find_old(self, folder: str, days: float, pattern: str) -> list[OldFile]:
        """Return the old files, oldest first. Blocks. Raises Denied and NotFound."""
        inside = (self._folder / folder).resolve()
        if not inside.is_relative_to(self._folder):
            raise Denied(f"{folder} is not inside {self._folder}")
        if not inside.is_dir():
            raise NotFound(f"folder {folder!r} does not exist")
        before_ns = int((time.time() - days * DAY_S) * 1e9)
        found = [
            file
            for file in _files(inside)
            if file.modified_ns < before_ns and fnmatch.fnmatch(file.path.name, pattern)
        ]
        return sorted(found, key=lambda file: (file.modified_ns, file.path))

    def _question(self, files: list[OldFile]) -> str:
        names = [self._relative(file) for file in files[:MAX_NAMES]]
        more = [f"and {len(files) - MAX_NAMES} more"] if len(files) > MAX_NAMES else []
        what = "this file" if len(files) == 1 else f"these {len(files)} files"
        total = _size(sum(file.size for file in files))
        return "\n".join([f"Delete {what} ({total})?", *names, *more])

    def _relative(self, file: OldFile) -> str:
        return str(file.path.relative_to(self._folder))


def _files(folder: Path) -> Iterator[OldFile]:
    """Yield every regular file in a folder. Links are neither followed nor deleted."""
    seen = 0
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in names:
            seen += 1
            if seen > MAX_FILES:
                message = f"{folder} has more than {MAX_FILES} files; choose a subfolder"
                raise TooBig(message, data={"limit": MAX_FILES})
            path = Path(parent, name)
            try:
                status = path.lstat()
            except OSError:  # deleted during the scan
                continue
            if stat.S_ISREG(status.st_mode):
                yield OldFile(path, status.st_size, status.st_mtime_ns, status.st_ino)


def _delete(file: OldFile) -> str:
    """Delete a file unless it has changed. Returns why it was kept, or an empty string. Blocks."""
    try:
        status = file.path.lstat()
        if (status.st_mtime_ns, status.st_ino) != (file.modified_ns, file.inode):
            return "changed in the meantime"
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
