"""Messages of the maximum permitted size, designed to cost as much as possible.

A value is the JSON of one parameter; it fills a message nearly up to the limit of bytes, or up to
the limits of containers and members.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from plexus.limits import Limits

__all__ = ("CONTAINERS", "ENTRIES", "ROOM", "VALUES", "native", "parameters_of")

LIMITS = Limits()
#: The bytes of a message that are available for one value.
ROOM = LIMITS.message_bytes - 4096
CONTAINERS = LIMITS.message_containers - 16
MEMBERS = LIMITS.message_members - 64
ENTRIES = LIMITS.message_values - 64


def _many(entry: bytes, most: int = ENTRIES) -> bytes:
    return b",".join([entry] * min(ROOM // (len(entry) + 1), most))


def _text(piece: bytes) -> bytes:
    return b'"%b"' % (piece * (ROOM // len(piece)))


def _members(count: int, value: bytes, name: bytes = b"k%d") -> bytes:
    return b"{%b}" % b",".join(b'"%b":%b' % (name % number, value) for number in range(count))


#: Values that are invalid for nearly every parameter, by name.
VALUES: dict[str, bytes] = {
    "numbers": b"[%b]" % _many(b"1"),
    "nulls": b"[%b]" % _many(b"null"),
    "empty texts": b"[%b]" % _many(b'""'),
    "texts of brackets": b"[%b]" % _many(b'"[{:"'),
    "lists": b"[%b]" % _many(b"[]", CONTAINERS),
    "objects": b"[%b]" % _many(b"{}", CONTAINERS),
    "objects of one": b"[%b]" % _many(b'{"x":1}', CONTAINERS),
    "lists of numbers": b"[%b]" % _many(b"[%b]" % b",".join([b"1"] * 50), ENTRIES // 52),
    "long numbers": b"[%b]" % _many(b"123456789"),
    "too many numbers": b"[%b]" % _many(b"1", ROOM),
    "too many members": b"{%b}" % _many(b'"":1', ROOM),
    "too many lists": b"[%b]" % _many(b"[]", ROOM),
    "deep lists": b"[%b]" % _many(b"[" * 50 + b"]" * 50, CONTAINERS // 51),
    "deep objects": b"[%b]" % _many(b'{"":' * 50 + b"1" + b"}" * 50, CONTAINERS // 51),
    "members": _members(MEMBERS, b"1"),
    "members of objects": _members(CONTAINERS, b"{}"),
    "long names": _members(MEMBERS, b"1", b"k%020d"),
    "the same name": b"{%b}" % _many(b'"k":1', MEMBERS),
    "one long name": b'{"%b":1}' % (b"x" * ROOM),
    "a long text": _text(b"x"),
    "a long number": _text(b"1"),
    "base64": _text(b"AAAA"),
    "escapes": _text(b"\\u00e9"),
    "backslashes": _text(b"\\\\"),
    "percents": _text(b"%41"),
    "pictures": _text("\U0001f600".encode()),
}


def native(method: str, params: bytes) -> bytes:
    """Return a request with the id 1."""
    return b'{"jsonrpc":"2.0","id":1,"method":"%b","params":%b}' % (method.encode(), params)


def parameters_of(schema: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Yield a description and the JSON of hostile parameters for a method.

    Every value is used for each parameter, for an unknown parameter, and for all parameters.
    """
    for name in (*schema.get("properties", {}), "no_such_parameter"):
        for what, value in VALUES.items():
            yield f"{name}: {what}", b'{"%b":%b}' % (name.encode(), value)
    for what, value in VALUES.items():
        if value[:1] == b'"':
            continue  # parameters are an object or an array
        yield what, value
        yield f"by position: {what}", b"[%b]" % value
