"""A configuration file of another program: read once, shown as a diff, replaced atomically.

Readers see either the old file or the new file, never a partial file. The old file is kept as
`.bak` in the same folder. A symbolic link stays a link.
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

__all__ = ("ConfigFile", "FileChanged")

LINE = re.compile(r"[^\n]*\n|[^\n]+")


class FileChanged(Exception):
    """The file has changed since it was read."""


class ConfigFile:
    """A file with its content at the time it was read."""

    def __init__(self, path: Path) -> None:
        """Read the file. Raises OSError if it exists and cannot be read."""
        #: The path as the user knows it.
        self.path = path
        #: The path with links resolved.
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
        """Return the content. Raises UnicodeDecodeError."""
        return (self.former or b"").decode()

    def diff(self, text: str) -> Iterator[str]:
        """Yield the lines of a unified diff from the content to this text."""
        before = "/dev/null" if self.former is None else str(self.path)
        old, new = LINE.findall(self.text()), LINE.findall(text)
        for line in difflib.unified_diff(old, new, before, str(self.path)):
            yield line.rstrip("\r\n")
            if not line.endswith("\n"):
                yield "\\ No newline at end of file"

    def replace(self, text: str) -> None:
        """Replace the content, and keep the old content as the backup.

        Raises FileChanged if the file has changed since it was read, and OSError.
        """
        self.target.parent.mkdir(parents=True, exist_ok=True)
        if self._read() != self.former:
            raise FileChanged
        if self.former is not None:
            # The folder's permissions would allow a replacement, but the file is read-only.
            if not os.access(self.target, os.W_OK):
                raise PermissionError(errno.EACCES, "it is read-only", str(self.target))
            self._write(self.backup, self.former)
        self._write(self.target, text.encode())

    def _write(self, path: Path, data: bytes) -> None:
        """Write a temporary file, and rename it when it is complete."""
        owner = None if self.former is None else self.target.stat()
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        # The file may contain secrets: the new file must not be more readable than the old one.
        mode = 0o666 if owner is None else 0o600
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                if owner is not None:
                    # Only the superuser can change the owner, and has to. Windows has no chown.
                    with contextlib.suppress(PermissionError, AttributeError):
                        os.chown(temporary, owner.st_uid, owner.st_gid)
                    temporary.chmod(owner.st_mode & 0o7777)
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        self._sync_folder(path.parent)

    def _sync_folder(self, folder: Path) -> None:
        """Flush the rename to disk, where the system supports it."""
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
