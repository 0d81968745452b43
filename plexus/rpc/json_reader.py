"""Reading JSON within bounds: how much a message holds, how deep it is, and exact integers.

Size, numbers of containers and members are compared before parsing, depth after. Every check
takes linear time, and works on whole messages: a loop over their values would take longer than
parsing them.
"""

from __future__ import annotations

import itertools
import operator
import re
from typing import Any, Final

import orjson

from plexus.errors import TooBig
from plexus.limits import Limits
from plexus.rpc.json_forms import INTEGERS

__all__ = ("changed_integer", "read_value")


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
_MOST_DIGITS: Final = len(str(INTEGERS.start))
#: How many digits of a number are quoted.
_QUOTED: Final = 24


def changed_integer(data: bytes | bytearray) -> str | None:
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
        if end - start > _MOST_DIGITS or int(bare[start:end]) not in INTEGERS:
            digits = bare[start : min(end, start + _QUOTED)].decode()
            rest = f"... ({end - start} characters)" if end - start > _QUOTED else ""
            return f"the integer {digits}{rest} has more than 64 bits; send it as text"
    return None


_FLOAT_MARKS: Final = (b".", b"e", b"E", b"+")
