"""Names, strings and comments of generated code, which are somebody's words made harmless.

Whatever a schema says ends up in a file that is compiled: a name must be one, a string must end
where it ends, and a comment must not be left early or show something other than what it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from plexus.rpc import wire
from plexus.text import replace_controls

__all__ = ("NameAllocator", "escaped", "lines_of", "pascal")

_WORDS = re.compile(r"[A-Za-z0-9]+")
REPLACEMENT = "\ufffd"


class NameAllocator:
    """Names that are given once each."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)

    def take(self, *wishes: str) -> str:
        """The first of these that is free, or else the last of them with a number."""
        for wish in wishes:
            if wish not in self._taken:
                self._taken.add(wish)
                return wish
        number = 2
        while f"{wishes[-1]}{number}" in self._taken:
            number += 1
        return self.take(f"{wishes[-1]}{number}")


def pascal(text: str) -> str:
    """`node_get.children` as `NodeGetChildren`; what is no letter or digit of ASCII is left out."""
    words = _WORDS.findall(text)
    name = "".join(word[0].upper() + word[1:] for word in words)
    return f"X{name}" if not name or name[0].isdigit() else name


def escaped(text: str, astral: str) -> str:
    """A string in double quotes, as TypeScript and Python both read it.

    They differ in one thing, how a character beyond U+FFFF is escaped; `astral` says how.
    """
    quoted = wire.encode(text).decode()
    return "".join(char if char.isprintable() else _escape(char, astral) for char in quoted)


def _escape(char: str, astral: str) -> str:
    return f"\\u{ord(char):04x}" if ord(char) <= 0xFFFF else astral.format(ord(char))


def lines_of(text: str) -> list[str]:
    """A text for a comment: lines without blanks at their ends, none at the beginning or the end
    of the text, and nothing in them that cannot be seen."""
    lines = [
        replace_controls(line, REPLACEMENT).rstrip() for line in text.expandtabs(4).splitlines()
    ]
    while lines and not lines[-1]:
        lines.pop()
    while lines and not lines[0]:
        lines.pop(0)
    return lines
