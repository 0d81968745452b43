"""Server-sent events: write a stream of them as the response to a request."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from starlette.types import Send

from substrate.driver import Connection
from substrate.server.asgi import Headers
from substrate.server.limits import ServerLimits
from substrate.server.peers import Peer
from substrate.server.shutdown import OpenStreams

__all__ = ("EVENT_STREAM", "EventSource", "EventWriter", "start_stream")

EVENT_STREAM: Final = b"text/event-stream; charset=utf-8"
KEEP_ALIVE: Final = b": keep-alive\n\n"
#: Into how many ticks the time to a keep-alive is divided. It is sent up to one tick early.
TICKS: Final = 8
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

    def on_closed(self, peer: Peer) -> None:
        """Handle that nothing more is written to this peer."""


async def start_stream(send: Send, extra: Headers | None = None) -> None:
    """Start a response of server-sent events."""
    headers = STREAM_HEADERS + extra if extra else STREAM_HEADERS
    await send({"type": "http.response.start", "status": 200, "headers": headers})


class EventWriter:
    """Writes streams of server-sent events as responses."""

    def __init__(self, limits: ServerLimits, open_streams: OpenStreams | None = None) -> None:
        """Write with these limits. `open_streams` are those that the shutdown ends."""
        self._write_s = limits.write_s
        self._open = open_streams
        self._silence = SilenceClock(limits.keep_alive_s)

    async def write(
        self,
        events: EventSource,
        peer: Peer,
        send: Send,
        chunk: bytes,
        for_s: float | None = None,
    ) -> None:
        """Write the first bytes, then events as they become available.

        Returns when the source is over, when the peer disconnects or does not read, or after
        `for_s` seconds. It is one coroutine, because it stays in memory as long as the stream.
        """
        connection, silence = events.connection, self._silence
        end = None
        peer.watch()
        silence.restart(peer)
        if self._open is not None:
            self._open.add(connection)
        try:
            if for_s is not None:
                end = asyncio.get_running_loop().call_later(for_s, peer.dismiss)
            await start_stream(send)
            while True:
                if chunk:
                    silence.restart(peer)
                    if not peer.write_now(chunk):
                        await peer.write(send, chunk, self._write_s)
                    chunk = b""
                if peer.gone:
                    break
                messages = connection.collect()
                if messages:
                    chunk = events.frame(messages)
                    continue
                if events.over:
                    break
                waiter = connection.waiter()
                if waiter is not None:
                    await waiter
                if silence.is_over(peer):
                    chunk = KEEP_ALIVE
            await send({"type": "http.response.body", "body": b""})
        except TimeoutError:
            return  # the client does not read; returning early closes its connection
        finally:
            silence.discard(peer)
            if end is not None:
                end.cancel()
            if self._open is not None:
                self._open.discard(connection)
            peer.leave()
            events.on_closed(peer)


class SilenceClock:
    """Wakes the writers of streams that had no output for a time.

    One timer ticks for all streams. A timer of each stream would take 0.6 KiB of memory, and would
    be set again for every event.
    """

    def __init__(self, limit_s: float) -> None:
        self._tick_s = limit_s / TICKS
        self._now = 0
        #: The time of the last output of each stream, in ticks.
        self._last: dict[Peer, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def restart(self, peer: Peer) -> None:
        """Note that the stream to this peer has output now."""
        self._last[peer] = self._now
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._tick_s, self._tick)

    def discard(self, peer: Peer) -> None:
        """Forget a stream that has ended."""
        self._last.pop(peer, None)

    def is_over(self, peer: Peer) -> bool:
        """Return whether a stream must not be silent any longer."""
        return self._now - self._last[peer] >= TICKS

    def _tick(self) -> None:
        self._timer = None
        if not self._last:
            return
        self._timer = asyncio.get_running_loop().call_later(self._tick_s, self._tick)
        self._now += 1
        for peer in self._last:
            if self.is_over(peer):
                peer.wake()
