"""One sandboxed command: the resources it needs while it runs, and how it is started.

    bash (the stage) --exec--> bwrap --> bash: process limit --exec--> bash: the command

The stage and bwrap run outside the sandbox. Therefore nothing that a caller can choose reaches them
except the directory: their environment is empty (the loader reads LD_PRELOAD and similar
variables), their programs are looked up outside the workspace, and the options of bwrap, which
contain the command's environment, are read from a descriptor. Arguments would be visible to every
user of the machine.
"""

from __future__ import annotations

import errno
import os
import platform
import resource
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType

from activations.processes.process import CannotStart, Command
from activations.processes.sandbox import hidden_paths, profiles, protected_paths
from activations.processes.sandbox.hidden_paths import OwnPaths
from activations.processes.sandbox.seccomp import strict_filter
from plexus import Failed
from plexus.caller_environment import caller_variables

__all__ = ("LIMIT_PROCESSES", "STAGE", "Confinement", "find_program")

#: Script that runs outside the sandbox. Opens the descriptors that bwrap reads, by paths to those
#: of the server, and makes the command the first candidate of the kernel's OOM killer.
STAGE = """
exec 3<"$1" || exit; [ -z "$2" ] || exec 4<"$2" || exit; [ -z "$3" ] || exec 5<"$3" || exit
echo 1000 2>/dev/null >/proc/self/oom_score_adj
shift 3; exec "$@"
"""
OPTIONS_FD, COMMON_DIR_FD, FILTER_FD = 3, 4, 5

#: Runs inside the sandbox: outside of it, all processes of the user would be counted.
LIMIT_PROCESSES = 'ulimit -u "$0" && exec "$@"'
#: Since this version the kernel counts processes per user namespace.
COUNTED_PER_SANDBOX = (5, 14)

#: Maximum number of options that bwrap accepts.
MAX_OPTIONS = 9000
#: Maximum size of one variable, and of all variables together, that every kernel accepts.
MAX_VARIABLE_BYTES = 128 * 1024
MAX_ENVIRONMENT_BYTES = 1024 * 1024


class Confinement:
    """Sandbox of one command, confined to a workspace.

    A context manager: it keeps what the command needs open until the command has ended.
    """

    def __init__(
        self, profile: profiles.Profile, workspace: Path, own: OwnPaths, *, sized: bool = True
    ) -> None:
        """Choose a profile. `sized`: whether bwrap can limit the size of a file system."""
        self._profile = profile
        self._workspace = workspace
        self._own = own
        self._sized = sized
        self._protected: protected_paths.ProtectedPaths | None = None
        self._descriptors: list[int] = []

    def __enter__(self) -> Confinement:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())
        if self._protected is not None:
            self._protected.release()

    def command(self, script: str, cwd: str | None, env: dict[str, str]) -> Command:
        """Return the command to start.

        Raises Failed, OSError, or ValueError for a NUL character.
        """
        bwrap = find_program("bwrap", self._workspace)
        bash = find_program("bash", self._workspace)
        directory = self._workspace / (cwd or "")
        variables = profiles.environment(self._profile, caller_variables()) | env
        _check_size(variables)
        self._protected = self._protect()
        policy = self._policy(self._protected.mounts())
        options = profiles.options(self._profile, policy, directory, variables)
        common_dir = filter_path = ""
        before = [bwrap, "--args", str(OPTIONS_FD)]
        if policy.protected.common_dir:
            common_dir = self._descriptor(protected_paths.COMMON_DIR_TEXT)
        if self._profile == "strict":
            filter_path = self._descriptor(_filter())
            before += ["--seccomp", str(FILTER_FD)]
        stage = [bash, "-p", "-c", STAGE, "stage", self._descriptor(_encoded(options))]
        stage += [common_dir, filter_path]
        inside = [*_process_limit(bash, self._profile), bash, "-c", script]
        arguments = (*stage, *before, "--", *inside)
        return Command(arguments, str(directory), {}, profiles.LIMITS[self._profile])

    def _protect(self) -> protected_paths.ProtectedPaths:
        always = (*self._own.protected(self._workspace), *protected_paths.ALWAYS)
        try:
            return protected_paths.ProtectedPaths(
                self._workspace, always, protected_paths.IF_PRESENT
            )
        except protected_paths.Unprotectable as error:
            raise Failed(f"the command is refused: {error}", code="sandbox_unavailable") from error

    def _policy(self, protected: protected_paths.Mounts) -> profiles.Policy:
        self._own.create_private_folders()
        # The variables of the caller may name other places of secrets than those of the server.
        environments = (os.environ, caller_variables())
        homes = [*dict.fromkeys(home for each in environments for home in hidden_paths.homes(each))]
        own = tuple(self._own.hidden())
        hidden = (hidden_paths.secret_paths(each, homes, own) for each in environments)
        # The filter of `strict` refuses all sockets of other programs.
        is_strict = self._profile == "strict"
        sockets = [] if is_strict else hidden_paths.socket_paths(self._workspace)
        return profiles.Policy(
            workspace=self._workspace,
            homes=tuple(homes),
            hidden=tuple(dict.fromkeys(path for paths in hidden for path in paths)),
            sockets=tuple(sockets),
            protected=protected,
            common_dir_fd=COMMON_DIR_FD,
            sized=self._sized,
        )

    def _descriptor(self, data: bytes) -> str:
        """Store these bytes in memory and return the path by which our children can open them."""
        fd = os.memfd_create("sandbox")
        self._descriptors.append(fd)
        with os.fdopen(os.dup(fd), "wb") as file:
            file.write(data)
        return f"/proc/{os.getpid()}/fd/{fd}"


