"""The replies to one batch of messages, which go out together as one array."""

from __future__ import annotations

from plexus.rpc import wire

__all__ = ("BatchReply",)


class BatchReply:
    """Gathers replies until every request of the batch has its own."""

    __slots__ = ("_replies", "open")

    def __init__(self) -> None:
        self._replies: list[bytes] = []
        #: How many requests are under way.
        self.open = 0

    def add(self, reply: bytes) -> None:
        """One more reply."""
        self._replies.append(reply)

    def taken(self) -> bytes | None:
        """The array, once nothing is under way; None before that, and if nobody is answered."""
        if self.open or not self._replies:
            return None
        array = wire.encode_batch(self._replies)
        self._replies = []
        return array
