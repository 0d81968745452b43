"""The limit on WebSocket: a careful hand-written server on asyncio, without a web framework.

It responds to the streams of the benchmark with the messages of the native view. It parses only
what the benchmark's client sends: a header, and short text frames. Frames go out in parts of 64
KiB, and their production pauses while the socket accepts no more.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import sys
import time
from collections import deque
from collections.abc import Iterator
from itertools import count
from typing import cast

import orjson
import uvloop

from bench.limit_http import TICK_S
from bench.limit_stdio import Message

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
PART_BYTES = 64 * 1024
#: The first part of a stream is small, so that its first event is sent immediately.
FIRST_BYTES = 256
ACCEPTED = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Accept: %b\r\n\r\n"
)

#: Subscription numbers have 16 digits, like those of the program.
numbers = count(1 << 52)


def answer(request: Message, number: int) -> Iterator[bytes]:
    """Yield the response messages; the reply is the first."""
    method = request["method"]
    dumps = orjson.dumps
    yield dumps({"jsonrpc": "2.0", "id": request["id"], "result": number})
    last = request["params"]["to"] + 1
    for seq in range(1, last):
        yield dumps(
            {
                "jsonrpc": "2.0",
                "method": method,
                "params": {
                    "subscription": number,
                    "seq": seq,
                    "result": {"type": "content", "text": f"{seq} "},
                },
            }
        )
    yield item(method, number, last, {"type": "complete"})


def item(method: str, number: int, seq: int, result: Message) -> bytes:
    """Return the message with one item of a stream."""
    params = {"subscription": number, "seq": seq, "result": result}
    return orjson.dumps({"jsonrpc": "2.0", "method": method, "params": params})


def frame(text: bytes) -> bytes:
    """Return a text frame. The messages of the benchmark are short."""
    size = len(text)
    return (b"\x81%c" % size if size < 126 else b"\x81\x7e" + size.to_bytes(2)) + text


class Connection(asyncio.Protocol):
    """One client."""

    def __init__(self) -> None:
        self._rest = b""
        self._is_open = False
        self._is_paused = False
        self._is_scheduled = False
        #: Streams take turns, a part at a time.
        self._streams: deque[tuple[Iterator[bytes], int]] = deque()

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
        """Read the header, then all complete frames."""
        data = self._rest + data
        if not self._is_open:
            head, end, data = data.partition(b"\r\n\r\n")
            if not end:
                self._rest = head
                return
            key = next(
                line.partition(b":")[2].strip()
                for line in head.split(b"\r\n")
                if line.lower().startswith(b"sec-websocket-key:")
            )
            accepted = base64.b64encode(hashlib.sha1(key + GUID).digest())
            self._transport.write(ACCEPTED % accepted)
            self._is_open = True
        while len(data) >= 6 and len(data) >= 6 + (size := data[1] & 0x7F):
            mask, text = data[2:6], data[6 : 6 + size]
            if mask != b"\0\0\0\0":
                text = bytes(byte ^ mask[i % 4] for i, byte in enumerate(text))
            data = data[6 + size :]
            self._receive(orjson.loads(text))
        self._rest = data
        self._schedule()

    def _receive(self, request: Message) -> None:
        number = next(numbers)
        if request["method"] == "bench.count":
            self._streams.append((answer(request, number), FIRST_BYTES))
            return
        reply = orjson.dumps({"jsonrpc": "2.0", "id": request["id"], "result": number})
        if request["method"] == "bench.hold":
            held = item("bench.hold", number, 1, {"type": "content", "text": "held "})
            self._transport.write(frame(reply) + frame(held))
        else:
            self._transport.write(frame(reply))
            times = request["params"]["times"]
            asyncio.get_running_loop().call_later(TICK_S, self._tick, number, 1, times)

    def _tick(self, number: int, seq: int, times: int) -> None:
        """Send the time, or the terminal after the last one."""
        if self._transport.is_closing():
            return
        is_last = seq > times
        result = {"type": "content", "text": f"{time.monotonic_ns()} "}
        if is_last:
            result = {"type": "complete"}
        self._transport.write(frame(item("bench.ticks", number, seq, result)))
        if not is_last:
            asyncio.get_running_loop().call_later(TICK_S, self._tick, number, seq + 1, times)

    def _schedule(self) -> None:
        if self._streams and not self._is_scheduled and not self._is_paused:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._produce)

    def _produce(self) -> None:
        """Write one part of the next stream."""
        self._is_scheduled = False
        stream, size = self._streams.popleft()
        part = bytearray()
        for text in stream:
            part += frame(text)
            if len(part) >= size:
                self._streams.append((stream, PART_BYTES))
                break
        if not self._transport.is_closing():
            self._transport.write(part)
            self._schedule()


async def serve() -> None:
    """Serve on a free port and print it."""
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0)
    sys.stderr.write(f"on http://127.0.0.1:{server.sockets[0].getsockname()[1]}\n")
    sys.stderr.flush()
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())
