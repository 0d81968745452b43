"""Throughput of small calls and long streams. All are answered.

The rate is compared with its targets in the long form only (LOAD_CALLS of 100000). They are for a
machine with two cores.
"""

from __future__ import annotations

import json
import re
import select
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from load_clients import LONG, TIMEOUT_S, loaded_server, percentile, state
from mcp_network import BOTH, ENVELOPE, JSON, request, stateless_headers
from network import Server

from bench.clients import stream_sse, stream_stdio, stream_ws
from bench.servers import OURS_STDIO, start

pytestmark = pytest.mark.timeout(TIMEOUT_S)

CONNECTIONS = 16
SECONDS = 30.0 if LONG else 1.0
EVENTS = 100_000 if LONG else 5_000
PATIENCE_S = 30.0

CALLS_A_SECOND = 3_000
CALL_P99_S = 0.015
EVENTS_A_SECOND = 20_000
CPU_AN_EVENT_S = 50e-6

LENGTH = re.compile(rb"(?i)\r\ncontent-length: (\d+)\r\n")


def posted(server: Server, path: str, message: object, headers: dict[str, str]) -> bytes:
    """Return the bytes of a POST request."""
    body = json.dumps(message).encode()
    lines = {
        "Host": f"127.0.0.1:{server.port}",
        "Content-Type": JSON,
        "Content-Length": str(len(body)),
        "Accept": BOTH,
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in (lines | headers).items())
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + body


def ping(server: Server) -> bytes:
    return posted(server, "/mcp", request("ping"), {})


def health(server: Server) -> bytes:
    wanted = {"name": "health.check", "arguments": {}, "_meta": ENVELOPE}
    headers = stateless_headers("tools/call", "health.check")
    return posted(server, "/mcp", request("tools/call", wanted), headers)


def whole(answer: bytes) -> bool:
    head, found, body = answer.partition(b"\r\n\r\n")
    length = LENGTH.search(head + b"\r\n")
    if length is None:
        return bool(found) and body.endswith(b"0\r\n\r\n")
    return len(body) == int(length[1])


def hammer(port: int, request: bytes) -> list[float]:
    """Repeat a request on several connections. Returns the duration of each call."""
    taken: list[float] = []
    with ExitStack() as stack:
        poll = stack.enter_context(select.epoll())
        open_: dict[int, tuple[socket.socket, float, bytes]] = {}
        for _ in range(CONNECTIONS):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE_S))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            poll.register(sock.fileno(), select.EPOLLIN)
            sock.sendall(request)
            open_[sock.fileno()] = sock, time.perf_counter(), b""
        until = time.perf_counter() + SECONDS
        while open_:
            ready = poll.poll(PATIENCE_S)
            assert ready, "no answer came any more"
            for fd, _ in ready:
                sock, begun, answer = open_[fd]
                data = sock.recv(65536)
                assert data, "a connection was cut off"
                answer += data
                if not whole(answer):
                    open_[fd] = sock, begun, answer
                    continue
                assert answer.startswith(b"HTTP/1.1 200"), answer
                now = time.perf_counter()
                taken.append(now - begun)
                if now > until:
                    del open_[fd]
                    continue
                sock.sendall(request)
                open_[fd] = sock, now, b""
    return taken


@pytest.mark.parametrize("made", [ping, health])
def test_small_calls_on_sixteen_connections_are_all_answered(
    made: Callable[[Server], bytes],
) -> None:
    with loaded_server() as server:
        taken = hammer(server.port, made(server))
    rate, p99 = len(taken) / SECONDS, percentile(taken, 99)
    print(f"{made.__name__}: {rate:.0f} calls/s, p99 {p99 * 1000:.1f} ms")  # noqa: T201 - with -s
    assert len(taken) > CONNECTIONS
    if LONG:
        assert rate >= CALLS_A_SECOND
        assert p99 <= CALL_P99_S


@pytest.mark.parametrize("stream", [stream_sse, stream_ws])
def test_a_long_stream_is_complete_over_the_network(
    stream: Callable[[int, int], tuple[float, int]],
) -> None:
    with loaded_server("--activation", "bench.activation:Bench") as server:
        stream(server.port, 100)
        before = state(server)["cpu_s"]
        seconds, size = stream(server.port, EVENTS)
        spent = (state(server)["cpu_s"] - before) / EVENTS
    print(  # noqa: T201 - shown with -s
        f"{stream.__name__}: {EVENTS / seconds:.0f} events/s, "
        f"{spent * 1e6:.1f} us of processor each"
    )
    assert size > EVENTS * len('{"type":"content","text":""}')
    if LONG:
        assert EVENTS / seconds >= EVENTS_A_SECOND
        assert spent <= CPU_AN_EVENT_S


def test_a_long_stream_is_complete_over_a_pipe() -> None:
    with start(OURS_STDIO) as server:
        stream_stdio(server, 100)
        seconds, _ = stream_stdio(server, EVENTS)
    print(f"stdio: {EVENTS / seconds:.0f} events/s")  # noqa: T201 - the figure, with -s
    if LONG:
        assert EVENTS / seconds >= EVENTS_A_SECOND
