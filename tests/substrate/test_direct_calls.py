"""Calls that the HTTP protocol answers without the app: the same bytes as from the app.

Every case is sent to two servers that differ in nothing else, and the whole output is compared.
"""

from __future__ import annotations

import asyncio
import gc
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, NamedTuple

import pytest
from activations_for_tests import Demo
from hub_calls import register
from mcp_network import BOTH, JSON, LATEST, SSE, STATELESS, request, stateless

from mcp_view.server import McpOptions
from plexus.principal import LOCAL
from plexus.runtime.builtin import PlexusActivation
from plexus.runtime.hub import Plexus
from substrate.security.authentication import Access
from substrate.server.connections import HttpProtocol, LimitedConfig, TakeRequest
from substrate.server.http_response import Exchange
from substrate.server.limits import ServerLimits
from substrate.server.mcp.sessions import Sessions
from substrate.server.serve import Server, bind, make_server

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

TOKEN = "an-own-token-of-this-test-server-with-enough-characters"
PAGE = "https://page.example"
LIMITS = ServerLimits(message_bytes=20_000, body_s=2.0, header_s=2.0, header_bytes=9_000)
WAIT_S = 30.0
ECHO = request("tools/call", {"name": "demo.echo", "arguments": {"text": "hello"}}, 7)
#: Asks for the end of the connection after whatever was sent before.
LAST = b"GET /nowhere HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nConnection: close\r\n\r\n"


