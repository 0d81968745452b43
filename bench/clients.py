"""Clients that only move bytes, so that what they cost hides nothing of what servers cost.

They do not parse: a stream is over when the bytes of its terminal have come.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable

from bench.servers import Server, ServerGone

__all__ = (
    "CALL_READ",
    "STREAM_READ",
    "TERMINAL",
    "ask_count",
    "ask_count_line",
    "call_pipelined",
    "call_singly",
    "count_lines",
    "read_some",
    "read_until",
    "stream_sse",
    "stream_stdio",
    "stream_ws",
    "write_all",
)

#: Large enough to take everything that is there.
STREAM_READ = 1024 * 1024
CALL_READ = 64 * 1024

#: The end of the last message of a call.
TERMINAL = b'"result":{"type":"complete"}}}'
#: The end of a stream of server-sent events: its last event, its chunk, and the empty chunk.
SSE_END = TERMINAL + b"\n\n\r\n0\r\n\r\n"


def ask_count(to: int, request: int = 1) -> bytes:
    """The message that calls `bench.count`."""
    return b'{"jsonrpc":"2.0","id":%d,"method":"bench.count","params":{"to":%d}}' % (request, to)


def ask_count_line(request: int) -> bytes:
    """A short call as a line."""
    return ask_count(1, request) + b"\n"


def read_until(read: Callable[[], bytes], mark: bytes) -> int:
    """Read until the bytes end with this mark; returns how many there were."""
    tail, total, length = b"", 0, len(mark)
    while True:
        data = read()
        if not data:
            raise ServerGone("the output was cut off")
        total += len(data)
        tail = data[-length:] if len(data) >= length else (tail + data)[-length:]
        if tail == mark:
            return total


def read_some(fd: int, size: int) -> bytes:
    """Read what is there from a blocking descriptor; raises ServerGone at the end of the output."""
    data = os.read(fd, size)
    if not data:
        raise ServerGone("the output was cut off")
    return data


def write_all(fd: int, data: bytes) -> None:
    """Write all of it to a blocking descriptor."""
    while data:
        data = data[os.write(fd, data) :]


# --- stdio ------------------------------------------------------------------------------------


def stream_stdio(server: Server, to: int) -> tuple[float, int]:
    """One stream: seconds from the request to the last byte, and the number of bytes."""
    fd, request = server.output_fd, ask_count(to) + b"\n"
    begun = time.perf_counter()
    write_all(server.input_fd, request)
    size = read_until(lambda: os.read(fd, STREAM_READ), TERMINAL + b"\n")
    return time.perf_counter() - begun, size


def call_singly(server: Server, request: bytes, end: bytes, calls: int) -> list[float]:
    """So many calls, each after the one before has ended: the seconds that each took."""
    output = server.output_fd
    taken: list[float] = []
    for _ in range(calls):
        begun = time.perf_counter()
        os.write(server.input_fd, request)
        read_until(lambda: os.read(output, CALL_READ), end)
        taken.append(time.perf_counter() - begun)
    return taken


def call_pipelined(
    server: Server, ask: Callable[[int], bytes], end: bytes, calls: int, in_flight: int
) -> float:
    """So many calls with so many under way at any time: seconds in all."""
    first = 100_000  # so that all requests are equally long and a slice of bytes is some of them
    requests = b"".join(ask(first + i) for i in range(calls))
    length = len(requests) // calls
    keep = len(end) - 1  # shorter than the end, so that none is counted twice
    tail = b""
    sent, ended = min(in_flight, calls), 0
    begun = time.perf_counter()
    write_all(server.input_fd, requests[: sent * length])
    while ended < calls:
        data = tail + read_some(server.output_fd, CALL_READ)
        ended += data.count(end)
        tail = data[len(data) - keep :]
        more = min(ended + in_flight, calls) - sent
        if more:
            write_all(server.input_fd, requests[sent * length : (sent + more) * length])
            sent += more
    return time.perf_counter() - begun


def count_lines(server: Server, lines: int) -> int:
    """Read until at least so many lines have come; returns how many did."""
    seen = 0
    while seen < lines:
        seen += read_some(server.output_fd, STREAM_READ).count(b"\n")
    return seen


# --- HTTP and WebSocket -----------------------------------------------------------------------


def stream_sse(port: int, to: int) -> tuple[float, int]:
    """One stream of server-sent events: seconds from the request to the last byte, and bytes."""
    body = ask_count(to)
    head = (
        b"POST /rpc HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAccept: text/event-stream\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (port, len(body))
    )
    with socket.create_connection(("127.0.0.1", port)) as sock:
        begun = time.perf_counter()
        sock.sendall(head + body)
        size = read_until(lambda: sock.recv(STREAM_READ), SSE_END)
        return time.perf_counter() - begun, size


def stream_ws(port: int, to: int) -> tuple[float, int]:
    """One stream over a WebSocket: seconds from the request to the last byte, and bytes.

    Frames of a server are not masked, so the text of the terminal is on the wire as it is.
    """
    request = _masked(ask_count(to))
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(
            b"GET /rpc HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUpgrade: websocket\r\n"
            b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n" % port
        )
        read_until(lambda: sock.recv(CALL_READ), b"\r\n\r\n")
        begun = time.perf_counter()
        sock.sendall(request)
        size = read_until(lambda: sock.recv(STREAM_READ), TERMINAL)
        return time.perf_counter() - begun, size


def _masked(text: bytes) -> bytes:
    """A client's text frame; its mask is zero, so the text stays as it is."""
    assert len(text) < 126, "a longer frame has another header"
    return bytes((0x81, 0x80 | len(text), 0, 0, 0, 0)) + text
