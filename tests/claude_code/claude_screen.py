"""The interactive Claude Code CLI on a pseudo-terminal, with our server."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyte
from claude_cli import private_environment
from conformance.node import claude_code

__all__ = ("ClaudeScreen", "open_screen", "open_terminal")

WAIT_S = 60.0
#: Seconds before a key without effect is pressed again: the CLI draws a form before it reads keys.
KEY_S = 10.0
KEY = "sk-ant-none"
ROWS, COLUMNS = 40, 120


class ClaudeScreen:
    """A session: the screen as a terminal shows it, and key presses.

    The CLI rewrites only the cells that change, so a terminal emulator interprets its output; the
    bytes alone do not contain the text of the screen.
    """

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self._screen)

    def press(self, keys: str) -> None:
        """Press these keys."""
        os.write(self._terminal, keys.encode())

    def press_until(self, keys: str, condition: Callable[[], bool], what: str) -> None:
        """Press these keys, again after `KEY_S`, until the condition holds."""
        self.repeat_until(lambda: self.press(keys), condition, what)

    def repeat_until(
        self, action: Callable[[], object], condition: Callable[[], bool], what: str
    ) -> None:
        """Do something, again after `KEY_S`, until the condition holds."""
        deadline = time.monotonic() + WAIT_S
        while True:
            action()
            if self._read_until(condition, min(KEY_S, deadline - time.monotonic())):
                return
            assert time.monotonic() < deadline, self._missing(what)

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Read the output of the CLI until the condition holds."""
        assert self._read_until(condition, WAIT_S), self._missing(what)

    def shows(self, text: str) -> bool:
        """Return whether the screen shows a text, ignoring white space."""
        return self.count(text) > 0

    def count(self, text: str) -> int:
        """Return how often the screen shows a text, ignoring white space."""
        return _without_space("".join(self._screen.display)).count(_without_space(text))

    def _read_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() >= deadline:
                return False
            if select.select([self._terminal], [], [], 0.1)[0]:
                with suppress(OSError):  # the CLI has ended
                    self._stream.feed(os.read(self._terminal, 65536))
        return True

    def _missing(self, what: str) -> str:
        lines = [line.rstrip() for line in self._screen.display]
        return "\n".join([f"no {what}; the screen shows", *filter(None, lines)])


def _without_space(text: str) -> str:
    return re.sub(r"\s", "", text)


@contextmanager
def open_screen(folder: Path, api: str, tool: str, *options: str) -> Iterator[ClaudeScreen]:
    """Start the CLI with our MCP server in a new terminal; `options` are those of the server."""
    config = folder / "mcp.json"
    server = {"command": sys.executable, "args": ["-m", "substrate", "--stdio", "--mcp", *options]}
    config.write_text(json.dumps({"mcpServers": {"substrate": server}}))
    arguments = ["--mcp-config", str(config), "--strict-mcp-config", "--allowedTools", tool]
    with open_terminal(folder, api, arguments) as screen:
        yield screen


@contextmanager
def open_terminal(
    folder: Path, api: str, arguments: list[str], environment: dict[str, str] | None = None
) -> Iterator[ClaudeScreen]:
    """Start the CLI in a new terminal, in `folder/work`, with a home in `folder/home`."""
    work, home = folder / "work", folder / "home"
    for made in (work, home):
        made.mkdir(exist_ok=True)
    # The answers to the questions of a first start.
    answered = {
        "hasCompletedOnboarding": True,
        "theme": "dark",
        "customApiKeyResponses": {"approved": [KEY[-20:]], "rejected": []},
        "projects": {str(work): {"hasTrustDialogAccepted": True}},
    }
    (home / ".claude.json").write_text(json.dumps(answered))
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    own = {"TERM": "xterm-256color", **(environment or {})}
    process = subprocess.Popen(
        [str(claude_code()), *arguments],
        cwd=work,
        env=private_environment(home, api, KEY) | own,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield ClaudeScreen(ours)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
        os.close(ours)
