"""Streams of server-sent events, with or without replay.

An event of a session has an id, `stream:number`. Sent events are retained up to a limit, so that a
disconnected client resumes exactly after the last event it received. While no client reads, no
messages are collected: the run continues until backpressure suspends it, and the next reader gets
everything.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from mcp_view.protocol import McpConnection
from plexus.rpc import wire
from substrate.driver import Connection
from substrate.server.peers import Peer

if TYPE_CHECKING:  # the sessions have the streams
    from substrate.server.mcp.sessions import HttpSession

__all__ = (
    "EventLog",
    "PlainStream",
    "ResumePoint",
    "SessionStream",
    "encode_events",
)

#: Sent immediately, so that proxies forward the headers.
OPENING_COMMENT = b": here\n\n"
#: Milliseconds after which a disconnected client should reconnect.
RETRY_MS = 300
#: Maximum retained bytes of a stream. The last chunk is always retained.
RETAINED_BYTES = 1024 * 1024
#: Memory overhead of a chunk in bytes.
CHUNK_OVERHEAD = 128
EVENT_END = b"\n\n"


def encode_events(messages: list[bytes]) -> bytes:
    """Encode messages as events without ids."""
    return b"data: %b\n\n" % b"\n\ndata: ".join(messages)


class ResumePoint(NamedTuple):
    """Where another server continues a stream: by reading the run again."""

    #: The server that has the stream, and the number of the stream there.
    server: str
    stream: int
    run: int
    #: The last item of the run that the client has received in some form.
    seen: int
    request_id: wire.Id
    #: The progress token of the request; None if it has none.
    token: str | int | None


class PlainStream:
    """Events without ids, which cannot be replayed."""

    __slots__ = ("connection", "view")

    def __init__(self, connection: Connection, view: McpConnection) -> None:
        self.connection = connection
        self.view = view

    def opening(self) -> bytes:
        """Return the first bytes of the stream."""
        return OPENING_COMMENT

    def frame(self, messages: list[bytes]) -> bytes:
        """Encode messages as the next events."""
        return encode_events(messages)

    @property
    def over(self) -> bool:
        """Whether the stream has ended, once all messages are collected."""
        return self.view.idle or self.connection.finished

    def on_closed(self, peer: Peer) -> None:
        """Do nothing: the stream ends with its only reader."""


class EventLog:
    """The events of one stream, numbered from 1. The newest are retained up to a limit."""

    __slots__ = ("_chunks", "_primes", "ended_at", "last", "number", "size")

    def __init__(self, number: int, *, primes: bool) -> None:
        """Create a log. `primes`: the stream starts with an empty event that has an id."""
        self.number = number
        self._primes = primes
        #: Written chunks: the number of the first event, and the bytes.
        self._chunks: list[tuple[int, bytes]] = []
        #: The number of the newest event; 0 before the first event.
        self.last = 0
        #: The retained bytes.
        self.size = 0
        #: When the stream ended.
        self.ended_at = 0.0

    def opening(self, after: int = 0) -> bytes:
        """Return the first bytes for a reader that has received events up to this number."""
        if self._primes:
            return b"id: %b\nretry: %d\ndata: \n\n" % (self._event_id(after), RETRY_MS)
        return b"retry: %d\n\n" % RETRY_MS

    def append(self, messages: list[bytes]) -> bytes:
        """Append messages as the next events. Returns their encoding."""
        first = self.last + 1
        chunk = self._encode(first, messages)
        self._chunks.append((first, chunk))
        self.last += len(messages)
        self.size += len(chunk) + CHUNK_OVERHEAD
        if (
            self.size > 2 * RETAINED_BYTES
        ):  # rarely, because removing from the front of a list is linear
            self._trim()
        return chunk

    def _trim(self) -> None:
        count = 0
        while self.size > RETAINED_BYTES and count < len(self._chunks) - 1:
            self.size -= len(self._chunks[count][1]) + CHUNK_OVERHEAD
            count += 1
        del self._chunks[:count]

    def after(self, number: int) -> bytes:
        """Return the retained events after this number."""
        kept = [chunk for first, chunk in self._chunks if first > number]
        partial = next((each for each in reversed(self._chunks) if each[0] <= number), None)
        if partial is not None:
            first, chunk = partial
            # Messages contain no newline, so an empty line always ends an event.
            kept.insert(0, EVENT_END.join(chunk.split(EVENT_END)[number + 1 - first :]))
        return b"".join(kept)

    def _event_id(self, number: int) -> bytes:
        return b"%d:%d" % (self.number, number)

    def _encode(self, first: int, messages: list[bytes]) -> bytes:
        """Encode consecutive events in one formatting operation."""
        count = len(messages)
        if count == 1:
            return b"id: %d:%d\ndata: %b\n\n" % (self.number, first, messages[0])
        values: list[Any] = [None] * (2 * count)
        values[::2] = range(first, first + count)
        values[1::2] = messages
        template = b"id: %d:%%d\ndata: %%b\n\n" % self.number
        return (template * count) % tuple(values)


class SessionStream(PlainStream):
    """Events of a session, retained for clients that reconnect."""

    __slots__ = ("log", "peer", "request_ids", "session", "standalone", "timer")

    def __init__(
        self,
        connection: Connection,
        view: McpConnection,
        log: EventLog,
        peer: Peer,
        session: HttpSession,
        *,
        standalone: bool,
    ) -> None:
        """Create a stream. A `standalone` stream answers no request and does not end when idle."""
        super().__init__(connection, view)
        self.log = log
        self.session = session
        self.standalone = standalone
        #: The ids of the requests that the stream answers; a list for a batch.
        self.request_ids: wire.Id | list[wire.Id] = None
        #: The current reader.
        self.peer: Peer | None = peer
        #: The timeout for a reconnect, set while there is no reader.
        self.timer: asyncio.TimerHandle | None = None

    def opening(self) -> bytes:
        """Return the first bytes of the stream."""
        return self.log.opening()

    def frame(self, messages: list[bytes]) -> bytes:
        """Encode messages as the next events."""
        return self.log.append(messages)

    @property
    def over(self) -> bool:
        """Whether the stream has ended, once all messages are collected."""
        return self.connection.finished or (self.view.idle and not self.standalone)

    def on_closed(self, peer: Peer) -> None:
        """Wait for a reader that continues the stream, or end it."""
        self.session.detach(self, peer)
