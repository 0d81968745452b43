"""bash: run a command and stream what it writes.

What a call promises:
- Both outputs come live, in chunks as they are written; a prompt without a newline is seen.
- When the run ends, in whichever way, no process that came of it is left.
- A command whose output nobody takes is held; one that writes more than `max_output_bytes` is
  killed, because cutting its output while it runs on would hide what it does.
- A command that does not start is an error and yields no event; one that starts and fails is a
  complete run with a non-zero exit code.
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
from plexus.errors import DeadlineExceeded

__all__ = ("Bash",)

DEFAULT_TIMEOUT_S = 600.0
DEFAULT_OUTPUT_BYTES = 8 * 1024 * 1024

#: What a failure to start means in words, by the step at which it happened.
_STEPS = {
    "cwd": "the directory {directory} cannot be entered",
    "exec": "{program} cannot be run",
    "start": "the supervisor of commands does not answer",
    "fork": "no process can be made",
}

TOO_LONG = "the command or its environment is too long for the system; use stdin"


class Bash(Activation):
    """Runs shell commands and streams their output."""

    namespace = "bash"
    version = "1.0.0"

    def __init__(
        self,
        sandbox: sandboxes.Profile = "off",
        workspace: str | None = None,
        own_paths: OwnPaths | None = None,
    ) -> None:
        """Choose where commands run.

        workspace: the one folder that a confined command can write.
        own_paths: files of the server that a confined command must not see or change.
        """
        self._profile = sandbox
        self._workspace = Path(workspace or ".").resolve()
        if sandbox != "off" and self._workspace == Path("/"):
            raise ValueError("the workspace of a sandbox must not be the whole file system")
        self._own_paths = own_paths or OwnPaths()
        self._launcher = Launcher()
        self._sandbox_works = False
        #: Whether bwrap can limit the size of a file system; found out by trying.
        self._sized = True

    @method(
        title="Run a shell command",
        deadline_s=None,
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
        """Run a command with bash and stream its output as it is written.

        The run ends when the command does: what it left running in the background is ended too.
        Background work belongs in a call of its own, which can be cancelled.

        Args:
            command: The command line or script, as after `bash -c`.
            cwd: The directory to run in; the server's own, or the sandbox's workspace, if left out.
            env: Environment variables to add or to replace. A sandboxed command gets few others.
            stdin: Text that the command can read from its standard input, which is empty if left
                out.
            timeout_s: Seconds after which the command is killed and the run fails; null for never.
            max_output_bytes: How much the command may write in all; it is killed if it writes more.
        """
        _check("timeout_s", timeout_s is None or 0 < timeout_s < math.inf, "must be above zero")
        _check("max_output_bytes", max_output_bytes >= 0, "must not be negative")
        for name in env or {}:
            _check("env", bool(name) and "=" not in name, f"{name!r} cannot name a variable")

        with contextlib.suppress(OSError):  # which comes again, and is reported, when starting
            self._launcher.prepare()
        from aiostream import stream  # here, where the import costs nothing: the supervisor boots

        if not self._sandbox_works:
            await self._try_sandbox()
        with self._prepared(command, cwd, env or {}) as prepared:
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
                        process.kill()  # before the streams are closed: the tree should go at once
                        raise
                if budget.exceeded:
                    yield Truncated(limit_bytes=max_output_bytes)
                await process.gone()
            finally:
                await process.end()
        if process.expired and timeout_s is not None:
            raise DeadlineExceeded(
                f"the command was killed after {timeout_s:g} s", data={"limit_s": timeout_s}
            )
        yield _exit(process, budget.exceeded)

    async def check_health(self) -> str:
        """Say how commands are run; raises Failed if they cannot be."""
        bash = _find("bash")
        await self._try_sandbox()
        return f"{bash}, sandbox {self._profile}"

    async def close(self) -> None:
        """End every command and the supervisor."""
        await self._launcher.close()

    async def _start(self, command: Command, stdin: str | None) -> Process:
        try:
            feed = None if stdin is None else stdin.encode()
            return await self._launcher.start(command, feed)
        except ValueError as error:  # characters that no program can be given
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
    def _prepared(self, script: str, cwd: str | None, env: dict[str, str]) -> Iterator[Command]:
        """Give what to start, and hold what it needs. Raises Failed and InvalidParams."""
        if self._profile == "off":
            variables = sandboxes.environment("off", os.environ) | env
            directory = str(_working_directory() / (cwd or ""))
            yield Command((_find("bash"), "-c", script), directory, variables)
            return
        with Confinement(
            self._profile, self._workspace, self._own_paths, sized=self._sized
        ) as sandbox:
            try:
                prepared = sandbox.command(script, cwd, env)
            except ValueError as error:
                raise _cannot_pass(error) from error
            except CannotStart as error:
                raise _spawn_failed(TOO_LONG, error.errno) from error
            except OSError as error:
                raise _spawn_failed("the sandbox cannot be prepared", error.errno or 0) from error
            yield prepared

    async def _try_sandbox(self) -> None:
        """Run nothing in the sandbox to find out whether it works; raises Failed if not."""
        if self._profile == "off":
            self._sandbox_works = True
            return
        refusal = f"commands are refused because the sandbox {self._profile!r} was asked for and "
        try:
            code, complaint = await self._trial()
            if code != 0 and "--size" in complaint:
                self._sized = False
                code, complaint = await self._trial()
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

    async def _trial(self) -> tuple[int | None, str]:
        """Return the exit code of a command that does nothing, and what bwrap wrote."""
        with self._prepared("true", None, {}) as trial:
            process = await self._start(trial, None)
            try:
                complaint = b"".join([data async for data in process.stderr])
                await process.gone()
            finally:
                await process.end()
        return process.returncode, complaint.decode(errors="backslashreplace")


def _exit(process: Process, truncated: bool) -> Exit:
    code = process.returncode
    if code is None:
        raise Failed("the guard of the command was killed, and the command with it", code="lost")
    return Exit(
        exit_code=code if code >= 0 else 128 - code,
        duration_ms=round(process.duration_s * 1000),
        truncated=truncated,
        signal=_signal_name(-code) if code < 0 else None,
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name of their own
        return f"SIG{number}"


def _find(program: str) -> str:
    import shutil  # here because it costs more to import than the rest of this module

    path = shutil.which(program)
    if path is None:
        raise Failed(f"{program} is not installed", code="spawn_failed", data={"errno": "ENOENT"})
    return str(Path(path).absolute())


def _working_directory() -> Path:
    try:
        return Path.cwd()
    except OSError as error:
        raise _spawn_failed("the server's directory is gone", error.errno or 0) from error


def _spawn_failed(meaning: str, number: int) -> Failed:
    name = errno.errorcode.get(number, str(number))
    return Failed(f"{meaning}: {os.strerror(number)}", code="spawn_failed", data={"errno": name})


def _cannot_pass(error: ValueError) -> InvalidParams:
    return InvalidParams(f"the command cannot be passed on: {error}")


def _check(argument: str, holds: bool, complaint: str) -> None:
    if not holds:
        raise InvalidParams.at(argument, complaint)
