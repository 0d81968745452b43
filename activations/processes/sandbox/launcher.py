"""Starts shell scripts in the sandbox of a profile, and reports why one cannot start.

The first start in a sandbox is preceded by a trial: a command that does nothing. So a machine on
which the sandbox does not work is reported as such, and nothing runs unconfined instead.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from activations.processes.process import CannotStart, Command, Launcher, Process
from activations.processes.sandbox import profiles
from activations.processes.sandbox.confinement import Confinement
from activations.processes.sandbox.hidden_paths import OwnPaths
from plexus import Failed, InvalidParams
from plexus.caller_environment import caller_directory, caller_variables

__all__ = ("SandboxLauncher", "find_installed", "spawn_failed")

#: Error text for a failed start, by the step that failed.
_STEPS = {
    "cwd": "the directory {directory} cannot be entered",
    "exec": "{program} cannot be run",
    "start": "the command supervisor does not respond",
    "fork": "no process can be created",
}

TOO_LONG = (
    "the command or its environment exceeds the system's size limit; pass long input by stdin"
)


class SandboxLauncher:
    """Launcher of shell scripts, confined as a profile says."""

    def __init__(
        self,
        profile: profiles.Profile = "off",
        workspace: str | None = None,
        own_paths: OwnPaths | None = None,
    ) -> None:
        """Configure where scripts run.

        workspace: the only folder that a sandboxed script can write to.
        own_paths: files of the server that a sandboxed script must not read or change.
        Raises ValueError for a workspace that is the whole file system.
        """
        self.profile = profile
        self._workspace = Path(workspace or ".").resolve()
        if profile != "off" and self._workspace == Path("/"):
            raise ValueError("the workspace of a sandbox must not be the whole file system")
        self._own_paths = own_paths or OwnPaths()
        self._launcher = Launcher()
        self._sandbox_works = False
        #: Whether bwrap can limit the size of a file system; detected by the first trial.
        self._sized = True

    def boot(self) -> None:
        """Start the supervisor, so that it boots concurrently with the caller."""
        with contextlib.suppress(OSError):  # it is raised again, and reported, by the start
            self._launcher.prepare()

    @contextlib.contextmanager
    def prepare(self, script: str, cwd: str | None, env: dict[str, str]) -> Iterator[Command]:
        """Yield the command to start, and keep its resources open.

        Raises Failed and InvalidParams.
        """
        if self.profile == "off":
            variables = profiles.environment("off", caller_variables()) | env
            directory = str(_working_directory() / (cwd or ""))
            yield Command((find_installed("bash"), "-c", script), directory, variables)
            return
        with Confinement(
            self.profile, self._workspace, self._own_paths, sized=self._sized
        ) as sandbox:
            try:
                command = sandbox.command(script, cwd, env)
            except ValueError as error:
                raise _cannot_pass(error) from error
            except CannotStart as error:
                raise spawn_failed(TOO_LONG, error.errno) from error
            except OSError as error:
                raise spawn_failed("the sandbox cannot be prepared", error.errno or 0) from error
            yield command

    async def start(
        self, command: Command, stdin: str | None, *, stdin_stays_open: bool = False
    ) -> Process:
        """Start a prepared command. The caller must await `end()` of the result.

        Raises Failed and InvalidParams.
        """
        try:
            data = None if stdin is None else stdin.encode()
            return await self._launcher.start(command, data, stdin_stays_open=stdin_stays_open)
        except ValueError as error:  # a NUL character cannot be passed to a program
            raise _cannot_pass(error) from error
        except CannotStart as error:
            meaning = _STEPS.get(error.step, "the command cannot be started").format(
                directory=command.directory, program=command.arguments[0]
            )
            if error.errno == errno.E2BIG:
                meaning = TOO_LONG
            raise spawn_failed(meaning, error.errno) from error
        except OSError as error:
            raise spawn_failed("the command cannot be started", error.errno or 0) from error

    async def check(self) -> None:
        """Check once that the sandbox works, by running an empty command in it.

        Raises Failed if it does not.
        """
        if self._sandbox_works or self.profile == "off":
            return
        refusal = f"commands are refused: the sandbox {self.profile!r} is required, but "
        try:
            code, complaint = await self._run_trial()
            if code != 0 and "--size" in complaint:
                self._sized = False
                code, complaint = await self._run_trial()
        except Failed as error:
            if error.code != "spawn_failed":
                raise
            remedy = "; install bubblewrap or choose the sandbox 'off'"
            raise Failed(refusal + error.message + remedy, code="sandbox_unavailable") from error
        if code != 0:
            reason = complaint.strip() or "bwrap failed"
            remedy = "; allow unprivileged user namespaces or choose the sandbox 'off'"
            raise Failed(f"{refusal}it does not work: {reason}{remedy}", code="sandbox_unavailable")
        self._sandbox_works = True

    async def close(self) -> None:
        """End every process that still runs, and the supervisor."""
        await self._launcher.close()

    async def _run_trial(self) -> tuple[int | None, str]:
        """Return the exit code of a command that does nothing, and bwrap's error output."""
        with self.prepare("true", None, {}) as trial:
            process = await self.start(trial, None)
            try:
                complaint = b"".join([data async for data in process.stderr])
                await process.wait()
            finally:
                await process.end()
        return process.returncode, complaint.decode(errors="backslashreplace")


def find_installed(program: str) -> str:
    """Return the absolute path of a program of the caller's PATH. Raises Failed."""
    import shutil  # slower to import than the rest of this module together

    path = shutil.which(program, path=caller_variables().get("PATH"))
    if path is None:
        raise Failed(f"{program} is not installed", code="spawn_failed", data={"errno": "ENOENT"})
    return str(Path(path).absolute())


def _working_directory() -> Path:
    try:
        return caller_directory()
    except OSError as error:
        raise spawn_failed("the server's directory no longer exists", error.errno or 0) from error


def spawn_failed(meaning: str, number: int) -> Failed:
    """Return the error of a program that cannot be started, for a number of `errno`."""
    name = errno.errorcode.get(number, str(number))
    return Failed(f"{meaning}: {os.strerror(number)}", code="spawn_failed", data={"errno": name})


def _cannot_pass(error: ValueError) -> InvalidParams:
    return InvalidParams(f"the command cannot be passed to the system: {error}")
