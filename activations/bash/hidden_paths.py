"""Which files and folders a confined command does not see: secrets, and sockets of other programs.

This module looks at the file system and at the environment and returns paths; it hides nothing
itself. Only what exists when a command starts can be hidden. The program that serves `bash` passes
its own files as `OwnPaths`, because this layer does not know where the program keeps them.
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

#: Where programs keep keys and logins, below the home folder.
HOME_SECRETS = (
    *(".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".password-store", ".vault-token"),
    *(".netrc", ".git-credentials", ".npmrc", ".pypirc", ".pgpass", ".my.cnf", ".mozilla"),
    *(".cargo/credentials", ".cargo/credentials.toml", ".gem/credentials", ".terraform.d"),
    *(".claude", ".claude.json", ".codex", ".gemini"),
    *(".Xauthority", ".ICEauthority", ".bash_history", ".zsh_history"),
    # Ours, also for a server that was started with other XDG_* variables.
    *(".local/state/substrate", ".local/share/substrate"),
)
#: The same below the folders that XDG_CONFIG_HOME and XDG_DATA_HOME name.
CONFIG_SECRETS = (
    *("gh", "hub", "gcloud", "git/credentials", "op", "rclone", "containers", "sops"),
    *("google-chrome", "chromium", "BraveSoftware"),
)
DATA_SECRETS = ("keyrings", "kwalletd")

#: Variables that say where a program keeps such things, if it is not there.
NAMED_BY = (
    *("SSH_AUTH_SOCK", "GNUPGHOME", "XDG_RUNTIME_DIR", "DOCKER_CONFIG", "KUBECONFIG", "NETRC"),
    *("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE", "AZURE_CONFIG_DIR", "CLOUDSDK_CONFIG"),
    *("GOOGLE_APPLICATION_CREDENTIALS", "GH_CONFIG_DIR", "CLAUDE_CONFIG_DIR", "CODEX_HOME"),
    *("XAUTHORITY", "PGPASSFILE", "NPM_CONFIG_USERCONFIG", "npm_config_userconfig"),
)

#: What an account without a home of its own can have there.
NO_HOMES = {Path(name) for name in ("/", "/usr", "/usr/bin", "/usr/sbin", "/bin", "/sbin", "/dev")}

#: No more sockets than this are hidden: each is a mount. A machine has some dozens.
SOCKETS = 500

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


def homes(environment: Mapping[str, str]) -> list[Path]:
    """Return the home folders: the one that HOME names, and that of the account."""
    found = [Path(environment["HOME"])] if environment.get("HOME", "").startswith("/") else []
    with contextlib.suppress(KeyError):  # an account that exists as a number only
        found.append(Path(pwd.getpwuid(os.getuid()).pw_dir))
    resolved = dict.fromkeys(path.resolve() for path in found)
    # An account without a home of its own has "/" there, a folder of programs, or one that does
    # not exist.
    return [path for path in resolved if path not in NO_HOMES and os.access(path, os.F_OK)]


def secret_paths(
    environment: Mapping[str, str], accounts: Sequence[Path], ours: Iterable[Path]
) -> list[Path]:
    """Return what is to be hidden of all that exists, links resolved.

    accounts: the home folders.
    ours: folders and files of the server itself.
    """
    found = dict.fromkeys(
        # Hiding a link would leave what it leads to.
        path.resolve()
        for path in (*ours, *_usual_places(environment, accounts), *_named_places(environment))
        # Unlike the path's own method this says no, and does not raise, where we may not look.
        if os.access(path, os.F_OK)
    )
    # A variable that names all of the home, or more, names no place of secrets.
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
    """Return the sockets in the file system that programs have bound outside the workspace.

    Those of the workspace are the command's own affair.
    """
    try:
        lines = Path("/proc/net/unix").read_text(errors="surrogateescape").split("\n")[1:]
    except OSError:
        return []
    # The eighth column is missing if a socket has no name, and begins with @ if it has no file.
    names = dict.fromkeys(columns[7] for line in lines if len(columns := line.split(None, 7)) == 8)
    found = (Path(name).resolve() for name in names if name.startswith("/"))
    # Counted after those of the workspace are left out, as a command can bind any number there.
    others = (path for path in found if not path.is_relative_to(workspace) and _is_socket(path))
    return [*dict.fromkeys(others)][:SOCKETS]


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.lstat().st_mode)
    except OSError:
        return False
