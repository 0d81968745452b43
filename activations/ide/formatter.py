"""Formatters of files: those that are known, and those that the operator configures."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final, NamedTuple

from activations.ide.programs import Programs
from activations.ide.workspace import Workspace
from plexus import Failed
from plexus.errors import Unsupported

__all__ = ("Formatters", "parse_formatter")

FORMAT_S: Final = 20.0
#: Stands for the path of the file in a command.
FILE: Final = "{file}"
#: The known formatters. They read the text from standard input and write it to standard output.
KNOWN: Final = (
    ("py pyi", "ruff format --no-cache --stdin-filename {file} -"),
    ("py pyi", "black -q --stdin-filename {file} -"),
    ("rs", "rustfmt --emit stdout"),
    ("go", "gofmt"),
    (
        "js mjs cjs jsx ts tsx mts cts json css scss less html md yaml yml vue",
        "prettier --stdin-filepath {file}",
    ),
    ("c h cc cpp hpp", "clang-format --assume-filename={file}"),
    ("sh bash", "shfmt -filename {file}"),
)


class _Formatter(NamedTuple):
    suffixes: frozenset[str]
    command: tuple[str, ...]


def parse_formatter(rule: str) -> tuple[frozenset[str], tuple[str, ...]]:
    """Read a rule such as `py,pyi=ruff format -`. Raises ValueError."""
    suffixes, separator, command = rule.partition("=")
    names = frozenset(each.strip().lstrip(".").lower() for each in suffixes.split(",")) - {""}
    try:
        words = tuple(shlex.split(command))
    except ValueError:
        words = ()
    if not separator or not names or not words:
        raise ValueError(f"{rule!r} is no formatter; write one as `py,pyi=ruff format -`")
    return names, words


class Formatters:
    """The formatters of one workspace. The operator's rules come first."""

    def __init__(self, workspace: Workspace, programs: Programs, rules: tuple[str, ...]) -> None:
        """Use these rules before the known formatters. Raises ValueError."""
        self._workspace = workspace
        self._programs = programs
        self._formatters = [_Formatter(*parse_formatter(rule)) for rule in rules]
        for suffixes, text in KNOWN:
            words = tuple(shlex.split(text))
            self._formatters.append(_Formatter(frozenset(suffixes.split()), words))

    def names(self) -> list[str]:
        """Return the formatters that are installed."""
        programs = dict.fromkeys(each.command[0] for each in self._formatters)
        return [Path(each).name for each in programs if self._programs.find(each)]

    def name_for(self, path: str) -> str | None:
        """Return the name of the formatter of a file; None without one."""
        found = self._find(path)
        return None if found is None else Path(found[0]).name

    async def format(self, path: str, text: str) -> str:
        """Return the formatted text of a file. Raises Unsupported and Failed."""
        command = self._find(path)
        if command is None:
            raise Unsupported(
                f"No formatter for {path!r} is installed. Install one, or set ide_formatters."
            )
        program, *arguments = command
        # A name such as `-x.py` must not become an option.
        name = f"./{path}" if path.startswith("-") else path
        full = [program, *(each.replace(FILE, name) for each in arguments)]
        output = await self._programs.run(full, text, FORMAT_S)
        if output.code != 0 or (text.strip() and not output.stdout.strip()):
            lines = output.stderr.strip().splitlines()
            reason = lines[-1][:300] if lines else f"exit code {output.code}"
            raise Failed(f"{Path(program).name} failed: {reason}", code="format")
        return output.stdout

    def _find(self, path: str) -> list[str] | None:
        suffix = path.rpartition(".")[2].lower()
        for formatter in self._formatters:
            if suffix in formatter.suffixes:
                program = self._programs.find(formatter.command[0])
                if program is not None:
                    return [program, *formatter.command[1:]]
        return None
