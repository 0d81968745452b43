"""What a client instructs its driver to do."""

from __future__ import annotations

from typing import TypeAlias

from mcp_view.client.call import ClientCall
from mcp_view.client.errors import UpstreamError
from mcp_view.client.items import Notice

__all__ = ("Abort", "Effect", "End", "ListenLater", "Notify", "Opened", "Poll", "Send", "Updated")


class Send:
    """Send a message. `id` is that of a request, and None for a notification or a response.

    The headers are those of HTTP; other transports have none.
    """

    __slots__ = ("data", "headers", "id", "method")

    def __init__(
        self,
        data: bytes,
        id: int | None = None,  # noqa: A002 - the word of JSON-RPC
        method: str = "",
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self.data = data
        self.id = id
        self.method = method
        self.headers = headers


class Abort:
    """Close the HTTP stream of a request: its response is not awaited any more."""

    __slots__ = ("id",)

    def __init__(self, id: int) -> None:  # noqa: A002 - the word of JSON-RPC
        self.id = id


class Poll:
    """Call `poll` with this call after a delay."""

    __slots__ = ("call", "delay_s")

    def __init__(self, call: ClientCall, delay_s: float) -> None:
        self.call = call
        self.delay_s = delay_s


class ListenLater:
    """Call `listen_again` after a delay, because the stream of changes has ended."""

    __slots__ = ()


class Updated:
    """A call has items, or has ended."""

    __slots__ = ("call",)

    def __init__(self, call: ClientCall) -> None:
        self.call = call


class Notify:
    """Report a notice."""

    __slots__ = ("notice",)

    def __init__(self, notice: Notice) -> None:
        self.notice = notice


class Opened:
    """The connection is ready for calls. A driver of HTTP opens the standalone stream now."""

    __slots__ = ()


class End:
    """Close the connection: it cannot be used."""

    __slots__ = ("error",)

    def __init__(self, error: UpstreamError) -> None:
        self.error = error


Effect: TypeAlias = Send | Abort | Poll | ListenLater | Updated | Notify | Opened | End
