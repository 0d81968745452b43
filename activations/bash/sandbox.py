"""Sandbox profiles: from a policy to the arguments that go before a command.

The work is done by bubblewrap (`bwrap`). This module starts nothing: it looks at what exists
and says what should be mounted, hidden and limited.

- `workspace`: everything is read-only but the workspace; private /tmp, /proc, /dev and /run (the
  sockets of other services are in there); the usual secrets in the home folder are hidden; the
  network is allowed. It keeps a command from damaging what it should not touch.
- `strict`: the same without a network, with a home folder of which only the workspace is seen,
  with four environment variables and with resource limits. It is for commands nobody has read.

Neither keeps a command from using the machine's processors and memory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

__all__ = ("LIMITS", "Profile", "environment", "prefix")

Profile = Literal["off", "workspace", "strict"]

#: Where programs keep what opens other doors, below the home folder.
SECRETS = (
    ".ssh",
    ".aws",
    ".gnupg",
    ".config/gh",
    ".config/gcloud",
    ".azure",
    ".kube",
    ".docker",
    ".netrc",
    ".git-credentials",
    ".npmrc",
    ".pypirc",
    ".local/state/substrate",
)

#: What programs need of /run: how names are resolved, and NixOS's programs.
RUN_NEEDED = (
    "/run/systemd/resolve",
    "/run/resolvconf",
    "/run/NetworkManager/resolv.conf",
    "/run/current-system",
)

#: Resource limits of each profile. No address space limit: it breaks every garbage collector
#: that reserves first and uses later.
LIMITS: Mapping[Profile, Mapping[str, int]] = {
    "off": {},
    "workspace": {},
    "strict": {"CORE": 0, "NOFILE": 256, "FSIZE": 256 * 1024 * 1024, "CPU": 60},
}

STRICT_VARIABLES = ("PATH", "HOME", "LANG", "TERM")


def environment(profile: Profile, server: Mapping[str, str]) -> dict[str, str]:
    """What a command may see of the server's environment; never the server's own settings, nor
    the keys that it asks models with: a model may be who runs the command."""
    if profile == "strict":
        return {name: server[name] for name in STRICT_VARIABLES if name in server}
    return {name: value for name, value in server.items() if not _is_ours(name)}


def _is_ours(name: str) -> bool:
    return name.startswith("SUBSTRATE_") or name.endswith("_API_KEY")


def prefix(bwrap: str, profile: Profile, workspace: Path, home: Path, cwd: Path) -> tuple[str, ...]:
    """The arguments that go before the command's own; a later mount covers an earlier one."""
    arguments = [bwrap, "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    arguments += ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    arguments += ["--unshare-cgroup-try"]
    if profile == "strict":
        arguments += ["--unshare-net"]
    arguments += ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    arguments += ["--tmpfs", "/tmp", "--tmpfs", "/run"]
    for path in RUN_NEEDED:
        arguments += ["--ro-bind-try", path, path]
    # An account without a home of its own has "/" there, or a folder that does not exist.
    hide_home = profile == "strict" and _exists(home) and home != Path("/")
    if hide_home:
        arguments += ["--tmpfs", str(home)]
    arguments += ["--bind", str(workspace), str(workspace)]
    for name in SECRETS:
        secret = (home / name).resolve()  # hiding a link would leave what it leads to
        covered = hide_home and secret.is_relative_to(home) and not secret.is_relative_to(workspace)
        if covered or not _exists(secret):
            continue
        if secret.is_dir():
            arguments += ["--tmpfs", str(secret)]
        else:
            arguments += ["--ro-bind", os.devnull, str(secret)]
    return (*arguments, "--chdir", str(cwd), "--")


def _exists(path: Path) -> bool:
    # Unlike the path's own method this says no, and does not raise, where we may not look.
    return os.access(path, os.F_OK)
