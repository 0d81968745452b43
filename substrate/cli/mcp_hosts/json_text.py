"""Changing one value in the text of a JSON file, and leaving every other byte as it is.

A file of somebody else's has an order, an indentation and habits that writing it anew would
lose. So the text is read as strict JSON first, which makes finding a place in it simple: nothing
here needs to cope with what is no JSON.
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
#: A person's own file is no message of a stranger; a history of years may be in it. The depth is
#: what the decoder can do.
LIMITS = Limits(
    message_depth=1024,
    message_containers=sys.maxsize,
    message_members=sys.maxsize,
    message_values=sys.maxsize,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Member:
    """One member of an object, and where its parts are in the text."""

    key: str
    #: The white space before the key.
    lead: str
    start: int
    end: int


def read(text: str) -> dict[str, Any]:
    """What the text says; raises ValueError if that is no object, or is no strict JSON."""
    try:
        value = wire.decode_value(text.encode(), LIMITS, exact=False)
    except ValueError as error:
        raise ValueError(
            f"it is not strict JSON, which has no comments and no trailing commas ({error})"
        ) from error
    if not isinstance(value, dict):
        raise ValueError("it is JSON, but no object")  # noqa: TRY004 - the text is at fault
    return value


def snippet(section: str, name: str, entry: Mapping[str, Any]) -> str:
    """A whole file with this entry in it and nothing else."""
    return _pretty({section: {name: entry}}, "", UNIT) + "\n"


def put(text: str, path: Sequence[str], value: Any) -> str:
    """The text with this value at the end of this path of keys; raises ValueError if something on
    the way there is no object. The text must be what `read` can read."""
    opening = root = text.index("{")
    end = len(text)
    for depth, key in enumerate(path):
        if text[opening] != "{":
            raise ValueError(f"{'.'.join(path[:depth])} is no object")
        members = _members(text, opening)
        # Of a key that stands there twice the last one counts, for us as for everybody.
        found = next((each for each in reversed(members) if each.key == key), None)
        if found is None:
            for missing in reversed(path[depth + 1 :]):
                value = {missing: value}
            return _insert(text, opening, key, value, _unit(text, root))
        opening, end = found.start, found.end
    rendered = _render(value, text[opening:end], _indentation(text, opening), _unit(text, root))
    return text[:opening] + _with_ends_of(text, rendered) + text[end:]


def _insert(text: str, opening: int, key: str, value: Any, unit: str) -> str:
    """Add a member behind the last one, written like it."""
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
        # The rest of a file that stands on one line shows that it is meant to.
        if alone or "\n" in text.strip():
            outer = _indentation(text, opening)
            lead, tail = f"\n{outer}{unit}", f"\n{outer}"
        else:
            lead = ""
        text = text[:at] + text[closing:]
    inner = lead.rpartition("\n")[2]
    rendered = _render(value, lead, inner, unit)
    added = f"{comma}{lead}{wire.encode(key).decode()}: {rendered}{tail}"
    return text[:at] + _with_ends_of(text, added) + text[at:]


def _members(text: str, opening: int) -> list[Member]:
    """The members of the object that opens here."""
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
    """One step of indentation: that of the first member of all."""
    first = next(iter(_members(text, root)), None)
    if first is None or "\n" not in first.lead:
        return UNIT
    return first.lead.rpartition("\n")[2] or UNIT


def _indentation(text: str, at: int) -> str:
    """The white space that the line of this place begins with."""
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip())]


def _render(value: Any, style: str, indentation: str, unit: str) -> str:
    """The value over several lines, if what it stands beside or replaces has several."""
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


def _with_ends_of(text: str, added: str) -> str:
    """The lines of what is added end like those of the text."""
    return added.replace("\n", "\r\n") if "\r\n" in text else added
