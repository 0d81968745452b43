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

import math
import signal
from collections.abc import AsyncIterator

from activations.bash.events import (
    Budget,
    Exit,
    Start,
    Stderr,
    Stdout,
    Truncated,
    read_output,
)
from activations.processes.process import Process
from activations.processes.sandbox.hidden_paths import OwnPaths
from activations.processes.sandbox.launcher import SandboxLauncher, find_installed
from activations.processes.sandbox.profiles import Profile
from plexus import Activation, Failed, InvalidParams, method
from plexus.errors import DeadlineExceeded

__all__ = ("Bash",)

DEFAULT_TIMEOUT_S = 600.0
DEFAULT_OUTPUT_BYTES = 8 * 1024 * 1024


class Bash(Activation):
    """Run shell commands and stream their output."""

    namespace = "bash"
    version = "1.0.0"

    def __init__(
        self,
        sandbox: Profile = "off",
        workspace: str | None = None,
        own_paths: OwnPaths | None = None,
    ) -> None:
        """Configure where commands run.

        workspace: the only folder that a sandboxed command can write to.
        own_paths: files of the server that a sandboxed command must not read or change.
        """
        self._launcher = SandboxLauncher(sandbox, workspace, own_paths)

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

        self._launcher.boot()
        from aiostream import stream  # imported while the supervisor boots, so it adds no latency

        await self._launcher.check()
        with self._launcher.prepare(command, cwd, env or {}) as prepared:
            process = await self._launcher.start(prepared, stdin)
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
        bash = find_installed("bash")
        await self._launcher.check()
        return f"{bash}, sandbox {self._launcher.profile}"

    async def close(self) -> None:
        """Terminate every command and the supervisor."""
        await self._launcher.close()


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


def _check(argument: str, valid: bool, message: str) -> None:
    if not valid:
        raise InvalidParams.at(argument, message)
