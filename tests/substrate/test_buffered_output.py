"""A command that writes far more than fits into an answer, called by buffering clients."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from conftest import OpenHub

from activations.bash import Bash
from native_rpc.framing import MESSAGES
from native_rpc.protocol import NativeConnection
from plexus.principal import LOCAL
from plexus.rpc import wire
from plexus.runtime.hub import Plexus
from substrate.driver import Connection

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

FLOOD = "yes | head -c 1000000000"


@pytest.fixture
async def hub(open_hub: OpenHub) -> AsyncIterator[Plexus]:
    bash = Bash()
    yield open_hub(bash)
    await bash.close()


async def answer_to(hub: Plexus, method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Call a method over a buffered connection and return the result."""
    view = NativeConnection(MESSAGES, hub.limits, hub.new_id, buffered=True)
    connection = Connection(hub, view, LOCAL)
    connection.receive(wire.Request(1, method, params))
    frames = connection.collect()
    while not frames:
        await connection.ready()
        frames = connection.collect()
    result: dict[str, Any] = json.loads(frames[0])["result"]
    return result


async def test_a_flooding_command_is_answered_with_its_head_tail_and_end(hub: Plexus) -> None:
    body = await answer_to(hub, "bash.execute", {"command": FLOOD})
    kinds = [event["type"] for event in body["events"]]
    assert kinds[0] == "start"
    assert kinds[1] == "stdout"
    assert kinds.count("gap") == 1
    assert kinds[-1] == "truncated"
    assert body["truncated"] is True
    assert body["terminal"]["truncated"] is True
    assert sum(len(event.get("data", "")) for event in body["events"]) > 4_000_000


async def test_a_flooding_command_called_through_plexus_call_is_answered_too(hub: Plexus) -> None:
    params = {"method": "bash.execute", "params": {"command": FLOOD}}
    body = await answer_to(hub, "plexus.call", params)
    inner = body["terminal"]["result"]
    assert inner["truncated"] is True
    assert inner["terminal"]["truncated"] is True
    assert len(inner["events"]) > 10
