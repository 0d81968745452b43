"""Files and folders that only their owner can use, whatever the umask of the process is.

A umask takes bits away from the mode that a file is created with. A service manager may set one
that takes all of them, and then the next process of the same user could not open the file. So the
mode is set again after the creation.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ("make_folders", "open_private")

FOLDER_MODE = 0o700
FILE_MODE = 0o600


def make_folders(folder: Path) -> None:
    """Create a folder and its missing parents. Existing ones are left alone. Raises OSError."""
    for each in reversed((folder, *folder.parents)):
        if each.is_dir():
            continue
        try:
            each.mkdir(FOLDER_MODE)
        except FileExistsError:  # another process was faster, or it is no folder
            if not each.is_dir():
                raise
        else:
            each.chmod(FOLDER_MODE)


def open_private(file: Path, flags: int) -> int:
    """Open a file, create it for its owner if it is missing, and return the descriptor.

    The mode of an existing file is left alone. Raises OSError.
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
