"""Ctrl-C ends every command that takes long, with its exit code and without a traceback."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import SUBSTRATE, WAIT_S, environment, terminal, without_colours

#: A server of a mount that never answers.
SILENT = (sys.executable, "-c", "import sys; sys.stdin.read()")
INTERRUPTED = 130


@pytest.mark.parametrize(
    ("words", "shown", "code"),
    [
        (("watch",), "Watching this project", INTERRUPTED),
        (("mcp", "install", "claude-code"), r"\[y/N\]", INTERRUPTED),
        (("mount", "add", "silent", "--", *SILENT), "Mounted silent", INTERRUPTED),
        (("call", "bash.execute", "--command", "-"), "press Ctrl-D", INTERRUPTED),
        # A server that is asked to stop has done what it should.
        (("--port", "0", "dev", "tool.py"), "press Ctrl-C to stop", 0),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_ctrl_c_ends_a_command(
    words: tuple[str, ...], shown: str, code: int, tmp_path: Path
) -> None:
    (tmp_path / "tool.py").write_text("from plexus import Activation\nt = Activation('t')\n")
    home = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    with terminal(*words, cwd=tmp_path, **home) as screen:
        screen.screen.wait_for(shown)
        for _ in range(5):
            # A key that is pressed between a prompt and its read is lost, as in every program that
            # reads lines. A person presses it again.
            screen.type("\x03")
            if screen.has_ended(within_s=5):
                break
        ended, text = screen.end()
    seen = without_colours(text)
    assert ended == code, seen
    assert "Traceback" not in seen
    assert "Aborted" not in seen


def test_ctrl_c_while_the_program_is_imported_prints_nothing(tmp_path: Path) -> None:
    importing = (
        "import builtins, os, signal\n"
        "load = builtins.__import__\n"
        "def press(name, *rest):\n"
        "    if name == 'substrate.cli.main':\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "    return load(name, *rest)\n"
        "builtins.__import__ = press\n"
        "from substrate.__main__ import main\n"  # as the installed command does
        "main()\n"
    )
    done = subprocess.run(
        [*SUBSTRATE[:-2], "-c", importing],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
