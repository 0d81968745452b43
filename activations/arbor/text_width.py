"""How many columns of a terminal a text takes, and cutting it there.

A text is cut between characters as a person sees them, never inside one: an accent stays on its
letter, a family of emoji together. The tables of Python's own Unicode database are all it needs.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

from plexus.text import replace_controls

__all__ = ("ELLIPSIS", "characters", "cut", "one_line", "preview", "width")

#: What stands where a line ends, and where a text was cut.
NEWLINE = "\u21b5"
ELLIPSIS = "\u2026"

#: How much of a text a preview looks at, so that one of some megabytes takes no time.
LOOKED_AT = 4096

_JOINER = "\u200d"
_EMOJI_FORM = "\ufe0f"
_MARKS = frozenset(("Mn", "Me", "Mc"))


def preview(text: str, columns: int) -> str:
    """The beginning of a text, on one line, within so many columns."""
    line = one_line(text[:LOOKED_AT])
    if len(text) > LOOKED_AT:
        line += " " * columns  # there is more, so that it has to be cut
    return cut(line, columns)


def one_line(text: str) -> str:
    """A text on one line: ends of lines are shown as marks, and what would move the cursor or
    turn the writing is shown as what it is."""
    text = text.replace("\r\n", "\n")
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(character: str) -> str:
    code = ord(character)
    if character in "\n\r\u2028\u2029\x85":
        return NEWLINE
    if character == "\t":
        return " "
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    # Those that change the direction of writing would turn a drawing over.
    return replace_controls(character, "\ufffd")


def width(text: str) -> int:
    """The columns that a text on one line takes."""
    if text.isascii():
        return len(text)
    return sum(map(_columns, characters(text)))


def cut(text: str, columns: int) -> str:
    """The text, or as much of its beginning as fits beside a mark that says so."""
    # No character is wider than two columns, so a long text need not be measured to its end.
    if len(text) <= columns and width(text) <= columns:
        return text
    kept: list[str] = []
    taken = [0]
    for character in characters(text):
        kept.append(character)
        taken.append(taken[-1] + _columns(character))
        if taken[-1] > columns:
            break
    else:
        return text
    while kept and taken[-1] > columns - 1:
        kept.pop()
        taken.pop()
    return "".join(kept).rstrip() + ELLIPSIS if columns > 0 else ""


def characters(text: str) -> Iterator[str]:
    """The characters of a text as a person counts them, each with its marks."""
    start = 0
    flags = 0  # letters of a flag at the end of the character so far
    for index in range(1, len(text)):
        character, before = text[index], text[index - 1]
        flags = flags + 1 if _is_flag_letter(before) else 0
        if (
            _extends(character)
            or before == _JOINER
            or (_is_flag_letter(character) and flags % 2)
            or (_is_vowel_or_final(character) and _is_hangul(before))
        ):
            continue
        yield text[start:index]
        start = index
    if text:
        yield text[start:]


def _extends(character: str) -> bool:
    """Whether it belongs to the character before it."""
    if character < "\u0300":
        return False
    return (
        unicodedata.category(character) in _MARKS
        or character in (_JOINER, "\u200c")
        or "\U0001f3fb" <= character <= "\U0001f3ff"  # the colours of skin
        or "\U000e0020" <= character <= "\U000e007f"  # the letters inside the flag of a region
    )


def _is_flag_letter(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"


def _is_hangul(character: str) -> bool:
    return "\u1100" <= character <= "\u11ff" or "\uac00" <= character <= "\ud7fb"


def _is_vowel_or_final(character: str) -> bool:
    return "\u1160" <= character <= "\u11ff" or "\ud7b0" <= character <= "\ud7fb"


def _columns(character: str) -> int:
    """The columns that one character with its marks takes."""
    first = character[0]
    if unicodedata.east_asian_width(first) in ("W", "F") or _is_flag_letter(first):
        return 2
    if len(character) > 1 and (_EMOJI_FORM in character or _JOINER in character):
        return 2
    category = unicodedata.category(first)
    return 0 if category in ("Mn", "Me", "Cf") and first != "\xad" else 1
