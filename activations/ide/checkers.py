"""The checkers that are known: when they apply to a file, how they are called, what they report.

A checker is used if it is installed and, except ruff, if the project configures it: the results of
a checker with a foreign configuration would mislead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from activations.ide.positions import Position, Range, lines_of
from activations.ide.programs import Output
from plexus import Failed
from plexus.rpc import wire

__all__ = ("ANALYSIS", "CHECKERS", "MESSAGE_CHARS", "Checker", "Diagnostic", "parse_checker")

PYTHON: Final = frozenset({"python"})
JAVASCRIPT: Final = frozenset({"javascript", "javascriptreact", "typescript", "typescriptreact"})
TYPESCRIPT: Final = frozenset({"typescript", "typescriptreact"})
MESSAGE_CHARS: Final = 2000
#: The checker that is an activation of this server.
ANALYSIS: Final = "analysis"


class Diagnostic(NamedTuple):
    """One finding in a file."""

    message: str
    severity: str
    range: Range
    source: str
    code: str | None

    def as_json(self) -> dict[str, Any]:
        """Return the form on the wire."""
        return {
            "message": self.message,
            "severity": self.severity,
            "range": self.range.as_json(),
            "source": self.source,
            "code": self.code,
        }


class Checker(NamedTuple):
    """One checker."""

    name: str
    languages: frozenset[str]
    #: Files of the workspace, one of which configures it; with a text that it must contain.
    configured_by: tuple[tuple[str, str], ...]
    #: Arguments after the program, for a file.
    arguments: Callable[[str], Sequence[str]]
    #: Whether it reads the text from standard input.
    stdin: bool
    #: Reads the output: the file, its text, the output. Raises Failed.
    read: Callable[[str, str, Output], list[Diagnostic]]

    def is_configured(self, folder: Path) -> bool:
        """Return whether the project uses it."""
        return not self.configured_by or any(
            _contains(folder / name, text) for name, text in self.configured_by
        )


def _contains(path: Path, text: str) -> bool:
    try:
        if not text:
            return path.is_file()
        with path.open(encoding="utf-8", errors="replace") as file:
            return text in file.read(256 * 1024)
    except OSError:
        return False


def _at(lines: list[str], line: Any, column: Any) -> Position:
    """Return a position from a line and a column that count characters from 1."""
    row = max(int(line or 1) - 1, 0)
    if row >= len(lines):
        return Position(len(lines) - 1, 0)
    before = lines[row][: max(int(column or 1) - 1, 0)]
    return Position(row, len(before.encode("utf-16-le", "surrogatepass")) // 2)


def _units_at(line: Any, column: Any) -> Position:
    """Return a position from a line and a column that count UTF-16 units from 1."""
    return Position(max(int(line or 1) - 1, 0), max(int(column or 1) - 1, 0))


def _between(start: Position, end: Position) -> Range:
    return Range(start, max(start, end))


def _decoded(text: str, name: str) -> Any:
    try:
        return wire.decode_trusted(text.encode())
    except ValueError:
        raise Failed(f"{name} has written no JSON") from None


def _failure(name: str, output: Output) -> Failed:
    lines = (output.stderr or output.stdout).strip().splitlines()
    return Failed(f"{name} failed: {lines[-1][:300] if lines else f'exit code {output.code}'}")


# --- ruff -------------------------------------------------------------------------------------


def _ruff_arguments(path: str) -> list[str]:
    options = ["--output-format=json", "--no-cache", "--no-fix", "--force-exclude"]
    return ["check", *options, "--stdin-filename", path, "-"]


def _read_ruff(_: str, text: str, output: Output) -> list[Diagnostic]:
    if output.code not in (0, 1):
        raise _failure("ruff", output)
    lines = lines_of(text)
    found = []
    for each in _decoded(output.stdout or "[]", "ruff"):
        start, end = each["location"], each.get("end_location") or each["location"]
        code = each.get("code")
        found.append(
            Diagnostic(
                str(each["message"])[:MESSAGE_CHARS],
                "Error" if code in (None, "E999", "invalid-syntax", "F821") else "Warning",
                _between(
                    _at(lines, start["row"], start["column"]), _at(lines, end["row"], end["column"])
                ),
                "ruff",
                code,
            )
        )
    return found


# --- mypy -------------------------------------------------------------------------------------


def _mypy_arguments(path: str) -> list[str]:
    options = ["--output=json", "--follow-imports=silent", "--show-column-numbers"]
    return [*options, "--no-error-summary", "--", path]


def _read_mypy(path: str, text: str, output: Output) -> list[Diagnostic]:
    if output.code not in (0, 1):
        raise _failure("mypy", output)
    lines = lines_of(text)
    found = []
    for line in output.stdout.splitlines():
        if not line.startswith("{"):
            continue
        each = _decoded(line, "mypy")
        if Path(str(each.get("file"))).as_posix() != path:
            continue
        start = _at(lines, each["line"], int(each.get("column", 0)) + 1)
        end = _at(lines, each["line"], len(lines[start.line]) + 1)
        severity = {"error": "Error", "note": "Info"}.get(str(each.get("severity")), "Warning")
        code = each.get("code")
        message = str(each["message"])[:MESSAGE_CHARS]
        found.append(Diagnostic(message, severity, _between(start, end), "mypy", code))
    return found


# --- tsc --------------------------------------------------------------------------------------

_TSC_LINE: Final = re.compile(r"(.{1,4096}?)\((\d+),(\d+)\): (error|warning|message) (TS\d+): (.*)")


def _tsc_arguments(_: str) -> list[str]:
    return ["--noEmit", "--pretty", "false", "--incremental", "false", "-p", "."]


def _read_tsc(path: str, _: str, output: Output) -> list[Diagnostic]:
    if output.code and "error TS" not in output.stdout:
        raise _failure("tsc", output)
    found = []
    for line in output.stdout.splitlines():
        match = _TSC_LINE.fullmatch(line[:8192])
        if match is None or Path(match[1]).as_posix() != path:
            continue
        start = _units_at(match[2], match[3])
        severity = {"error": "Error", "warning": "Warning"}.get(match[4], "Info")
        at = Range(start, start)
        found.append(Diagnostic(match[6][:MESSAGE_CHARS], severity, at, "tsc", match[5]))
    return found


# --- eslint -----------------------------------------------------------------------------------


def _eslint_arguments(path: str) -> list[str]:
    return ["--format", "json", "--stdin", "--stdin-filename", path]


def _read_eslint(_: str, __: str, output: Output) -> list[Diagnostic]:
    if output.code not in (0, 1):
        raise _failure("eslint", output)
    found = []
    for file in _decoded(output.stdout or "[]", "eslint"):
        for each in file.get("messages", ()):
            if each.get("ruleId") is None and each.get("severity") == 1:
                # Not a finding: the configuration excludes the file.
                raise Failed(f"eslint: {str(each['message'])[:300]}")
            start = _units_at(each.get("line"), each.get("column"))
            end = start
            if each.get("endLine"):
                end = _units_at(each["endLine"], each.get("endColumn"))
            severity = "Error" if each.get("severity") == 2 else "Warning"
            message, code = str(each["message"])[:MESSAGE_CHARS], each.get("ruleId")
            found.append(Diagnostic(message, severity, _between(start, end), "eslint", code))
    return found


def _eslint_files() -> tuple[tuple[str, str], ...]:
    flat = [f"eslint.config.{suffix}" for suffix in ("js", "mjs", "cjs", "ts", "mts", "cts")]
    older = [f".eslintrc{suffix}" for suffix in ("", ".js", ".cjs", ".json", ".yml", ".yaml")]
    return (*((name, "") for name in (*flat, *older)), ("package.json", '"eslintConfig"'))


CHECKERS: Final = (
    Checker("ruff", PYTHON, (), _ruff_arguments, True, _read_ruff),
    Checker(
        "mypy",
        PYTHON,
        (
            ("mypy.ini", ""),
            (".mypy.ini", ""),
            ("pyproject.toml", "[tool.mypy]"),
            ("setup.cfg", "[mypy]"),
        ),
        _mypy_arguments,
        False,
        _read_mypy,
    ),
    Checker("tsc", TYPESCRIPT, (("tsconfig.json", ""),), _tsc_arguments, False, _read_tsc),
    Checker("eslint", JAVASCRIPT, _eslint_files(), _eslint_arguments, True, _read_eslint),
)


def parse_checker(name: str) -> str:
    """Return the name of a known checker. Raises ValueError."""
    known = [*(each.name for each in CHECKERS), ANALYSIS]
    if name not in known:
        raise ValueError(f"unknown checker {name!r}; known are {', '.join(known)}")
    return name
