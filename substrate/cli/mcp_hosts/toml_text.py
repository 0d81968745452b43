"""Edit one table in the text of a TOML file and leave every other byte unchanged.

A statement consists of as many lines as tomllib needs to accept it, so multi-line strings and
arrays are recognised correctly.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from plexus.rpc import wire

__all__ = ("put", "read", "remove", "snippet")

BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
LINE = re.compile(r"[^\n]*\n|[^\n]+")


class Statement(NamedTuple):
    """A header, a key-value pair, a comment or a blank line, including its line ending."""

    text: str
    value: dict[str, Any]

    @property
    def is_header(self) -> bool:
        return self.text.lstrip(" \t").startswith("[")

    @property
    def table(self) -> tuple[str, ...]:
        """Path of the table that a header starts; for an array of tables the array's path."""
        path: list[str] = []
        value: Any = self.value
        while isinstance(value, dict) and value:
            [(key, value)] = value.items()
            path.append(key)
        return tuple(path)

    @property
    def comment(self) -> str:
        """Comment after the value of a pair, with the white space before it."""
        for mark in re.finditer(r"[ \t]*#", self.text):
            if _parsed(self.text[: mark.start()]) == self.value:
                return self.text[mark.start() :].rstrip("\r\n")
        return ""


def read(text: str) -> dict[str, Any]:
    """Parse the text. Raises ValueError if it is not TOML."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"it is not TOML ({error})") from error


def snippet(section: str, name: str, entry: Mapping[str, Any]) -> str:
    """Return the text of a file with only this entry."""
    return f"[{section}.{name}]\n" + _pairs(entry)


def put(text: str, path: Sequence[str], value: Any) -> str:
    """Return the text with this value at this path: a table in a section, or a key of such a table.

    A missing final newline stays missing. Raises ValueError if the key's table has no header.
    """
    section, name, *keys = path
    end = "\r\n" if "\r\n" in text else "\n"
    unterminated = bool(text) and not text.endswith("\n")
    statements = _statements(text + end * unterminated)
    pieces = [each.text for each in statements]
    header, pairs = _find(statements, (section, name))
    if header is None:
        if keys:
            raise ValueError(f"{section}.{name} is not written as a table [{section}.{name}]")
        gap = end if text.strip() else ""
        pieces.append(gap + snippet(section, name, value).replace("\n", end))
    elif not keys:
        for index in pairs:
            pieces[index] = ""
        pieces[header] += _pairs(value).replace("\n", end)
    else:
        [key] = keys
        old = next((index for index in pairs if key in statements[index].value), None)
        if old is None:
            pieces[pairs[-1] if pairs else header] += _pairs({key: value}).replace("\n", end)
        else:
            indentation = pieces[old][: len(pieces[old]) - len(pieces[old].lstrip(" \t"))]
            pieces[old] = f"{indentation}{key} = {_value(value)}{statements[old].comment}{end}"
    result = "".join(pieces)
    return result.removesuffix(end) if unterminated else result


def remove(text: str, path: Sequence[str]) -> str:
    """Return the text without the table at this path, and without the tables inside it.

    The text is unchanged if there is no such table with a separate header.
    """
    wanted = tuple(path)
    pieces: list[str] = []
    is_inside = False
    for statement in _statements(text):
        if statement.is_header:
            is_inside = statement.table[: len(wanted)] == wanted
        if not is_inside:
            pieces.append(statement.text)
    return "".join(pieces)


def _find(statements: Sequence[Statement], table: tuple[str, ...]) -> tuple[int | None, list[int]]:
    """Return the index of the table's header, and the indices of its pairs."""
    header = None
    pairs = []
    for index, statement in enumerate(statements):
        if statement.is_header:
            if header is not None:
                break
            if statement.table == table:
                header = index
        elif header is not None and statement.value:
            pairs.append(index)
    return header, pairs


def _statements(text: str) -> list[Statement]:
    statements = []
    pending = ""
    for line in LINE.findall(text):
        pending += line
        value = _parsed(pending)
        if value is not None:
            statements.append(Statement(pending, value))
            pending = ""
    return statements


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def _key(name: str) -> str:
    """Format a key, quoted unless it is a bare one."""
    return name if BARE_KEY.fullmatch(name) else wire.encode(name).decode()


def _pairs(entry: Mapping[str, Any]) -> str:
    return "".join(f"{_key(key)} = {_value(value)}\n" for key, value in entry.items())


def _value(value: Any) -> str:
    """Format a string, number, boolean, list or table. TOML supports all escapes of JSON."""
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        if not value:
            return "{}"
        pairs = (f"{_key(key)} = {_value(each)}" for key, each in value.items())
        return f"{{ {', '.join(pairs)} }}"
    return wire.encode(value).decode()
