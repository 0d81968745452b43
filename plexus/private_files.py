"""Files and folders that only their owner can access: where they are, and how they are created.

A umask removes bits from the mode that a file is created with. A service manager may set a umask
that removes all of them; the next process of the same user could then not open the file. The mode
is therefore set again after the creation.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ("cache_folder", "data_folder", "make_folders", "open_private", "state_folder")

FOLDER_MODE = 0o700
FILE_MODE = 0o600


def state_folder() -> Path:
    """Return the folder for state that may be lost: lock files, logs, records of trust."""
    return _user_folder("XDG_STATE_HOME", "~/.local/state")


def data_folder() -> Path:
    """Return the folder for data that must persist: databases, tokens, sessions."""
    return _user_folder("XDG_DATA_HOME", "~/.local/share")


def cache_folder() -> Path:
    """Return the folder for data that can be computed again."""
    return _user_folder("XDG_CACHE_HOME", "~/.cache")


def _user_folder(variable: str, default: str) -> Path:
    return Path(os.environ.get(variable) or default).expanduser().absolute() / "substrate"


def make_folders(folder: Path) -> None:
    """Create a folder and its missing parents, without changing existing ones. Raises OSError."""
    for each in reversed((folder, *folder.parents)):
        if each.is_dir():
            continue
        try:
            each.mkdir(FOLDER_MODE)
        except FileExistsError:  # created by another process meanwhile, or not a folder
            if not each.is_dir():
                raise
        else:
            each.chmod(FOLDER_MODE)


def open_private(file: Path, flags: int) -> int:
    """Open a file, creating it for its owner if it is missing, and return the descriptor.

    The mode of an existing file is not changed. Raises OSError.
    """
    flags |= os.O_CLOEXEC
    try:
        fd = os.open(file, flags | os.O_CREAT | os.O_EXCL, FILE_MODE)
    except FileExistsError:
        if flags & os.O_EXCL:
            raise
        return os.open(file, flags | os.O_CREAT, FILE_MODE)
    try:
        os.fchmod(fd, FILE_MODE)
    except OSError:
        os.close(fd)
        raise
    return fd
