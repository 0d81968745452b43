"""The old pair of routes: a stream, and where to post."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from mcp_network import (
    JSON,
    SSE,
    Event,
    body_of,
    reading,
    request,
    runs,
    stateless,
    wait_for_state,
)
from network import DEMO, Server, serving

REMOTE = DEMO.parent / "substrate" / "remote_activation.py"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("--activation", str(REMOTE)) as running:
        yield running


class Peer:
    """One client: its stream, and its place to post."""

    def __init__(self, server: Server, path: str, events: Iterator[Event]) -> None:
        self._server = server
        self.path = path
        self.events = events

    def post(self, message: Any) -> http.client.HTTPResponse:
        return self._server.request("POST", self.path, message)

    def ask(self, message: Any) -> Any:
        assert self.post(message).status == 202
        event = next(self.events)
        assert event.name == "message"
        return event.message


@contextmanager
def connected(server: Server, revision: str = "2024-11-05") -> Iterator[Peer]:
    with reading(server.request("GET", "/sse", headers={"Accept": SSE})) as events:
        first = next(events)
        assert first.name == "endpoint"
        assert first.data.startswith("/messages?session_id=")
        peer = Peer(server, first.data, events)
        params = {
            "protocolVersion": revision,
            "capabilities": {"elicitation": {}},
            "clientInfo": {"name": "t", "version": "1"},
        }
        settled = peer.ask(request("initialize", params))["result"]
        assert settled["protocolVersion"] == revision
        peer.post({"jsonrpc": "2.0", "method": "notifications/initialized"})
        yield peer


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
def test_everything_that_is_posted_is_answered_in_the_stream(server: Server, revision: str) -> None:
    with connected(server, revision) as peer:
        params = {"name": "remote.steps", "arguments": {"to": 2}, "_meta": {"progressToken": 5}}
        first = peer.ask(request("tools/call", params, "x"))
        assert first["params"]["progressToken"] == 5
        last = next(e.message for e in peer.events if "result" in e.message)
        assert (last["id"], last["result"]["content"][0]["text"]) == ("x", "arrived")


def test_a_message_is_accepted_before_it_is_answered(server: Server) -> None:
    with connected(server) as peer:
        response = peer.post(request("ping", number="p"))
        assert (response.status, response.read()) == (202, b"Accepted")
        assert next(peer.events).message == {"jsonrpc": "2.0", "id": "p", "result": {}}


def test_losing_the_stream_cancels_what_runs(server: Server) -> None:
    with connected(server) as peer:
        params = {"name": "demo.wait", "_meta": {"progressToken": 1}}
        assert "params" in peer.ask(request("tools/call", params))
        assert runs(server, "demo.wait")[0] == "running"
    wait_for_state(server, "demo.wait", "cancelled")
    assert peer.post(request("ping")).status == 404


def test_a_question_is_answered_by_a_post(server: Server) -> None:
    with connected(server, "2025-06-18") as peer:
        asked = peer.ask(request("tools/call", {"name": "remote.burn"}, 7))
        assert asked["method"] == "elicitation/create"
        content = dict.fromkeys(asked["params"]["requestedSchema"]["properties"], True)
        result = {"action": "accept", "content": content}
        answer = peer.ask({"jsonrpc": "2.0", "id": asked["id"], "result": result})
        assert (answer["id"], answer["result"]["content"][0]["text"]) == (7, "burnt")


def test_changes_are_sent(server: Server) -> None:
    with connected(server) as peer:
        peer.ask(request("resources/subscribe", {"uri": "test://a"}))
        peer.post(request("tools/call", {"name": "remote.touch", "arguments": {"uri": "test://a"}}))
        told = {next(peer.events).message.get("method") for _ in range(2)}
        assert told == {"notifications/resources/updated", None}


def test_methods_of_the_hub_are_streamed_here_too(server: Server) -> None:
    with connected(server) as peer:
        reply = peer.ask(request("demo.echo", {"text": "a"}))
        assert next(peer.events).message["params"]["subscription"] == reply["result"]


@pytest.mark.parametrize("method", ["server/discover", "tools/list"])
def test_a_request_without_a_handshake_is_answered_on_the_stream(
    server: Server, method: str
) -> None:
    with connected(server) as peer:
        answer = peer.ask(stateless(method, number="n"))
        assert (answer["id"], answer["error"]["code"]) == ("n", -32022)
        supported = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]
        assert answer["error"]["data"] == {"supported": supported, "requested": "2026-07-28"}
        assert peer.ask(request("ping", number="again"))["id"] == "again"


def test_a_notification_without_a_handshake_is_accepted_and_not_answered(server: Server) -> None:
    with connected(server) as peer:
        note = {key: value for key, value in stateless("tools/list").items() if key != "id"}
        assert peer.post(note).status == 202
        assert peer.ask(request("ping", number="next"))["id"] == "next"


@pytest.mark.parametrize(("body", "code"), [(b"{", -32700), (b"[]", -32600)])
def test_what_is_no_message_is_a_bad_request(server: Server, body: bytes, code: int) -> None:
    with connected(server) as peer:
        response = peer.post(body)
        assert response.status == 400
        assert body_of(response)["error"]["code"] == code


@pytest.mark.parametrize(
    ("verb", "path", "headers", "status"),
    [
        ("POST", "/sse", {}, 405),
        ("GET", "/sse", {"Accept": JSON}, 406),
        ("GET", "/messages", {}, 405),
        ("POST", "/messages", {}, 404),
        ("POST", "/messages?session_id=nobody", {}, 404),
        ("POST", "/messages", {"Content-Type": "text/plain"}, 415),
    ],
)
def test_what_is_not_served_is_refused_by_its_status(
    server: Server, verb: str, path: str, headers: dict[str, str], status: int
) -> None:
    body = request("ping") if verb == "POST" else None
    with server.request(verb, path, body, headers) as response:
        assert response.status == status


def test_a_body_past_the_limit_is_refused(server: Server) -> None:
    with server.request("POST", "/messages", b" " * (1024 * 1024 + 1)) as response:
        assert response.status == 413


def test_from_a_client_that_does_not_read_no_more_is_taken(server: Server) -> None:
    with connected(server) as peer:
        for number in range(5000):
            with peer.post(request("tools/list", number=number)) as response:
                if response.status == 503:
                    break
                assert response.status == 202
        assert response.headers["Retry-After"] == "1"
        answered = [next(peer.events).message["id"] for _ in range(number)]
        assert answered == list(range(number))
        assert peer.ask(request("ping", number="again"))["id"] == "again"


def test_the_stream_ends_with_the_server() -> None:
    with serving() as server, connected(server) as peer:
        server.process.terminate()
        assert list(peer.events) == []
        assert server.process.wait(15) == 0
