"""Native methods on an MCP connection, before and after the handshake."""

from __future__ import annotations

from typing import Any

import pytest
from activations_for_tests import Demo
from conftest import OpenHub
from hub_calls import happened
from mcp_activations import Watched
from mcp_peer import REVISIONS, STATELESS, McpPeer, envelope, text_of

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]


def is_item(frame: Any) -> bool:
    return "params" in frame and "subscription" in frame["params"]


async def stream(peer: McpPeer, method: str, params: Any) -> tuple[Any, list[Any]]:
    """Start a call. Returns the reply and all items."""
    [reply] = [f for f in peer.send({"id": "n", "method": method, "params": params}) if "id" in f]
    items = []
    while True:
        frame = await peer.receive(is_item)
        assert frame["method"] == method
        assert frame["params"]["subscription"] == reply["result"]
        items.append(frame["params"]["result"])
        if items[-1]["type"] in ("complete", "error", "cancelled"):
            return reply, items


@pytest.mark.parametrize("revision", [None, *REVISIONS])
@pytest.mark.parametrize("method", ["demo.count", "demo_count"])
@pytest.mark.parametrize("params", [{"to": 2}, [2], [{"to": 2}]])
async def test_a_native_method_streams_on_an_mcp_connection(
    open_hub: OpenHub, revision: str | None, method: str, params: Any
) -> None:
    peer = McpPeer(open_hub(Demo), revision, native=True)
    _, items = await stream(peer, method, params)
    assert [item["type"] for item in items] == ["content", "content", "progress", "complete"]


@pytest.mark.parametrize("method", ["plexus.hash", "plexus_hash"])
async def test_methods_of_the_plexus_namespace_are_available(
    open_hub: OpenHub, method: str
) -> None:
    peer = McpPeer(open_hub(Demo), native=True)
    _, [item] = await stream(peer, method, {})
    assert item == {"type": "complete", "result": peer.hub.hash}


@pytest.mark.parametrize("revision", [None, *REVISIONS])
@pytest.mark.parametrize("method", ["demo.no_such", "no.such", "nothing", "demo-count", ""])
async def test_a_method_of_neither_protocol_is_not_found(
    open_hub: OpenHub, revision: str | None, method: str
) -> None:
    peer = McpPeer(open_hub(Demo), revision, native=True)
    [answer] = peer.send({"id": 1, "method": method, "params": {}})
    assert answer["error"]["code"] == -32601


async def test_without_the_native_protocol_its_methods_are_not_found(open_hub: OpenHub) -> None:
    for revision in (None, "2025-11-25"):
        peer = McpPeer(open_hub(Demo), revision)
        [answer] = peer.send({"id": 1, "method": "demo.echo", "params": {"text": "x"}})
        assert answer["error"]["code"] == -32601


async def test_calls_of_both_protocols_run_together(open_hub: OpenHub) -> None:
    watched = Watched()
    peer = McpPeer(open_hub(watched, Demo), "2025-11-25", native=True)
    [reply, *_] = peer.send({"id": 1, "method": "watched.wait"})
    await happened(watched.started)
    assert text_of(await peer.tool("demo.echo", {"text": "hi"})) == "hi"
    answer = peer.send(
        {"id": 2, "method": "plexus.unsubscribe", "params": {"subscription": reply["result"]}}
    )
    assert answer[-1]["result"] is True
    await happened(watched.stopped)
    assert peer.view.idle


async def test_an_envelope_does_not_keep_a_native_call_from_running(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Demo), STATELESS, native=True)
    [answer] = peer.send({"id": 1, "method": "demo.no_such", "params": envelope()})
    assert answer["error"]["code"] == -32601


async def test_a_native_notification_runs_and_is_not_answered(open_hub: OpenHub) -> None:
    watched = Watched()
    peer = McpPeer(open_hub(watched), native=True)
    assert peer.notify("watched.wait") == []
    await happened(watched.started)
    assert await peer.quiet() == []


async def test_a_disconnect_ends_native_calls(open_hub: OpenHub) -> None:
    watched = Watched()
    peer = McpPeer(open_hub(watched), native=True)
    peer.send({"id": 1, "method": "watched.wait"})
    await happened(watched.started)
    peer.connection.lost()
    await happened(watched.stopped)


async def test_invalid_native_parameters_are_refused_by_the_native_protocol(
    open_hub: OpenHub,
) -> None:
    peer = McpPeer(open_hub(Demo), native=True)
    [answer] = peer.send({"id": 1, "method": "demo.echo", "params": {"text": 5}})
    assert answer["error"]["code"] == -32602
