"""MCP over WebSocket: one message a frame, both eras on one socket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from mcp_network import request, runs, stateless, wait_for_state
from network import DEMO, Server, serving
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

REMOTE = DEMO.parent / "substrate" / "remote_activation.py"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("--activation", str(REMOTE)) as running:
        yield running


@contextmanager
def connected(server: Server) -> Iterator[ClientConnection]:
    address = f"ws://127.0.0.1:{server.port}/mcp"
    with connect(address, subprotocols=[Subprotocol("mcp")]) as peer:
        yield peer


def ask(peer: ClientConnection, message: Any) -> Any:
    peer.send(json.dumps(message))
    return hear(peer)


def hear(peer: ClientConnection) -> Any:
    data = peer.recv(timeout=15)
    assert isinstance(data, str)
    return json.loads(data)


def shake_hands(peer: ClientConnection, revision: str = "2025-11-25") -> Any:
    params = {
        "protocolVersion": revision,
        "capabilities": {"elicitation": {}},
        "clientInfo": {"name": "t", "version": "1"},
    }
    return ask(peer, request("initialize", params))["result"]


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [(["mcp"], "mcp"), (["other", "mcp"], "mcp"), (["other"], None), (None, None)],
)
def test_the_subprotocol_is_echoed_if_it_is_offered(
    server: Server, offered: list[Subprotocol] | None, chosen: str | None
) -> None:
    with connect(f"ws://127.0.0.1:{server.port}/mcp", subprotocols=offered) as peer:
        assert peer.subprotocol == chosen
        assert ask(peer, request("ping"))["result"] == {}


def test_the_native_socket_has_no_subprotocol(server: Server) -> None:
    with connect(server.ws, subprotocols=[Subprotocol("mcp")]) as peer:
        assert peer.subprotocol is None


def test_both_eras_and_methods_of_the_hub_share_a_socket(server: Server) -> None:
    with connected(server) as peer:
        discovered = ask(peer, stateless("server/discover"))
        assert discovered["result"]["resultType"] == "complete"
        assert shake_hands(peer)["protocolVersion"] == "2025-11-25"
        call = {"name": "demo.echo", "arguments": {"text": "a"}}
        assert ask(peer, request("tools/call", call))["result"]["isError"] is False
        assert ask(peer, stateless("tools/call", call))["result"]["resultType"] == "complete"
        number = ask(peer, request("demo.echo", {"text": "a"}))["result"]
        assert hear(peer)["params"]["subscription"] == number


def test_progress_and_questions_come_on_the_same_socket(server: Server) -> None:
    with connected(server) as peer:
        shake_hands(peer)
        params = {"name": "remote.steps", "arguments": {"to": 1}, "_meta": {"progressToken": 0}}
        assert ask(peer, request("tools/call", params))["params"]["progressToken"] == 0
        while "result" not in hear(peer):
            pass
        asked = ask(peer, request("tools/call", {"name": "remote.burn"}, 9))
        content = dict.fromkeys(asked["params"]["requestedSchema"]["properties"], True)
        result = {"action": "accept", "content": content}
        answer = ask(peer, {"jsonrpc": "2.0", "id": asked["id"], "result": result})
        assert (answer["id"], answer["result"]["content"][0]["text"]) == (9, "burnt")


def test_a_disconnect_cancels_what_runs(server: Server) -> None:
    with connected(server) as peer:
        params = {"name": "demo.wait", "_meta": {"progressToken": 0}}
        shake_hands(peer)
        ask(peer, request("tools/call", params))
        assert runs(server, "demo.wait")[0] == "running"
    wait_for_state(server, "demo.wait", "cancelled")


def test_garbage_is_answered_and_ends_nothing(server: Server) -> None:
    with connected(server) as peer:
        for garbage, code in (("{", -32700), ("[]", -32600), ("7", -32600)):
            peer.send(garbage)
            assert hear(peer)["error"]["code"] == code
        assert ask(peer, request("ping"))["result"] == {}


def test_listeners_are_notified_before_the_server_ends() -> None:
    with serving("--activation", str(REMOTE)) as server, connected(server) as peer:
        params = {"notifications": {"toolsListChanged": True}}
        ask(peer, stateless("subscriptions/listen", params, "mine"))
        server.process.terminate()
        farewell = hear(peer)
        assert (farewell["id"], farewell["result"]["resultType"]) == ("mine", "complete")
        with pytest.raises(ConnectionClosed, match="1001"):
            hear(peer)
        assert server.process.wait(15) == 0
