"""The command line in tests: as a process, on a terminal, and together with a server.

Every wait has a timeout. Commands get no SUBSTRATE variables of the test run, and port 0, on which
no server can be found, unless a test passes another.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from child_processes import clean_environment
from project_folders import trust_always

#: Timeout of every step, sufficient on a busy machine.
WAIT_S = 30.0

#: Like the installed command: the current folder is not on Python's path.
SUBSTRATE = [sys.executable, "-P", "-m", "substrate"]

COUNT = '''
from collections.abc import AsyncIterator
from plexus import Activation, Content, method

class Count(Activation):
    """Counts, out loud."""
    namespace = "count"
    version = "1.0.0"

    @method
    async def up(self, to: int) -> AsyncIterator[Content]:
        """Count from 1 up to TO."""
        for i in range(1, to + 1):
            yield Content(text=f"{i} ")
'''


def environment(**variables: str) -> dict[str, str]:
    """Return the environment without settings and without variables that affect the output."""
    kept = clean_environment()
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"):
        kept.pop(name, None)
    return kept | {"SUBSTRATE_PORT": "0", "TERM": "xterm-256color"} | variables


def add_plugin(project: Path, name: str, source: str) -> Path:
    """Add a plugin file to a project, and trust the project."""
    folder = trust_always(project) / "activations.d"
    folder.mkdir(exist_ok=True)
    file = folder / f"{name}.py"
    file.write_text(textwrap.dedent(source))
    return file


def run(
    *arguments: str, cwd: Path, stdin: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command and wait for its end."""
    return subprocess.run(
        [*SUBSTRATE, *arguments],
        cwd=cwd,
        env=environment(**variables),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def lines(text: str) -> list[dict[str, Any]]:
    """Decode lines of JSON."""
    return [json.loads(line) for line in text.splitlines()]


def eventually(holds: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end, f"timeout: {what}"
        time.sleep(0.01)


class Output:
    """Incremental reader of a descriptor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._data = b""
        self._ended = False

    @property
    def text(self) -> str:
        """Everything read so far."""
        return self._data.decode(errors="replace")

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Read until the output matches a pattern, and return the match."""
        end = time.monotonic() + WAIT_S
        while True:
            found = re.search(pattern, self.text)
            if found:
                return found
            assert not self._ended, f"output ended without {pattern!r}: {self.text!r}"
            self._read(end, pattern)

    def matches_within(self, pattern: str, within_s: float) -> bool:
        """Return whether the output matches a pattern in time, so that a test can retry."""
        end = time.monotonic() + within_s
        while not re.search(pattern, self.text):
            ready, _, _ = select.select([self._fd], [], [], max(end - time.monotonic(), 0))
            if not ready or self._ended:
                return False
            self._read(end, pattern)
        return True

    def rest(self) -> str:
        """Read to the end, and return the whole output."""
        end = time.monotonic() + WAIT_S
        while not self._ended:
            self._read(end, "the end")
        return self.text

    def _read(self, end: float, what: str) -> None:
        ready, _, _ = select.select([self._fd], [], [], max(end - time.monotonic(), 0))
        assert ready, f"timeout while waiting for {what!r}: {self.text!r}"
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # Linux reports this way that the other end of a terminal is closed
            data = b""
        self._data += data
        self._ended = not data


class Process:
    """A command that runs in parallel to the test."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self._child = child
        assert child.stdout is not None
        assert child.stderr is not None
        self.out = Output(child.stdout.fileno())
        self.err = Output(child.stderr.fileno())

    @property
    def pid(self) -> int:
        return self._child.pid

    def signal(self, number: signal.Signals) -> None:
        self._child.send_signal(number)

    def close_stdout(self) -> None:
        assert self._child.stdout is not None
        self._child.stdout.close()

    def end(self) -> int:
        """Wait for the end, and return the exit code."""
        return self._child.wait(WAIT_S)


@contextlib.contextmanager
def started(
    *arguments: str, cwd: Path, program: Sequence[str] = SUBSTRATE, **variables: str
) -> Iterator[Process]:
    """Start a command, and kill it at the end of the block unless it has ended."""
    with subprocess.Popen(
        [*program, *arguments],
        cwd=cwd,
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        try:
            yield Process(child)
        finally:
            child.kill()


@contextlib.contextmanager
def server(cwd: Path, *flags: str) -> Iterator[str]:
    """Start a server in this project with these flags, and yield its port."""
    with started("--port", "0", *flags, cwd=cwd) as process:
        yield process.err.wait_for(r"http://127\.0\.0\.1:(\d+)")[1]


#: Makes the terminal on stdin the controlling one, so that Ctrl-C sends a signal.
ON_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-P", "-m", "substrate", *sys.argv[1:]])
"""


class Terminal:
    """A command on a separate terminal."""

    def __init__(self, child: subprocess.Popen[bytes], fd: int) -> None:
        self._child = child
        self._fd = fd
        self.screen = Output(fd)

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def has_ended(self, within_s: float) -> bool:
        """Return whether the command ends within this time."""
        try:
            self._child.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def end(self) -> tuple[int, str]:
        """Wait for the end, and return the exit code and the whole output."""
        text = self.screen.rest()
        return self._child.wait(WAIT_S), text


@contextlib.contextmanager
def terminal(*arguments: str, cwd: Path, **variables: str) -> Iterator[Terminal]:
    """Start a command on a terminal, and kill it at the end of the block unless it has ended."""
    ours, theirs = os.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", ON_TERMINAL, *arguments],
        cwd=cwd,
        env=environment(**{"COLUMNS": "160", **variables}),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Terminal(child, ours)
    finally:
        child.kill()
        child.wait()
        os.close(ours)


def without_colours(text: str) -> str:
    """Return a terminal's text without control sequences."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r\n", "\n")
