"""Streams of subscriptions/listen: notifications, request ids, and their end."""

from __future__ import annotations

from typing import Any

import pytest
from activations_for_tests import Demo
from conftest import OpenHub
from mcp_peer import PREFIX, STATELESS, McpPeer, envelope

from plexus import Change
from plexus.limits import Limits
from plexus.principal import LOCAL

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

ID = PREFIX + "subscriptionId"
EVERYTHING = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}


def listen(peer: McpPeer, request_id: Any = "l", **wanted: Any) -> list[Any]:
    params = envelope({"notifications": wanted})
    return peer.send({"id": request_id, "method": "subscriptions/listen", "params": params})


@pytest.mark.parametrize(
    ("wanted", "honoured"),
    [
        ({}, {}),
        (EVERYTHING, EVERYTHING),
        ({"toolsListChanged": True, "promptsListChanged": False}, {"toolsListChanged": True}),
        ({"noSuchThing": True, "toolsListChanged": "yes"}, {}),
        ({"resourceSubscriptions": []}, {}),
        (
            {"resourceSubscriptions": ["b://", "a://", "b://"]},
            {"resourceSubscriptions": ["a://", "b://"]},
        ),
    ],
)
async def test_the_first_message_lists_the_subscriptions(
    open_hub: OpenHub, wanted: dict[str, Any], honoured: dict[str, Any]
) -> None:
    peer = McpPeer(open_hub(), STATELESS)
    [first] = listen(peer, 7, **wanted)
    assert first == {
        "jsonrpc": "2.0",
        "method": "notifications/subscriptions/acknowledged",
        "params": {"notifications": honoured, "_meta": {ID: 7}},
    }
    assert not peer.view.idle


async def test_only_subscribed_changes_are_sent_with_the_request_id(open_hub: OpenHub) -> None:
    hub = open_hub()
    peer = McpPeer(hub, STATELESS)
    listen(peer, "tools", toolsListChanged=True)
    listen(peer, "rest", promptsListChanged=True, resourceSubscriptions=["a://1"])
    hub.notify(Change("methods"))
    hub.notify(Change("prompts"))
    hub.notify(Change("resources"))
    hub.notify(Change("resource", "a://1"))
    hub.notify(Change("resource", "a://2"))
    assert [(frame["method"], frame["params"]) for frame in peer.collect()] == [
        ("notifications/tools/list_changed", {"_meta": {ID: "tools"}}),
        ("notifications/prompts/list_changed", {"_meta": {ID: "rest"}}),
        ("notifications/resources/updated", {"uri": "a://1", "_meta": {ID: "rest"}}),
    ]


async def test_registering_an_activation_is_one_notification(open_hub: OpenHub) -> None:
    hub = open_hub()
    peer = McpPeer(hub, STATELESS)
    listen(peer, 0, **EVERYTHING)
    hub.register(Demo())
    [notification] = peer.collect()
    assert notification["params"]["_meta"] == {ID: 0}


async def test_a_stream_ends_silently_when_the_client_cancels_it(open_hub: OpenHub) -> None:
    hub = open_hub()
    peer = McpPeer(hub, STATELESS)
    listen(peer, 1, **EVERYTHING)
    listen(peer, 2, **EVERYTHING)
    assert peer.notify("notifications/cancelled", {"requestId": 1}) == []
    hub.register(Demo())
    assert [frame["params"]["_meta"] for frame in peer.collect()] == [{ID: 2}]
    peer.notify("notifications/cancelled", {"requestId": 2})
    assert peer.view.idle


async def test_a_stopping_server_answers_its_streams(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(), STATELESS)
    listen(peer, 1, toolsListChanged=True)
    listen(peer, "2")
    peer.connection.finish()
    frames = peer.collect()
    assert [frame["id"] for frame in frames] == [1, "2"]
    for frame in frames:
        assert frame["result"]["resultType"] == "complete"
        assert frame["result"]["_meta"][ID] == frame["id"]
        assert frame["result"]["_meta"][PREFIX + "serverInfo"]["name"] == "substrate"
    assert peer.view.idle
    assert peer.connection.finished


