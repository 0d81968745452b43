"""Replies that handlers return in addition to effects, and the writer that encodes them.

A handler knows neither the framing of messages nor whether its request was part of a batch. The
connection turns replies into messages.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeAlias

from mcp_view.errors import ProtocolError
from mcp_view.revisions import Revision
from plexus.rpc import wire
from plexus.rpc.effects import Effect, Send
from plexus.rpc.replies import BatchReply

__all__ = (
    "Answer",
    "Framing",
    "Listen",
    "Notify",
    "NotifyCounted",
    "Refuse",
    "Reply",
    "ReplyWriter",
)


class Answer:
    """Answer the request with this encoded result and end it."""

    __slots__ = ("result",)

    def __init__(self, result: bytes) -> None:
        self.result = result


class Refuse:
    """Answer the request with this error and end it."""

    __slots__ = ("error",)

    def __init__(self, error: ProtocolError) -> None:
        self.error = error


class Notify:
    """Send these notifications or requests, unless the connection carries answers only."""

    __slots__ = ("messages",)

    def __init__(self, messages: list[bytes]) -> None:
        self.messages = messages


class NotifyCounted(NamedTuple):
    """Send messages from a template with a consecutive number and one other part."""

    template: bytes
    first: int
    parts: list[bytes]


class Listen(NamedTuple):
    """Keep the request open as a stream of notifications for these lists and resources."""

    revision: Revision
    kinds: frozenset[str]
    uris: frozenset[str]


Reply: TypeAlias = Effect | Answer | Refuse | Notify | NotifyCounted | Listen


class Framing(Protocol):
    """Framing of messages for a transport."""

    def message(self, message: bytes) -> bytes: ...
    def items(self, template: bytes, first: int, payloads: list[bytes]) -> list[bytes]: ...


class ReplyWriter:
    """Frames the messages of one connection and collects the replies to a batch."""

    __slots__ = ("_error_bytes", "_framing", "_streaming", "refusal")

    def __init__(self, framing: Framing | None, streaming: bool, error_bytes: int) -> None:
        self._framing = framing
        self._streaming = streaming
        self._error_bytes = error_bytes
        #: The last error that was written.
        self.refusal: ProtocolError | None = None

    def send(self, reply: bytes, batch: BatchReply | None) -> list[Effect]:
        """Send a reply, or add it to its batch."""
        if batch is not None:
            batch.add(reply)
            return []
        return [Send([reply if self._framing is None else self._framing.message(reply)])]

    def flush(self, batch: BatchReply) -> list[Effect]:
        """Send the replies to a batch if it is complete."""
        array = batch.flush()
        return [] if array is None else self.send(array, None)

    def error(self, request_id: wire.Id, error: ProtocolError) -> bytes:
        """Encode an error as the reply to a request."""
        self.refusal = error
        return wire.encode_error(
            request_id, error.code, error.message, error.data, limit=self._error_bytes
        )

    def refuse(
        self, request_id: wire.Id, error: ProtocolError, batch: BatchReply | None
    ) -> list[Effect]:
        """Answer a request with an error."""
        return self.send(self.error(request_id, error), batch)

    def notify(self, messages: list[bytes]) -> list[Effect]:
        """Send notifications or requests, unless the connection carries answers only."""
        if not messages or not self._streaming:
            return []
        framing = self._framing
        return [Send(messages if framing is None else list(map(framing.message, messages)))]

    def notify_counted(self, counted: NotifyCounted) -> list[Effect]:
        """Send numbered messages, formatted in one operation if the framing supports it."""
        template, first, parts = counted
        framing = self._framing
        if framing is not None:
            return [Send(framing.items(framing.message(template), first, parts))]
        return [Send([template % pair for pair in enumerate(parts, first)])]
