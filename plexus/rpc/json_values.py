"""JSON values: reading them within bounds, the form of Python values, and values that have none.

Size, numbers of containers and members are compared before parsing, depth after. Every check
takes linear time, and works on whole messages: a loop over their values would take longer than
parsing them.

The encoder writes NaN and infinity as `null` and stops at integers of more than 64 bits without
saying where they are. `find_fault` says which value it is, in words for the author of a method.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import math
import operator
import re
from collections import deque
from typing import Any, Final

import orjson

from plexus.errors import TooBig
from plexus.events import Event
from plexus.limits import Limits
from plexus.text import shorten

__all__ = ("INTEGERS", "find_fault", "find_large_integer", "plain", "read_value")

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


# --- reading ---------------------------------------------------------------------------------


def read_value(data: bytes | bytearray, limits: Limits) -> Any:
    """Parse one JSON value; raises TooBig past the limits, and ValueError for what is no JSON."""
    openers = data.count(b"{") + data.count(b"[")
    # Nearly every message has less of everything than it may have. Only what may be too much is
    # looked at more closely: brackets and colons are also part of texts.
    structure = None
    if (
        openers > limits.message_depth
        or data.count(b":") > limits.message_members
        or data.count(b",") > limits.message_values
    ):
        structure = _structure(data)
        openers = structure.count(b"{") + structure.count(b"[")
        for what, count, limit in (
            ("arrays and objects", openers, limits.message_containers),
            ("members of objects", structure.count(b":"), limits.message_members),
            # A comma stands before every entry but the first of each container.
            ("values", structure.count(b",") + openers, limits.message_values),
        ):
            if count > limit:
                raise TooBig(f"more than {limit} {what} in one message", data={"limit": limit})
    value = orjson.loads(data)
    if structure is not None and _depth(structure) > limits.message_depth:
        raise TooBig(
            f"nested deeper than {limits.message_depth} levels",
            data={"limit": limits.message_depth},
        )
    return value


#: What is left out of a message's structure: all but brackets, colons, commas and quotes.
_UNSTRUCTURED: Final = bytes(set(range(256)) - set(b'[]{}:,"'))
_SEPARATORS: Final = b":,"
#: Openers as 2 and closers as 0, so that a running sum less the number of brackets is the depth.
_STEPS: Final = bytes.maketrans(b"[{]}", b"\2\2\0\0")


def _structure(data: bytes | bytearray) -> bytes:
    """Return the brackets, colons and commas of a message that are not part of a text.

    It works on whole messages at a time, because a loop over the values of a mebibyte of JSON
    takes 30 ms.
    """
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Two quotes in a row end one text and begin another, or enclose none: neither is needed.
    bare = bytes(data.translate(None, _UNSTRUCTURED)).replace(b'""', b"")
    return b"".join(bare.split(b'"')[::2])


def _depth(structure: bytes) -> int:
    """Return how deeply a message is nested."""
    steps = structure.translate(_STEPS, _SEPARATORS)
    return max(map(operator.sub, itertools.accumulate(steps), itertools.count(1)), default=0)


#: Digits as zeros, so that a run of them can be found without a pattern, which takes longer.
_SHAPES: Final = bytes.maketrans(b"123456789", b"000000000")
#: The fewest digits of an integer of more than 64 bits: nineteen after a minus, else twenty.
_LONG: Final = b"0" * 19
#: Each match takes all digits that follow, so the time is linear.
_LONG_DIGITS: Final = re.compile(rb"[0-9]{20,}+|(?<=-)9[2-9][0-9]{17}")
_MAX_DIGITS: Final = len(str(INTEGERS.start))
#: How many digits of a number are quoted.
_QUOTED: Final = 24


def find_large_integer(data: bytes | bytearray) -> str | None:
    """Describe the first integer of more than 64 bits, which was read as a float; None without
    one."""
    if _LONG not in data.translate(_SHAPES):
        return None
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    bare = b" ".join(bytes(data).split(b'"')[::2])  # what is not part of a text
    for found in _LONG_DIGITS.finditer(bare):
        start, end = found.span()
        # Digits of a fraction or an exponent are no integer, nor is what stands before those.
        if bare[start - 1 : start] in _FLOAT_MARKS or bare[end : end + 1] in _FLOAT_MARKS:
            continue
        if bare[start - 1 : start] == b"-":
            start -= 1
            if bare[start - 1 : start] in _FLOAT_MARKS:
                continue
        if end - start > _MAX_DIGITS or int(bare[start:end]) not in INTEGERS:
            digits = bare[start : min(end, start + _QUOTED)].decode()
            rest = f"... ({end - start} characters)" if end - start > _QUOTED else ""
            return f"the integer {digits}{rest} has more than 64 bits; send it as text"
    return None


_FLOAT_MARKS: Final = (b".", b"e", b"E", b"+")