async def test_a_stream_ends_with_its_connection(open_hub: OpenHub) -> None:
    hub = open_hub()
    peer = McpPeer(hub, STATELESS)
    listen(peer, 1, **EVERYTHING)
    peer.connection.lost()
    hub.register(Demo())
    assert peer.collect() == []


async def test_the_id_of_a_listen_stream_is_in_use(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(), STATELESS)
    listen(peer, 1)
    [error] = peer.send({"id": 1, "method": "tools/list", "params": envelope()})
    assert error["error"]["code"] == -32600
    peer.notify("notifications/cancelled", {"requestId": 1})
    [answer] = peer.send({"id": 1, "method": "tools/list", "params": envelope()})
    assert "result" in answer


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"notifications": None},
        {"notifications": []},
        {"notifications": {"resourceSubscriptions": "a://"}},
        {"notifications": {"resourceSubscriptions": [5]}},
        {"notifications": {"resourceSubscriptions": None}},
        {"notifications": {"resourceSubscriptions": ["a://", "b://", "c://"]}},
    ],
)
async def test_an_invalid_listen_request_is_refused(
    open_hub: OpenHub, params: dict[str, Any]
) -> None:
    peer = McpPeer(open_hub(limits=Limits(subscriptions=2)), STATELESS)
    assert (await peer.error("subscriptions/listen", params))["code"] == -32602
    assert peer.view.idle


async def test_streams_count_as_calls_in_progress(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Demo, limits=Limits(calls_in_flight=3)), STATELESS)
    for number in range(3):
        listen(peer, number)
    [refused] = listen(peer, 3)
    full = {"limit": 3, "name": "calls_in_flight"}
    assert refused["error"]["data"] == full
    error = await peer.error("tools/call", {"name": "demo.echo", "arguments": {"text": "x"}})
    assert error["data"] == full
    assert (await peer.tool("plexus.hash"))["isError"] is False


async def test_a_session_and_a_stream_are_notified_separately(open_hub: OpenHub) -> None:
    hub = open_hub()
    peer = McpPeer(hub, "2025-11-25")
    peer.revision = STATELESS
    listen(peer, 1, toolsListChanged=True)
    hub.register(Demo())
    assert [frame.get("params") for frame in peer.collect()] == [None, {"_meta": {ID: 1}}]


async def test_the_hub_knows_which_resources_clients_wait_for(open_hub: OpenHub) -> None:
    hub = open_hub()
    heard: list[str] = []
    hub.watched_resources.on_change(heard.append)
    stream, session = McpPeer(hub, STATELESS), McpPeer(hub, "2025-11-25")
    listen(stream, 1, resourceSubscriptions=["a://", "b://"])
    listen(stream, 2, resourceSubscriptions=["b://"])
    for _ in range(2):
        await session.result("resources/subscribe", {"uri": "b://"})
    assert sorted(hub.watched_resources) == [("a://", LOCAL), ("b://", LOCAL)]
    assert sorted(heard) == ["a://", "b://"]

    heard.clear()
    stream.notify("notifications/cancelled", {"requestId": 1})
    assert list(hub.watched_resources) == [("b://", LOCAL)]
    await session.result("resources/unsubscribe", {"uri": "b://"})
    assert heard == ["a://"]
    await session.result("resources/subscribe", {"uri": "c://"})
    session.connection.lost()
    stream.connection.lost()
    assert list(hub.watched_resources) == []
    assert heard == ["a://", "c://", "c://", "b://"]


async def test_streams_of_a_stopping_server_and_of_a_revoked_client_wait_for_nothing(
    open_hub: OpenHub,
) -> None:
    hub = open_hub()
    for end in ("finish", "revoke"):
        peer = McpPeer(hub, STATELESS)
        listen(peer, 1, resourceSubscriptions=["a://"])
        assert list(hub.watched_resources) == [("a://", LOCAL)]
        if end == "finish":
            peer.connection.finish()
        else:
            peer.connection.perform(peer.view.on_revoked("the token was revoked"))
        assert list(hub.watched_resources) == []
