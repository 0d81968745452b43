"""Clients that only move bytes, so that their own cost does not hide the cost of the servers.

They do not parse: a stream has ended when the bytes of its terminal have arrived.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bench.servers import Server, ServerExited

__all__ = (
    "CALL_READ",
    "STREAM_READ",
    "TERMINAL",
    "call_pipelined",
    "call_sequentially",
    "count_lines",
    "count_request",
    "count_request_line",
    "first_event",
    "live_delays_us",
    "masked",
    "open_ws",
    "read_some",
    "read_until",
    "sse_request",
    "stream_sse",
    "stream_stdio",
    "stream_ws",
    "streams_ws",
    "write_all",
    "ws_request",
)

#: Large enough to read everything that is available.
STREAM_READ = 1024 * 1024
CALL_READ = 64 * 1024

#: End of the last message of a call.
TERMINAL = b'"result":{"type":"complete"}}}'
#: The first event of a stream.
FIRST = b'"seq":1,'
#: The time of its creation in an event, in nanoseconds.
_TIME = re.compile(rb'"(?:text|message)":"(\d+) "')
#: End of a stream of server-sent events: its last event, its chunk, and the empty chunk.
SSE_END = TERMINAL + b"\n\n\r\n0\r\n\r\n"


def count_request(to: int, request: int = 1) -> bytes:
    """Return the message that calls `bench.count`."""
    return b'{"jsonrpc":"2.0","id":%d,"method":"bench.count","params":{"to":%d}}' % (request, to)


def count_request_line(request: int) -> bytes:
    """Return a short call as a line."""
    return count_request(1, request) + b"\n"


def read_until(read: Callable[[], bytes], mark: bytes) -> int:
    """Read until the bytes end with this mark. Returns the number of bytes. Raises ServerExited."""
    tail, total, length = b"", 0, len(mark)
    while True:
        data = read()
        if not data:
            raise ServerExited("the server closed its output")
        total += len(data)
        tail = data[-length:] if len(data) >= length else (tail + data)[-length:]
        if tail == mark:
            return total


def read_some(fd: int, size: int) -> bytes:
    """Read available bytes from a blocking descriptor. Raises ServerExited at the end of output."""
    data = os.read(fd, size)
    if not data:
        raise ServerExited("the server closed its output")
    return data


def write_all(fd: int, data: bytes) -> None:
    """Write all bytes to a blocking descriptor."""
    while data:
        data = data[os.write(fd, data) :]


# --- stdio ------------------------------------------------------------------------------------


def stream_stdio(server: Server, to: int) -> tuple[float, int]:
    """Read a stream. Returns the seconds from the request to the last byte, and the bytes."""
    fd, request = server.output_fd, count_request(to) + b"\n"
    started = time.perf_counter()
    write_all(server.input_fd, request)
    size = read_until(lambda: os.read(fd, STREAM_READ), TERMINAL + b"\n")
    return time.perf_counter() - started, size


def call_sequentially(server: Server, request: bytes, end: bytes, calls: int) -> list[float]:
    """Make calls one after the other. Returns the seconds of each."""
    output = server.output_fd
    taken: list[float] = []
    for _ in range(calls):
        started = time.perf_counter()
        os.write(server.input_fd, request)
        read_until(lambda: os.read(output, CALL_READ), end)
        taken.append(time.perf_counter() - started)
    return taken


def call_pipelined(
    server: Server, make_request: Callable[[int], bytes], end: bytes, calls: int, in_flight: int
) -> float:
    """Make calls with a fixed number in flight. Returns the total seconds."""
    first = 100_000  # requests of equal length, so that a slice of bytes contains whole requests
    requests = b"".join(make_request(first + i) for i in range(calls))
    length = len(requests) // calls
    keep = len(end) - 1  # shorter than the end, so that none is counted twice
    tail = b""
    sent, ended = min(in_flight, calls), 0
    started = time.perf_counter()
    write_all(server.input_fd, requests[: sent * length])
    while ended < calls:
        data = tail + read_some(server.output_fd, CALL_READ)
        ended += data.count(end)
        tail = data[len(data) - keep :]
        more = min(ended + in_flight, calls) - sent
        if more:
            write_all(server.input_fd, requests[sent * length : (sent + more) * length])
            sent += more
    return time.perf_counter() - started


def count_lines(server: Server, lines: int) -> int:
    """Read at least this number of lines. Returns the number of lines read."""
    seen = 0
    while seen < lines:
        seen += read_some(server.output_fd, STREAM_READ).count(b"\n")
    return seen


# --- HTTP and WebSocket -----------------------------------------------------------------------


def sse_request(port: int, to: int) -> bytes:
    """Return the HTTP request for a stream of server-sent events."""
    body = count_request(to)
    return (
        b"POST /rpc HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAccept: text/event-stream\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (port, len(body), body)
    )


def ws_request(to: int) -> bytes:
    """Return the frame that calls `bench.count`."""
    return masked(count_request(to))


def stream_sse(port: int, to: int) -> tuple[float, int]:
    """Read a stream of server-sent events. Returns seconds to the last byte, and bytes."""
    request = sse_request(port, to)
    with socket.create_connection(("127.0.0.1", port)) as sock:
        started = time.perf_counter()
        sock.sendall(request)
        size = read_until(lambda: sock.recv(STREAM_READ), SSE_END)
        return time.perf_counter() - started, size


def stream_ws(port: int, to: int) -> tuple[float, int]:
    """Read a stream over a WebSocket. Returns seconds to the last byte, and bytes.

    Servers do not mask their frames, so the terminal's text appears unchanged on the wire.
    """
    request = ws_request(to)
    with open_ws(port) as sock:
        started = time.perf_counter()
        sock.sendall(request)
        size = read_until(lambda: sock.recv(STREAM_READ), TERMINAL)
        return time.perf_counter() - started, size


def streams_ws(port: int, to: int, streams: int) -> tuple[float, int]:
    """Read a number of concurrent streams over one WebSocket. Returns as `stream_ws`."""
    requests = b"".join(masked(count_request(to, number + 1)) for number in range(streams))
    keep = len(TERMINAL) - 1
    with open_ws(port) as sock:
        size = ended = 0
        tail = b""
        started = time.perf_counter()
        sock.sendall(requests)
        while ended < streams:
            data = sock.recv(STREAM_READ)
            if not data:
                raise ServerExited("the server closed the connection")
            size += len(data)
            tail += data
            ended += tail.count(TERMINAL)
            tail = tail[-keep:]
        return time.perf_counter() - started, size


def first_event(
    read: Callable[[], bytes], send: Callable[[bytes], object], request: bytes
) -> float:
    """Start a stream. Returns the seconds until its first event has arrived, and reads the rest.

    The stream has to end with the terminal in the last bytes that are read.
    """
    started = time.perf_counter()
    send(request)
    seen = b""
    while FIRST not in seen:
        data = read()
        if not data:
            raise ServerExited("the server closed its output")
        seen += data
    taken = time.perf_counter() - started
    tail = seen
    while TERMINAL not in tail:
        data = read()
        if not data:
            raise ServerExited("the server closed its output")
        tail = tail[-len(TERMINAL) :] + data
    return taken


def live_delays_us(read: Callable[[], bytes], times: int) -> list[float]:
    """Read events that contain the time of their creation. Returns their delays.

    Reads up to the end of the last event, and what has arrived with it.
    """
    delays: list[float] = []
    rest = b""
    while len(delays) < times:
        data = read()
        now = time.monotonic_ns()
        if not data:
            raise ServerExited("the server closed the connection")
        rest += data
        end = 0
        for found in _TIME.finditer(rest):
            delays.append((now - int(found[1])) / 1e3)
            end = found.end()
        rest = rest[end:]
    return delays


@contextmanager
def open_ws(port: int) -> Iterator[socket.socket]:
    """Open a WebSocket."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(
            b"GET /rpc HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUpgrade: websocket\r\n"
            b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n" % port
        )
        read_until(lambda: sock.recv(CALL_READ), b"\r\n\r\n")
        yield sock


def masked(text: bytes) -> bytes:
    """Return a client's text frame with a zero mask, which leaves the text unchanged."""
    assert len(text) < 126, "a longer text needs a different header"
    return bytes((0x81, 0x80 | len(text), 0, 0, 0, 0)) + text
