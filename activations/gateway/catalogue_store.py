"""The catalogues on disk: one file for each mount, which all processes of the user share.

A file is replaced as a whole, so that readers see the old or the new one. Changes are made under a
lock, because several processes may list the same server at the same time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from activations.gateway.catalogue import Catalogue, decode_catalogue, encode_catalogue
from activations.gateway.mount_config import MountConfig
from plexus.private_files import data_folder, make_folders, open_private

__all__ = ("CatalogueStore",)

#: Timeout for the lock of the folder. A process holds it for the time of one write.
LOCK_S: Final = 5.0
LOCK_POLL_S: Final = 0.01


class CatalogueStore:
    """The folder with the catalogues."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or data_folder() / "mounts"

    def path(self, config: MountConfig) -> Path:
        """Return the file of a mount. A mount that is reached otherwise has another file."""
        return self.folder / f"{config.name}-{config.fingerprint}.json"

    def read(self, config: MountConfig) -> Catalogue | None:
        """Return the catalogue of a mount; None if there is none that can be read."""
        try:
            return decode_catalogue(self.path(config).read_bytes())
        except OSError:
            return None

    def stamp(self, config: MountConfig) -> int:
        """Return a number that changes whenever the file of a mount does; 0 without a file."""
        try:
            status = self.path(config).stat()
        except OSError:
            return 0
        return status.st_mtime_ns ^ status.st_ino

    def update(
        self, config: MountConfig, change: Callable[[Catalogue | None], Catalogue]
    ) -> Catalogue:
        """Replace the catalogue of a mount by what `change` returns for the current one.

        Raises OSError, TimeoutError included.
        """
        make_folders(self.folder)
        with self._locked():
            changed = change(self.read(config))
            self._write(self.path(config), encode_catalogue(changed))
        return changed

    def delete(self, name: str) -> None:
        """Delete all catalogues of a mount, with their pins."""
        for path in self.folder.glob(f"{name}-*.json"):
            # Another mount may have a longer name with the same beginning.
            if path.stem.rpartition("-")[0] == name:
                path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        fd = open_private(self.folder / "lock", os.O_RDWR)
        try:
            end = time.monotonic() + LOCK_S
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > end:
                        raise TimeoutError(f"{self.folder} is locked by another process") from None
                    time.sleep(LOCK_POLL_S)
            yield
        finally:
            os.close(fd)

    def _write(self, path: Path, data: bytes) -> None:
        temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}.tmp")
        fd = open_private(temporary, os.O_WRONLY | os.O_EXCL)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
