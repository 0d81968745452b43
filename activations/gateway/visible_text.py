"""Text of another server, with everything that a person cannot see made visible.

Instructions to a model can hide in a description: in invisible characters, or in ones that reverse
the direction of text. They are shown as `\\u{200B}`, to people and to models alike.
"""

from __future__ import annotations

import unicodedata
from typing import Any, Final

__all__ = ("difference", "has_invisible", "show_invisible")

#: Joiners and variation selectors are part of emoji, and harmless there.
_EMOJI_PARTS: Final = frozenset("\u200d\ufe0f")
#: Categories of characters without a visible form: control, format, private, lone surrogates.
_INVISIBLE: Final = frozenset({"Cc", "Cf", "Co", "Cs"})
#: Invisible although they are letters, marks or spaces.
_FILLERS: Final = frozenset("\u115f\u1160\u3164\uffa0\u180b\u180c\u180d\u034f\u2028\u2029")
_ALLOWED: Final = frozenset("\n\t")


def show_invisible(text: str) -> str:
    """Return the text with every invisible character as `\\u{...}`, except in emoji."""
    if text.isascii() and text.isprintable():
        return text
    shown: list[str] = []
    for at, character in enumerate(text):
        if _is_visible(text, at, character):
            shown.append(character)
        else:
            shown.append(f"\\u{{{ord(character):04X}}}")
    return "".join(shown)


def has_invisible(text: str) -> bool:
    """Whether a text has characters that `show_invisible` replaces."""
    return show_invisible(text) != text


def _is_visible(text: str, at: int, character: str) -> bool:
    if character in _ALLOWED:
        return True
    if character == "\r":
        return text[at + 1 : at + 2] == "\n"
    if character in _EMOJI_PARTS:
        return at > 0 and unicodedata.category(text[at - 1]) in ("So", "Sk", "Mn")
    if "\ufe00" <= character <= "\ufe0e" or "\U000e0100" <= character <= "\U000e01ef":
        return False  # variation selectors, which can carry any bytes
    return character not in _FILLERS and unicodedata.category(character) not in _INVISIBLE


def difference(old: dict[str, Any] | None, new: dict[str, Any] | None) -> list[str]:
    """Return what differs between two definitions, one line for each change of a part.

    Lines begin with "- " for what was and "+ " for what is. Values are JSON or text with invisible
    characters made visible.
    """
    before, after = _parts(old, ""), _parts(new, "")
    lines = []
    for path in sorted(before.keys() | after.keys()):
        was, now = before.get(path), after.get(path)
        if was == now:
            continue
        if was is not None:
            lines.append(f"- {path}: {was}")
        if now is not None:
            lines.append(f"+ {path}: {now}")
    return lines


def _parts(value: Any, path: str) -> dict[str, str]:
    """Return the leaves of a JSON value by their paths."""
    if isinstance(value, dict) and value:
        members = [_parts(each, f"{path}.{show_invisible(key)}") for key, each in value.items()]
        return {name.lstrip("."): text for part in members for name, text in part.items()}
    if isinstance(value, list) and value:
        entries = [_parts(each, f"{path}[{at}]") for at, each in enumerate(value)]
        return {name: text for part in entries for name, text in part.items()}
    if value is None and not path:
        return {}
    text = value if isinstance(value, str) else repr(value)
    return {path.lstrip("."): show_invisible(text)}
