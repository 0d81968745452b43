"""A configuration file of another program: read once, shown as a difference, replaced whole.

At every moment there is the old file or the new one, never a half of one; the old one stays
beside it as `.bak`. A link stays a link.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

__all__ = ("ChangedMeanwhile", "ConfigFile")

LINE = re.compile(r"[^\n]*\n|[^\n]+")


class ChangedMeanwhile(Exception):
    """The file is no longer what it was when it was read."""


class ConfigFile:
    """One file, as it was when it was read."""

    def __init__(self, path: Path) -> None:
        """Read the file; raises OSError if it is there and cannot be read."""
        #: What a person calls it.
        self.path = path
        #: What it is, behind any links.
        self.target = Path(os.path.realpath(path))
        self.former = self._read()

    @property
    def backup(self) -> Path:
        return self.target.with_name(self.target.name + ".bak")

    def _read(self) -> bytes | None:
        try:
            return self.target.read_bytes()
        except FileNotFoundError:
            return None

    def text(self) -> str:
        """The content; raises UnicodeDecodeError."""
        return (self.former or b"").decode()

    def diff(self, text: str) -> Iterator[str]:
        """The lines of a unified diff from the content to this text."""
        before = "/dev/null" if self.former is None else str(self.path)
        old, new = LINE.findall(self.text()), LINE.findall(text)
        for line in difflib.unified_diff(old, new, before, str(self.path)):
            yield line.rstrip("\r\n")
            if not line.endswith("\n"):
                yield "\\ No newline at end of file"

    def replace(self, text: str) -> None:
        """Put this text in place of the content, which is kept as the backup.

        Raises ChangedMeanwhile if the file is no longer what was read, and OSError.
        """
        self.target.parent.mkdir(parents=True, exist_ok=True)
        if self._read() != self.former:
            raise ChangedMeanwhile
        if self.former is not None:
            # Its folder would let us replace it, but somebody has made it read-only.
            if not os.access(self.target, os.W_OK):
                raise PermissionError(errno.EACCES, "it is read-only", str(self.target))
            self._write(self.backup, self.former)
        self._write(self.target, text.encode())

    def _write(self, path: Path, data: bytes) -> None:
        """Write a whole file under another name, and give it its name when it is complete."""
        owner = None if self.former is None else self.target.stat()
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        # There may be secrets in the file: nobody may read the new one who cannot read the old.
        mode = 0o666 if owner is None else 0o600
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                if owner is not None:
                    # Only the superuser can give a file to somebody else, and must. Windows
                    # knows nothing of this.
                    with contextlib.suppress(PermissionError, AttributeError):
                        os.chown(temporary, owner.st_uid, owner.st_gid)
                    temporary.chmod(owner.st_mode & 0o7777)
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        self._sync_folder(path.parent)

    def _sync_folder(self, folder: Path) -> None:
        """Make the new name last too, where the system has a way to ask for that."""
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
