"""Positions in a text as editors count them: lines from 0, and UTF-16 code units in the line."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from plexus import InvalidParams

__all__ = ("Position", "Range", "find_text", "lines_of", "range_of", "text_in")

_BREAK: Final = re.compile(r"\r\n|\r|\n")


class Position(NamedTuple):
    """A place between two characters."""

    line: int
    character: int


class Range(NamedTuple):
    """A part of a text; the end is not included."""

    start: Position
    end: Position

    @property
    def is_empty(self) -> bool:
        """Whether it is only a cursor."""
        return self.start == self.end

    def as_json(self) -> dict[str, Any]:
        """Return the form on the wire."""
        return {
            "start": {"line": self.start.line, "character": self.start.character},
            "end": {"line": self.end.line, "character": self.end.character},
        }


def lines_of(text: str) -> list[str]:
    """Return the lines of a text without their ends. A text has at least one line."""
    return _BREAK.split(text)


def range_of(text: str, start: tuple[int, int], end: tuple[int, int]) -> Range:
    """Return a range, moved into the text where it is outside. Raises InvalidParams."""
    if min(*start, *end) < 0:
        raise InvalidParams("lines and characters count from 0")
    lines = lines_of(text)
    first, last = sorted((_clamp(lines, *start), _clamp(lines, *end)))
    return Range(first, last)


def text_in(text: str, part: Range) -> str:
    """Return the text in a range, with the ends of lines as they are."""
    return text[_offset(text, part.start) : _offset(text, part.end)]


def find_text(text: str, wanted: str, after: int = 0) -> Range | None:
    """Return where a text occurs first, from an offset on; None if it does not."""
    at = text.find(wanted, after)
    if not wanted or at < 0:
        return None
    return Range(_position(text, at), _position(text, at + len(wanted)))


def _position(text: str, offset: int) -> Position:
    lines = lines_of(text[:offset])
    return Position(len(lines) - 1, _units(lines[-1]))


def _clamp(lines: list[str], line: int, character: int) -> Position:
    if line >= len(lines):
        return Position(len(lines) - 1, _units(lines[-1]))
    return Position(line, min(character, _units(lines[line])))


def _offset(text: str, position: Position) -> int:
    """Return the index of a position in a Python string."""
    start = 0
    breaks = _BREAK.finditer(text)
    for _ in range(position.line):
        found = next(breaks, None)
        if found is None:
            return len(text)
        start = found.end()
    found = next(breaks, None)
    line = text[start : len(text) if found is None else found.start()]
    return start + len(
        line.encode("utf-16-le")[: 2 * position.character].decode("utf-16-le", "ignore")
    )


def _units(line: str) -> int:
    return len(line.encode("utf-16-le", "surrogatepass")) // 2
