"""Responses of the HTTP protocol, on a real socket with small apps."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from uvicorn.server import ServerState

from plexus.limits import Limits
from substrate.server.connections import HttpProtocol, LimitedConfig
from substrate.server.http_response import JOINED_BYTES
from substrate.server.limits import ServerLimits

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

App = Callable[..., Any]
GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
WAIT_S = 20


@asynccontextmanager
async def served(
    app: App,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Serve an app on one connection. Yields the client's ends."""
    loop = asyncio.get_running_loop()
    config = LimitedConfig(
        app,
        ServerLimits.of(Limits()),
        access_log=False,
        server_header=False,
        date_header=False,
        log_config=None,
    )
    config.load()
    ours, theirs = socket.socketpair()
    state = ServerState()
    transport, _ = await loop.connect_accepted_socket(
        lambda: HttpProtocol(config, server_state=state, app_state={}), sock=ours
    )
    reader, writer = await asyncio.open_connection(sock=theirs)
    try:
        async with asyncio.timeout(WAIT_S):
            yield reader, writer
    finally:
        writer.close()
        transport.abort()
        for task in tuple(state.tasks):
            task.cancel()


def answering(*parts: bytes, headers: Any = (), status: int = 200) -> App:
    """Return an app that answers with these parts of a body."""

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for number, part in enumerate(parts, 1):
            more = number < len(parts)
            await send({"type": "http.response.body", "body": part, "more_body": more})

    return app


def length(size: int) -> list[tuple[bytes, bytes]]:
    return [(b"content-length", b"%d" % size)]


@pytest.mark.parametrize("size", [0, 1, JOINED_BYTES, 3 * JOINED_BYTES])
async def test_a_response_with_a_length_is_sent_whole_and_the_connection_stays_open(
    size: int,
) -> None:
    body = bytes(size)
    async with served(answering(body, headers=length(size))) as (reader, writer):
        for _ in range(3):
            writer.write(GET)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head == b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size
            assert await reader.readexactly(size) == body


async def test_a_response_without_a_length_is_chunked() -> None:
    app = answering(b"one", b"", b"three", b"", headers=[(b"X-Upper", b"Kept")])
    async with served(app) as (reader, writer):
        writer.write(GET)
        assert await reader.readuntil(b"0\r\n\r\n") == (
            b"HTTP/1.1 200 OK\r\nx-upper: Kept\r\ntransfer-encoding: chunked\r\n\r\n"
            b"3\r\none\r\n5\r\nthree\r\n0\r\n\r\n"
        )


async def test_a_head_arrives_with_an_empty_part_of_the_body() -> None:
    more = asyncio.Event()

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        await more.wait()
        await send({"type": "http.response.body", "body": b"late"})

    async with served(app) as (reader, writer):
        writer.write(GET)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
        more.set()
        assert await reader.readuntil(b"0\r\n\r\n") == b"4\r\nlate\r\n0\r\n\r\n"


async def test_head_requests_and_statuses_without_body_get_only_a_head() -> None:
    async with served(answering(b"four", headers=length(4))) as (reader, writer):
        writer.write(GET.replace(b"GET", b"HEAD") + GET)
        head = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"
        assert await reader.readexactly(2 * len(head) + 4) == head + head + b"four"
    async with served(answering(b"", status=204)) as (reader, writer):
        writer.write(GET + GET)
        head = b"HTTP/1.1 204 No Content\r\n\r\n"
        assert await reader.readexactly(2 * len(head)) == 2 * head


async def test_pipelined_requests_are_answered_in_order() -> None:
    async def app(scope: Any, _receive: Any, send: Any) -> None:
        body = scope["path"].encode() + b"?" + scope["query_string"]
        await asyncio.sleep(0)
        await answering(body, headers=length(len(body)))(scope, _receive, send)

    async with served(app) as (reader, writer):
        for number in range(9):
            writer.write(GET.replace(b"/ ", b"/%%41%d?a=%%20 " % number, 1))
        for number in range(9):
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(9) == b"/A%d?a=%%20" % number


@pytest.mark.parametrize(
    ("request_bytes", "headers"),
    [
        (GET.replace(b"Host", b"Connection: close\r\nHost"), []),
        (GET.replace(b"1.1", b"1.0"), []),
        (GET, [(b"Connection", b"Close")]),
    ],
)
async def test_the_connection_closes_when_either_side_wants_that(
    request_bytes: bytes, headers: list[tuple[bytes, bytes]]
) -> None:
    app = answering(b"end", headers=[*length(3), *headers])
    async with served(app) as (reader, writer):
        writer.write(request_bytes)
        answer = (await reader.read()).lower()
        assert answer.endswith(b"\r\n\r\nend")
        assert answer.count(b"connection: close") == 1


@pytest.mark.parametrize(
    "app",
    [
        answering(b"long", headers=length(3)),
        answering(b"a", b"", headers=length(2)),
        answering(b"x", headers=[(b"x-bad", b"a\r\nset-cookie: stolen")]),
        answering(b"x", headers=[(b"x bad", b"a")]),
    ],
    ids=["too long", "too short", "a line break in a value", "a space in a name"],
)
async def test_a_response_that_breaks_the_rules_of_http_ends_the_connection(app: App) -> None:
    async with served(app) as (reader, writer):
        writer.write(GET)
        answer = await reader.read()
        assert b"stolen" not in answer
        assert not answer.endswith(b"long")


@pytest.mark.parametrize("wrong", ["http.response.start", "http.response.body", "other"])
async def test_messages_out_of_order_are_errors(wrong: str) -> None:
    errors: list[str] = []

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        if wrong == "http.response.start":
            await send({"type": wrong, "status": 200, "headers": length(2)})
        with pytest.raises(RuntimeError) as caught:
            await send({"type": wrong, "status": 200})
        errors.append(str(caught.value))
        if wrong != "http.response.start":
            await send({"type": "http.response.start", "status": 200, "headers": length(2)})
        await send({"type": "http.response.body", "body": b"ok"})

    async with served(app) as (reader, writer):
        writer.write(GET)
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200 OK\r\n")
    assert errors == [f"Unexpected ASGI message {wrong!r} at this point of a response."]
