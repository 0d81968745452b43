"""Exceptions in a route are answered with a log reference, over HTTP and WebSocket."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from network import Server, serving
from planted_defects import SECRET
from raw_peer import RawPeer, call_of
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.utils import ClientDisconnected
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from substrate.server.app import ErrorBoundary

PLANTED = Path(__file__).with_name("planted_defects.py")


def planted(place: str) -> tuple[str, dict[str, str]]:
    return str(PLANTED), {"PLANTED_DEFECTS": place}


def check_log(server: Server, answer: str) -> None:
    """Check that the log has the exception under the reference, and the answer no detail of it."""
    assert SECRET not in answer
    assert "Traceback" not in answer
    found = re.search(r"\b[0-9a-f]{8}\b", answer)
    assert found is not None, answer
    server.process.terminate()
    assert server.process.stderr is not None
    logged = server.process.stderr.read().decode()
    assert f"[{found[0]}]" in logged
    assert logged.count(SECRET) == 1
    assert "Exception in ASGI application" not in logged


@pytest.mark.parametrize("body", [None, {"a": 1}, {"a": "x" * 500_000}])
def test_a_route_that_raises_is_a_500_with_a_log_reference(body: object) -> None:
    file, settings = planted("route")
    with serving("--activation", file, settings=settings) as server:
        verb = "GET" if body is None else "POST"
        with server.request(verb, "/metrics", body) as response:
            assert response.status == 500
            assert response.headers["Content-Type"] == "application/json"
            answer = response.read().decode()
        assert json.loads(answer)["error"].startswith("a request")
        assert server.status("GET", "/") == 200
        check_log(server, answer)


def test_a_response_that_has_begun_ends_with_its_connection() -> None:
    file, settings = planted("stream")
    with serving("--activation", file, settings=settings) as server:
        with RawPeer(server.port) as peer:
            peer.post(call_of("demo.echo", ["a"]), accept="text/event-stream")
            received = peer.read_to_end()
            assert b" 200 OK" in received
            assert b": begun" in received
            assert not received.endswith(b"0\r\n\r\n"), "it must not look like a whole response"
            assert SECRET.encode() not in received
        assert server.status("GET", "/") == 200


@pytest.mark.parametrize("place", ["socket", "frame"])
def test_a_websocket_whose_handler_raises_is_closed_with_1011(place: str) -> None:
    file, settings = planted(place)
    with serving("--activation", file, settings=settings) as server:
        with connect(server.ws) as socket, pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=10)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1011
        assert server.status("GET", "/") == 200
        check_log(server, closed.value.rcvd.reason)


@pytest.mark.anyio
async def test_a_disconnected_peer_is_not_a_defect(caplog: pytest.LogCaptureFixture) -> None:
    async def app(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "websocket.send", "text": ""})

    async def receive() -> Message:
        return {"type": "websocket.disconnect"}

    async def send(_: Message) -> None:
        raise ClientDisconnected

    with pytest.raises(ClientDisconnected):
        await ErrorBoundary(app)({"type": "websocket"}, receive, send)
    assert not caplog.records
