"""JSON values: decode within limits, convert Python values, and find values without a JSON form.

Size and the numbers of containers and members are checked before parsing, depth after. Every check
takes linear time and works on whole messages: a loop over their values would take longer than
parsing.

The encoder writes NaN and infinity as `null`, and stops at integers of more than 64 bits without
their location. `find_fault` locates such a value and describes it for the author of a method.
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

#: The integers that are encoded and decoded exactly.
INTEGERS: Final = range(-(2**63), 2**64)
#: Maximum depth of the encoder.
_DEPTH: Final = 254
#: Maximum characters of a location in an error message.
_AT_CHARS: Final = 200
#: Packages whose values are written as strings, as pydantic describes them.
_TEXTS: Final = frozenset({"decimal", "ipaddress", "pydantic", "pydantic_core", "uuid"})


def plain(value: Any) -> Any:
    """Convert a value that the encoder does not support to one that it does. Raises TypeError."""
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
        except TypeError:  # values of several types cannot be ordered
            return sorted(value, key=repr)
    if isinstance(value, tuple | deque):  # the encoder does not support named tuples
        return list(value)
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, float):  # a subclass, such as NumPy's
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
    """Describe the first nested value that JSON cannot represent; None if there is none."""
    if value is None or value is True or value is False:
        return None
    if isinstance(value, str):
        return None if _is_text(value) else f"{_place(at)} contains a lone surrogate"
    if isinstance(value, int) and not isinstance(value, enum.Enum):
        if value in INTEGERS:
            return None
        return (
            f"{_place(at)} is an integer of {value.bit_length()} bits; integers of more than 64 "
            "bits are changed by many JSON readers, so convert it with str()"
        )
    if isinstance(value, float) and not isinstance(value, enum.Enum):
        if math.isfinite(value):
            return None
        return f"{_place(at)} is {float(value)}; JSON cannot represent it"
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
        # The encoder omits names with a leading underscore.
        members = {name: getattr(value, name, None) for name in names if name[0] != "_"}
        return find_fault(members, at, depth)
    if isinstance(value, orjson.Fragment):
        return None  # it was checked when it was encoded
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
    """Parse one JSON value. Raises TooBig past the limits, and ValueError for invalid JSON."""
    openers = data.count(b"{") + data.count(b"[")
    # Nearly all messages are far below the limits. Only the others are examined more closely,
    # because brackets and colons also occur inside strings.
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
            # Every entry but the first of each container follows a comma.
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


#: Bytes that are not part of a message's structure: all but brackets, colons, commas, quotes.
_UNSTRUCTURED: Final = bytes(set(range(256)) - set(b'[]{}:,"'))
_SEPARATORS: Final = b":,"
#: Openers as 2 and closers as 0, so that a running sum less the number of brackets is the depth.
_STEPS: Final = bytes.maketrans(b"[{]}", b"\2\2\0\0")


def _structure(data: bytes | bytearray) -> bytes:
    """Return the brackets, colons and commas of a message that are outside strings.

    It works on the whole message, because a loop over the values of 1 MiB of JSON takes 30 ms.
    """
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Two adjacent quotes separate or enclose nothing of interest.
    bare = bytes(data.translate(None, _UNSTRUCTURED)).replace(b'""', b"")
    return b"".join(bare.split(b'"')[::2])


def _depth(structure: bytes) -> int:
    """Return the nesting depth of a message."""
    steps = structure.translate(_STEPS, _SEPARATORS)
    return max(map(operator.sub, itertools.accumulate(steps), itertools.count(1)), default=0)


#: Digits as zeros, so that a run of digits can be found without a pattern, which is slower.
_SHAPES: Final = bytes.maketrans(b"123456789", b"000000000")
#: Minimum digits of an integer of more than 64 bits: 19 after a minus, otherwise 20.
_LONG: Final = b"0" * 19
#: Each match takes all following digits, so the time is linear.
_LONG_DIGITS: Final = re.compile(rb"[0-9]{20,}+|(?<=-)9[2-9][0-9]{17}")
_MAX_DIGITS: Final = len(str(INTEGERS.start))
#: Maximum digits of a number in an error message.
_QUOTED: Final = 24


def find_large_integer(data: bytes | bytearray) -> str | None:
    """Describe the first integer of more than 64 bits, which was decoded as a float; or None."""
    if _LONG not in data.translate(_SHAPES):
        return None
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    bare = b" ".join(bytes(data).split(b'"')[::2])  # outside strings
    for found in _LONG_DIGITS.finditer(bare):
        start, end = found.span()
        # Digits before or after a fraction or an exponent are not an integer.
        if bare[start - 1 : start] in _FLOAT_MARKS or bare[end : end + 1] in _FLOAT_MARKS:
            continue
        if bare[start - 1 : start] == b"-":
            start -= 1
            if bare[start - 1 : start] in _FLOAT_MARKS:
                continue
        if end - start > _MAX_DIGITS or int(bare[start:end]) not in INTEGERS:
            digits = bare[start : min(end, start + _QUOTED)].decode()
            rest = f"... ({end - start} characters)" if end - start > _QUOTED else ""
            return f"the integer {digits}{rest} has more than 64 bits; send it as a string"
    return None


_FLOAT_MARKS: Final = (b".", b"e", b"E", b"+")
