"""Limits of network input: at the limit, past it, and afterwards."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import OpenHub
from mcp_peer import STATELESS, McpPeer, make_server
from network import Server
from raw_peer import RawPeer, call_of, limited, post_of
from websockets.sync.client import connect

from plexus import Activation, method
from plexus.limits import Limits

BYTES = 4096
DEPTH = 8
CONTAINERS = 64
BATCH = 3
HEADER = 4096


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with limited(
        message_bytes=BYTES,
        message_depth=DEPTH,
        message_containers=CONTAINERS,
        batch_requests=BATCH,
        header_bytes=HEADER,
        calls_in_flight=3,
    ) as running:
        yield running


@pytest.fixture
def peer(server: Server) -> Iterator[RawPeer]:
    with RawPeer(server.port) as connected:
        yield connected


ECHO = call_of("demo.echo", ["x"])


def still_works(peer: RawPeer) -> bool:
    """Whether the connection still works."""
    return "result" in peer.answer(ECHO)


@pytest.mark.limit("message_bytes", "at", "past", "after")
def test_a_body_past_the_limit_is_refused_with_the_limit(peer: RawPeer) -> None:
    body = json.dumps(ECHO).encode()
    at = body + b" " * (BYTES - len(body))
    assert "result" in peer.answer(at)
    peer.post(at + b" ")
    status, _, refused = peer.response()
    assert (status, json.loads(refused)["limit"]) == (413, BYTES)
    assert still_works(peer)


def nested(levels: int) -> dict[str, Any]:
    """Return a message with a number of nested levels."""
    inner: Any = "x"
    for _ in range(levels - 1):
        inner = [inner]
    return call_of("demo.echo", inner)


@pytest.mark.limit("message_depth", "at", "past", "after")
def test_a_message_past_the_depth_is_refused_with_the_limit(peer: RawPeer) -> None:
    # Only messages with many containers are checked more closely.
    padding: dict[str, Any] = {"padding": [[]] * 20}
    at, past = nested(DEPTH) | padding, nested(DEPTH + 1) | padding
    assert peer.answer(at)["error"]["code"] == -32602  # decoded, but the method expects a text
    error = peer.answer(past)["error"]
    assert (error["code"], error["data"]) == (-32600, {"limit": DEPTH})
    assert still_works(peer)


@pytest.mark.limit("message_containers", "at", "past", "after")
def test_a_message_past_the_containers_is_refused_with_the_limit(peer: RawPeer) -> None:
    at, past = ({**ECHO, "padding": [[] for _ in range(CONTAINERS - 3 + more)]} for more in (0, 1))
    assert "result" in peer.answer(at)
    error = peer.answer(past)["error"]
    assert (error["code"], error["data"]) == (-32600, {"limit": CONTAINERS})
    assert still_works(peer)


@pytest.mark.limit("batch_requests", "at", "past", "after")
def test_a_batch_past_the_limit_is_refused_as_a_whole(peer: RawPeer) -> None:
    assert len(peer.answer([ECHO] * BATCH)) == BATCH
    error = peer.answer([ECHO] * (BATCH + 1))["error"]
    assert (error["code"], error["data"]) == (-32600, {"limit": BATCH})
    assert still_works(peer)


def with_header_of(server: Server, size: int) -> bytes:
    """Return a request whose header has a given size, without the final empty line."""
    head, _, body = post_of(server.port, ECHO).partition(b"\r\n\r\n")
    filling = b"\r\nX-Filling: "
    return head + filling + b"x" * (size - len(head) - len(filling)) + b"\r\n\r\n" + body


@pytest.mark.parametrize("piece", [100, 1 << 20], ids=["in pieces", "at once"])
@pytest.mark.limit("header_bytes", "at", "past", "after")
def test_a_header_past_the_limit_is_refused_with_the_limit(server: Server, piece: int) -> None:
    def send(peer: RawPeer, data: bytes) -> None:
        for start in range(0, len(data), piece):
            peer.send(data[start : start + piece])

    with RawPeer(server.port) as peer:
        for _ in range(2):
            send(peer, with_header_of(server, HEADER))
            assert peer.response()[0] == 200
        send(peer, with_header_of(server, HEADER + 1))
        status, _, body = peer.response()
        assert (status, json.loads(body)["limit"]) == (431, HEADER)
        assert peer.read_to_end() == b""
    with RawPeer(server.port) as other:
        assert still_works(other)


@pytest.mark.limit("calls_in_flight", "at", "past", "after")
def test_calls_past_the_limit_of_a_connection_are_refused_until_one_has_ended(
    server: Server,
) -> None:
    with connect(server.ws) as peer, connect(server.ws) as other:
        ids = itertools.count(1)

        def call(method: str, params: Any) -> Any:
            """Return the reply to a call; items are skipped."""
            number = next(ids)
            peer.send(json.dumps(call_of(method, params, number)))
            while (message := json.loads(peer.recv(timeout=15))).get("id") != number:
                pass
            return message

        running = [call("demo.wait", {})["result"] for _ in range(3)]
        refused = call("demo.echo", ["x"])["error"]
        assert (refused["code"], refused["data"]) == (
            -32003,
            {"limit": 3, "name": "calls_in_flight"},
        )
        other.send(json.dumps(ECHO))
        assert "result" in json.loads(other.recv(timeout=15))
        assert call("plexus.unsubscribe", [running[0]])["result"] is True
        assert "result" in call("demo.echo", ["x"])


@pytest.mark.limit("connection_watches", "at", "past", "after")
def test_watches_past_the_limit_of_a_connection_are_refused_until_one_has_ended() -> None:
    with limited(connection_watches=2) as server, connect(server.ws) as peer:
        ids = itertools.count(1)

        def call(method: str, params: Any) -> Any:
            """Return the reply to a call; items are skipped."""
            number = next(ids)
            peer.send(json.dumps(call_of(method, params, number)))
            while (message := json.loads(peer.recv(timeout=15))).get("id") != number:
                pass
            return message

        watching = [call("health.watch", [60.0])["result"] for _ in range(2)]
        refused = call("health.watch", [60.0])["error"]
        assert refused["code"] == -32003
        assert refused["data"] == {"limit": 2, "name": "connection_watches"}
        assert "result" in call("demo.wait", {})  # only watches are refused
        with connect(server.ws) as other:
            other.send(json.dumps(call_of("health.watch", [60.0])))
            assert "result" in json.loads(other.recv(timeout=15))
        assert call("plexus.unsubscribe", [watching[0]])["result"] is True
        assert "result" in call("health.watch", [60.0])


class Quiet(Activation):
    """Has one method and no resources."""

    namespace = "quiet"
    version = "1.0.0"

    @method
    async def nothing(self) -> None:
        """Do nothing."""


@pytest.mark.anyio
@pytest.mark.limit("subscriptions", "at", "past", "after")
async def test_subscriptions_past_the_limit_are_refused_until_one_is_released(
    open_hub: OpenHub,
) -> None:
    peer = McpPeer(open_hub(Quiet, limits=Limits(subscriptions=2)), "2025-11-25")

    def ask(method: str, uri: str) -> Any:
        [answer] = peer.send({"id": uri, "method": method, "params": {"uri": uri}})
        return answer

    assert "result" in ask("resources/subscribe", "a://1")
    assert "result" in ask("resources/subscribe", "a://2")
    error = ask("resources/subscribe", "a://3")["error"]
    assert (error["code"], error["data"]) == (-32602, {"limit": 2})
    assert "result" in ask("resources/subscribe", "a://2")  # subscribed already
    assert "result" in ask("resources/unsubscribe", "a://1")
    assert "result" in ask("resources/subscribe", "a://3")


@pytest.mark.anyio
@pytest.mark.limit("all_subscriptions", "at", "past", "after")
async def test_subscriptions_of_all_clients_together_are_limited(open_hub: OpenHub) -> None:
    hub = open_hub(Quiet, limits=Limits(all_subscriptions=3))
    server = make_server(hub)
    first, second = (McpPeer(hub, "2025-11-25", server=server) for _ in range(2))

    def ask(peer: McpPeer, method: str, uri: str) -> Any:
        [answer] = peer.send({"id": uri, "method": method, "params": {"uri": uri}})
        return answer

    for peer, uri in ((first, "a://1"), (first, "a://2"), (second, "a://1")):
        assert "result" in ask(peer, "resources/subscribe", uri)
    error = ask(second, "resources/subscribe", "a://2")["error"]
    data = {"limit": 3, "name": "all_subscriptions", "held": 3}
    assert (error["code"], error["data"]) == (-32003, data)
    assert "result" in ask(second, "resources/subscribe", "a://1")  # subscribed already
    assert "result" in ask(first, "resources/unsubscribe", "a://1")
    assert "result" in ask(first, "resources/unsubscribe", "a://1")  # releases nothing again
    assert "result" in ask(second, "resources/subscribe", "a://2")
    assert "error" in ask(second, "resources/subscribe", "a://3")
    first.connection.lost()
    assert "result" in ask(second, "resources/subscribe", "a://3")


@pytest.mark.anyio
async def test_listening_to_more_resources_than_the_limit_is_refused(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Quiet, limits=Limits(subscriptions=2)), STATELESS)
    for count, accepted in ((2, True), (3, False), (1, True)):
        filters = {"resourceSubscriptions": [f"a://{number}" for number in range(count)]}
        request = peer.begin("subscriptions/listen", {"notifications": filters})
        refused = [frame["error"] for frame in peer.frames if frame.get("id") == request]
        assert [error["data"] for error in refused] == ([] if accepted else [{"limit": 2}])
