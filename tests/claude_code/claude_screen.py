"""The interactive Claude Code CLI on a pseudo-terminal, with a server of ours."""

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

from claude_cli import private_environment
from conformance.node import claude_code

__all__ = ("ClaudeScreen", "open_screen")

WAIT_S = 60.0
KEY = "sk-ant-none"
#: Control sequences of a terminal: colours, cursor movements, titles.
CONTROL = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


class ClaudeScreen:
    """One session: what it has written so far, and a way to press keys."""

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._written = b""

    def press(self, keys: str) -> None:
        """Press these keys."""
        os.write(self._terminal, keys.encode())

    def wait_for(self, *texts: str) -> str:
        """Wait until one of these has been written since the last wait, and return it.

        Blanks do not count: the CLI moves the cursor over them.
        """

        def found() -> str:
            return next((text for text in texts if self.shows(text)), "")

        self.wait_until(lambda: bool(found()), f"{texts} on the screen")
        first = found()
        self._written = b""
        return first

    def shows(self, text: str) -> bool:
        """Whether this has been written since the last wait."""
        return re.sub(r"\s", "", text) in self._shown()

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Read what the CLI writes until the condition holds."""
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, f"no {what}; it shows {self._shown()[-2000:]}"
            if select.select([self._terminal], [], [], 0.1)[0]:
                with suppress(OSError):  # the CLI has ended
                    self._written += os.read(self._terminal, 65536)

    def _shown(self) -> str:
        text = CONTROL.sub(b"", self._written).decode(errors="replace")
        return re.sub(r"\s", "", text)


@contextmanager
def open_screen(folder: Path, api: str, tool: str, *options: str) -> Iterator[ClaudeScreen]:
    """Start the CLI in a new terminal; `options` are those of the server."""
    work, home, config = folder / "work", folder / "home", folder / "mcp.json"
    for made in (work, home):
        made.mkdir()
    server = {"command": sys.executable, "args": ["-m", "substrate", "--stdio", "--mcp", *options]}
    config.write_text(json.dumps({"mcpServers": {"substrate": server}}))
    # What the screens of a first start would ask.
    answered = {
        "hasCompletedOnboarding": True,
        "theme": "dark",
        "customApiKeyResponses": {"approved": [KEY[-20:]], "rejected": []},
        "projects": {str(work): {"hasTrustDialogAccepted": True}},
    }
    (home / ".claude.json").write_text(json.dumps(answered))
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    command = [str(claude_code()), "--mcp-config", str(config), "--strict-mcp-config"]
    process = subprocess.Popen(
        [*command, "--allowedTools", tool],
        cwd=work,
        env=private_environment(home, api, KEY) | {"TERM": "xterm-256color"},
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
