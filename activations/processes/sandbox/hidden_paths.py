"""Files and folders that are hidden from a sandboxed command: secrets, and other programs' sockets.

This module reads the file system and the environment and returns paths; it hides nothing itself.
Only what exists when a command starts can be hidden. The program that serves `bash` passes its own
files as `OwnPaths`, because this layer does not know where the program stores them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pwd
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

__all__ = ("SOCKETS", "OwnPaths", "homes", "secret_paths", "socket_paths")

#: Where programs store keys and logins, below the home folder.
HOME_SECRETS = (
    *(".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".password-store", ".vault-token"),
    *(".netrc", ".git-credentials", ".npmrc", ".pypirc", ".pgpass", ".my.cnf", ".mozilla"),
    *(".cargo/credentials", ".cargo/credentials.toml", ".gem/credentials", ".terraform.d"),
    *(".claude", ".claude.json", ".codex", ".gemini"),
    *(".Xauthority", ".ICEauthority", ".bash_history", ".zsh_history"),
    # This program's own folders, also for a server that was started with other XDG_* variables.
    *(".local/state/substrate", ".local/share/substrate"),
)
#: The same below the folders that XDG_CONFIG_HOME and XDG_DATA_HOME name.
CONFIG_SECRETS = (
    *("gh", "hub", "gcloud", "git/credentials", "op", "rclone", "containers", "sops"),
    *("google-chrome", "chromium", "BraveSoftware"),
)
DATA_SECRETS = ("keyrings", "kwalletd")

#: Variables that name another location for such files.
NAMED_BY = (
    *("SSH_AUTH_SOCK", "GNUPGHOME", "XDG_RUNTIME_DIR", "DOCKER_CONFIG", "KUBECONFIG", "NETRC"),
    *("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE", "AZURE_CONFIG_DIR", "CLOUDSDK_CONFIG"),
    *("GOOGLE_APPLICATION_CREDENTIALS", "GH_CONFIG_DIR", "CLAUDE_CONFIG_DIR", "CODEX_HOME"),
    *("XAUTHORITY", "PGPASSFILE", "NPM_CONFIG_USERCONFIG", "npm_config_userconfig"),
)

#: Home folders of accounts that have no real one.
NO_HOMES = {Path(name) for name in ("/", "/usr", "/usr/bin", "/usr/sbin", "/bin", "/sbin", "/dev")}

#: Maximum number of sockets that are hidden: each is a mount. A machine has some dozens.
SOCKETS = 500

#: Suffixes of the files that SQLite creates next to a database.
DATABASE_SUFFIXES = ("-wal", "-shm", "-journal")


@dataclasses.dataclass(frozen=True)
class OwnPaths:
    """Files and folders of the server that a sandboxed command must not read or must not change."""

    #: Folders that contain tokens, histories and databases. They are created before a command
    #: starts, because a folder that appears later cannot be hidden from it.
    private_folders: tuple[Path, ...] = ()
    #: Databases outside these folders.
    databases: tuple[Path, ...] = ()
    #: Files that the next start of the server reads or runs, absolute or relative to the workspace.
    #: Only those in the workspace matter, because the rest is read-only for the command anyway.
    executed: tuple[Path, ...] = ()

    def hidden(self) -> Iterator[Path]:
        """Yield the paths that a command must not see."""
        yield from self.private_folders
        for database in self.databases:
            yield database
            for suffix in DATABASE_SUFFIXES:
                yield database.with_name(database.name + suffix)

    def protected(self, workspace: Path) -> list[str]:
        """Return the paths that a command must not change, relative to the workspace."""
        found = []
        for path in self.executed:
            # Links are not resolved: they are refused where they cannot be protected.
            absolute = Path(os.path.normpath(workspace / path))
            if absolute != workspace and absolute.is_relative_to(workspace):
                found.append(str(absolute.relative_to(workspace)))
                if absolute.suffix == ".py":
                    # Python loads the bytecode there if it appears to match the source.
                    cache = absolute.parent / "__pycache__"
                    found.append(str(cache.relative_to(workspace)))
        return found

    def create_private_folders(self) -> None:
        """Create the private folders that do not exist."""
        for folder in self.private_folders:
            # If we cannot create it, no other program of this user can create it later.
            with contextlib.suppress(OSError):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def homes(environment: Mapping[str, str]) -> list[Path]:
    """Return the home folders: that of HOME and that of the account."""
    found = [Path(environment["HOME"])] if environment.get("HOME", "").startswith("/") else []
    with contextlib.suppress(KeyError):  # a uid without an account
        found.append(Path(pwd.getpwuid(os.getuid()).pw_dir))
    resolved = dict.fromkeys(path.resolve() for path in found)
    # An account without a home has "/", a folder of programs, or one that does not exist.
    return [path for path in resolved if path not in NO_HOMES and os.access(path, os.F_OK)]


def secret_paths(
    environment: Mapping[str, str], accounts: Sequence[Path], ours: Iterable[Path]
) -> list[Path]:
    """Return the existing paths to hide, with links resolved.

    accounts: the home folders.
    ours: folders and files of the server itself.
    """
    found = dict.fromkeys(
        # Hiding a link would leave its target visible.
        path.resolve()
        for path in (*ours, *_usual_places(environment, accounts), *_named_places(environment))
        # Unlike Path.exists, this returns False where we lack permission, and does not raise.
        if os.access(path, os.F_OK)
    )
    # A variable that names the whole home folder, or more, does not name a place of secrets.
    return [path for path in found if not any(home.is_relative_to(path) for home in accounts)]


def _usual_places(environment: Mapping[str, str], accounts: Sequence[Path]) -> Iterator[Path]:
    for home in accounts:
        yield from (home / name for name in HOME_SECRETS)
        yield from (home / ".config" / name for name in CONFIG_SECRETS)
        yield from (home / ".local/share" / name for name in DATA_SECRETS)
    for variable, names in (("XDG_CONFIG_HOME", CONFIG_SECRETS), ("XDG_DATA_HOME", DATA_SECRETS)):
        folder = environment.get(variable, "")
        yield from (Path(folder, name) for name in names if folder.startswith("/"))


def _named_places(environment: Mapping[str, str]) -> Iterator[Path]:
    for variable in NAMED_BY:
        # KUBECONFIG is a list.
        for place in environment.get(variable, "").split(":"):
            if place.startswith("/") and place.strip("/"):
                yield Path(place)


def socket_paths(workspace: Path) -> list[Path]:
    """Return the sockets that programs have bound in the file system outside the workspace.

    Sockets inside the workspace are left to the command.
    """
    try:
        lines = Path("/proc/net/unix").read_text(errors="surrogateescape").split("\n")[1:]
    except OSError:
        return []
    # The eighth column is missing for an unnamed socket, and starts with @ for one without a file.
    names = dict.fromkeys(columns[7] for line in lines if len(columns := line.split(None, 7)) == 8)
    found = (Path(name).resolve() for name in names if name.startswith("/"))
    # Limited after those of the workspace are excluded: a command can bind any number there.
    others = (path for path in found if not path.is_relative_to(workspace) and _is_socket(path))
    return [*dict.fromkeys(others)][:SOCKETS]


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.lstat().st_mode)
    except OSError:
        return False
