"""Sandbox profiles: from a policy to the options of bubblewrap (`bwrap`) and the environment.

This module starts nothing and changes nothing: it decides what is mounted, hidden and limited.

- `workspace`: the file system is read-only except for the workspace; /tmp, /proc, /dev and /run
  are private; secrets are hidden; the network is allowed. It keeps a command from damaging what
  it should not touch.
- `strict`: the same without a network and without sockets of other programs, with a home folder of
  which only the workspace is seen, with four environment variables and with resource limits. It is
  for commands that were not reviewed.

Neither limits the use of processors, and only `strict` limits memory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from activations.bash.protected_paths import Mounts

__all__ = ("LIMITS", "PROCESSES", "Policy", "Profile", "environment", "options")

Profile = Literal["off", "workspace", "strict"]

#: What programs need of /run: how names are resolved, and NixOS's programs.
RUN_NEEDED = (
    "/run/systemd/resolve",
    "/run/resolvconf",
    "/run/NetworkManager/resolv.conf",
    "/run/current-system",
)

#: Private file systems; what is below them on the machine is not seen.
PRIVATE = (Path("/tmp"), Path("/run"), Path("/dev"), Path("/proc"))

MIB = 1024 * 1024

#: Resource limits of each process, by profile. DATA is what a process may allocate: unlike a limit
#: of the address space it does not count what garbage collectors reserve and never use. The
#: profile `workspace` has none, because sanitizers of compilers allocate terabytes and use little.
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

#: Processes and threads of one command together. Counted by the kernel per user namespace, and not
#: for root.
PROCESSES: Mapping[Profile, int] = {"workspace": 4096, "strict": 256}

#: The size of /tmp, of /dev/shm and of the home folder of `strict`, each. They are in memory.
TMP_BYTES: Mapping[Profile, int] = {"workspace": 4096 * MIB, "strict": 256 * MIB}
#: The size of file systems that nothing has to be written to.
SMALL_BYTES = 1 * MIB

#: What a confined command sees of the server's environment. An allow-list: any other variable may
#: hold a secret, whatever its name.
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
#: The same by their beginnings and, in either case, their ends.
WORKSPACE_PREFIX = "LC_"
WORKSPACE_SUFFIX = "_PROXY"


def environment(profile: Profile, server: Mapping[str, str]) -> dict[str, str]:
    """Return what a command sees of the server's environment.

    An unconfined command sees everything except the server's settings and keys of model providers.
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
        return "@" not in value  # the address of a proxy can hold a password
    return name in WORKSPACE_VARIABLES or name.startswith(WORKSPACE_PREFIX)


class Policy(NamedTuple):
    """What a command may use, apart from its profile."""

    workspace: Path
    #: The user's home folders.
    homes: tuple[Path, ...]
    #: What it must not see.
    hidden: tuple[Path, ...]
    #: Sockets of other programs.
    sockets: tuple[Path, ...]
    #: What of the workspace it must not change.
    protected: Mounts
    #: The descriptor with the text that covers a placeholder of `.git/commondir`.
    common_dir_fd: int
    #: Whether this bubblewrap can limit the size of a file system (0.7 and newer).
    sized: bool


def options(profile: Profile, policy: Policy, cwd: Path, variables: Mapping[str, str]) -> list[str]:
    """Return the options of bwrap. A later mount covers an earlier one."""
    given = ["--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    given += ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    given += ["--unshare-cgroup-try"]
    if profile == "strict":
        given += ["--unshare-net"]
    given += ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    room = TMP_BYTES[profile]
    given += _tmpfs(Path("/tmp"), room, policy) + _tmpfs(Path("/run"), SMALL_BYTES, policy)
    given += [*_tmpfs(Path("/dev/shm"), room, policy), "--remount-ro", "/dev"]
    for needed in RUN_NEEDED:
        given += ["--ro-bind-try", needed, needed]
    workspace = policy.workspace
    # What leads to the workspace is hidden before the workspace is mounted on top of it.
    outer = [path for path in policy.hidden if workspace.is_relative_to(path)]
    below = [*PRIVATE, *outer]
    if profile == "strict":
        for home in policy.homes:
            given += _tmpfs(home, room, policy)
        below += policy.homes
    for hidden in outer:
        given += _tmpfs(hidden, SMALL_BYTES, policy)
    given += ["--bind", str(workspace), str(workspace)]
    given += _protection(policy)
    above: list[Path] = []
    # Folders first: what is in one of them needs no mount of its own.
    for hidden in [*sorted({*policy.hidden} - {*outer}, key=_folders_first), *policy.sockets]:
        candidates = above if hidden.is_relative_to(workspace) else [*below, *above]
        if any(hidden.is_relative_to(cover) for cover in candidates):
            continue
        if hidden.is_dir():
            given += _tmpfs(hidden, SMALL_BYTES, policy)
            above.append(hidden)
        else:
            given += ["--ro-bind", os.devnull, str(hidden)]
    given += ["--clearenv"]
    for name, value in variables.items():
        given += ["--setenv", name, value]
    return [*given, "--chdir", str(cwd)]


def _protection(policy: Policy) -> list[str]:
    """Keep the command from changing what is run outside the sandbox."""
    given = []
    for path in policy.protected.pinned:
        given += ["--bind", str(path), str(path)]
    for path in policy.protected.read_only:
        given += ["--ro-bind", str(path), str(path)]
    for path in policy.protected.empty:
        given += [*_tmpfs(path, SMALL_BYTES, policy), "--remount-ro", str(path)]
    for path in policy.protected.common_dir:
        given += ["--ro-bind-data", str(policy.common_dir_fd), str(path)]
    return given


def _folders_first(path: Path) -> tuple[bool, Path]:
    return not path.is_dir(), path


def _tmpfs(path: Path, size: int, policy: Policy) -> list[str]:
    return [*(("--size", str(size)) if policy.sized else ()), "--tmpfs", str(path)]
