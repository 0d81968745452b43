"""Replies that are collected before they are sent: of a whole run, and to a batch of messages."""

from __future__ import annotations

from collections import deque

from plexus.events import Event, Gap
from plexus.rpc import wire
from plexus.runtime.log import Batch

__all__ = ("AnswerBuffer", "BatchReply")

#: Bytes of an item in a JSON array in addition to its own: the comma.
SEPARATOR_BYTES = 1
#: Space for the gap, and for the rest of the response around its items.
FRAME_BYTES = 256


class AnswerBuffer:
    """The items of a run for one buffered response: all of them, or the first and the last.

    A run is not stopped because its response grows too large: past the limit in bytes, one half
    keeps the head and the other half the tail, a `gap` event replaces the middle, and the response
    is marked as truncated. The newest item, which may be a terminal, is always kept.
    """

    __slots__ = ("_dropped", "_events", "_limit", "_payloads", "_size", "_tail", "_tail_size")

    def __init__(self, limit: int) -> None:
        self._limit = limit - FRAME_BYTES
        self._events: list[Event] = []
        self._payloads: list[bytes] = []
        #: Bytes of the head, which contains all items until some are dropped.
        self._size = 0
        #: The newest items, once the limit is exceeded.
        self._tail: deque[tuple[Event, bytes]] | None = None
        self._tail_size = 0
        #: Numbers of the first and the last dropped item.
        self._dropped = (0, 0)

    @property
    def truncated(self) -> bool:
        """Whether items were dropped."""
        return self._tail is not None

    def add(self, batch: Batch) -> None:
        """Add consecutive items."""
        size = batch.size + SEPARATOR_BYTES * len(batch.payloads)
        if self._tail is None:
            self._events += batch.events
            self._payloads += batch.payloads
            self._size += size
            if self._size > self._limit and len(self._payloads) > 1:
                self._split(batch.first + len(batch.payloads))
        else:
            self._tail.extend(zip(batch.events, batch.payloads, strict=True))
            self._tail_size += size
            self._trim()

    def _split(self, end: int) -> None:
        """Start to drop items; `end` is the number after the newest."""
        events, payloads, size = self._events, self._payloads, self._size
        count = head_size = 0
        while head_size + _cost(payloads[count]) <= self._limit // 2:
            head_size += _cost(payloads[count])
            count += 1
        first = end - len(payloads) + count
        self._dropped = (first, first - 1)
        self._tail = deque(zip(events[count:], payloads[count:], strict=True))
        self._tail_size = size - head_size
        del events[count:], payloads[count:]
        self._size = head_size
        self._trim()

    def _trim(self) -> None:
        tail = self._tail
        assert tail is not None, "items are dropped from a tail"
        first, last = self._dropped
        while self._size + self._tail_size > self._limit and len(tail) > 1:
            self._tail_size -= _cost(tail.popleft()[1])
            last += 1
        while self._size + self._tail_size > self._limit and self._payloads:
            self._size -= _cost(self._payloads.pop())
            self._events.pop()
            first -= 1
        self._dropped = (first, last)

    def items(self) -> tuple[list[Event], list[bytes]]:
        """Return the kept events and their bytes, with a `gap` where items were dropped."""
        if self._tail is None:
            return self._events, self._payloads
        gap = Gap(*self._dropped)
        kept = [(gap, wire.encode_event(gap)), *self._tail]
        return (
            self._events + [event for event, _ in kept],
            self._payloads + [raw for _, raw in kept],
        )


def _cost(raw: bytes) -> int:
    return len(raw) + SEPARATOR_BYTES


class BatchReply:
    """Collects the replies to one batch until every request has its reply."""

    __slots__ = ("_replies", "pending")

    def __init__(self) -> None:
        self._replies: list[bytes] = []
        #: Number of requests without a reply.
        self.pending = 0

    def add(self, reply: bytes) -> None:
        """Add a reply."""
        self._replies.append(reply)

    def flush(self) -> bytes | None:
        """Return the array of replies once no request is pending.

        Returns None before that, and if the batch contains only notifications.
        """
        if self.pending or not self._replies:
            return None
        array = wire.encode_batch(self._replies)
        self._replies = []
        return array
