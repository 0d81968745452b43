"""The limit on HTTP: a careful hand-written server on asyncio, without a web framework.

It responds to `bench.count` with the messages of the native view, and at `/mcp` to the benchmark's
requests with the messages of the MCP view. It parses only what the benchmark's client sends: one
request after the other on a connection, with a length. A short response is one write. A stream goes
out in parts of 64 KiB, and its production pauses while the socket accepts no more.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable, Iterator
from email.utils import formatdate
from itertools import chain, count, islice
from typing import cast

import orjson
import uvloop

from bench import limit_stdio
from bench.limit_stdio import Message

__all__ = ("TICK_S", "called", "event_stream", "numbered", "progress", "streams", "unnumbered")

PART_BYTES = 64 * 1024
#: The first part of a stream has only a few events, so that the first event is sent immediately.
FIRST_EVENTS = 4
#: A response with fewer events is sent with its length.
SHORT_EVENTS = 16
#: Between the events of `bench.ticks`.
TICK_S = 0.001
#: Start of a stream: an event with only its id and the reconnection time.
PRIMING = b"id: %d:0\nretry: 300\ndata: \n\n"
STREAM = (
    b"HTTP/1.1 200 OK\r\ndate: %b\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache, no-transform\r\nx-accel-buffering: no\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
REPLY = b"HTTP/1.1 200 OK\r\ndate: %b\r\ncontent-type: %b\r\n%bcontent-length: %d\r\n\r\n%b"
SESSION = b"mcp-session-id: 0123456789abcdef0123456789abcdef\r\n"
ACCEPTED = b"HTTP/1.1 202 Accepted\r\ndate: %b\r\ncontent-length: 0\r\n\r\n"
ACCEPTS_EVENTS = b"\r\nAccept: text/event-stream\r\n"

#: Numbers of streams.
streams = count(1)


# --- events, also for the limit on ASGI -----------------------------------------------------------


def event_stream(request: Message) -> Iterator[bytes]:
    """Yield the response messages of the native view as server-sent events."""
    lines = limit_stdio.native(request)
    reply = next(lines)
    number = orjson.loads(reply)["result"]
    yield b"retry: 500\n\n"
    yield b"data: %b\n" % reply
    for seq, line in enumerate(lines, 1):
        yield b"id: %d:%d\ndata: %b\n" % (number, seq, line)


def unnumbered(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the events of an MCP stream that cannot be resumed."""
    for line in lines:
        yield b"data: %b\n" % line


