"""The project of a call: the repository or folder that the calling process works in.

All working trees of a git repository are one project, so that agents in several of them share the
list.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from plexus.caller_environment import caller_directory

__all__ = ("current_project",)

#: Maximum number of parent folders that are searched for a repository.
MAX_DEPTH = 64
#: The beginning of the file `.git` of a working tree, and the folder in the repository it names.
POINTER = "gitdir: "
WORKTREES = "worktrees"


def current_project() -> str:
    """Return the project of the caller of the current run, as an absolute path."""
    return _project_of(str(caller_directory()))


@lru_cache(maxsize=256)
def _project_of(directory: str) -> str:
    folder = Path(directory)
    for each in (folder, *folder.parents[:MAX_DEPTH]):
        marker = each / ".git"
        try:
            if marker.is_dir():
                return str(each)
            if marker.is_file():
                return _repository(marker) or str(each)
        except OSError:  # a folder that may not be read
            break
    return str(folder)


def _repository(marker: Path) -> str | None:
    """Return the repository of a linked working tree, None for a submodule or an unknown form."""
    try:
        text = marker.read_text(errors="replace")[:4096].strip()
    except OSError:
        return None
    if not text.startswith(POINTER):
        return None
    git_folder = (marker.parent / text.removeprefix(POINTER)).resolve()
    if git_folder.parent.name == WORKTREES and git_folder.parents[1].name == ".git":
        return str(git_folder.parents[2])
    return None
