"""The secret of one user that signs request states, in a file that all processes share.

A client that was answered by one process, or by a server before its restart, can repeat its request
to another.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

from plexus.private_files import data_folder, make_folders, open_private

__all__ = ("read_secret",)

logger = logging.getLogger(__name__)

FILE: Final = "request_state.key"
SECRET_BYTES: Final = 32


def read_secret(path: Path | None = None) -> bytes:
    """Return the secret in this file, created with the file if it is missing.

    If the file cannot be used, the secret is a new one that lasts as long as the process.
    """
    file = path or data_folder() / FILE
    try:
        return _read(file) or _create(file)
    except OSError as error:
        logger.warning("request states end with this process: %s: %s", file, error.strerror)
        return os.urandom(SECRET_BYTES)


def _read(file: Path) -> bytes | None:
    """Return the secret; None if the file is missing or incomplete."""
    try:
        secret = file.read_bytes()
    except FileNotFoundError:
        return None
    return secret if len(secret) == SECRET_BYTES else None


def _create(file: Path) -> bytes:
    """Create the file completely or not at all, and return the secret that is in it then."""
    make_folders(file.parent)
    unfinished = file.with_name(f".{file.name}.{os.urandom(8).hex()}")
    try:
        fd = open_private(unfinished, os.O_WRONLY | os.O_EXCL)
        with os.fdopen(fd, "wb") as stream:
            stream.write(os.urandom(SECRET_BYTES))
        try:
            os.link(unfinished, file)
        except FileExistsError:
            if _read(file) is None:  # damaged
                unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)
    secret = _read(file)
    if secret is None:
        raise OSError(0, "it was damaged while it was read")
    return secret
