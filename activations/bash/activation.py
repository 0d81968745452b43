"""The `bash` activation: run a command and stream its output.

Guarantees of a call:

- Both outputs are streamed live, in chunks as they are written. A prompt without a newline is
  visible immediately.
- When the run ends, for whatever reason, no process that it started is left.
- Backpressure: a command blocks while its output is not read. A command that writes more than
  `max_output_bytes` is killed, because truncating its output while it keeps running would hide what
  it does.
- A command that does not start is an error and yields no event. A command that starts and fails is
  a complete run with a non-zero exit code.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from activations.bash import sandbox as sandboxes
from activations.bash.confinement import Confinement
from activations.bash.events import (
    Budget,
    Exit,
    Start,
    Stderr,
    Stdout,
    Truncated,
    read_output,
)
from activations.bash.hidden_paths import OwnPaths
from activations.processes.process import CannotStart, Command, Launcher, Process
from plexus import Activation, Failed, InvalidParams, method
from plexus.caller_environment import caller_directory, caller_variables
from plexus.errors import DeadlineExceeded

__all__ = ("Bash",)

DEFAULT_TIMEOUT_S = 600.0
DEFAULT_OUTPUT_BYTES = 8 * 1024 * 1024

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


class Bash(Activation):
    """Run shell commands and stream their output."""

    namespace = "bash"
    version = "1.0.0"

    def __init__(
        self,
        sandbox: sandboxes.Profile = "off",
        workspace: str | None = None,
        own_paths: OwnPaths | None = None,
    ) -> None:
        """Configure where commands run.

        workspace: the only folder that a sandboxed command can write to.
        own_paths: files of the server that a sandboxed command must not read or change.
        """
        self._profile = sandbox
        self._workspace = Path(workspace or ".").resolve()
        if sandbox != "off" and self._workspace == Path("/"):
            raise ValueError("the workspace of a sandbox must not be the whole file system")
        self._own_paths = own_paths or OwnPaths()
        self._launcher = Launcher()
        self._sandbox_works = False
        #: Whether bwrap can limit the size of a file system; detected by the first trial.
        self._sized = True

    # Never restarted: a command has effects that must not happen twice.
    @method(
        title="Run a shell command",
        deadline_s=None,
        restart="never",
        read_only=False,
        destructive=True,
        open_world=True,
    )
    async def execute(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        stdin: str | None = None,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
        max_output_bytes: int = DEFAULT_OUTPUT_BYTES,
    ) -> AsyncIterator[Start | Stdout | Stderr | Truncated | Exit]:
        """Run a shell command with bash and stream its output, then its exit code.

        Background processes are killed when the command exits: run a long-lived process in a
        separate call and cancel it when done.

        Args:
            command: Command line or script, such as "pytest -q tests".
            cwd: Working directory. Default: the server's, or the workspace in a sandbox.
            env: Environment variables to add or replace.
            stdin: Text for standard input.
            timeout_s: Seconds until the command is killed. Null: no timeout.
            max_output_bytes: Maximum bytes of stdout and stderr together; more kills the command.
        """
        _check("timeout_s", timeout_s is None or 0 < timeout_s < math.inf, "must be above zero")
        _check("max_output_bytes", max_output_bytes >= 0, "must not be negative")
        for name in env or {}:
            _check("env", bool(name) and "=" not in name, f"{name!r} cannot name a variable")

        with contextlib.suppress(OSError):  # it is raised again, and reported, by the start
            self._launcher.prepare()
        from aiostream import stream  # imported while the supervisor boots, so it adds no latency

        if not self._sandbox_works:
            await self._try_sandbox()
        with self._prepare(command, cwd, env or {}) as prepared:
            process = await self._start(prepared, stdin)
            try:
                if timeout_s is not None:
                    process.expire_after(timeout_s)
                yield Start(pid=process.pid)
                budget = Budget(max_output_bytes, process.kill)
                merged = stream.merge(
                    read_output(process.stdout, Stdout, budget),
                    read_output(process.stderr, Stderr, budget),
                )
                async with merged.stream() as output:
                    try:
                        async for event in output:
                            yield event
                    except BaseException:
                        process.kill()  # before the streams are closed, so the tree ends first
                        raise
                if budget.exceeded:
                    yield Truncated(limit_bytes=max_output_bytes)
                await process.wait()
            finally:
                await process.end()
        if process.expired and timeout_s is not None:
            raise DeadlineExceeded(
                f"the command was killed after the timeout of {timeout_s:g} s",
                data={"limit_s": timeout_s},
            )
        yield _exit(process, budget.exceeded)

    async def check_health(self) -> str:
        """Return the bash path and the sandbox profile. Raises Failed if commands cannot run."""
        bash = _find("bash")
        await self._try_sandbox()
        return f"{bash}, sandbox {self._profile}"

    async def close(self) -> None:
        """Terminate every command and the supervisor."""
        await self._launcher.close()

    async def _start(self, command: Command, stdin: str | None) -> Process:
        try:
            feed = None if stdin is None else stdin.encode()
            return await self._launcher.start(command, feed)
        except ValueError as error:  # a NUL character cannot be passed to a program
            raise _cannot_pass(error) from error
        except CannotStart as error:
            meaning = _STEPS.get(error.step, "the command cannot be started").format(
                directory=command.directory, program=command.arguments[0]
            )
            if error.errno == errno.E2BIG:
                meaning = TOO_LONG
            raise _spawn_failed(meaning, error.errno) from error
        except OSError as error:
            raise _spawn_failed("the command cannot be started", error.errno or 0) from error

    @contextlib.contextmanager
    def _prepare(self, script: str, cwd: str | None, env: dict[str, str]) -> Iterator[Command]:
        """Yield the command to start, and keep its resources open.

        Raises Failed and InvalidParams.
        """
        if self._profile == "off":
            variables = sandboxes.environment("off", caller_variables()) | env
            directory = str(_working_directory() / (cwd or ""))
            yield Command((_find("bash"), "-c", script), directory, variables)
            return
        with Confinement(
            self._profile, self._workspace, self._own_paths, sized=self._sized
        ) as sandbox:
            try:
                command = sandbox.command(script, cwd, env)
            except ValueError as error:
                raise _cannot_pass(error) from error
            except CannotStart as error:
                raise _spawn_failed(TOO_LONG, error.errno) from error
            except OSError as error:
                raise _spawn_failed("the sandbox cannot be prepared", error.errno or 0) from error
            yield command

    async def _try_sandbox(self) -> None:
        """Check that the sandbox works by running an empty command in it.

        Raises Failed if it does not.
        """
        if self._profile == "off":
            self._sandbox_works = True
            return
        refusal = f"commands are refused: the sandbox {self._profile!r} is required, but "
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

    async def _run_trial(self) -> tuple[int | None, str]:
        """Return the exit code of a command that does nothing, and bwrap's error output."""
        with self._prepare("true", None, {}) as trial:
            process = await self._start(trial, None)
            try:
                complaint = b"".join([data async for data in process.stderr])
                await process.wait()
            finally:
                await process.end()
        return process.returncode, complaint.decode(errors="backslashreplace")


