"""Edit one value in the text of a JSON file and leave every other byte unchanged.

Serialising another program's file again would lose its order, indentation and style. The text is
first parsed as strict JSON, so the code that locates a position only has to handle valid JSON.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from plexus.limits import Limits
from plexus.rpc import wire

__all__ = ("put", "read", "snippet")

TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+')
UNIT = "  "
#: The user's own file is trusted, and may have grown for years. The depth is the decoder's limit.
LIMITS = Limits(
    message_depth=1024,
    message_containers=sys.maxsize,
    message_members=sys.maxsize,
    message_values=sys.maxsize,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Member:
    """A member of an object, and the position of its value in the text."""

    key: str
    #: White space before the key.
    lead: str
    start: int
    end: int


def read(text: str) -> dict[str, Any]:
    """Parse the text. Raises ValueError if it is not strict JSON, or not an object."""
    try:
        value = wire.decode_value(text.encode(), LIMITS, exact=False)
    except ValueError as error:
        raise ValueError(
            f"it is not strict JSON, which has no comments and no trailing commas ({error})"
        ) from error
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - the text is at fault
    return value


def snippet(section: str, name: str, entry: Mapping[str, Any]) -> str:
    """Return the text of a file with only this entry."""
    return _pretty({section: {name: entry}}, "", UNIT) + "\n"


def put(text: str, path: Sequence[str], value: Any) -> str:
    """Return the text with this value at this path of keys.

    The text must be accepted by `read`. Raises ValueError if a value on the path is not an object.
    """
    opening = root = text.index("{")
    end = len(text)
    for depth, key in enumerate(path):
        if text[opening] != "{":
            raise ValueError(f"{'.'.join(path[:depth])} is not an object")
        members = _members(text, opening)
        # Of a duplicate key the last one counts, as in other parsers.
        found = next((each for each in reversed(members) if each.key == key), None)
        if found is None:
            for missing in reversed(path[depth + 1 :]):
                value = {missing: value}
            return _insert(text, opening, key, value, _unit(text, root))
        opening, end = found.start, found.end
    rendered = _render(value, text[opening:end], _indentation(text, opening), _unit(text, root))
    return text[:opening] + _match_line_ends(text, rendered) + text[end:]


def _insert(text: str, opening: int, key: str, value: Any, unit: str) -> str:
    """Add a member after the last one, in the same style."""
    members = _members(text, opening)
    tail = ""
    if members:
        at, comma = members[-1].end, ","
        _, newline, blanks = members[-1].lead.rpartition("\n")
        lead = newline + blanks or " "
    else:
        at, comma = opening + 1, ""
        closing = text.index("}", at)
        alone = opening == text.index("{")
        # If the rest of the file is on one line, the new member stays on that line.
        if alone or "\n" in text.strip():
            outer = _indentation(text, opening)
            lead, tail = f"\n{outer}{unit}", f"\n{outer}"
        else:
            lead = ""
        text = text[:at] + text[closing:]
    inner = lead.rpartition("\n")[2]
    rendered = _render(value, lead, inner, unit)
    added = f"{comma}{lead}{wire.encode(key).decode()}: {rendered}{tail}"
    return text[:at] + _match_line_ends(text, added) + text[at:]


def _members(text: str, opening: int) -> list[Member]:
    """Return the members of the object that starts at `opening`."""
    members: list[Member] = []
    depth = 0
    key: str | None = None
    lead = ""
    start: int | None = None
    end = opening + 1
    for token in TOKEN.finditer(text, opening):
        mark = token[0]
        if depth == 1 and mark in ",}":
            if key is not None and start is not None:
                members.append(Member(key, lead, start, end))
            key = start = None
        elif depth == 1 and key is None:
            key = wire.decode_value(mark.encode(), LIMITS, exact=False)
            lead = text[end : token.start()]
        elif depth == 1 and start is None and mark != ":":
            start = token.start()
        depth += (mark in "{[") - (mark in "}]")
        if depth == 0:
            break
        end = token.end()
    return members


def _unit(text: str, root: int) -> str:
    """Return one level of indentation: that of the file's first member."""
    first = next(iter(_members(text, root)), None)
    if first is None or "\n" not in first.lead:
        return UNIT
    return first.lead.rpartition("\n")[2] or UNIT


def _indentation(text: str, at: int) -> str:
    """Return the indentation of the line at this position."""
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip())]


def _render(value: Any, style: str, indentation: str, unit: str) -> str:
    """Format the value on several lines if its neighbour or predecessor spans several."""
    if "\n" in style:
        return _pretty(value, indentation, unit)
    lines = wire.encode_pretty(value).decode().split("\n")
    return "".join(line.lstrip(" ") + " " * line.endswith(",") for line in lines)


def _pretty(value: Any, indentation: str, unit: str) -> str:
    first, *rest = wire.encode_pretty(value).decode().split("\n")
    lines = [first]
    for line in rest:
        bare = line.lstrip(" ")
        steps = (len(line) - len(bare)) // len(UNIT)
        lines.append(indentation + unit * steps + bare)
    return "\n".join(lines)


def _match_line_ends(text: str, added: str) -> str:
    """Return the added text with the line endings of the file."""
    return added.replace("\n", "\r\n") if "\r\n" in text else added
