"""Servers over HTTP that break, redirect, forget or send too much."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from http_upstream import Answer, HttpRequest, initialized, json_answer, listening
from upstream_sessions import WAIT_S, calling, text_of

from activations.gateway.transports.session import UpstreamSession
from activations.gateway.transports.sse import SseTransport
from activations.gateway.transports.streamable_http import HttpTransport
from activations.gateway.transports.transport import SessionLimits
from activations.gateway.transports.websocket import WebSocketTransport
from mcp_view.client.errors import (
    BadMessage,
    Lost,
    SignInRequired,
    TooLarge,
    Unreachable,
    UpstreamError,
)
from mcp_view.client.options import ClientOptions
from plexus.limits import KIB, Limits

pytestmark = pytest.mark.anyio

OK = {"content": [{"type": "text", "text": "ok"}]}
SMALL = ClientOptions(limits=Limits(message_bytes=64 * KIB))
FEW = SessionLimits(resumptions=2)


@asynccontextmanager
async def session_at(
    url: str, options: ClientOptions | None = None, **headers: str
) -> AsyncIterator[UpstreamSession]:
    transport = HttpTransport(url, headers=headers, limits=FEW)
    session = UpstreamSession(transport, options, limits=FEW)
    try:
        async with asyncio.timeout(WAIT_S):
            await session.open()
            yield session
    finally:
        async with asyncio.timeout(WAIT_S):
            await session.close()


def result_of(request: HttpRequest, result: Any = None) -> Answer:
    reply = {"jsonrpc": "2.0", "id": request.message["id"], "result": result or OK}
    return json_answer(reply)


def events(*events: str, **options: Any) -> Answer:
    body = "".join(f"{event}\n\n" for event in events).encode()
    return Answer(200, {"Content-Type": "text/event-stream"}, body, length=-1, **options)


async def test_a_redirect_to_another_origin_is_not_followed() -> None:
    async def thief(_: HttpRequest) -> Answer:
        return Answer(200)

    async with listening(thief) as other:

        async def redirect(_: HttpRequest) -> Answer:
            return Answer(307, {"Location": f"{other.url}/mcp"})

        async with listening(redirect) as upstream:
            with pytest.raises(BadMessage, match=f"redirects to {other.url}/mcp"):
                async with session_at(f"{upstream.url}/mcp", Authorization="Bearer secret"):
                    pass
        assert other.requests == []


async def test_a_redirect_within_the_origin_keeps_method_and_headers() -> None:
    async def server(request: HttpRequest) -> Answer:
        if request.path == "/mcp":
            return Answer(308, {"Location": "/mcp/"})
        return initialized(request) or result_of(request)

    async with listening(server) as upstream:
        async with session_at(f"{upstream.url}/mcp", Authorization="Bearer secret") as session:
            assert text_of(await calling(session)) == "ok"
        seen = {each.headers.get("authorization") for each in upstream.requests}
        assert seen == {"Bearer secret"}


async def test_a_redirect_without_an_end_is_an_error() -> None:
    async def loop(_: HttpRequest) -> Answer:
        return Answer(307, {"Location": "/mcp"})

    async with listening(loop) as upstream:
        with pytest.raises(BadMessage, match="redirects more than 3 times"):
            async with session_at(f"{upstream.url}/mcp"):
                pass
        assert len(upstream.requests) <= 8  # the probe and the handshake


@pytest.mark.parametrize("named", [True, False])
async def test_a_response_that_is_too_large_fails_its_call_only(named: bool) -> None:
    async def server(request: HttpRequest) -> Answer:
        answer = initialized(request)
        if answer is None and request.message["params"]["name"] == "tool":
            length = 50_000_000 if named else -1
            head = {"Content-Type": "application/json"}
            return Answer(200, head, b"[" + b" " * 200_000, length=length)
        return answer or result_of(request)

    async with listening(server) as upstream, session_at(upstream.url, SMALL) as session:
        with pytest.raises(TooLarge, match="At most 65536 are accepted"):
            await calling(session)
        assert text_of(await calling(session, "ok")) == "ok"


async def test_an_event_that_is_too_large_fails_its_call_only() -> None:
    async def server(request: HttpRequest) -> Answer:
        answer = initialized(request)
        if answer is None and request.message["params"]["name"] == "tool":
            return events("data: " + "x" * 200_000)
        return answer or result_of(request)

    async with listening(server) as upstream, session_at(upstream.url, SMALL) as session:
        with pytest.raises(TooLarge, match="an event of more than 65536 bytes"):
            await calling(session)
        assert text_of(await calling(session, "ok")) == "ok"


async def test_a_compressed_response_is_refused() -> None:
    async def server(request: HttpRequest) -> Answer:
        head = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        return initialized(request) or Answer(200, head, gzip.compress(b" " * 10_000_000))

    async with listening(server) as upstream, session_at(upstream.url) as session:
        with pytest.raises(BadMessage, match="compressed its response with 'gzip'"):
            await calling(session)
        assert {each.headers["accept-encoding"] for each in upstream.requests} == {"identity"}


async def test_a_broken_stream_is_continued_after_its_last_event() -> None:
    async def server(request: HttpRequest) -> Answer:
        if request.method == "GET" and request.headers.get("last-event-id") == "e1":
            reply = json.dumps({"jsonrpc": "2.0", "id": call_id[0], "result": OK})
            return events(f"id: e2\ndata: {reply}")
        if request.method == "GET":
            return Answer(405)
        answer = initialized(request)
        if answer is None:
            call_id.append(request.message["id"])
            return events("id: e1\nretry: 10\ndata:")
        return answer

    call_id: list[int] = []
    async with listening(server) as upstream, session_at(upstream.url) as session:
        assert text_of(await calling(session)) == "ok"


@pytest.mark.parametrize("event", ["data:", "id: e1\nretry: 10\ndata:"])
async def test_a_stream_that_cannot_be_continued_fails_its_call(event: str) -> None:
    async def server(request: HttpRequest) -> Answer:
        if request.method == "GET" and "last-event-id" in request.headers:
            return events()
        return initialized(request) or events(event)

    async with listening(server) as upstream, session_at(upstream.url) as session:
        with pytest.raises(Lost, match=r"ended before|could not be continued in 2 attempts"):
            await calling(session)
        assert session.is_open


async def test_a_server_that_forgets_its_session_is_initialized_again_once() -> None:
    async def server(request: HttpRequest) -> Answer:
        sessions.append(request.headers.get("mcp-session-id", ""))
        if request.headers.get("mcp-session-id") == "s1" and request.message.get("id"):
            return Answer(404)
        count = sum(each == "" for each in sessions)
        return initialized(request, **{"Mcp-Session-Id": f"s{count - 1}"}) or result_of(request)

    sessions: list[str] = []
    async with listening(server) as upstream, session_at(upstream.url) as session:
        assert text_of(await calling(session)) == "ok"
        assert "s2" in sessions


async def test_a_server_that_forgets_every_session_is_lost_by_name() -> None:
    async def server(request: HttpRequest) -> Answer:
        if "mcp-session-id" in request.headers and "id" in request.message:
            return Answer(404)
        answer = initialized(request, **{"Mcp-Session-Id": "s"})
        return answer or result_of(request)

    async with listening(server) as upstream, session_at(upstream.url) as session:
        with pytest.raises(Lost, match="does not know the session"):
            await calling(session)
        assert len(upstream.requests) < 20


@pytest.mark.parametrize("given", ["with space", "x" * 2000, "caf\xe9"])
async def test_an_invalid_session_id_is_refused(given: str) -> None:
    async def server(request: HttpRequest) -> Answer:
        return initialized(request, **{"Mcp-Session-Id": given}) or result_of(request)

    async with listening(server) as upstream:
        with pytest.raises(BadMessage, match="visible ASCII"):
            async with session_at(upstream.url):
                pass


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, SignInRequired), (403, SignInRequired), (500, BadMessage), (503, BadMessage)],
)
async def test_a_status_without_a_message_is_a_named_error(
    status: int, kind: type[UpstreamError]
) -> None:
    async def server(_: HttpRequest) -> Answer:
        return Answer(status, {}, b"<html>broken\x00</html>")

    async with listening(server) as upstream:
        with pytest.raises(kind, match=f"answered with HTTP {status}"):
            async with session_at(upstream.url):
                pass


@pytest.mark.parametrize("scheme", ["http", "ws"])
async def test_a_port_where_nothing_listens_is_unreachable(scheme: str) -> None:
    async with listening(never) as upstream:
        port = upstream.port
    url = f"{scheme}://127.0.0.1:{port}/mcp"
    transport: Any = HttpTransport(url) if scheme == "http" else WebSocketTransport(url)
    session = UpstreamSession(transport)
    with pytest.raises(Unreachable, match="Cannot connect"):
        await session.open()


async def never(_: HttpRequest) -> Answer:
    raise AssertionError


@pytest.mark.parametrize("url", ["ftp://host/", "http://", "nonsense", "file:///etc/passwd"])
async def test_an_url_that_is_no_http_is_refused(url: str) -> None:
    with pytest.raises(Unreachable, match=r"no URL of HTTP"):
        await UpstreamSession(HttpTransport(url)).open()


async def test_a_call_that_is_cancelled_closes_its_stream() -> None:
    async def server(request: HttpRequest) -> Answer:
        return initialized(request) or events("data:", hold=hold)

    hold = asyncio.Event()
    async with listening(server) as upstream, session_at(upstream.url) as session:
        call = session.start("tools/call", {"name": "tool"})
        while len(upstream.requests) < 4:  # noqa: ASYNC110 - the server has no other sign
            await asyncio.sleep(0.01)
        call.cancel("enough")
        while not any(b"notifications/cancelled" in each.body for each in upstream.requests):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        hold.set()


@pytest.mark.parametrize("address", ["http://example.com/post", "//example.com/post"])
async def test_the_address_of_posts_must_have_the_origin_of_the_stream(address: str) -> None:
    async def server(_: HttpRequest) -> Answer:
        return events(f"event: endpoint\ndata: {address}")

    async with listening(server) as upstream:
        session = UpstreamSession(SseTransport(f"{upstream.url}/sse"))
        with pytest.raises(BadMessage, match="another origin"):
            await session.open()


async def test_a_stream_without_an_address_is_an_error() -> None:
    async def server(_: HttpRequest) -> Answer:
        return events("data: {}")

    async with listening(server) as upstream:
        session = UpstreamSession(SseTransport(f"{upstream.url}/sse"))
        with pytest.raises(Lost, match="closed the stream"):
            await session.open()


async def test_requests_do_not_wait_for_each_other() -> None:
    async def server(request: HttpRequest) -> Answer:
        answer = initialized(request)
        if answer is None and request.message["params"]["name"] == "slow":
            await released.wait()
        return answer or result_of(request)

    released = asyncio.Event()
    async with listening(server) as upstream, session_at(upstream.url) as session:
        slow = session.start("tools/call", {"name": "slow"})
        assert text_of(await calling(session, "quick")) == "ok"
        assert not slow.is_done
        released.set()
        assert text_of(await slow.wait()) == "ok"