def _exit(process: Process, truncated: bool) -> Exit:
    code = process.returncode
    if code is None:
        raise Failed("the guard of the command was killed, and so was the command", code="lost")
    return Exit(
        exit_code=code if code >= 0 else 128 - code,
        duration_ms=round(process.duration_s * 1000),
        truncated=truncated,
        signal=_signal_name(-code) if code < 0 else None,
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"SIG{number}"


def _find(program: str) -> str:
    import shutil  # slower to import than the rest of this module together

    path = shutil.which(program, path=caller_variables().get("PATH"))
    if path is None:
        raise Failed(f"{program} is not installed", code="spawn_failed", data={"errno": "ENOENT"})
    return str(Path(path).absolute())


def _working_directory() -> Path:
    try:
        return caller_directory()
    except OSError as error:
        raise _spawn_failed("the server's directory no longer exists", error.errno or 0) from error


def _spawn_failed(meaning: str, number: int) -> Failed:
    name = errno.errorcode.get(number, str(number))
    return Failed(f"{meaning}: {os.strerror(number)}", code="spawn_failed", data={"errno": name})


def _cannot_pass(error: ValueError) -> InvalidParams:
    return InvalidParams(f"the command cannot be passed to the system: {error}")


def _check(argument: str, valid: bool, message: str) -> None:
    if not valid:
        raise InvalidParams.at(argument, message)
