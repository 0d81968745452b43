"""The code blocks of the documents, and how each kind is checked.

Commands run on a terminal, in a folder for each document, next to one server for all of them.

| Block | Check |
|---|---|
| `console` | every line that begins with `$ ` is run; the text below it is its output |
| `sh` | every command is run, and must succeed |
| `python` that begins with `# FILE` | written to FILE; run if no command of the page uses it |
| `json`, `toml` | parsed |
| `text` | output, or a drawing |

A comment in the line before a block changes that: `<!-- not run: REASON -->` for what cannot run in
a test, and `<!-- tested by: FILE -->` for a test that runs the block, or the program that it is
taken from. The commands of `substrate` in a block that is not run are parsed by the real command
line, so that a wrong name of a command, a method or an option is found there too.

In output, `...` on its own line stands for any lines, and within a line for any text.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from click.testing import CliRunner
from command_terminal import Terminal, fixed

from substrate.cli.main import cli

__all__ = ("Block", "Reader", "blocks", "unchecked")

#: Languages that have a check; every other block needs a comment.
CHECKED = frozenset({"console", "sh", "python", "json", "toml", "text"})

_FENCE = re.compile(
    r"(?:^<!-- (?P<comment>(?:not run|tested by): [^\n]*?) -->\n+)?"
    r"^(?P<fence>```+|:::+)(?P<language>[^\n]*)\n(?P<text>.*?)^(?P=fence)$",
    re.S | re.M,
)
#: What the test suite generates and compares as a whole.
_GENERATED = re.compile(r"<!-- transcript: \w+ -->\n.*?<!-- end -->", re.S)
#: Blocks that are instructions for the site's generator.
_DIRECTIVE = re.compile(r"\{[\w-]+\}")


class Block(NamedTuple):
    """A code block of a document."""

    line: int
    language: str
    text: str
    #: Why it is not run.
    reason: str | None
    #: The test that reads it, relative to `tests`.
    test: str | None


def blocks(text: str) -> list[Block]:
    """Return the code blocks of a document, without generated transcripts."""
    text = _GENERATED.sub(lambda found: "\n" * found[0].count("\n"), text)
    found = []
    for each in _FENCE.finditer(text):
        if _DIRECTIVE.match(each["language"]):
            continue
        kind, _, about = (each["comment"] or "").partition(": ")
        line = text.count("\n", 0, each.start("fence")) + 1
        reason = about if kind == "not run" else None
        test = about if kind == "tested by" else None
        found.append(Block(line, each["language"].strip(), each["text"], reason, test))
    return found


def unchecked(block: Block, tests: Path) -> str | None:
    """Return why a block has no check; None if it has one."""
    if block.test is not None:
        named = tests / block.test
        return None if named.is_file() else f"{block.test} does not exist"
    if block.reason is not None:
        return None if block.reason.strip() else "the reason is missing"
    if block.language not in CHECKED:
        return f"a {block.language or 'nameless'} block needs a comment with its test or a reason"
    if block.language == "python" and file_of(block) is None:
        return "the first line of a python block is a comment with its file name"
    if block.language == "console" and not block.text.startswith("$ "):
        return "a console block begins with `$ `; output alone is a text block"
    return None


def file_of(block: Block) -> str | None:
    """Return the file name in the first line of a Python block."""
    found = re.match(r"# ([\w./-]+\.py)\n", block.text)
    return None if found is None else found[1]


def commands(block: Block) -> Iterator[tuple[str, str | None]]:
    """Yield each command of a block, and its output if the block shows it."""
    if block.language == "console":
        for part in re.split(r"^\$ ", block.text, flags=re.M)[1:]:
            lines = part.splitlines(keepends=True)
            count = 1
            while lines[count - 1].endswith("\\\n"):
                count += 1
            yield "".join(lines[:count]).strip(), "".join(lines[count:]) or None
    elif block.language == "sh":
        text = re.sub(r"^#[^\n]*\n", "", block.text, flags=re.M)
        for command in _split_commands(text):
            yield command, None


def _split_commands(text: str) -> Iterator[str]:
    """Yield the commands of a script: a line, with the lines that its quotes or `\\` continue."""
    pending = ""
    for line in text.splitlines():
        pending = f"{pending}\n{line}" if pending else line
        if pending.endswith("\\"):
            continue
        try:
            shlex.split(pending, comments=True)
        except ValueError:  # an open quote
            continue
        if pending.strip():
            yield pending.strip()
        pending = ""
    assert not pending, f"unfinished command: {pending}"


class Reader:
    """A reader of one document, who follows it in a folder."""

    def __init__(
        self, folder: Path, environment: Mapping[str, str], words: Mapping[str, str]
    ) -> None:
        self._folder = folder
        self._environment = environment
        #: Placeholders of the documents, with values.
        self._words = words

    def read(self, text: str) -> list[str]:
        """Check every block of a document, and return what is wrong."""
        found = blocks(text)
        shell = "\n".join(block.text for block in found if block.language in ("console", "sh"))
        faults = []
        for block in found:
            if block.test is not None:
                continue
            if block.reason is not None:
                faults += [f"line {block.line}: {each}" for each in parse_faults(block)]
            elif (fault := self._check(block, shell)) is not None:
                faults.append(f"line {block.line}: {fault}")
        return faults

    def _check(self, block: Block, shell: str) -> str | None:
        match block.language:
            case "json":
                json.loads(block.text)
            case "toml":
                tomllib.loads(block.text)
            case "python":
                file = file_of(block)
                assert file is not None
                path = self._folder / file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block.text)
                if file not in shell:
                    return self._run(f"python {shlex.quote(file)}", None)
            case "console" | "sh":
                for command, output in commands(block):
                    if (fault := self._run(command, output)) is not None:
                        return fault
        return None

    def _run(self, command: str, expected: str | None) -> str | None:
        script = command
        for word, value in self._words.items():
            script = re.sub(rf"(?<![\w/$-]){re.escape(word)}(?![\w-])", value, script)
        terminal = Terminal(script, self._folder, self._environment)
        try:
            code, output = terminal.rest()
        except subprocess.TimeoutExpired:
            return f"{command}\n  does not end"
        finally:
            terminal.close()
        if code != 0 and expected is None:
            return f"{command}\n  exits with {code}: {output}"
        if expected is not None and not matches(fixed(expected), output):
            return f"{command}\n  prints\n{output}\n  instead of\n{expected}"
        return None


def matches(expected: str, output: str) -> bool:
    """Return whether an output is as shown. `...` stands for any text; digits may differ."""

    def pattern(line: str) -> str:
        words = re.sub(r"\\\.\\\.\\\.", ".*", re.escape(line.rstrip()))
        return re.sub(r"\d+", r"\\d+", words)

    lines = [
        r"(?:[^\n]*\n)*?" if line.strip() == "..." else rf"{pattern(line)}[ ]*\n"
        for line in expected.strip("\n").splitlines()
    ]
    return re.fullmatch("".join(lines), output.strip("\n") + "\n") is not None


def parse_faults(block: Block) -> Iterator[str]:
    """Report commands of `substrate` in a block that the command line would refuse."""
    for command, _ in commands(block):
        for words in _substrate_commands(command):
            end = words.index("--") if "--" in words else len(words)
            given = [*words[:end], "--help"]
            # A server of the developer on the usual port must not answer.
            alone = CliRunner(env={"SUBSTRATE_PORT": "0"})
            done = alone.invoke(cli, given, prog_name="substrate")
            if done.exit_code != 0:
                yield f"substrate {shlex.join(words)}\n  {done.output.strip()}"


def _substrate_commands(command: str) -> Iterator[list[str]]:
    """Yield the arguments of each `substrate` in a command, substitutions included."""
    for inner in re.findall(r"\$\((substrate [^)]*)\)", command):
        yield shlex.split(inner)[1:]
    command = re.sub(r"\$\([^)]*\)", "X", command)
    for part in re.split(r"\s*(?:\||&&|;|>|<|&)\s*", command):
        try:
            words = shlex.split(part, comments=True)
        except ValueError:
            continue
        while words and (words[0] == "$" or re.fullmatch(r"[A-Z_]+=\S*", words[0])):
            words.pop(0)
        if words[:1] == ["substrate"]:
            yield words[1:]


def write_programs(folder: Path) -> Path:
    """Write `substrate` and `python` into a folder for PATH, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    programs = {"substrate": f'exec {sys.executable} -m substrate "$@"'}
    for name in ("python", "python3"):
        programs[name] = f'exec {sys.executable} "$@"'
    for name, line in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / name).chmod(0o755)
    return folder
