"""Every command of the tutorial is run, and its output compared with the text.

The commands run in a separate environment, on a terminal, in a new folder. `claude` is not
installed; the official client starts the same command instead, and must see the same tool.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import socket
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from command_terminal import Terminal, fixed

ROOT = Path(__file__).parents[1]
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()

#: The comment before the expected output of `substrate dev`.
SAYS = "<!-- the server says -->\n"


class Block(NamedTuple):
    """A block of the document."""

    language: str
    text: str
    is_server_output: bool


def blocks(text: str) -> list[Block]:
    pattern = re.compile(rf"({re.escape(SAYS)})?^```(\w+)\n(.*?)^```$", re.S | re.M)
    return [Block(found[2], found[3], bool(found[1])) for found in pattern.finditer(text)]


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Yield each command of a block, and its output."""
    for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
        command, _, output = part.partition("\n")
        yield command, output


class Reader:
    """A reader who executes the blocks of the tutorial."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.cwd = folder
        self.ran: list[str] = []
        self._environment = environment
        self._server: Terminal | None = None

    def follow(self, block: Block) -> None:
        if block.is_server_output:
            assert self._server is not None
            self._server.wait_for(fixed(block.text))
        elif block.language == "python":
            first, _, text = block.text.partition("\n")
            (self.cwd / first.removeprefix("# ")).write_text(text)
        elif block.language == "console":
            for command, output in commands(block.text):
                self.run(command, output)

    def run(self, command: str, expected: str) -> None:
        self.ran.append(command)
        if command.startswith("cd "):
            self.cwd /= command.removeprefix("cd ")
            return
        terminal = Terminal(command, self.cwd, self._environment)
        if command == "substrate dev":
            self._server = terminal
            terminal.wait_for(fixed(expected))
            return
        try:
            code, output = terminal.rest()
        finally:
            terminal.close()
        assert (command, output) == (command, fixed(expected))
        assert code == 0

    def close(self) -> None:
        if self._server is not None:
            self._server.close()


def make_environment(folder: Path) -> dict[str, str]:
    """Create an environment with the tests' packages, into which more can be installed."""
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    bin_folder = folder / "venv" / "bin"
    site = sysconfig.get_path("purelib", vars={"base": str(folder / "venv")})
    Path(site, "tests.pth").write_text(
        "".join(f"import site; site.addsitedir({path!r})\n" for path in _site_folders())
    )
    python = bin_folder / "python"
    substrate = f"#!{python}\nfrom substrate.__main__ import main\nmain()\n"
    # Nothing is downloaded: packages are built with the tests' packages.
    pip = f'#!/bin/sh\nexec {python} -m pip "$@" --no-build-isolation --no-index --no-deps\n'
    for name, text in (("substrate", substrate), ("pip", pip)):
        (bin_folder / name).write_text(text)
        (bin_folder / name).chmod(0o755)
    with contextlib.closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    home = folder / "home"
    home.mkdir()
    return {
        "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "TERM": "xterm-256color",
        "COLUMNS": "80",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "SUBSTRATE_PORT": str(port),
    }


def _site_folders() -> list[str]:
    """Return the folders of this interpreter's packages, and of this project."""
    return [*(path for path in sys.path if path.endswith("site-packages")), str(ROOT)]


@pytest.mark.timeout(180)
def test_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    reader = Reader(work, make_environment(tmp_path))
    try:
        for block in blocks(TUTORIAL):
            reader.follow(block)
    finally:
        reader.close()
    assert len(reader.ran) >= 10


def test_it_is_under_twenty_lines_and_three_commands() -> None:
    [source] = [block for block in blocks(TUTORIAL) if 'Activation("weather")' in block.text]
    code = [line for line in source.text.splitlines()[1:] if line.strip()]
    assert len(code) < 20
    shell = "".join(block.text for block in blocks(TUTORIAL) if block.language != "python")
    for command in ("substrate new weather", "pip install ", "claude mcp add weather -- "):
        assert command in shell


def test_the_official_client_starts_the_command_that_claude_code_is_given() -> None:
    [claude] = re.findall(r"^claude mcp add weather -- (.*)$", TUTORIAL, re.M)
    [official] = re.findall(r"^\$ python see_it\.py (.*)$", TUTORIAL, re.M)
    assert shlex.split(claude) == shlex.split(official)


def test_every_block_is_of_a_kind_that_is_checked() -> None:
    assert {block.language for block in blocks(TUTORIAL)} == {"console", "python", "sh", "text"}
    for block in blocks(TUTORIAL):
        if block.language == "sh":  # only commands of Claude Code are not run
            assert block.text.startswith("claude mcp add ")
        assert (block.language == "text") == block.is_server_output
    assert TUTORIAL.count("```") == 2 * len(blocks(TUTORIAL))
