"""The client over HTTP: connections that are kept, and answers read to their last byte.

An answer has a length or comes in chunks; nothing else is looked at while time is taken.
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
from bench.servers import ServerGone

__all__ = (
    "Endpoint",
    "connect",
    "exchange",
    "hold",
    "parallel",
    "serially",
    "shake_hands",
    "stream",
)

#: No server here is silent for so long.
PATIENCE_S = 60.0
LAST_CHUNK = b"0\r\n\r\n"
_SESSION = re.compile(rb"(?i)\r\nmcp-session-id: ([^\r]+)\r\n")
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: (\d+)\r\n")


class Endpoint(NamedTuple):
    """Where messages are posted, and with which headers."""

    port: int
    accept: bytes = b"application/json, text/event-stream"
    headers: bytes = b""

    def request(self, body: bytes, extra: bytes = b"") -> bytes:
        """A message as it goes to the socket."""
        return (
            b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAccept: %b\r\n"
            b"Content-Type: application/json\r\n%b%bContent-Length: %d\r\n\r\n%b"
        ) % (self.port, self.accept, self.headers, extra, len(body), body)

    def stateless_echo(self, request: int) -> bytes:
        """A call by a client that knows no handshake: what it says stands in headers too."""
        extra = (
            b"MCP-Protocol-Version: %b\r\nMcp-Method: tools/call\r\nMcp-Name: bench.echo\r\n"
        ) % messages.STATELESS
        return self.request(messages.call_echo(request, stateless=True), extra)


def connect(port: int) -> socket.socket:
    """A connection, with no delay for small messages."""
    sock = socket.create_connection(("127.0.0.1", port))
    sock.settimeout(PATIENCE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def exchange(sock: socket.socket, request: bytes) -> bytes:
    """One request and all of its answer, head and body."""
    sock.sendall(request)
    answer = b""
    while not _whole(answer):
        answer += _received(sock, STREAM_READ)
    return answer


def shake_hands(port: int, accept: bytes = Endpoint(0).accept) -> Endpoint:
    """The handshake; returns where and how to post from then on."""
    plain = Endpoint(port)
    with connect(port) as sock:
        answer = exchange(sock, plain.request(messages.initialize()))
        session = _SESSION.search(answer)
        if session is None or b'"protocolVersion":"%b"' % messages.REVISION not in answer:
            raise ServerGone(f"the handshake failed: {answer[:1000]!r}")
        headers = b"Mcp-Session-Id: %b\r\nMCP-Protocol-Version: %b\r\n" % (
            session[1],
            messages.REVISION,
        )
        answer = exchange(sock, Endpoint(port, plain.accept, headers).request(messages.INITIALIZED))
        if not answer.startswith(b"HTTP/1.1 202 "):
            raise ServerGone(f"the handshake failed: {answer[:1000]!r}")
    return Endpoint(port, accept, headers)


def serially(port: int, request: bytes, calls: int) -> list[float]:
    """So many calls on one connection, each after the one before: the seconds that each took."""
    taken: list[float] = []
    with connect(port) as sock:
        for _ in range(calls):
            begun = time.perf_counter()
            exchange(sock, request)
            taken.append(time.perf_counter() - begun)
    return taken


def parallel(port: int, requests: Sequence[bytes], calls: int) -> float:
    """So many calls, on as many connections as there are requests: seconds in all."""
    with ExitStack() as stack:
        poll = stack.enter_context(select.epoll())
        busy: dict[int, tuple[socket.socket, bytes]] = {}
        for request in requests:
            sock = stack.enter_context(connect(port))
            poll.register(sock.fileno(), select.EPOLLIN)
            busy[sock.fileno()] = sock, request
        answers = dict.fromkeys(busy, b"")
        begun = time.perf_counter()
        for sock, request in busy.values():
            sock.sendall(request)
        sent, ended = len(busy), 0
        while ended < calls:
            ready = poll.poll(PATIENCE_S)
            if not ready:
                raise ServerGone("no answer came any more")
            for fd, _ in ready:
                sock, request = busy[fd]
                answers[fd] += _received(sock, CALL_READ)
                if not _whole(answers[fd]):
                    continue
                answers[fd] = b""
                ended += 1
                if sent < calls:
                    sock.sendall(request)
                    sent += 1
        return time.perf_counter() - begun


def stream(port: int, request: bytes) -> tuple[float, bytes]:
    """One long answer as events: seconds from the request to the last byte, and all of it."""
    with connect(port) as sock:
        begun = time.perf_counter()
        sock.sendall(request)
        head = b""
        while (end := head.find(b"\r\n\r\n")) < 0:
            head += _received(sock, STREAM_READ)
        length = _LENGTH.search(head, 0, end + 2)
        parts = [head]
        if length is not None:
            left = end + 4 + int(length[1]) - len(head)
            while left > 0:
                parts.append(_received(sock, STREAM_READ))
                left -= len(parts[-1])
        else:
            tail = head[-len(LAST_CHUNK) :]
            while tail != LAST_CHUNK:
                parts.append(_received(sock, STREAM_READ))
                tail = (tail + parts[-1])[-len(LAST_CHUNK) :]
        return time.perf_counter() - begun, b"".join(parts)


def hold(stack: ExitStack, port: int, request: bytes) -> None:
    """Open a stream, wait for its first event, and leave it open until the stack ends."""
    sock = stack.enter_context(connect(port))
    sock.sendall(request)
    seen = b""
    while b"notifications/progress" not in seen:
        seen += _received(sock, CALL_READ)
        if not seen.startswith(b"HTTP/1.1 200 "[: len(seen)]):
            raise ServerGone(f"no stream was opened: {seen[:500]!r}")


def _received(sock: socket.socket, size: int) -> bytes:
    data = sock.recv(size)
    if not data:
        raise ServerGone("the connection was cut off")
    return data


def _whole(answer: bytes) -> bool:
    """Whether the last byte has come."""
    end = answer.find(b"\r\n\r\n")
    if end < 0:
        return False
    found = _LENGTH.search(answer, 0, end + 2)
    if found is not None:
        return len(answer) >= end + 4 + int(found[1])
    return answer.endswith(LAST_CHUNK)
