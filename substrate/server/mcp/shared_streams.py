"""Streams whose events any server can continue after: the ids name the run and a position in it.

An id is `server.stream:number`, and `:run.seen.request` for a tool call in progress. The server
that has the stream replays it exactly, by number. Any other server reads the run again and
continues after the item `seen`. Messages that are written together are acknowledged by the last
one: a client that was cut off between them gets all of them again from another server.
"""

from __future__ import annotations

import binascii
from itertools import count
from typing import Final, NamedTuple

from mcp_view.calls.call import RUNNING
from mcp_view.calls.tool import ToolCall
from plexus.errors import PlexusError
from plexus.limits import Limits
from plexus.rpc import wire
from substrate.driver import Connection
from substrate.server.asgi import parse_number
from substrate.server.mcp.streams import EventLog, ResumePoint

__all__ = ("EventId", "SharedEventLog", "parse_event_id")

#: Maximum length of an event id: the id and the progress token of a request are part of it.
EVENT_ID_CHARS: Final = 4096


class SharedEventLog(EventLog):
    """The events of one stream, with ids for all servers."""

    __slots__ = ("_before", "_call", "_connection", "_name", "_request", "_suffix")

    def __init__(
        self,
        number: int,
        *,
        primes: bool,
        server: str,
        connection: Connection | None = None,
        call: ToolCall | None = None,
    ) -> None:
        """Create a log. `call` is the call that the stream answers, if it can be continued."""
        super().__init__(number, primes=primes)
        self._name = b"%b.%d" % (server.encode(), number)
        self._connection = connection
        self._call = call
        self._request = b""
        if call is not None:
            request = wire.encode([call.id, call.progress_token])
            self._request = binascii.b2a_base64(request, newline=False).rstrip(b"=")
        #: The position before and after the messages that were appended last.
        self._before = self._suffix = self._position(0)

    def append(self, messages: list[bytes]) -> bytes:
        """Append messages as the next events. Returns their encoding."""
        self._before = self._suffix
        if self._call is not None and self._connection is not None:
            self._suffix = self._position(self._connection.position(self._call))
        return super().append(messages)

    def _position(self, seen: int) -> bytes:
        """Return the part of an id that names the run; empty once the call is answered."""
        call = self._call
        if call is None or call.state is not RUNNING:
            return b""
        return b":%d.%d.%b" % (call.run.id, seen, self._request)

    def _event_id(self, number: int) -> bytes:
        # The position at an earlier event is not retained; the first one repeats and loses nothing.
        position = self._suffix if number == self.last else self._position(0)
        return b"%b:%d%b" % (self._name, number, position)

    def _encode(self, first: int, messages: list[bytes]) -> bytes:
        positions = [self._before] * (len(messages) - 1) + [self._suffix]
        return b"".join(
            b"id: %b:%d%b\ndata: %b\n\n" % (self._name, number, position, message)
            for number, position, message in zip(count(first), positions, messages, strict=False)
        )


class EventId(NamedTuple):
    """The id of an event, as a client sends it back."""

    server: str
    stream: int
    #: The number of the event in its stream.
    number: int
    #: Where another server continues; None if the stream had ended or answers no tool call.
    point: ResumePoint | None


def parse_event_id(event_id: bytes, limits: Limits) -> EventId | None:
    """Parse an id; None if it is not one of ours. Its run may belong to another principal."""
    if len(event_id) > EVENT_ID_CHARS:
        return None
    name, _, rest = event_id.partition(b":")
    server, _, stream_text = name.partition(b".")
    number_text, _, position = rest.partition(b":")
    stream, number = parse_number(stream_text), parse_number(number_text)
    if not server.isalnum() or stream is None or number is None:
        return None
    owner = server.decode("latin-1")
    return EventId(owner, stream, number, _parse_position(owner, stream, position, limits))


def _parse_position(
    server: str, stream: int, position: bytes, limits: Limits
) -> ResumePoint | None:
    parts = position.split(b".")
    if len(parts) != 3:
        return None
    run, seen = parse_number(parts[0]), parse_number(parts[1])
    if run is None or seen is None:
        return None
    try:
        padded = parts[2] + b"=" * (-len(parts[2]) % 4)
        request = wire.decode_value(binascii.a2b_base64(padded, strict_mode=True), limits)
    except (ValueError, PlexusError):
        return None
    match request:
        case [str() | int() as request_id, None | str() | int() as token]:
            return ResumePoint(server, stream, run, seen, request_id, token)
    return None