class Place(NamedTuple):
    """A server, how many requests it has answered without the app, and a session."""

    server: Server
    hub: Plexus
    port: int
    session: str
    taken: list[int]

    async def exchange(self, *parts: bytes, pause_s: float = 0.005) -> bytes:
        """Send parts with pauses between them, and return everything until the end."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            async with asyncio.timeout(WAIT_S):
                for part in parts:
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(pause_s)
                return await reader.read()
        except ConnectionResetError:
            return b"reset"
        finally:
            writer.close()

    def post(self, message: Any = ECHO, *extra: str, **changes: Any) -> bytes:
        """Return a request in the session. `changes` replace headers, or drop them with None."""
        return self.posted(message, *extra, **{"Mcp-Session-Id": self.session, **changes})

    def posted(
        self,
        message: Any = ECHO,
        *extra: str,
        line: str = "POST /mcp HTTP/1.1",
        length: int | None = None,
        **changes: Any,
    ) -> bytes:
        """Return a request without a session."""
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        headers = {
            "Host": f"127.0.0.1:{self.port}",
            "Authorization": f"Bearer {TOKEN}",
            "Accept": BOTH,
            "Content-Type": JSON,
            "Content-Length": str(len(body) if length is None else length),
        }
        headers |= {name.replace("_", "-"): value for name, value in changes.items()}
        lines = [f"{name}: {value}" for name, value in headers.items() if value is not None]
        head = "\r\n".join((line, *lines, *extra)).encode("latin-1")
        return head + b"\r\n\r\n" + body

    def stateless(self, message: Any, name: str | None = None, **changes: Any) -> bytes:
        """Return a request of a client without a handshake."""
        headers = {"MCP-Protocol-Version": STATELESS, "Mcp-Method": message["method"]}
        headers |= {} if name is None else {"Mcp-Name": name}
        return self.posted(message, **headers | changes)


@asynccontextmanager
async def _serving(limits: ServerLimits, *, direct: bool, rate_local: bool) -> AsyncIterator[Place]:
    # Runs have the same numbers on both servers.
    hub = Plexus(limits=limits, new_id=count(1_000).__next__)
    register(hub, PlexusActivation(hub), Demo)
    sock = bind(0)
    port = sock.getsockname()[1]
    access = Access(TOKEN, port=port, origins=[PAGE], limits=limits)
    options = McpOptions()
    server = make_server(hub, port, mcp_options=options, access=access, rate_local=rate_local)
    taken: list[int] = []
    config = server.config
    assert isinstance(config, LimitedConfig)
    assert config.take is not None, "this server answers without the app where it can"
    config.take = _counting(config.take, taken) if direct else None
    task = asyncio.create_task(server.serve(sockets=[sock]))
    place = Place(server, hub, port, "", taken)
    try:
        yield place._replace(session=await _session(place))
    finally:
        hub.runs.cancel_all("the test has ended")
        server.should_exit = True
        await task
        await hub.close()


def _counting(take: TakeRequest, taken: list[int]) -> TakeRequest:
    def counted(exchange: Any, start: Any) -> bool:
        answered = take(exchange, start)
        if answered:
            taken.append(1)
        return answered

    return counted


async def _session(place: Place) -> str:
    client = {"protocolVersion": LATEST, "capabilities": {}, "clientInfo": {"name": "t"}}
    message = request("initialize", client)
    client["clientInfo"]["version"] = "1"  # type: ignore[index]
    answer = await place.exchange(place.posted(message), LAST % place.port)
    found = re.search(rb"mcp-session-id: (\w+)", answer)
    assert found is not None, answer
    return found[1].decode()


class Pair(NamedTuple):
    """A server that answers without the app where it can, and one that does not."""

    direct: Place
    app: Place


@asynccontextmanager
async def pair_of_servers(
    limits: ServerLimits = LIMITS, *, rate_local: bool = False
) -> AsyncIterator[Pair]:
    async with (
        _serving(limits, direct=True, rate_local=rate_local) as direct,
        _serving(limits, direct=False, rate_local=rate_local) as app,
    ):
        yield Pair(direct, app)


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with pair_of_servers() as pair:
        yield pair


def comparable(answer: bytes, place: Place) -> bytes:
    """Return an answer without what differs between two servers."""
    answer = re.sub(rb"date: [^\r]*\r\n", b"", answer)
    answer = answer.replace(b"%d" % place.port, b"PORT").replace(place.session.encode(), b"ID")
    answer = re.sub(rb"mcp-session-id: \w+", b"mcp-session-id: ID", answer)
    return re.sub(rb'(see |"log_id":")[0-9a-f]{8}', rb"\1LOG", answer)


#: Returns the parts of a case.
Case = Callable[[Place], list[bytes]]


def closing(make: Callable[[Place], bytes]) -> Case:
    """Send a request, and then one that closes the connection, in one piece."""
    return lambda place: [make(place) + LAST % place.port]


def call(name: str, number: int = 7, **arguments: Any) -> dict[str, Any]:
    return request("tools/call", {"name": name, "arguments": arguments}, number)


def with_token(message: dict[str, Any]) -> dict[str, Any]:
    params = message["params"] | {"_meta": {"progressToken": "t"}}
    return message | {"params": params}


def chunked(place: Place, ending: bytes = b"0\r\n\r\n", **changes: Any) -> bytes:
    body = json.dumps(ECHO).encode()
    parts = b"%x\r\n%b\r\n%x\r\n%b\r\n" % (10, body[:10], len(body) - 10, body[10:])
    headers = {"Content_Length": None, "Transfer_Encoding": "chunked"} | changes
    head = place.post(b"", **headers)
    return head + parts + ending


STATELESS_ECHO = stateless("tools/call", {"name": "demo.echo", "arguments": {"text": "hello"}})
LISTEN = stateless("subscriptions/listen", {"notifications": {}})

#: Requests that are answered without the app.
TAKEN: dict[str, Case] = {
    "a call": closing(lambda p: p.post()),
    "two calls one after the other": lambda p: [
        p.post(),
        p.post(call("demo.echo", 8, text="x")),
        LAST % p.port,
    ],
    "as JSON only": closing(lambda p: p.post(Accept=JSON)),
    "as a stream only": closing(lambda p: p.post(Accept=SSE)),
    "anything": closing(lambda p: p.post(Accept="*/*")),
    "without an Accept header": closing(lambda p: p.post(Accept=None)),
    "with a progress token": closing(lambda p: p.post(with_token(ECHO))),
    "several events": closing(lambda p: p.post(call("demo.count", to=5))),
    "several events with a progress token": closing(
        lambda p: p.post(with_token(call("demo.count", to=5)))
    ),
    "a list of tools": closing(lambda p: p.post(request("tools/list"))),
    "ping in a session": closing(lambda p: p.post(request("ping"))),
    "an unknown tool": closing(lambda p: p.post(call("demo.nothing"))),
    "an unknown method": closing(lambda p: p.post(request("tools/nothing"))),
    "invalid arguments": closing(lambda p: p.post(call("demo.echo", times="x"))),
    "parameters that are a list": closing(lambda p: p.post(request("tools/call", [1]))),
    "a tool that fails": closing(lambda p: p.post(call("demo.fail", code="c", message="m"))),
    "a tool that crashes": closing(lambda p: p.post(call("demo.crash"))),
    "a slow tool as JSON": closing(lambda p: p.post(call("demo.wait", seconds=0.05), Accept=JSON)),
    "a slow tool as a stream": closing(lambda p: p.post(call("demo.wait", seconds=0.05))),
    "a slow tool with a progress token": closing(
        lambda p: p.post(with_token(call("demo.wait", seconds=0.05)))
    ),
    "a large result": closing(lambda p: p.post(call("demo.echo", text="x" * 9_000, times=30))),
    "a native method in a session": closing(lambda p: p.post(request("demo.count", {"to": 2}))),
    "without a handshake": closing(lambda p: p.stateless(STATELESS_ECHO, "demo.echo")),
    "without a handshake, an unknown tool": closing(
        lambda p: p.stateless(stateless("tools/call", {"name": "demo.x"}), "demo.x")
    ),
    "without a handshake, a list": closing(lambda p: p.stateless(stateless("tools/list"))),
    "HTTP/1.0": lambda p: [p.post(line="POST /mcp HTTP/1.0")],
    "Connection: close": lambda p: [p.post(Connection="close")],
    "Connection: close, and more": lambda p: [p.post(Connection="close") + p.post()],
    "pipelined": closing(lambda p: p.post() + p.post(call("demo.echo", 8, text="x")) + p.post()),
    "pipelined after a slow one": closing(
        lambda p: p.post(call("demo.wait", seconds=0.05)) + p.post()
    ),
    "pipelined after a notification": closing(
        lambda p: p.post() + p.post({"jsonrpc": "2.0", "method": "notifications/x"}) + p.post()
    ),
    "before garbage": lambda p: [p.post() + b"\x00garbage\r\n\r\n"],
    "before half a request": lambda p: [p.post() + b"POST /mcp HTTP/1.1\r\nHos"],
    "before a header that is too large": lambda p: [p.post(), p.post(X="x" * 9_500)],
    "a chunked body": closing(chunked),
    "a chunked body with a trailer": closing(lambda p: chunked(p, b"0\r\nX: y\r\n\r\n")),
    "an encoded path": closing(lambda p: p.post(line="POST /%6dcp HTTP/1.1")),
    "a fragment of the path": closing(lambda p: p.post(line="POST /mcp#x HTTP/1.1")),
    "an upper-case Host": closing(lambda p: p.post(Host=f"LOCALHOST:{p.port}")),
    "a charset": closing(lambda p: p.post(Content_Type="application/json; charset=utf-8")),
    "the header of an editor": closing(
        lambda p: p.post(ECHO, f"X-Claude-Code-Ide-Authorization: {TOKEN}", Authorization=None)
    ),
    "trace headers": closing(lambda p: p.post(ECHO, "traceparent: 00-" + "1" * 32)),
    "bytes in a header": closing(lambda p: p.post(ECHO, "X: \xff\xfe")),
    "no version": lambda p: [p.post(line="POST /mcp")],
    "a deep body": closing(lambda p: p.post(call("demo.echo", text=[[[[1]]]]))),
    "the longest body": closing(lambda p: p.post(json.dumps(ECHO).encode().ljust(20_000))),
}
#: Requests that only the app answers.
LEFT: dict[str, Case] = {
    "initialize": closing(
        lambda p: p.posted(
            request("initialize", {"protocolVersion": LATEST, "capabilities": {}, "clientInfo": {}})
        )
    ),
    "a notification": closing(lambda p: p.post({"jsonrpc": "2.0", "method": "notifications/x"})),
    "a response": closing(lambda p: p.post({"jsonrpc": "2.0", "id": 1, "result": {}})),
    "a batch": closing(lambda p: p.post([ECHO])),
    "invalid JSON": closing(lambda p: p.post(b"{")),
    "no JSON": closing(lambda p: p.post(b"")),
    "no request": closing(lambda p: p.post({"jsonrpc": "2.0"})),
    "an id that is true": closing(lambda p: p.post(ECHO | {"id": True})),
    "bytes that are not UTF-8": closing(lambda p: p.post(b'{"id":1,"method":"\xff"}')),
    "a body that is too large": closing(lambda p: p.post(json.dumps(ECHO).encode().ljust(20_001))),
    "a declared length that is too large": lambda p: [p.post(length=10**9)],
    "a chunked body that is too large": lambda p: [
        p.post(b"", Content_Length=None, Transfer_Encoding="chunked")
        + b"4e21\r\n"
        + b" " * 20_001
        + b"\r\n0\r\n\r\n"
        + LAST % p.port
    ],
    "an invalid chunk": lambda p: [chunked(p, b"zz\r\n")],
    "a length and chunks": lambda p: [chunked(p, Content_Length="5")],
    "two lengths": lambda p: [p.post(ECHO, "Content-Length: 5")],
    "a negative length": lambda p: [p.post(length=-1)],
    "a length that is too short": lambda p: [p.post(length=5)],
    "a body that never ends": lambda p: [p.post(length=1000)],
    "an upgrade": lambda p: [p.post(ECHO, "Upgrade: websocket", Connection="upgrade")],
    "another upgrade": lambda p: [p.post(ECHO, "Upgrade: h2c", Connection="upgrade")],
    "Expect: 100-continue": closing(lambda p: p.post(ECHO, "Expect: 100-continue")),
    "no session": closing(lambda p: p.posted()),
    "ping without a session": closing(lambda p: p.posted(request("ping"))),
    "a native method without a session": closing(
        lambda p: p.posted(request("demo.count", {"to": 2}))
    ),
    "an unknown session": closing(lambda p: p.posted(ECHO, "Mcp-Session-Id: x")),
    "without a handshake, headers that differ": closing(
        lambda p: p.stateless(STATELESS_ECHO, "demo.other")
    ),
    "without a handshake, an unknown revision": closing(
        lambda p: p.stateless(STATELESS_ECHO, "demo.echo", **{"MCP-Protocol-Version": "2030-01-01"})
    ),
    "listen as JSON": closing(lambda p: p.stateless(LISTEN, Accept=JSON)),
    "chosen tools": closing(lambda p: p.post(line="POST /mcp?tools=demo.* HTTP/1.1")),
    "an invalid choice of tools": closing(lambda p: p.posted(ECHO, "X-Substrate-Tools: [")),
    "a ticket": closing(lambda p: p.post(line="POST /mcp?ticket=x HTTP/1.1", Authorization=None)),
    "no token": closing(lambda p: p.post(Authorization=None)),
    "a wrong token": closing(lambda p: p.post(Authorization="Bearer wrong")),
    "another scheme": closing(lambda p: p.post(Authorization="Basic eDp5")),
    "an empty token": closing(lambda p: p.post(Authorization="Bearer ")),
    "two tokens": closing(lambda p: p.post(ECHO, f"Authorization: Bearer {TOKEN}")),
    "a right and a wrong token": closing(lambda p: p.post(ECHO, "Authorization: Bearer wrong")),
    "a wrong Host": closing(lambda p: p.post(Host="evil.example")),
    "a forwarded port": closing(lambda p: p.post(Host="127.0.0.1:1")),
    "a forwarded port without a token": closing(
        lambda p: p.post(Host="127.0.0.1:1", Authorization=None)
    ),
    "no Host": closing(lambda p: p.post(Host=None)),
    "two Hosts": closing(lambda p: p.post(ECHO, "Host: evil.example")),
    "the own origin": closing(lambda p: p.post(Origin=f"http://127.0.0.1:{p.port}")),
    "an allowed origin": closing(lambda p: p.post(Origin=PAGE)),
    "another origin": closing(lambda p: p.post(Origin="https://evil.example")),
    "the origin null": closing(lambda p: p.post(Origin="null")),
    "a form": closing(lambda p: p.post(Content_Type="text/plain")),
    "no content type": closing(lambda p: p.post(Content_Type=None)),
    "nothing acceptable": closing(lambda p: p.post(Accept="text/html")),
    "two Accept headers": closing(lambda p: p.post(ECHO, f"Accept: {SSE}", Accept=JSON)),
    "two sessions": closing(lambda p: p.post(ECHO, "Mcp-Session-Id: x")),
    "a header that is too large": lambda p: [p.post(X="x" * 9_500)],
    "an invalid header": lambda p: [p.post(ECHO, "X Y: z")],
    "a folded header": lambda p: [p.post(ECHO, "X: y", " z") + LAST % p.port],
    "HTTP/3.0": lambda p: [p.post(line="POST /mcp HTTP/3.0")],
    "HEAD": closing(lambda p: p.post(b"", line="HEAD /mcp HTTP/1.1")),
    "GET with a body": closing(lambda p: p.post(line="GET /mcp HTTP/1.1", Accept=JSON)),
    "PUT": closing(lambda p: p.post(line="PUT /mcp HTTP/1.1")),
    "OPTIONS": closing(lambda p: p.post(b"", line="OPTIONS /mcp HTTP/1.1")),
    "a preflight": closing(
        lambda p: p.post(
            b"",
            "Access-Control-Request-Method: POST",
            line="OPTIONS /mcp HTTP/1.1",
            Origin=PAGE,
        )
    ),
    "another path": closing(lambda p: p.post(line="POST /mcp/ HTTP/1.1")),
    "another route": closing(lambda p: p.post(line="POST /rpc HTTP/1.1", Accept=JSON)),
    "DELETE of the session, then a call": closing(
        lambda p: p.post(b"", line="DELETE /mcp HTTP/1.1") + p.post()
    ),
}


async def differences(pair: Pair, cases: dict[str, Case], *, taken: bool) -> dict[str, Any]:
    """Return the cases whose outcomes differ, or that were answered in the wrong place."""
    found: dict[str, Any] = {}
    for name, case in cases.items():
        pair.direct.taken.clear()
        outcomes = [await outcome(place, case) for place in pair]
        if outcomes[0] != outcomes[1] or bool(pair.direct.taken) != taken:
            found[name] = (*outcomes, len(pair.direct.taken))
    return found


async def outcome(place: Place, case: Case) -> Any:
    """Return the answer, the states of all runs, and how many requests were answered so far."""
    answer = comparable(await place.exchange(*case(place)), place)
    states = [run.state for run in place.hub.runs.list_for(LOCAL)]
    return answer, states, place.server.server_state.total_requests


async def test_calls_that_need_no_app_have_the_same_responses(pair: Pair) -> None:
    assert await differences(pair, TAKEN, taken=True) == {}


async def test_all_other_requests_are_left_to_the_app(pair: Pair) -> None:
    assert await differences(pair, LEFT, taken=False) == {}


@pytest.mark.parametrize("name", ["a call", "a chunked body", "pipelined", "Expect: 100-continue"])
async def test_a_request_that_arrives_byte_by_byte_has_the_same_response(
    pair: Pair, name: str
) -> None:
    case = TAKEN.get(name) or LEFT[name]

    async def sent(place: Place) -> bytes:
        data = b"".join(case(place))
        parts = [data[at : at + 1] for at in range(len(data))]
        return comparable(await place.exchange(*parts, pause_s=0), place)

    answers = await asyncio.gather(*map(sent, pair))
    assert answers[0] == answers[1]
    assert b"HTTP/1.1 200 " in answers[0]


async def test_a_request_over_the_rate_is_left_to_the_app() -> None:
    limits = ServerLimits(rate_burst=3, rate_per_s=0.001)
    async with pair_of_servers(limits, rate_local=True) as pair:
        outcomes = [
            [(await place.exchange(place.post() + LAST % place.port))[:12] for _ in range(3)]
            for place in pair
        ]
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][-1] == b"HTTP/1.1 429"
    assert not pair.direct.taken


async def test_a_server_that_stops_refuses_a_call_in_the_same_way(pair: Pair) -> None:
    for place in pair:
        await place.hub.drain(0)
    answers = [comparable(await place.exchange(place.post()), place) for place in pair]
    assert answers[0] == answers[1]
    assert answers[0].startswith(b"HTTP/1.1 503 ")
    assert not pair.direct.taken


async def test_a_client_that_disconnects_cancels_its_slow_call(pair: Pair) -> None:
    for place in pair:
        _, writer = await asyncio.open_connection("127.0.0.1", place.port)
        writer.write(place.post(call("demo.wait"), Accept=JSON))
        await until(place, "running")
        writer.close()
        await until(place, "cancelled")
    assert pair.direct.taken == [1]


async def test_a_client_that_does_not_read_is_left_to_the_app(pair: Pair) -> None:
    place = pair.direct
    reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
    [connection] = await until_open(place, 1)
    assert isinstance(connection, HttpProtocol)
    connection.pause_writing()
    writer.write(place.post() + LAST % place.port)
    await until(place, "complete")
    assert not place.taken
    connection.resume_writing()
    async with asyncio.timeout(WAIT_S):
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
    writer.close()


async def test_a_defect_is_answered_by_the_error_boundary(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("this text must stay in the log")

    monkeypatch.setattr(Sessions, "find", fail)
    answers = [
        comparable(await place.exchange(place.post() + LAST % place.port), place) for place in pair
    ]
    assert answers[0] == answers[1]
    assert answers[0].startswith(b"HTTP/1.1 500 ")
    assert b"this text" not in answers[0]


async def test_a_connection_leaves_no_reference_cycle(pair: Pair) -> None:
    place = pair.direct
    gc.collect()
    gc.disable()
    try:
        await place.exchange(place.post(Connection="close"))
        await until_open(place, 0)
        await asyncio.sleep(0)
        left = [each for each in gc.get_objects() if isinstance(each, Exchange)]
    finally:
        gc.enable()
    assert left == []


async def until(place: Place, state: str) -> None:
    """Wait until the only run of a server has this state."""
    async with asyncio.timeout(WAIT_S):
        while [run.state for run in place.hub.runs.list_for(LOCAL)] != [state]:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def until_open(place: Place, connections: int) -> set[Any]:
    """Wait until a server has this number of connections, and return them."""
    opened: set[Any] = place.server.server_state.connections
    async with asyncio.timeout(WAIT_S):
        while len(opened) != connections:  # noqa: ASYNC110 - a set has no event
            await asyncio.sleep(0.005)
    return opened
