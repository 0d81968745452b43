"""`_on_disconnect`: a caller decides whether its run continues after the connection is lost."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from network import Server, events, serving
from websockets.sync.client import connect

ORPHAN_S = 0.3


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(settings={"SUBSTRATE_LIMITS__ORPHAN_S": str(ORPHAN_S)}) as running:
        yield running


def described(server: Server, run: int) -> dict[str, Any]:
    with server.call("plexus.runs", {"limit": 1000}) as response:
        listed = json.loads(response.read())["result"]["terminal"]["result"]
    found: dict[str, Any] = next(each for each in listed if each["run"] == run)
    return found


def state_after_a_while(server: Server, run: int) -> str:
    """Return the state after a run without its caller would have been cancelled."""
    end = time.monotonic() + ORPHAN_S + 1.0
    while time.monotonic() < end and described(server, run)["state"] == "running":
        time.sleep(0.05)
    return str(described(server, run)["state"])


def start_over_websocket(server: Server, params: dict[str, Any]) -> int:
    with connect(server.ws) as peer:
        request = {"jsonrpc": "2.0", "id": 1, "method": "demo.wait", "params": params}
        peer.send(json.dumps(request))
        run: int = json.loads(peer.recv(timeout=15))["result"]
        peer.recv(timeout=15)
    return run


def start_over_http(server: Server, params: dict[str, Any]) -> int:
    response = server.stream("demo.wait", params)
    for _, message in events(response):
        if "result" in message:
            run: int = message["result"]
            break
    response.close()
    return run


START = [start_over_websocket, start_over_http]


@pytest.mark.parametrize("start", START)
@pytest.mark.parametrize(("chosen", "state"), [("keep", "running"), ("cancel", "cancelled")])
def test_the_caller_decides_whether_its_run_continues(
    server: Server, start: Any, chosen: str, state: str
) -> None:
    run = start(server, {"_on_disconnect": chosen})
    assert state_after_a_while(server, run) == state
    server.call("plexus.cancel", {"run": run}).close()


@pytest.mark.parametrize("start", START)
def test_without_a_choice_the_server_decides(server: Server, start: Any) -> None:
    assert state_after_a_while(server, start(server, {})) == "cancelled"


def test_any_other_choice_is_refused(server: Server) -> None:
    with server.call("demo.wait", {"_on_disconnect": "perhaps"}) as response:
        assert "keep" in json.loads(response.read())["error"]["message"]


def test_a_watch_is_never_kept(server: Server) -> None:
    with connect(server.ws) as peer:
        params = {"_on_disconnect": "keep"}
        request = {"jsonrpc": "2.0", "id": 1, "method": "plexus.watch", "params": params}
        peer.send(json.dumps(request))
        run = json.loads(peer.recv(timeout=15))["result"]
    end = time.monotonic() + 10
    while time.monotonic() < end:
        with server.call("plexus.runs", {"system": True}) as response:
            listed = json.loads(response.read())["result"]["terminal"]["result"]
        [state] = [each["state"] for each in listed if each["run"] == run]
        if state == "cancelled":
            break
        time.sleep(0.05)
    assert state == "cancelled"


@pytest.mark.parametrize(("chosen", "state"), [("keep", "running"), ("cancel", "cancelled")])
def test_a_run_that_is_kept_continues_without_its_subscription(
    server: Server, chosen: str, state: str
) -> None:
    with connect(server.ws) as peer:
        params = {"_on_disconnect": chosen}
        peer.send(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "demo.wait", "params": params}))
        run = json.loads(peer.recv(timeout=15))["result"]
        ending = {"subscription": run}
        request = {"jsonrpc": "2.0", "id": 2, "method": "plexus.unsubscribe", "params": ending}
        peer.send(json.dumps(request))
        while json.loads(peer.recv(timeout=15)).get("id") != 2:
            pass
        assert state_after_a_while(server, run) == state
    server.call("plexus.cancel", {"run": run}).close()
