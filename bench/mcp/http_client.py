"""HTTP client with persistent connections that reads responses to their last byte.

A response has a length or is chunked. Nothing else is examined while time is measured.
"""

from __future__ import annotations

import re
import select
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

from bench.clients import CALL_READ, STREAM_READ
from bench.mcp import messages
from bench.servers import ServerExited

__all__ = (
    "LAST_CHUNK",
    "Endpoint",
    "call_parallel",
    "call_serially",
    "connect",
    "exchange",
    "handshake",
    "open_stream",
    "receive",
    "stream",
)

#: Socket timeout, longer than any server is silent.
TIMEOUT_S = 60.0
LAST_CHUNK = b"0\r\n\r\n"
_SESSION = re.compile(rb"(?i)\r\nmcp-session-id: ([^\r]+)\r\n")
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: (\d+)\r\n")


class Endpoint(NamedTuple):
    """Endpoint that messages are posted to, with its headers."""

    port: int
    accept: bytes = b"application/json, text/event-stream"
    headers: bytes = b""

    def request(self, body: bytes, extra: bytes = b"") -> bytes:
        """Return an HTTP request with this body."""
        return (
            b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAccept: %b\r\n"
            b"Content-Type: application/json\r\n%b%bContent-Length: %d\r\n\r\n%b"
        ) % (self.port, self.accept, self.headers, extra, len(body), body)

    def stateless_echo(self, request: int) -> bytes:
        """Return a call by a client without a handshake, which repeats fields in headers."""
        extra = (
            b"MCP-Protocol-Version: %b\r\nMcp-Method: tools/call\r\nMcp-Name: bench.echo\r\n"
        ) % messages.STATELESS
        return self.request(messages.call_echo(request, stateless=True), extra)


def connect(port: int) -> socket.socket:
    """Open a connection without delay for small messages."""
    sock = socket.create_connection(("127.0.0.1", port))
    sock.settimeout(TIMEOUT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def exchange(sock: socket.socket, request: bytes) -> bytes:
    """Send a request and return the whole response, head and body."""
    sock.sendall(request)
    answer = b""
    while not _is_complete(answer):
        answer += receive(sock, STREAM_READ)
    return answer


def handshake(port: int, accept: bytes = Endpoint(0).accept) -> Endpoint:
    """Do the handshake. Returns the endpoint for further requests. Raises ServerExited."""
    plain = Endpoint(port)
    with connect(port) as sock:
        answer = exchange(sock, plain.request(messages.initialize()))
        session = _SESSION.search(answer)
        if session is None or b'"protocolVersion":"%b"' % messages.REVISION not in answer:
            raise ServerExited(f"the handshake failed: {answer[:1000]!r}")
        headers = b"Mcp-Session-Id: %b\r\nMCP-Protocol-Version: %b\r\n" % (
            session[1],
            messages.REVISION,
        )
        answer = exchange(sock, Endpoint(port, plain.accept, headers).request(messages.INITIALIZED))
        if not answer.startswith(b"HTTP/1.1 202 "):
            raise ServerExited(f"the handshake failed: {answer[:1000]!r}")
    return Endpoint(port, accept, headers)


def call_serially(port: int, request: bytes, calls: int) -> list[float]:
    """Make sequential calls on one connection. Returns the seconds of each."""
    taken: list[float] = []
    with connect(port) as sock:
        for _ in range(calls):
            started = time.perf_counter()
            exchange(sock, request)
            taken.append(time.perf_counter() - started)
    return taken


def call_parallel(
    requests: Sequence[tuple[int, bytes]], calls: int, taken: list[float] | None = None
) -> float:
    """Make calls on one connection per port and request. Returns the total seconds.

    The seconds of each call are added to `taken`.
    """
    with ExitStack() as stack:
        poll = stack.enter_context(select.epoll())
        busy: dict[int, tuple[socket.socket, bytes]] = {}
        for port, request in requests:
            sock = stack.enter_context(connect(port))
            poll.register(sock.fileno(), select.EPOLLIN)
            busy[sock.fileno()] = sock, request
        answers = dict.fromkeys(busy, b"")
        started = time.perf_counter()
        since = dict.fromkeys(busy, started)
        for sock, request in busy.values():
            sock.sendall(request)
        sent, ended = len(busy), 0
        while ended < calls:
            ready = poll.poll(TIMEOUT_S)
            if not ready:
                raise ServerExited("timed out waiting for a response")
            for fd, _ in ready:
                sock, request = busy[fd]
                answers[fd] += receive(sock, CALL_READ)
                if not _is_complete(answers[fd]):
                    continue
                answers[fd] = b""
                ended += 1
                if taken is not None:
                    now = time.perf_counter()
                    taken.append(now - since[fd])
                    since[fd] = now
                if sent < calls:
                    sock.sendall(request)
                    sent += 1
        return time.perf_counter() - started


def stream(port: int, request: bytes) -> tuple[float, bytes]:
    """Read a long response. Returns the seconds to the last byte, and the bytes."""
    with connect(port) as sock:
        started = time.perf_counter()
        sock.sendall(request)
        head = b""
        while (end := head.find(b"\r\n\r\n")) < 0:
            head += receive(sock, STREAM_READ)
        length = _LENGTH.search(head, 0, end + 2)
        parts = [head]
        if length is not None:
            left = end + 4 + int(length[1]) - len(head)
            while left > 0:
                parts.append(receive(sock, STREAM_READ))
                left -= len(parts[-1])
        else:
            tail = head[-len(LAST_CHUNK) :]
            while tail != LAST_CHUNK:
                parts.append(receive(sock, STREAM_READ))
                tail = (tail + parts[-1])[-len(LAST_CHUNK) :]
        return time.perf_counter() - started, b"".join(parts)


def open_stream(stack: ExitStack, port: int, request: bytes) -> None:
    """Open a stream, wait for its first event, and keep it open until the stack closes."""
    sock = stack.enter_context(connect(port))
    sock.sendall(request)
    seen = b""
    while b"notifications/progress" not in seen:
        seen += receive(sock, CALL_READ)
        if not seen.startswith(b"HTTP/1.1 200 "[: len(seen)]):
            raise ServerExited(f"the server did not open a stream: {seen[:500]!r}")


def receive(sock: socket.socket, size: int) -> bytes:
    """Receive some bytes. Raises ServerExited at the end of the connection."""
    data = sock.recv(size)
    if not data:
        raise ServerExited("the server closed the connection")
    return data


def _is_complete(answer: bytes) -> bool:
    """Return whether the response is complete."""
    end = answer.find(b"\r\n\r\n")
    if end < 0:
        return False
    found = _LENGTH.search(answer, 0, end + 2)
    if found is not None:
        return len(answer) >= end + 4 + int(found[1])
    return answer.endswith(LAST_CHUNK)
