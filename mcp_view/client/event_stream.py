"""Bytes of a stream of server-sent events as events, within a bound."""

from __future__ import annotations

from typing import NamedTuple

from mcp_view.client.errors import TooLarge

__all__ = ("EventStreamParser", "ServerSentEvent")


class ServerSentEvent(NamedTuple):
    """One event. `data` is empty if the event has none."""

    name: str
    data: bytes
    #: None if the event does not set it.
    id: str | None
    #: Milliseconds before a reconnection; None if the event does not set it.
    retry_ms: int | None


class EventStreamParser:
    """Splits a byte stream into events. Lines may end with LF, CR or both."""

    __slots__ = ("_after_cr", "_data", "_id", "_limit", "_name", "_rest", "_retry", "_size")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rest = bytearray()
        self._after_cr = False
        self._data: list[bytes] = []
        self._size = 0
        self._name = ""
        self._id: str | None = None
        self._retry: int | None = None

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        """Add received bytes and return the complete events. Raises TooLarge."""
        if self._after_cr and data[:1] == b"\n":
            data = data[1:]
        if data:
            self._after_cr = data[-1:] == b"\r"
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *complete, rest = data.split(b"\n")
        events: list[ServerSentEvent] = []
        for piece in complete:
            line = piece
            if self._rest:
                line = bytes(self._rest) + piece
                self._rest = bytearray()
            if line:
                self._field(line)
            elif self._data or self._id is not None or self._retry is not None:
                events.append(self._end_event())
            else:
                self._name = ""
        self._rest += rest
        if len(self._rest) + self._size > self._limit:
            size = len(self._rest) + self._size
            raise TooLarge(
                f"The server sent an event of more than {self._limit} bytes.",
                data={"limit": self._limit, "size": size},
            )
        return events

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._size += len(value)
            if self._size > self._limit:
                raise TooLarge(
                    f"The server sent an event of more than {self._limit} bytes.",
                    data={"limit": self._limit, "size": self._size},
                )
            self._data.append(value)
        elif name == b"event":
            self._name = value[:100].decode(errors="replace")
        elif name == b"id" and b"\0" not in value and len(value) <= 1024:
            self._id = value.decode(errors="replace")
        elif name == b"retry" and value.isdigit() and len(value) <= 9:
            self._retry = int(value)

    def _end_event(self) -> ServerSentEvent:
        data = self._data
        event = ServerSentEvent(
            self._name, data[0] if len(data) == 1 else b"\n".join(data), self._id, self._retry
        )
        self._data = []
        self._size = 0
        self._name = ""
        self._id = None
        self._retry = None
        return event
