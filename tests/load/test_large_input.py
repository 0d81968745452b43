"""Input that is too large, too deep or endless is refused before it is buffered.

The server stays as small and as fast as before. The longest block of its event loop is compared
with the target in the long form only (LOAD_CALLS of 100000).
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator

import pytest
from load_clients import LONG, TIMEOUT_S, Http, loaded_server, state
from network import ANSWER_S, Server
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(TIMEOUT_S)]

MIB = 1024 * 1024
GROWTH = 16 * MIB
STALL_S = 0.025
ROUNDS = 20 if LONG else 3

PING = {"jsonrpc": "2.0", "id": 1, "method": "load.echo", "params": {"nonce": "x"}}


def nested(depth: int) -> bytes:
    return b'{"jsonrpc":"2.0","id":1,"method":"m","params":' + b"[" * depth + b"]" * depth + b"}"


#: The input and the expected error.
REFUSED: dict[str, tuple[bytes, int]] = {
    "depth 65": (nested(65), -32600),
    "depth 253": (nested(253), -32600),
    "depth 254": (nested(254), -32600),
    "depth 1024": (nested(1024), -32700),
    "depth 100000": (nested(100_000), -32600),
    "a mebibyte of empty arrays": (b"[" + b"[]," * (MIB // 3 - 2) + b"[]]", -32600),
    "a mebibyte of openers": (b"[" * (MIB - 1), -32600),
    "a mebibyte of one text": (b'"' + b"x" * (MIB - 3) + b'"', -32600),
    "a number of a million digits": (b"1" * (MIB - 1), -32700),
    "a mebibyte of nothing": (b" " * (MIB - 1), -32700),
    "a mebibyte of backslashes": (b'"' + b"\\\\" * (MIB // 2 - 2) + b'"', -32600),
}


def posted(server: Server, data: bytes, path: str = "/rpc") -> tuple[int, bytes]:
    with server.request("POST", path, data) as response:
        return response.status, response.read()


@contextlib.contextmanager
def watched(server: Server) -> Iterator[None]:
    """Fail if the memory of the server grows by much in this block."""
    before = state(server)["resident"]
    yield
    grown = state(server)["resident"] - before
    print(f"grown by {grown / MIB:.1f} MiB")  # noqa: T201 - the figure, with -s
    assert grown <= GROWTH


def test_large_and_deep_messages_are_refused_by_name_over_http_and_sockets() -> None:
    with loaded_server() as server:
        posted(server, b" " * (MIB - 1))
        with watched(server), connect(server.ws, compression=None) as socket_:
            for _ in range(ROUNDS):
                for name, (data, code) in REFUSED.items():
                    _, body = posted(server, data)
                    assert json.loads(body)["error"]["code"] == code, name
                    socket_.send(data.decode())
                    answer = json.loads(socket_.recv(ANSWER_S))
                    assert answer["error"]["code"] == code, name


def _declared(server: Server) -> None:
    """Send a body with a declared length of one gigabyte."""
    sock = _start_request(server, f"Content-Length: {1024 * MIB}")
    _refused(sock)


def _chunked(server: Server) -> None:
    """Send an endless body without a declared length."""
    sock = _start_request(server, "Transfer-Encoding: chunked")
    chunk = b"%x\r\n%b\r\n" % (MIB // 4, b" " * (MIB // 4))
    with contextlib.suppress(OSError):  # the server closes the connection
        for _ in range(200):
            sock.sendall(chunk)
    _refused(sock)


def _one_frame(server: Server) -> None:
    """Send one WebSocket message above the limit."""
    with connect(server.ws, compression=None) as socket_, contextlib.suppress(ConnectionClosed):
        socket_.send("x" * (64 * MIB))
        socket_.recv(ANSWER_S)
        pytest.fail("it was answered")


def _endless_message(server: Server) -> None:
    """Send one WebSocket message in an endless sequence of frames."""
    with connect(server.ws, compression=None) as socket_, contextlib.suppress(ConnectionClosed):
        socket_.send("x" * (MIB // 4) for _ in range(200))
        socket_.recv(ANSWER_S)
        pytest.fail("it was answered")


def _start_request(server: Server, length: str) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", server.port), ANSWER_S)
    sock.sendall(
        f"POST /rpc HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
        f"Content-Type: application/json\r\n{length}\r\n\r\n".encode()
    )
    return sock


def _refused(sock: socket.socket) -> None:
    """Check the status, unless the connection was closed before it could be read."""
    with sock, contextlib.suppress(ConnectionError, http.client.BadStatusLine):
        response = http.client.HTTPResponse(sock)
        response.begin()
        assert response.status == 413


@pytest.mark.parametrize("sent", [_declared, _chunked, _one_frame, _endless_message])
def test_endless_input_is_refused_before_it_is_buffered(sent: Callable[[Server], None]) -> None:
    with loaded_server() as server:
        posted(server, b" " * (MIB - 1))
        with watched(server):
            for _ in range(ROUNDS):
                sent(server)


async def test_the_loop_does_not_stand_still_for_a_message_that_is_refused() -> None:
    with loaded_server() as server:
        pinging = Http(server)
        await pinging.post("/rpc", PING, {})  # warm up
        longest = 0.0
        for _ in range(ROUNDS):
            for data, _ in REFUSED.values():
                sending = asyncio.create_task(asyncio.to_thread(posted, server, data))
                while not sending.done():
                    begun = time.perf_counter()
                    status, _, _ = await pinging.post("/rpc", PING, {})
                    longest = max(longest, time.perf_counter() - begun)
                    assert status == 200
                await sending
        await pinging.close()
    print(f"the longest ping took {longest * 1000:.1f} ms")  # noqa: T201 - the figure, with -s
    if LONG:
        assert longest <= STALL_S
