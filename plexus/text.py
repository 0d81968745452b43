"""Untrusted text: escape or replace control characters, and shorten it."""

from __future__ import annotations

import re
from typing import Final

__all__ = ("escape_controls", "head_and_tail", "printable_name", "replace_controls", "shorten")

#: Characters that must not reach a terminal or a line reader: control characters, line separators,
#: bidirectional controls, which can make text look like other text, and lone surrogates. The
#: pattern is compiled at first use, because most starts have nothing to escape.
_CONTROLS: Final = "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"


def escape_controls(text: str) -> str:
    """Return the text with control characters escaped, such as `\\u000a`."""
    return re.sub(_CONTROLS, lambda found: f"\\u{ord(found[0]):04x}", text)


def replace_controls(text: str, replacement: str = "", keep: str = "") -> str:
    """Return the text with control characters replaced, except those in `keep`."""
    return re.sub(_CONTROLS, lambda found: found[0] if found[0] in keep else replacement, text)


def printable_name(text: str, limit: int) -> str:
    """Return a name on one line, without the characters that cannot be printed or stored."""
    return "".join(filter(str.isprintable, text))[:limit].strip()


def shorten(text: str, limit: int) -> str:
    """Return the text; if it exceeds the limit, its head and an ellipsis."""
    return text if len(text) <= limit else f"{text[:limit]}..."


def head_and_tail(text: str, limit: int, note: str = "{} characters left out") -> str:
    """Return the text; if it exceeds the limit, its head, a note and its tail.

    `note` is formatted with the number of omitted characters.
    """
    if len(text) <= limit:
        return text
    half = limit // 2
    left_out = len(text) - 2 * half
    return f"{text[:half]}\n[... {note.format(left_out)} ...]\n{text[half + left_out :]}"
