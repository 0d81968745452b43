"""The JSON form of Python values, and the places in a value that have none.

The encoder writes NaN and infinity as `null` and stops at integers of more than 64 bits without
saying where they are. `find_fault` says which value it is, in words for the author of a method.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections import deque
from typing import Any, Final

from plexus.events import Event
from plexus.text import shorten

__all__ = ("INTEGERS", "find_fault", "plain")

#: The integers that are read and written as they are.
INTEGERS: Final = range(-(2**63), 2**64)
#: As deeply as the encoder goes.
_DEPTH: Final = 254
#: How many characters of a place are shown, of the names in it above all.
_AT_CHARS: Final = 200
#: Packages whose values are written as text, as pydantic describes them.
_TEXTS: Final = frozenset({"decimal", "ipaddress", "pydantic", "pydantic_core", "uuid"})


def plain(value: Any) -> Any:
    """Turn a value that the encoder does not know into one that it knows. Raises TypeError."""
    if isinstance(value, Event):
        fields = value.__class__.fields
        return {"type": value.type} | {
            name.rstrip("_"): field
            for name, default in fields.items()
            if (field := getattr(value, name)) is not None or default is not None
        }
    dump = getattr(value, "model_dump", None)  # a pydantic model, without importing pydantic
    if dump is not None:
        return dump(mode="json", exclude_none=True)
    if isinstance(value, set | frozenset):
        try:
            return sorted(value)
        except TypeError:  # values of several types have no order of their own
            return sorted(value, key=repr)
    if isinstance(value, tuple | deque):  # a named tuple is not written as a tuple is
        return list(value)
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, float):  # a subclass, as NumPy's is
        return float(value)
    fspath = getattr(value, "__fspath__", None)
    if fspath is not None:
        return fspath()
    isoformat = getattr(value, "isoformat", None)
    if isoformat is not None:  # a subclass of datetime
        return isoformat()
    package = value.__class__.__module__.partition(".")[0]
    if package in _TEXTS:
        return str(value)
    if package == "datetime":
        from pydantic_core import to_jsonable_python

        return to_jsonable_python(value)  # a timedelta
    raise TypeError(f"{type(value).__name__} has no JSON form")


def find_fault(value: Any, at: str, depth: int = 0) -> str | None:
    """Describe the first value, in or below this one, that JSON cannot hold; None without one."""
    if value is None or value is True or value is False:
        return None
    if isinstance(value, str):
        return None if _is_text(value) else f"{_place(at)} holds half of a surrogate pair"
    if isinstance(value, int) and not isinstance(value, enum.Enum):
        if value in INTEGERS:
            return None
        return (
            f"{_place(at)} is an integer of {value.bit_length()} bits; integers of more than 64 "
            "bits are changed by many readers of JSON, so make it a text with str()"
        )
    if isinstance(value, float) and not isinstance(value, enum.Enum):
        if math.isfinite(value):
            return None
        return f"{_place(at)} is {float(value)}; JSON has no such number"
    if depth > _DEPTH:
        return f"{_place(at)} is nested more than {_DEPTH} levels deep"
    depth += 1
    if isinstance(value, dict):
        for key, inner in value.items():
            fault = find_fault(key, f"a key of {at}", depth) if key.__class__ is not str else None
            fault = fault or find_fault(inner, _member(at, key), depth)
            if fault is not None:
                return fault
        return None
    if isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            fault = find_fault(inner, f"{at}[{index}]", depth)
            if fault is not None:
                return fault
        return None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        # The encoder leaves out what begins with an underscore.
        members = {name: getattr(value, name, None) for name in names if name[0] != "_"}
        return find_fault(members, at, depth)
    try:
        form = plain(value)
    except TypeError:
        return f"{_place(at)} is of the type {type(value).__name__}, which has no JSON form"
    return find_fault(form, at, depth)


def _is_text(text: str) -> bool:
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def _member(at: str, key: Any) -> str:
    return f"{at}.{key}" if isinstance(key, str) and key.isidentifier() else f"{at}[{key!r}]"


def _place(at: str) -> str:
    return shorten(at, _AT_CHARS)
