"""Changing one table in the text of a TOML file, and leaving every other byte as it is.

A statement is as many lines as the parser of the standard library needs to accept them, so that
strings and arrays over several lines are never mistaken for anything else.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from plexus.rpc import wire

__all__ = ("put", "read", "snippet")

LINE = re.compile(r"[^\n]*\n|[^\n]+")


class Statement(NamedTuple):
    """A header, a pair, a comment or a blank line, with the end of its last line."""

    text: str
    value: dict[str, Any]

    @property
    def is_header(self) -> bool:
        return self.text.lstrip(" \t").startswith("[")

    @property
    def table(self) -> tuple[str, ...]:
        """The table that a header opens; of an array of tables the array's path."""
        path: list[str] = []
        value: Any = self.value
        while isinstance(value, dict) and value:
            [(key, value)] = value.items()
            path.append(key)
        return tuple(path)

    @property
    def comment(self) -> str:
        """What stands behind the value of a pair, with the white space before it."""
        for mark in re.finditer(r"[ \t]*#", self.text):
            if _parsed(self.text[: mark.start()]) == self.value:
                return self.text[mark.start() :].rstrip("\r\n")
        return ""


def read(text: str) -> dict[str, Any]:
    """What the text says; raises ValueError if it is no TOML."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"it is not TOML ({error})") from error


def snippet(section: str, name: str, entry: Mapping[str, Any]) -> str:
    """A whole file with this entry in it and nothing else."""
    return f"[{section}.{name}]\n" + _pairs(entry)


def put(text: str, path: Sequence[str], value: Any) -> str:
    """The text with this value at this path: a table in a section, or one key of such a table.

    Raises ValueError if a key is to be changed in a table that has no header of its own. A text
    whose last line has no end will have none afterwards either.
    """
    section, name, *keys = path
    end = "\r\n" if "\r\n" in text else "\n"
    unended = bool(text) and not text.endswith("\n")
    statements = _statements(text + end * unended)
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
    return result.removesuffix(end) if unended else result


def _find(statements: Sequence[Statement], table: tuple[str, ...]) -> tuple[int | None, list[int]]:
    """Where the header of this table is, and where the pairs below it are."""
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


def _pairs(entry: Mapping[str, Any]) -> str:
    return "".join(f"{key} = {_value(value)}\n" for key, value in entry.items())


def _value(value: Any) -> str:
    """A text or a list of texts: TOML knows all the escapes that JSON writes."""
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return wire.encode(value).decode()
