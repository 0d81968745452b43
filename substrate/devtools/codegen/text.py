"""Names, string literals and comments of generated code, made safe.

Texts of a schema, which may be hostile, end up in a file that is compiled: a name must be a valid
identifier, a string literal must not end early, and a comment must not be escaped from or display
something other than it contains.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from plexus.rpc import wire
from plexus.text import replace_controls

__all__ = ("NameAllocator", "comment_lines", "pascal", "quote_string")

_WORDS = re.compile(r"[A-Za-z0-9]+")
REPLACEMENT = "\ufffd"


class NameAllocator:
    """Allocator of unique names."""

    def __init__(self, used: Iterable[str] = ()) -> None:
        self._used = set(used)

    def allocate(self, *candidates: str) -> str:
        """Return the first free name of these, or else the last one with a number."""
        for candidate in candidates:
            if candidate not in self._used:
                self._used.add(candidate)
                return candidate
        number = 2
        while f"{candidates[-1]}{number}" in self._used:
            number += 1
        return self.allocate(f"{candidates[-1]}{number}")


def pascal(text: str) -> str:
    """Convert `node_get.children` to `NodeGetChildren`. Drops all but ASCII letters and digits."""
    words = _WORDS.findall(text)
    name = "".join(word[0].upper() + word[1:] for word in words)
    return f"X{name}" if not name or name[0].isdigit() else name


def quote_string(text: str, astral: str) -> str:
    """Return a double-quoted string literal, valid in TypeScript and in Python.

    They differ in how a character beyond U+FFFF is escaped; `astral` is the format of that.
    """
    quoted = wire.encode(text).decode()
    return "".join(char if char.isprintable() else _escape(char, astral) for char in quoted)


def _escape(char: str, astral: str) -> str:
    return f"\\u{ord(char):04x}" if ord(char) <= 0xFFFF else astral.format(ord(char))


def comment_lines(text: str) -> list[str]:
    """Return the lines of a text for a comment.

    Without trailing blanks, empty lines at the start and the end, and invisible characters.
    """
    lines = [
        replace_controls(line, REPLACEMENT).rstrip() for line in text.expandtabs(4).splitlines()
    ]
    while lines and not lines[-1]:
        lines.pop()
    while lines and not lines[0]:
        lines.pop(0)
    return lines
