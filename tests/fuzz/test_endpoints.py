"""Any request at any route gets a status that is not a server error, never an exception.

The app is driven without a network: bodies are mutated messages, whole or in pieces, with headers
that are mostly right.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any

import pytest
from fuzz_budget import SEED, TIMEOUT_S, rounds
from fuzzed_activation import Fuzzed
from hub_calls import WAIT_S
from mutations import CORPUS, MCP_CORPUS, TOKENS, Mutator
from starlette.types import ASGIApp, Message, Scope

from mcp_view.server import McpOptions
from plexus import Plexus
from plexus.runtime.builtin import PlexusActivation
from substrate.mcp_server import make_mcp_server
from substrate.security.authentication import Access
from substrate.server.app import build_app

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(TIMEOUT_S)]

PORT = 4444
REQUESTS = 200
AT_ONCE = 10
#: How much of a stream is read before its reader hangs up, and how long its silence is borne.
STREAMED = 3
SILENT_S = 0.05

VERBS = ("POST",) * 8 + ("GET", "GET", "DELETE", "OPTIONS", "HEAD", "PUT", "\xff")
PATHS = (
    *("/mcp",) * 6,
    *("/rpc",) * 4,
    *("/messages", "/sse", "/", "/runs/1/events", "/runs/99999999999999999999/events"),
    *("/runs/x/events", "/nowhere", "/mcp/", "//", "/\udce9", "/session", "/tickets", "/metrics"),
    "/session/proof",
)
QUERIES = (
    *(b"", b"", b"session_id=1", b"after=-1", b"session_id=%ff&x", b"\xff=\xff", b"after=1e9"),
    *(b"ticket=", b"&ticket=\xff&&ticket=x", b"xticket=1", b"after=1&ticket=%00"),
    b"session=session:%ff&challenge=" + b"a" * 64,
)
#: Values for each header that is read; the first is what a good client sends.
HEADERS: dict[bytes, tuple[bytes, ...]] = {
    b"content-type": (
        b"application/json",
        b"application/json; charset=utf-8",
        b"text/plain",
        b"",
        b"\xff",
    ),
    b"accept": (
        b"application/json, text/event-stream",
        b"text/event-stream",
        b"application/json",
        b"*/*",
        b"text/html;q=x",
        b"",
        b"," * 200,
        b"\xff",
    ),
    b"mcp-protocol-version": (b"2026-07-28", b"2025-11-25", b"2025-03-26", b"1", b"", b"\xff\x00"),
    b"mcp-method": (b"tools/call", b"tools/list", b"=?base64?4pyT?=", b"=?base64?!!?=", b""),
    b"mcp-name": (b"demo.echo", b"demo.count", b"=?base64?/w==?=", b"\xff", b"x" * 5000),
    b"mcp-session-id": (b"", b"x", b"0" * 32, b"\xff" * 32, b"\xc3\xa9"),
    b"last-event-id": (b"1:0", b"", b"1:1:1", b"-1:-1", b"9" * 400 + b":1", b"x", b"\xff"),
    b"content-length": (b"10", b"-1", b"x", b"99999999999", b"", b"1,1", b"9" * 5000),
    b"origin": (b"http://127.0.0.1:4444", b"null", b"\xff"),
    b"cookie": (b"substrate_4444=x", b"=;;=", b"\xff"),
    b"authorization": (b"Bearer x", b"Bearer", b"\xff", b"Basic =="),
    b"traceparent": (b"00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-01", b"00", b"\xff"),
}


class Client:
    """A client that sends one request, reads a part of the response, and disconnects."""

    def __init__(self, body: list[bytes], hangs_up: bool) -> None:
        self._body = body
        self.hangs_up = hangs_up
        self._over = asyncio.Event()
        self._read = 0
        self.status: int | None = None

    async def receive(self) -> Message:
        if self._body:
            data = self._body.pop(0)
            return {"type": "http.request", "body": data, "more_body": bool(self._body)}
        if not self.hangs_up:
            try:
                async with asyncio.timeout(SILENT_S):
                    await self._over.wait()
            except TimeoutError:
                self.hangs_up = True
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            assert self.status is None, "two answers"
            self.status = message["status"]
            return
        assert self.status is not None, "a body without a status"
        self._read += 1
        if self._read >= STREAMED or not message.get("more_body"):
            self._over.set()
        await asyncio.sleep(0)


def make_request(mutator: Mutator, chance: random.Random) -> tuple[Scope, list[bytes]]:
    """Return a request."""
    headers = [(b"host", b"127.0.0.1:4444")]
    for name, values in HEADERS.items():
        usual = name in (b"content-type", b"accept")
        if usual or chance.random() < 0.2:
            value = values[0] if chance.random() < 0.7 else chance.choice(values)
            if chance.random() < 0.03:
                value += chance.choice(TOKENS)[:50]
            headers += [(name, value)] * (2 if chance.random() < 0.02 else 1)
    body = mutator.next()
    cut = chance.randint(0, len(body))
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "method": chance.choice(VERBS),
        "path": chance.choice(PATHS),
        "query_string": chance.choice(QUERIES),
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", PORT),
    }
    scope["raw_path"] = scope["path"].encode(errors="surrogateescape")
    return scope, [body] if chance.random() < 0.8 else [body[:cut], body[cut:], b""]


async def ask(app: ASGIApp, scope: Scope, body: list[bytes], hangs_up: bool) -> None:
    shown = f"{scope['method']} {scope['path']} {scope['headers']} {body}"
    client = Client(body, hangs_up)
    try:
        async with asyncio.timeout(WAIT_S):
            await app(scope, client.receive, client.send)
        assert client.status is None or client.status < 500 or client.status == 503, client.status
        assert client.status is not None or client.hangs_up, "no answer"
    except BaseException as error:
        error.add_note(f"FUZZ_SEED={SEED}: {shown}")
        raise


async def test_any_request_is_answered_by_a_status_and_raises_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    mutator, chance = Mutator(MCP_CORPUS + CORPUS, SEED), random.Random(SEED)
    with caplog.at_level(logging.ERROR):
        for _ in rounds(0.1, REQUESTS * 10):
            hub = Plexus()
            hub.register(PlexusActivation(hub))
            hub.register(Fuzzed())
            app = build_app(hub, PORT, make_mcp_server(hub, McpOptions()), Access.open())
            for _ in range(REQUESTS // AT_ONCE):
                async with asyncio.TaskGroup() as group:
                    for _ in range(AT_ONCE):
                        hangs_up = chance.random() < 0.3
                        group.create_task(ask(app, *make_request(mutator, chance), hangs_up))
            await hub.close()
            assert hub.runs.running() == []
    assert [record.getMessage() for record in caplog.records] == []
