"""Server-sent events: messages of a connection as events, with or without a way back.

An event of a session has an id, `stream:number`, and what was sent is kept, within a bound, so
that a client that was cut off goes on exactly after the last event it has seen. While nobody
reads, nothing is collected either: the run behind a stream goes on until it is held back, and the
reader that comes next finds everything.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import Send

from mcp_view.protocol import McpConnection
from plexus.rpc import wire
from substrate.driver import Connection
from substrate.server.limits import ServerLimits
from substrate.server.peers import Peer
from substrate.server.shutdown import OpenStreams
from substrate.server.sse import write_events

__all__ = ("EventLog", "EventWriter", "Events", "SessionEvents", "unnumbered")

#: Sent at once, so that proxies pass the headers on.
GREETING = b": here\n\n"
#: After how many milliseconds a client that was cut off should come back.
RETRY_MS = 300
#: What a stream keeps for those who come back; what was written last is always kept.
KEPT_BYTES = 1024 * 1024
#: What a chunk weighs beside its bytes.
CHUNK_WEIGHT = 128
EVENT_END = b"\n\n"


def unnumbered(messages: list[bytes]) -> bytes:
    """These messages as events without ids."""
    return b"data: %b\n\n" % b"\n\ndata: ".join(messages)


class Events:
    """Events without a way back."""

    __slots__ = ("connection", "view")

    def __init__(self, connection: Connection, view: McpConnection) -> None:
        self.connection = connection
        self.view = view

    def opening(self) -> bytes:
        """The first bytes of the stream."""
        return GREETING

    def frame(self, messages: list[bytes]) -> bytes:
        """These messages as the next events."""
        return unnumbered(messages)

    @property
    def over(self) -> bool:
        """Whether no more will come, once everything is collected."""
        return self.view.idle or self.connection.finished


class EventLog:
    """The events of one stream, numbered from 1, the newest kept within a bound."""

    __slots__ = ("_chunks", "_primes", "ended_at", "last", "number", "size")

    def __init__(self, number: int, *, primes: bool) -> None:
        """`primes`: a stream begins with an event that has nothing but an id."""
        self.number = number
        self._primes = primes
        #: What was written in one go: the number of its first event, and the bytes.
        self._chunks: list[tuple[int, bytes]] = []
        #: The number of the newest event; 0 before the first.
        self.last = 0
        #: What is kept, in bytes.
        self.size = 0
        #: When the stream ended.
        self.ended_at = 0.0

    def opening(self, after: int = 0) -> bytes:
        """The first bytes for a reader that has seen this much."""
        if self._primes:
            return b"id: %d:%d\nretry: %d\ndata: \n\n" % (self.number, after, RETRY_MS)
        return b"retry: %d\n\n" % RETRY_MS

    def append(self, messages: list[bytes]) -> bytes:
        """Keep these messages as the next events; returns how they are written."""
        first = self.last + 1
        chunk = self._framed(first, messages)
        self._chunks.append((first, chunk))
        self.last += len(messages)
        self.size += len(chunk) + CHUNK_WEIGHT
        if self.size > 2 * KEPT_BYTES:  # seldom: shortening a list at its front is linear
            self._trim()
        return chunk

    def _trim(self) -> None:
        count = 0
        while self.size > KEPT_BYTES and count < len(self._chunks) - 1:
            self.size -= len(self._chunks[count][1]) + CHUNK_WEIGHT
            count += 1
        del self._chunks[:count]

    def after(self, number: int) -> bytes:
        """The events after this one, as far as they are kept."""
        kept = [chunk for first, chunk in self._chunks if first > number]
        begun = next((each for each in reversed(self._chunks) if each[0] <= number), None)
        if begun is not None:
            first, chunk = begun
            # No message has a newline in it, so an empty line is always the end of an event.
            kept.insert(0, EVENT_END.join(chunk.split(EVENT_END)[number + 1 - first :]))
        return b"".join(kept)

    def _framed(self, first: int, messages: list[bytes]) -> bytes:
        """Consecutive events, written by one formatting for all of them."""
        count = len(messages)
        if count == 1:
            return b"id: %d:%d\ndata: %b\n\n" % (self.number, first, messages[0])
        values: list[Any] = [None] * (2 * count)
        values[::2] = range(first, first + count)
        values[1::2] = messages
        template = b"id: %d:%%d\ndata: %%b\n\n" % self.number
        return (template * count) % tuple(values)


class SessionEvents(Events):
    """Events of a session, which are kept for those who come back."""

    __slots__ = ("asked", "log", "peer", "standing", "timer")

    def __init__(
        self,
        connection: Connection,
        view: McpConnection,
        log: EventLog,
        peer: Peer,
        *,
        standing: bool,
    ) -> None:
        """A `standing` stream answers nothing, and does not end by having nothing to say."""
        super().__init__(connection, view)
        self.log = log
        self.standing = standing
        #: The requests that are answered here; a list if they came as a batch.
        self.asked: wire.Id | list[wire.Id] = None
        #: Whoever reads at the moment.
        self.peer: Peer | None = peer
        #: Runs while nobody does.
        self.timer: asyncio.TimerHandle | None = None

    def opening(self) -> bytes:
        """The first bytes of the stream."""
        return self.log.opening()

    def frame(self, messages: list[bytes]) -> bytes:
        """These messages as the next events."""
        return self.log.append(messages)

    @property
    def over(self) -> bool:
        """Whether no more will come, once everything is collected."""
        return self.connection.finished or (self.view.idle and not self.standing)


class EventWriter:
    """Writes streams of events as responses."""

    def __init__(self, limits: ServerLimits, open_streams: OpenStreams) -> None:
        self._limits = limits
        self._open = open_streams

    async def write(
        self, events: Events, peer: Peer, send: Send, chunk: bytes, for_s: float | None = None
    ) -> None:
        """Write these first bytes and then events as they come, until no more will come, the peer
        is gone, or `for_s` has passed."""
        self._open.add(events.connection)
        try:
            await write_events(events, peer, send, self._limits, chunk, for_s)
        finally:
            self._open.discard(events.connection)
            peer.leave()
