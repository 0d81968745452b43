"""Batches, which one revision has: answered with one array when all requests are done."""

from __future__ import annotations

from typing import Any

import pytest
from activations_for_tests import Demo
from conftest import OpenHub
from hub_calls import happened
from mcp_activations import Watched
from mcp_peer import REVISIONS, McpPeer, envelope

from plexus.rpc import wire

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

BATCHING = "2025-03-26"
PING: dict[str, Any] = {"id": "ping", "method": "ping"}
NOTE: dict[str, Any] = {"method": "notifications/initialized"}


def echo(request_id: Any, text: str) -> dict[str, Any]:
    params = {"name": "demo.echo", "arguments": {"text": text}}
    return {"id": request_id, "method": "tools/call", "params": params}


def wait(request_id: Any, seconds: float | None) -> dict[str, Any]:
    arguments = {} if seconds is None else {"seconds": seconds}
    params = {"name": "demo.wait", "arguments": arguments}
    return {"id": request_id, "method": "tools/call", "params": params}


async def array_of(peer: McpPeer) -> dict[Any, Any]:
    """Return the array that answers a batch, by id."""
    answers = await peer.receive(lambda frame: isinstance(frame, list))
    by_id = {answer["id"]: answer for answer in answers}
    assert len(by_id) == len(answers)
    return by_id


async def test_a_batch_is_answered_by_one_array_when_all_of_it_is_done(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Demo), BATCHING)
    batch = [
        echo(1, "a"),
        NOTE,
        PING,
        wait("slow", 0.02),
        {"id": 4, "method": "no/such"},
        {"id": 5, "method": "tools/call", "params": {"name": "no.such"}},
        echo(6, "b") | {"params": {"name": "demo.echo", "arguments": {"text": 5}}},
        5,
        {"id": 7, "method": "resources/list"},
        {"id": 8, "method": "tools/list"},
    ]
    assert peer.send(batch) == []
    answers = await array_of(peer)
    assert set(answers) == {1, "ping", "slow", 4, 5, 6, None, 7, 8}
    assert answers[1]["result"]["content"][0]["text"] == "a"
    assert answers["slow"]["result"]["content"][0]["text"] == "waitingwaited"
    refused = {key: answer["error"]["code"] for key, answer in answers.items() if "error" in answer}
    assert refused == {
        4: wire.METHOD_NOT_FOUND,
        5: wire.INVALID_PARAMS,
        6: wire.INVALID_PARAMS,
        None: wire.INVALID_REQUEST,
    }
    assert await peer.quiet() == []


async def test_a_batch_that_is_answered_immediately_is_still_one_array(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Demo), BATCHING)
    [answers] = peer.send([PING])
    assert [answer["id"] for answer in answers] == ["ping"]


async def test_a_batch_of_notifications_is_not_answered(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Demo), BATCHING)
    assert peer.send([NOTE, {"method": "notifications/cancelled"}, NOTE]) == []
    assert peer.send([NOTE, {"id": 1, "result": {}}]) == []
    assert await peer.quiet() == []


async def test_a_cancelled_call_is_not_in_the_array(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Demo), BATCHING)
    peer.send([wait(1, None), wait(2, 0.01), PING])
    assert peer.notify("notifications/cancelled", {"requestId": 1}) == []
    assert set(await array_of(peer)) == {2, "ping"}


async def test_cancelling_the_last_open_call_sends_the_array(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Demo), BATCHING)
    peer.send([wait(1, None), PING])
    [answers] = peer.notify("notifications/cancelled", {"requestId": 1})
    assert [answer["id"] for answer in answers] == ["ping"]


async def test_a_batch_with_only_cancelled_calls_is_not_answered(open_hub: OpenHub) -> None:
    watched = Watched()
    peer = McpPeer(open_hub(watched), BATCHING)
    peer.send([{"id": 1, "method": "tools/call", "params": {"name": "watched.wait"}}])
    await peer.quiet()
    assert peer.notify("notifications/cancelled", {"requestId": 1}) == []
    await happened(watched.stopped)
    assert await peer.quiet() == []
    assert peer.view.idle


async def test_progress_of_a_call_in_a_batch_comes_before_the_array(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Demo), BATCHING)
    call = wait(1, 0.02)
    call["params"]["_meta"] = {"progressToken": "t"}
    peer.send([call])
    await peer.notification("notifications/progress")
    assert set(await array_of(peer)) == {1}


async def test_a_batch_may_follow_another(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Demo), BATCHING)
    peer.send([wait(1, 0.02), echo(2, "x")])
    peer.send([echo(3, "y")])
    assert set(await array_of(peer)) == {3}
    assert set(await array_of(peer)) == {1, 2}


async def test_a_handshake_must_not_be_part_of_a_batch(open_hub: OpenHub) -> None:
    handshake = {"id": 1, "method": "initialize", "params": {"protocolVersion": BATCHING}}
    peer = McpPeer(open_hub(Demo), BATCHING)
    [answers] = peer.send([handshake, PING])
    assert answers[0]["error"]["code"] == wire.INVALID_REQUEST
    assert answers[1]["result"] == {}
    fresh = McpPeer(open_hub(Demo))
    [answer] = fresh.send([handshake])
    assert answer["error"]["code"] == wire.INVALID_REQUEST
    assert "result" in fresh.send(handshake)[0]


@pytest.mark.parametrize("revision", [None, *(each for each in REVISIONS if each != BATCHING)])
async def test_a_batch_is_refused_in_revisions_without_batches(
    open_hub: OpenHub, revision: str | None
) -> None:
    peer = McpPeer(open_hub(Demo), revision)
    [answer] = peer.send([PING, PING | {"id": 2}])
    assert (answer["id"], answer["error"]["code"]) == (None, wire.INVALID_REQUEST)
    assert peer.view.idle


async def test_a_batch_with_an_envelope_in_it_is_refused(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Demo), BATCHING)
    modern = {"id": 1, "method": "tools/list", "params": envelope()}
    [answer] = peer.send([PING, modern])
    assert (answer["id"], answer["error"]["code"]) == (None, wire.INVALID_REQUEST)
