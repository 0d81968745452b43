"""Sandbox profiles: translate a policy into bubblewrap (`bwrap`) options and an environment.

This module starts nothing and changes nothing: it decides what is mounted, hidden and limited.

- `workspace`: the file system is read-only except for the workspace; /tmp, /proc, /dev and /run are
  private; secrets are hidden; the network is allowed. It prevents a command from damaging files
  outside its task.
- `strict`: the same without a network and without other programs' sockets, with only the workspace
  visible in the home folder, four environment variables and resource limits. It is meant for
  commands that were not reviewed.

Neither limits CPU usage across processes, and only `strict` limits memory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from activations.processes.sandbox.protected_paths import Mounts

__all__ = ("LIMITS", "PROCESSES", "Policy", "Profile", "environment", "options")

Profile = Literal["off", "workspace", "strict"]

#: Parts of /run that programs need: name resolution, and NixOS's programs.
RUN_NEEDED = (
    "/run/systemd/resolve",
    "/run/resolvconf",
    "/run/NetworkManager/resolv.conf",
    "/run/current-system",
)

#: Private file systems: their content on the machine is invisible.
PRIVATE = (Path("/tmp"), Path("/run"), Path("/dev"), Path("/proc"))

MIB = 1024 * 1024

#: Resource limits of each process, by profile. DATA limits allocations: unlike a limit of the
#: address space it does not count what garbage collectors reserve and never use. The profile
#: `workspace` has none, because compiler sanitizers allocate terabytes and use little.
LIMITS: Mapping[Profile, Mapping[str, int]] = {
    "off": {},
    "workspace": {},
    "strict": {
        "CORE": 0,
        "NOFILE": 256,
        "FSIZE": 256 * MIB,
        "CPU": 60,
        "DATA": 4096 * MIB,
    },
}

#: Maximum processes and threads of one command. The kernel counts them per user namespace, and not
#: for root.
PROCESSES: Mapping[Profile, int] = {"workspace": 4096, "strict": 256}

#: The size of /tmp, of /dev/shm and of the home folder of `strict`, each. They are in memory.
TMP_BYTES: Mapping[Profile, int] = {"workspace": 4096 * MIB, "strict": 256 * MIB}
#: The size of file systems that need no writes.
SMALL_BYTES = 1 * MIB

#: Variables that a sandboxed command inherits from the server. An allow-list: any other variable
#: may contain a secret, whatever its name.
STRICT_VARIABLES = frozenset({"PATH", "HOME", "LANG", "TERM"})
WORKSPACE_VARIABLES = STRICT_VARIABLES | {
    *("USER", "LOGNAME", "SHELL", "LANGUAGE", "TZ", "COLORTERM", "NO_COLOR", "FORCE_COLOR"),
    *("EDITOR", "PAGER", "COLUMNS", "LINES", "CI", "DEBIAN_FRONTEND"),
    # Certificates that the network of a company needs.
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "PIP_CERT"),
    *("NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO"),
    # Where compilers and interpreters are.
    *("VIRTUAL_ENV", "CONDA_PREFIX", "PYENV_ROOT", "NVM_DIR", "JAVA_HOME", "GOPATH", "GOROOT"),
    *("CARGO_HOME", "RUSTUP_HOME", "CC", "CXX", "PKG_CONFIG_PATH"),
}
#: The same by prefix and, in upper or lower case, by suffix.
WORKSPACE_PREFIX = "LC_"
WORKSPACE_SUFFIX = "_PROXY"


def environment(profile: Profile, server: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a command inherits from the server.

    An unconfined command inherits everything except the server's settings and keys of model
    providers.
    """
    if profile == "off":
        return {name: value for name, value in server.items() if not _is_ours(name)}
    return {name: value for name, value in server.items() if _is_allowed(profile, name, value)}


def _is_ours(name: str) -> bool:
    return name.startswith("SUBSTRATE_") or name.endswith("_API_KEY")


