"""The lock files of an editor: how clients on this machine find the listener and its token.

Claude Code reads `<port>.lock` in its configuration folder, `ide`. Other clients read
`.claude-code/<port>.json` in the project folder, which is written only on request: it puts a secret
into the project. Both are readable by the user only, written atomically and removed at exit. Stale
files of killed servers of this program are removed; those of other editors never are.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Any, Final

from plexus.private_files import make_folders
from plexus.process_identity import ENDED, host_id, start_time
from substrate.security.private_files import read_json, write_private

__all__ = ("NAME", "LockFiles", "editors_for", "lock_folder", "remove_stale")

#: The name of this editor in its lock files.
NAME: Final = "Substrate"
#: Lock files that are read while stale ones are removed: another program may have left many.
MAX_FILES: Final = 1000


def lock_folder() -> Path:
    """Return the folder in which Claude Code looks for editors."""
    named = os.environ.get("CLAUDE_CONFIG_DIR")
    home = Path(named) if named else Path("~/.claude")
    return home.expanduser().absolute() / "ide"


class LockFiles:
    """The lock files of one listener."""

    def __init__(self, port: int, project: Path, *, in_project: bool) -> None:
        self.path = lock_folder() / f"{port}.lock"
        self._port = port
        self._project = project
        self._in_project = project / ".claude-code" / f"{port}.json" if in_project else None

    def write(self, token: str) -> None:
        """Write the files, and remove stale ones. Raises OSError."""
        make_folders(self.path.parent)
        remove_stale(self.path.parent)
        folders = [str(self._project)]
        entry = {
            "pid": os.getpid(),
            "workspaceFolders": folders,
            "ideName": NAME,
            "transport": "ws",
            "runningInWindows": False,
            "authToken": token,
            # These two identify this process. Clients ignore them.
            "startTime": start_time(os.getpid()),
            "host": host_id(),
        }
        write_private(self.path, entry)
        if self._in_project is not None:
            _check_own_folder(self._in_project.parent)
            write_private(
                self._in_project,
                {"port": self._port, "authToken": token, "projectPath": str(self._project)},
            )

    def remove(self) -> None:
        """Remove the files, unless another program has replaced them."""
        with contextlib.suppress(OSError, ValueError):
            entry = read_json(self.path)
            if isinstance(entry, dict) and entry.get("pid") == os.getpid():
                self.path.unlink(missing_ok=True)
        if self._in_project is not None:
            with contextlib.suppress(OSError):
                self._in_project.unlink(missing_ok=True)
                self._in_project.parent.rmdir()  # fails if it has other files


def remove_stale(folder: Path) -> None:
    """Remove the files of servers of this program that no longer run. Raises OSError."""
    for path in sorted(folder.glob("*.lock"))[:MAX_FILES]:
        with contextlib.suppress(OSError, ValueError):
            if stat.S_ISREG(path.lstat().st_mode) and _is_stale(read_json(path)):
                path.unlink(missing_ok=True)


def editors_for(project: Path, own_port: int) -> list[tuple[str, int]]:
    """Return names and ports of the other editors that are running for a folder."""
    found = []
    for path in sorted(lock_folder().glob("*.lock"))[:MAX_FILES]:
        with contextlib.suppress(OSError, ValueError):
            port, entry = int(path.stem), read_json(path)
            if port != own_port and _is_for(entry, project):
                found.append((str(entry.get("ideName") or "an editor")[:100], port))
    return found


def _is_for(entry: Any, project: Path) -> bool:
    match entry:
        case {"workspaceFolders": [*folders], "pid": int(pid)} if pid > 0 and _exists(pid):
            return any(isinstance(each, str) and project.is_relative_to(each) for each in folders)
    return False


def _is_stale(entry: Any) -> bool:
    match entry:
        case {"ideName": str(name), "pid": int(pid), "host": str(host)} if (
            # A container may share the folder: its pids mean nothing here.
            name == NAME and pid > 0 and host == host_id()
        ):
            started = entry.get("startTime")
            found = start_time(pid)
            if found is None and started is None:
                return not _exists(pid)
            return found in (None, ENDED) or (isinstance(started, int) and found != started)
    return False


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # a process of another user
        pass
    return True


def _check_own_folder(folder: Path) -> None:
    """Create the folder in the project if needed. Raises OSError if it is a link."""
    make_folders(folder)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(0, "it is not a folder that you own", str(folder))
