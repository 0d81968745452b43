"""Files that are their owner's alone: where they are, and writing them whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

from plexus import wire
from plexus.errors import PlexusError
from plexus.limits import Limits

__all__ = ("data_folder", "make_private", "read_json", "state_folder", "write_private")


def state_folder() -> Path:
    """Where this user's programs keep what is of no use after a restart."""
    return _folder("XDG_STATE_HOME", "~/.local/state")


def data_folder() -> Path:
    """Where this user's programs keep what is to stay."""
    return _folder("XDG_DATA_HOME", "~/.local/share")


def _folder(variable: str, default: str) -> Path:
    return Path(os.environ.get(variable) or default).expanduser().absolute() / "substrate"


def make_private(folder: Path) -> None:
    """See that the folder exists and that nobody else can look into it; raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(0, "it is not a folder of yours", str(folder))
    if stat.S_IMODE(found.st_mode) != 0o700:
        folder.chmod(0o700)


def write_private(file: Path, value: Any) -> None:
    """Write a value as JSON for its owner alone: whoever reads the file finds all of the old one
    or all of the new one. Raises OSError."""
    unfinished = file.with_name(f".{file.name}.{os.urandom(8).hex()}")
    # Never into a file, nor through a link, that somebody put there.
    fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as out:
            out.write(wire.encode_pretty(value) + b"\n")
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)


def read_json(file: Path) -> Any:
    """The value in a file, None if there is no such file; raises OSError, and ValueError if there
    is no value in it."""
    try:
        text = file.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return wire.decode_value(text, Limits())
    except PlexusError as error:
        raise ValueError(error.message) from error