def find_program(name: str, workspace: Path) -> str:
    """Return the absolute path of a program that a sandboxed command cannot have put there.

    Symbolic links are resolved, and relative folders of PATH are skipped. Raises Failed.
    """
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        path = Path(folder, name)
        if not path.is_absolute() or not os.access(path, os.X_OK):
            continue
        found = path.resolve()
        if found.is_file() and not found.is_relative_to(workspace):
            return str(found)
    raise Failed(
        f"{name} is not installed, or not in a folder of PATH outside the workspace",
        code="spawn_failed",
        data={"errno": "ENOENT"},
    )


def _filter() -> bytes:
    try:
        return strict_filter()
    except LookupError as error:
        raise Failed(
            f"the sandbox 'strict' does not work on this machine: {error.args[0]};"
            " use the sandbox 'workspace'",
            code="sandbox_unavailable",
        ) from error


def _process_limit(bash: str, profile: profiles.Profile) -> list[str]:
    """Return the arguments that precede the command to limit its processes, if the kernel can."""
    release = platform.release().split(".")
    version = tuple(int("".join(filter(str.isdigit, part)) or 0) for part in release[:2])
    if os.getuid() == 0 or version < COUNTED_PER_SANDBOX:
        return []
    limit = profiles.PROCESSES[profile]
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    return [bash, "-p", "-c", LIMIT_PROCESSES, str(limit)]


def _check_size(variables: Mapping[str, str]) -> None:
    """Raise CannotStart for variables that bwrap could not pass on."""
    sizes = [len(os.fsencode(name)) + len(os.fsencode(variables[name])) + 2 for name in variables]
    too_many = len(sizes) > MAX_OPTIONS // 6
    if too_many or max(sizes, default=0) > MAX_VARIABLE_BYTES or sum(sizes) > MAX_ENVIRONMENT_BYTES:
        raise CannotStart("exec", errno.E2BIG)


def _encoded(options: Iterable[str]) -> bytes:
    for text in options:
        if "\0" in text:
            raise ValueError(f"a NUL character in {text[:40]!r}")
    return b"".join(os.fsencode(text) + b"\0" for text in options)
