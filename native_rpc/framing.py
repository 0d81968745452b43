"""How messages become frames on a wire: lines, WebSocket messages, or server-sent events.

A framing works on finished bytes. For the items of a run it keeps one template per
subscription; where frames may be run together, all items of a batch are filled in by a single
formatting, which takes half the time of one for each.
"""

from __future__ import annotations

from itertools import chain, count
from typing import Any, Protocol

__all__ = ("EVENT_STREAM", "LINES", "MESSAGES", "Framing")

#: An item on its way out; what is left open is its number and its event's bytes. The method's
#: name needs no escaping: it was found, so it is made of letters, digits, dots and underscores.
ITEM = b'{"jsonrpc":"2.0","method":"%b","params":{"subscription":%%d,"seq":%%%%d,"result":%%%%b}}'
#: The same for a client that wants to know when each item was written.
TIMED_ITEM = ITEM.replace(b'"result"', b'"time_ms":%%%%d,"result"')


class Framing(Protocol):
    """What the view needs to know of a transport's frames."""

    def message(self, message: bytes) -> bytes:
        """One message that is no item."""

    def outline(self, method: str, *, timed: bool = False) -> bytes:
        """Return what all items of one method have in common."""

    def template(self, outline: bytes, subscription: int, run: int) -> bytes:
        """What all items of one subscription have in common."""

    def items(
        self, template: bytes, first: int, payloads: list[bytes], times: list[int] | None = None
    ) -> list[bytes]:
        """Return the frames of consecutive items, with their times if the template has them."""


class Messages:
    """Each message by itself, for a transport that keeps them apart."""

    def message(self, message: bytes) -> bytes:
        return message

    def outline(self, method: str, *, timed: bool = False) -> bytes:
        return (TIMED_ITEM if timed else ITEM) % method.encode()

    def template(self, outline: bytes, subscription: int, run: int) -> bytes:  # noqa: ARG002
        return outline % subscription

    def items(
        self, template: bytes, first: int, payloads: list[bytes], times: list[int] | None = None
    ) -> list[bytes]:
        if times is not None:
            return [template % item for item in zip(count(first), times, payloads)]
        return [template % item for item in zip(count(first), payloads)]


class Lines(Messages):
    """Each message on a line of its own."""

    def message(self, message: bytes) -> bytes:
        return message + b"\n"

    def outline(self, method: str, *, timed: bool = False) -> bytes:
        return super().outline(method, timed=timed) + b"\n"

    def items(
        self, template: bytes, first: int, payloads: list[bytes], times: list[int] | None = None
    ) -> list[bytes]:
        number = len(payloads)
        if times is not None:
            rows = zip(range(first, first + number), times, payloads, strict=True)
            return [(template * number) % tuple(chain.from_iterable(rows))]
        values: list[Any] = [None] * (2 * number)
        values[::2] = range(first, first + number)
        values[1::2] = payloads
        return [(template * number) % tuple(values)]


class EventStream(Messages):
    """Server-sent events; an item's id is `run:seq`, which is where to go on from."""

    def message(self, message: bytes) -> bytes:
        return b"data: " + message + b"\n\n"

    def outline(self, method: str, *, timed: bool = False) -> bytes:
        return b"id: %d:%%d\ndata: " + super().outline(method, timed=timed) + b"\n\n"

    def template(self, outline: bytes, subscription: int, run: int) -> bytes:
        return outline % (run, subscription)

    def items(
        self, template: bytes, first: int, payloads: list[bytes], times: list[int] | None = None
    ) -> list[bytes]:
        number = len(payloads)
        numbers = range(first, first + number)
        if times is not None:
            rows = zip(numbers, numbers, times, payloads, strict=True)
            return [(template * number) % tuple(chain.from_iterable(rows))]
        values: list[Any] = [None] * (3 * number)
        values[::3] = values[1::3] = numbers
        values[2::3] = payloads
        return [(template * number) % tuple(values)]


LINES: Framing = Lines()
MESSAGES: Framing = Messages()
EVENT_STREAM: Framing = EventStream()
