"""Command lines, each executed in a child of one process that has imported everything.

A start of Python takes longer than most commands, so the process forks instead. It reads a list of
arguments per line, and answers with the exit code and what the command wrote to stderr.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from child_processes import clean_environment

__all__ = ("CommandChildren", "Ended")

#: Timeout of a command.
COMMAND_S = 30
#: Exit code of a command that ended with an exception.
EXCEPTION = 99


class Ended(NamedTuple):
    """The end of a command. The exit code is negative after a signal."""

    code: int
    errors: str


class CommandChildren:
    """The process that forks, to be used with `with`."""

    def __init__(self, folder: Path, **variables: str) -> None:
        """Set the working directory of the commands, and their environment."""
        self._folder = folder
        tests = str(Path(__file__).parents[1])
        self._environment = clean_environment(HOME=str(folder), PYTHONPATH=tests, **variables)

    def __enter__(self) -> CommandChildren:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def run(self, arguments: list[str]) -> Ended:
        """Run a command to its end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(arguments) + "\n")
        self._process.stdin.flush()
        return Ended(*json.loads(self._process.stdout.readline()))


def _serve() -> None:
    # Only the child imports the command line.
    from plexus.registry.lazy import resolve
    from substrate.cli.main import COMMANDS

    for path in COMMANDS.values():
        resolve(path)
    for line in sys.stdin:
        sys.stdout.write(json.dumps(_run(json.loads(line))) + "\n")
        sys.stdout.flush()


def _run(arguments: list[str]) -> tuple[int, str]:
    with tempfile.TemporaryFile() as errors:
        child = os.fork()
        if child == 0:
            signal.alarm(COMMAND_S)
            null = os.open(os.devnull, os.O_RDWR)
            for source, target in ((null, 0), (null, 1), (errors.fileno(), 2)):
                os.dup2(source, target)
            os._exit(_exit_code(arguments))
        _, status = os.waitpid(child, 0)
        errors.seek(0)
        return os.waitstatus_to_exitcode(status), errors.read().decode(errors="replace")


def _exit_code(arguments: list[str]) -> int:
    from substrate.cli.main import cli

    try:
        cli(arguments, prog_name="substrate")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0
    except BaseException:  # noqa: BLE001 - the test reports it
        traceback.print_exc()
        return EXCEPTION
    finally:
        sys.stderr.flush()
    return 0


if __name__ == "__main__":
    _serve()
