"""Answers of a server over HTTP, and their effect in the client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from servers import consume, play

from native_rpc.client import ClientLimits, ConnectionLost, Item, ProtocolError, connect
from native_rpc.client.limits import READING
from plexus.errors import Busy, Denied, NotFound, PlexusError, TooBig
from plexus.rpc import wire

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n\r\n"
COMPLETE = b'{"type":"complete","result":42}'
CONTENT = b'{"type":"content","text":"hi"}'


def event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


STARTED = event(b'{"jsonrpc":"2.0","id":1,"result":5}')


def item(seq: int, fields: bytes) -> bytes:
    body = b'{"jsonrpc":"2.0","method":"a.b","params":{"subscription":5,"seq":%d,"result":%b}}'
    return b"id: 5:%d\n" % seq + event(body % (seq, fields))


def answer(status: int, body: bytes) -> bytes:
    head = b"HTTP/1.1 %d Any\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % (status, len(body)) + body


class Canned:
    """A server that sends prepared answers, one per connection, and records requests."""

    def __init__(self, answers: list[bytes], *, hang: bool) -> None:
        self._answers = iter(answers)
        self._hang = hang
        self.url = ""
        self.heads: list[bytes] = []
        self.asked: list[wire.Request] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:  # the client only checked that the server is reachable
            writer.close()
            return
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        request = wire.decode(await reader.readexactly(length), READING)
        assert isinstance(request, wire.Request)
        self.heads.append(head)
        self.asked.append(request)
        writer.write(next(self._answers))
        await writer.drain()
        if self._hang:
            await reader.read()
        writer.close()


@asynccontextmanager
async def canned(*answers: bytes, hang: bool = False) -> AsyncIterator[Canned]:
    """Run a server with these answers for the duration of the block."""
    server = Canned(list(answers), hang=hang)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/rpc?a=b"
    try:
        yield server
    finally:
        listener.close()


def ask(*answers: bytes, hang: bool = False, **options: Any) -> tuple[Any, Canned]:
    """Call `a.b` once on a server with these answers."""

    async def scenario() -> tuple[Any, Canned]:
        async with (
            canned(*answers, hang=hang) as server,
            connect(server.url, **options) as plexus,
        ):
            return await plexus.a.b(x=1), server

    return play(scenario)


def test_a_request_has_its_headers_and_token() -> None:
    result, server = ask(STREAM + STARTED + item(1, COMPLETE), token="secret")
    assert result == 42
    head = server.heads[0]
    assert head.startswith(b"POST /rpc?a=b HTTP/1.1\r\n")
    assert b"Host: " + server.url.split("/")[2].encode() in head
    for line in (b"Accept: text/event-stream", b"Content-Type: application/json", b"Bearer secret"):
        assert line in head
    assert server.asked[0].method == "a.b"


def test_comments_and_other_fields_are_ignored() -> None:
    noise = b": keep-alive\n\nretry: 500\n\nevent: x\n\n"
    body = noise + STARTED + noise + item(1, CONTENT) + noise + item(2, COMPLETE)
    assert ask(STREAM + body)[0] == 42


def test_a_stream_need_not_end_with_its_connection() -> None:
    assert ask(STREAM + STARTED + item(1, COMPLETE), hang=True)[0] == 42


REFUSED = b'{"jsonrpc":"2.0","id":1,"error":{"code":-32004,"message":"gone","data":{"a":1}}}'


@pytest.mark.parametrize(
    "response",
    [
        STREAM + event(REFUSED),
        answer(200, REFUSED),
        answer(404, REFUSED),
        answer(400, REFUSED.replace(b'"id":1', b'"id":null')),
    ],
)
def test_a_refusal_may_have_any_of_its_forms(response: bytes) -> None:
    with pytest.raises(NotFound, match="gone") as raised:
        ask(response)
    assert raised.value.data == {"a": 1}


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, Denied), (403, Denied), (413, TooBig), (429, Busy), (404, ProtocolError)],
)
def test_a_status_alone_is_an_error_too(status: int, kind: type[PlexusError]) -> None:
    with pytest.raises(PlexusError, match=f"HTTP {status}: .*no") as raised:
        ask(answer(status, b'{"error":"no"}'))
    assert type(raised.value) is kind


def test_a_server_that_is_briefly_unavailable_is_retried() -> None:
    result, server = ask(answer(503, b"starting"), b"", STREAM + STARTED + item(1, COMPLETE))
    assert result == 42
    assert [request.params for request in server.asked] == [server.asked[0].params] * 3


def test_a_broken_stream_resumes_after_its_last_item_with_the_same_key() -> None:
    result, server = ask(
        STREAM + STARTED + item(1, CONTENT) + item(2, CONTENT)[:20],
        STREAM + STARTED + item(2, CONTENT) + item(3, COMPLETE),
    )
    assert result == 42
    first, second = (request.params for request in server.asked)
    assert isinstance(first, dict)
    assert second == first | {"_after": 1}
    assert first == {"x": 1, "_run": first["_run"]}


def test_a_silent_stream_is_treated_as_broken() -> None:
    async def scenario() -> list[Item]:
        items: list[Item] = []
        answers = (STREAM + STARTED + item(1, CONTENT), STREAM + STARTED + item(2, COMPLETE))
        async with (
            canned(*answers, hang=True) as server,
            connect(server.url, limits=ClientLimits(silence_s=0.2)) as plexus,
        ):
            await consume(plexus.a.b(), items.append)
        return items

    assert [one.seq for one in play(scenario)] == [1, 2]


def test_a_server_that_does_not_answer_times_out() -> None:
    with pytest.raises(PlexusError, match=r"no reply|did not answer"):
        ask(b"", b"", b"", hang=True, limits=ClientLimits(reply_s=0.2, reconnect_s=0.0))


def test_a_missing_item_is_an_error_and_stops_the_run() -> None:
    async def scenario() -> Canned:
        cancelled = STREAM + STARTED + item(1, b'{"type":"complete","result":true}')
        async with canned(STREAM + STARTED + item(2, CONTENT), cancelled) as server:
            async with connect(server.url) as plexus:
                with pytest.raises(ProtocolError, match="item 2 arrived after item 0"):
                    await plexus.a.b()
            return server

    server = play(scenario)
    assert [request.method for request in server.asked] == ["a.b", "plexus.cancel"]
    assert isinstance(server.asked[1].params, dict)
    assert server.asked[1].params["run"] == 5


def test_an_answer_that_is_not_http_is_a_lost_connection() -> None:
    with pytest.raises(ConnectionLost, match="connection was lost"):
        ask(b"hello\r\n\r\n", reconnect_s=0.0)
