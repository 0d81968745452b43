"""Server-sent events: write a stream of them as the response to a request."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from starlette.types import Send

from substrate.driver import Connection
from substrate.server.asgi import Headers
from substrate.server.limits import ServerLimits
from substrate.server.peers import Peer

__all__ = ("EVENT_STREAM", "EventSource", "start_stream", "write_events")

EVENT_STREAM: Final = b"text/event-stream; charset=utf-8"
KEEP_ALIVE: Final = b": keep-alive\n\n"
#: A stream must not be cached, nor buffered by a proxy.
STREAM_HEADERS: Headers = [
    (b"content-type", EVENT_STREAM),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


class EventSource(Protocol):
    """The source of the events of a stream."""

    @property
    def connection(self) -> Connection:
        """The connection whose messages are the events."""

    @property
    def over(self) -> bool:
        """Whether the stream ends once everything is collected."""

    def frame(self, messages: list[bytes]) -> bytes:
        """Return these messages as the next events."""


async def start_stream(send: Send, extra: Headers | None = None) -> None:
    """Start a response of server-sent events."""
    headers = STREAM_HEADERS + extra if extra else STREAM_HEADERS
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def write_events(
    events: EventSource,
    peer: Peer,
    send: Send,
    limits: ServerLimits,
    first: bytes,
    for_s: float | None = None,
) -> None:
    """Write `first`, then events as they become available.

    Returns when the source is over, when the peer disconnects or does not read, or after `for_s`
    seconds.
    """
    peer.watch()
    try:
        await start_stream(send)
        await _write_all(events, peer, send, limits, first, for_s)
    except TimeoutError:
        return  # the client does not read; returning early closes its connection
    await send({"type": "http.response.body", "body": b""})


async def _write_all(
    events: EventSource,
    peer: Peer,
    send: Send,
    limits: ServerLimits,
    chunk: bytes,
    for_s: float | None,
) -> None:
    connection = events.connection
    loop = asyncio.get_running_loop()
    end = None if for_s is None else loop.time() + for_s
    while True:
        if chunk:
            message = {"type": "http.response.body", "body": chunk, "more_body": True}
            await peer.write(send, message, limits.write_s)
        if peer.gone:
            return
        messages = connection.collect()
        if messages:
            chunk = events.frame(messages)
            continue
        if events.over:
            return
        wait_s = limits.keep_alive_s
        if end is not None:
            wait_s = min(wait_s, end - loop.time())
            if wait_s <= 0:
                return
        chunk = b"" if await connection.ready(wait_s) else KEEP_ALIVE
