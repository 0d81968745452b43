"""Bytes of a pipe as lines, with a bound that keeps the connection.

A line past the limit is discarded while it arrives; its beginning and end are kept, because they
name the request that it answers.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

__all__ = ("LineReader", "Oversized")

#: Bytes of the beginning and of the end of a discarded line that are searched for its id.
SEARCHED: Final = 256
ID: Final = re.compile(rb'"id"\s*:\s*(\d{1,18})\s*[,}]')


class Oversized(NamedTuple):
    """A line that was larger than the limit; `id` is that of the request it answers, if known."""

    id: int | None
    size: int


class LineReader:
    """Splits a byte stream into lines, at 0x0A only."""

    __slots__ = ("_discarded", "_head", "_limit", "_rest", "_tail")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rest = bytearray()
        self._discarded = 0
        self._head = b""
        self._tail = b""

    def feed(self, data: bytes) -> list[bytes | bytearray | Oversized]:
        """Add received bytes and return the complete lines, without empty ones."""
        *complete, rest = data.split(b"\n")
        lines: list[bytes | bytearray | Oversized] = []
        for piece in complete:
            if self._discarded:
                self._discard(piece)
                lines.append(self._end_discarded())
                continue
            line: bytes | bytearray = piece
            if self._rest:
                self._rest += piece
                line, self._rest = self._rest, bytearray()
            if len(line) > self._limit:
                self._discard(line)
                lines.append(self._end_discarded())
            elif line and not line.isspace():
                lines.append(line)
        if self._discarded:
            self._discard(rest)
        elif rest:
            self._rest += rest
            if len(self._rest) > self._limit:
                self._discard(self._rest)
                self._rest = bytearray()
        return lines

    def _discard(self, piece: bytes | bytearray) -> None:
        if not self._discarded:
            self._head = bytes(piece[:SEARCHED])
        self._discarded += len(piece)
        self._tail = (self._tail + bytes(piece[-SEARCHED:]))[-SEARCHED:]

    def _end_discarded(self) -> Oversized:
        # An id inside the result would be behind `result`, so only what is before it counts.
        head = self._head.partition(b'"result"')[0]
        found = ID.search(head) or ID.search(self._tail)
        line = Oversized(int(found[1]) if found else None, self._discarded)
        self._discarded = 0
        self._head = self._tail = b""
        return line