def _is_allowed(profile: Profile, name: str, value: str) -> bool:
    if profile == "strict":
        return name in STRICT_VARIABLES
    if name.upper().endswith(WORKSPACE_SUFFIX):
        return "@" not in value  # the URL of a proxy can contain a password
    return name in WORKSPACE_VARIABLES or name.startswith(WORKSPACE_PREFIX)


class Policy(NamedTuple):
    """Files and features that a command may use, in addition to its profile."""

    workspace: Path
    #: The user's home folders.
    homes: tuple[Path, ...]
    #: Paths that it must not see.
    hidden: tuple[Path, ...]
    #: Sockets of other programs.
    sockets: tuple[Path, ...]
    #: Paths of the workspace that it must not change.
    protected: Mounts
    #: The descriptor with the text that covers a placeholder of `.git/commondir`.
    common_dir_fd: int
    #: Whether this bubblewrap can limit the size of a file system (0.7 and newer).
    sized: bool


def options(profile: Profile, policy: Policy, cwd: Path, variables: Mapping[str, str]) -> list[str]:
    """Return the options of bwrap. A later mount covers an earlier one."""
    arguments = ["--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    arguments += ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    arguments += ["--unshare-cgroup-try"]
    if profile == "strict":
        arguments += ["--unshare-net"]
    arguments += ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    size = TMP_BYTES[profile]
    arguments += _tmpfs(Path("/tmp"), size, policy) + _tmpfs(Path("/run"), SMALL_BYTES, policy)
    arguments += [*_tmpfs(Path("/dev/shm"), size, policy), "--remount-ro", "/dev"]
    for needed in RUN_NEEDED:
        arguments += ["--ro-bind-try", needed, needed]
    workspace = policy.workspace
    # Parents of the workspace are hidden before the workspace is mounted on top of them.
    outer = [path for path in policy.hidden if workspace.is_relative_to(path)]
    below = [*PRIVATE, *outer]
    if profile == "strict":
        for home in policy.homes:
            arguments += _tmpfs(home, size, policy)
        below += policy.homes
    for hidden in outer:
        arguments += _tmpfs(hidden, SMALL_BYTES, policy)
    arguments += ["--bind", str(workspace), str(workspace)]
    arguments += _protection(policy)
    above: list[Path] = []
    # Folders first: a path inside a hidden folder needs no separate mount.
    for hidden in [*sorted({*policy.hidden} - {*outer}, key=_folders_first), *policy.sockets]:
        candidates = above if hidden.is_relative_to(workspace) else [*below, *above]
        if any(hidden.is_relative_to(cover) for cover in candidates):
            continue
        if hidden.is_dir():
            arguments += _tmpfs(hidden, SMALL_BYTES, policy)
            above.append(hidden)
        else:
            arguments += ["--ro-bind", os.devnull, str(hidden)]
    arguments += ["--clearenv"]
    for name, value in variables.items():
        arguments += ["--setenv", name, value]
    return [*arguments, "--chdir", str(cwd)]


def _protection(policy: Policy) -> list[str]:
    """Return the mounts that prevent the command from changing what runs outside the sandbox."""
    arguments = []
    for path in policy.protected.pinned:
        arguments += ["--bind", str(path), str(path)]
    for path in policy.protected.read_only:
        arguments += ["--ro-bind", str(path), str(path)]
    for path in policy.protected.empty:
        arguments += [*_tmpfs(path, SMALL_BYTES, policy), "--remount-ro", str(path)]
    for path in policy.protected.common_dir:
        arguments += ["--ro-bind-data", str(policy.common_dir_fd), str(path)]
    return arguments


def _folders_first(path: Path) -> tuple[bool, Path]:
    return not path.is_dir(), path


def _tmpfs(path: Path, size: int, policy: Policy) -> list[str]:
    return [*(("--size", str(size)) if policy.sized else ()), "--tmpfs", str(path)]
