"""What of the program that serves `bash` concerns the sandbox: its own files.

The program passes them, as this layer does not know where the program keeps its files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ("OwnPaths",)

#: What SQLite puts beside a database.
BESIDE_DATABASE = ("-wal", "-shm", "-journal")


@dataclasses.dataclass(frozen=True)
class OwnPaths:
    """Files and folders of the server that a confined command must not see, or not change."""

    #: Folders that hold tokens, histories and databases. They are created before a command starts:
    #: a folder that appears later cannot be hidden from it.
    private_folders: tuple[Path, ...] = ()
    #: Databases that are somewhere else.
    databases: tuple[Path, ...] = ()
    #: What the next start of the server reads or runs, absolute or relative to the workspace.
    #: Only what is in the workspace matters, as the rest is read-only for the command anyway.
    executed: tuple[Path, ...] = ()

    def hidden(self) -> Iterator[Path]:
        """Return what a command must not see."""
        yield from self.private_folders
        for database in self.databases:
            yield database
            for suffix in BESIDE_DATABASE:
                yield database.with_name(database.name + suffix)

    def protected(self, workspace: Path) -> list[str]:
        """Return what a command must not change, relative to the workspace."""
        found = []
        for path in self.executed:
            # Links are not resolved: they are refused where they cannot be protected.
            absolute = Path(os.path.normpath(workspace / path))
            if absolute != workspace and absolute.is_relative_to(workspace):
                found.append(str(absolute.relative_to(workspace)))
                if absolute.suffix == ".py":
                    # Python prefers the bytecode there, if it seems to belong to the source.
                    cache = absolute.parent / "__pycache__"
                    found.append(str(cache.relative_to(workspace)))
        return found

    def make_hideable(self) -> None:
        """Create the private folders that do not exist."""
        for folder in self.private_folders:
            # Where we cannot create one, no other program of this user can create it later.
            with contextlib.suppress(OSError):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
