"""What handlers return: replies to the client, beside the effects of the driver.

A handler knows neither how messages are framed nor whether its request was part of a batch. The
connection turns replies into messages.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from mcp_view.tables.errors import ProtocolError
from mcp_view.tables.revisions import Revision
from plexus.rpc.effects import Effect

__all__ = ("Answer", "Listen", "Notify", "NotifyCounted", "Refuse", "Reply")


class Answer:
    """Answer the request with this result, which is JSON. It is over then."""

    __slots__ = ("result",)

    def __init__(self, result: bytes) -> None:
        self.result = result


class Refuse:
    """Answer the request with this error. It is over then."""

    __slots__ = ("error",)

    def __init__(self, error: ProtocolError) -> None:
        self.error = error


class Notify:
    """Send these messages of the server, if anything but answers can be sent here."""

    __slots__ = ("messages",)

    def __init__(self, messages: list[bytes]) -> None:
        self.messages = messages


class NotifyCounted(NamedTuple):
    """Send messages that differ in a number, which rises by one, and in one more part."""

    template: bytes
    first: int
    parts: list[bytes]


class Listen(NamedTuple):
    """Keep the request open as a stream of notifications about these lists and resources."""

    revision: Revision
    kinds: frozenset[str]
    uris: frozenset[str]


Reply: TypeAlias = Effect | Answer | Refuse | Notify | NotifyCounted | Listen