def numbered(number: int, lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the events of an MCP stream that could be resumed."""
    yield PRIMING % number
    template = b"id: %d:%%d\ndata: %%b\n" % number
    for event, line in enumerate(lines, 1):
        yield template % (event, line)


def called(request: Message) -> str:
    """Return the name of the tool that a request calls; empty if it calls none."""
    return str(request["params"]["name"]) if request["method"] == "tools/call" else ""


def progress(request: Message, number: int, text: str) -> bytes:
    """Return one notification about a call, as a line."""
    mark = orjson.dumps(request["params"]["_meta"]["progressToken"])
    return limit_stdio.PROGRESS % (mark, number, orjson.dumps(text))


# --- connections ----------------------------------------------------------------------------------


class Dates:
    """The header `date`, formatted once a second."""

    def __init__(self) -> None:
        self._second = 0
        self._text = b""

    def now(self) -> bytes:
        """Return the current date."""
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._text = formatdate(second, usegmt=True).encode()
        return self._text


dates = Dates()


class Connection(asyncio.Protocol):
    """One client."""

    __slots__ = ("_frames", "_is_paused", "_rest", "_transport")

    def __init__(self) -> None:
        self._rest = b""
        self._is_paused = False
        self._frames: Iterator[bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start."""
        self._transport = cast("asyncio.Transport", transport)

    def pause_writing(self) -> None:
        """Stop producing."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """Continue producing."""
        self._is_paused = False
        self._schedule()

    def data_received(self, data: bytes) -> None:
        """Respond to the request if it is complete."""
        if self._rest:
            data = self._rest + data
        end = data.find(b"\r\n\r\n")
        at = data.find(b"\r\nContent-Length: ", 0, end + 2) + 18
        if end < 0 or len(data) < end + 4 + int(data[at : data.find(b"\r", at)]):
            self._rest = data
            return
        self._rest = b""
        self._respond(data[: end + 2], orjson.loads(data[end + 4 :]))

    def _respond(self, head: bytes, request: Message) -> None:
        if head.startswith(b"POST /rpc "):
            self._stream(event_stream(request))
        elif "id" not in request:
            self._transport.write(ACCEPTED % dates.now())
        elif called(request) == "bench.hold":
            lines = [progress(request, 1, "held ")]
            self._begin(b"".join(numbered(next(streams), lines)))
        elif called(request) == "bench.ticks":
            number = next(streams)
            self._begin(PRIMING % number)
            asyncio.get_running_loop().call_later(TICK_S, self._tick, request, number, 1)
        else:
            self._answer(head, request)

    def _answer(self, head: bytes, request: Message) -> None:
        lines = limit_stdio.answer(request)
        meta = request["params"].get("_meta", ())
        if "progressToken" not in meta and ACCEPTS_EVENTS not in head:
            session = SESSION if request["method"] == "initialize" else b""
            self._reply(b"application/json", session, b"".join(lines)[:-1])
            return
        stateless = limit_stdio.REVISION in meta
        frames = unnumbered(lines) if stateless else numbered(next(streams), lines)
        first = list(islice(frames, SHORT_EVENTS))
        if len(first) < SHORT_EVENTS:
            self._reply(b"text/event-stream; charset=utf-8", b"", b"".join(first))
        else:
            self._stream(chain(first, frames))

    def _reply(self, kind: bytes, headers: bytes, body: bytes) -> None:
        self._transport.write(REPLY % (dates.now(), kind, headers, len(body), body))

    def _stream(self, frames: Iterator[bytes]) -> None:
        self._begin(b"".join(islice(frames, FIRST_EVENTS)))
        self._frames = frames
        self._schedule()

    def _begin(self, first: bytes) -> None:
        self._transport.write(b"%b%x\r\n%b\r\n" % (STREAM % dates.now(), len(first), first))

    def _tick(self, request: Message, number: int, event: int) -> None:
        """Send the time, or the result after the last one."""
        if self._transport.is_closing():
            return
        is_last = event > request["params"]["arguments"]["times"]
        line = (
            limit_stdio.call_result(request, "")
            if is_last
            else progress(request, event, f"{time.monotonic_ns()} ")
        )
        frame = b"id: %d:%d\ndata: %b\n" % (number, event, line)
        end = b"0\r\n\r\n" if is_last else b""
        self._transport.write(b"%x\r\n%b\r\n%b" % (len(frame), frame, end))
        if not is_last:
            asyncio.get_running_loop().call_later(TICK_S, self._tick, request, number, event + 1)

    def _schedule(self) -> None:
        if self._frames is not None and not self._is_paused:
            asyncio.get_running_loop().call_soon(self._produce)

    def _produce(self) -> None:
        """Write one part of the stream."""
        frames = self._frames
        if frames is None or self._is_paused or self._transport.is_closing():
            return
        part = bytearray()
        for frame in frames:
            part += frame
            if len(part) >= PART_BYTES:
                self._transport.write(b"%x\r\n%b\r\n" % (len(part), bytes(part)))
                self._schedule()
                return
        self._frames = None
        chunk = b"%x\r\n%b\r\n" % (len(part), bytes(part)) if part else b""
        self._transport.write(chunk + b"0\r\n\r\n")


async def serve() -> None:
    """Serve on a free port and print it."""
    server = await asyncio.get_running_loop().create_server(
        Connection, "127.0.0.1", 0, backlog=2048
    )
    sys.stderr.write(f"on http://127.0.0.1:{server.sockets[0].getsockname()[1]}\n")
    sys.stderr.flush()
    await server.serve_forever()


if __name__ == "__main__":
    for file in sys.argv[1:]:
        limit_stdio.load(file)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())
