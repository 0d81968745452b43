"""Cancellation before, at and after the end, twice, by several ways, and of unknown calls.

A call has one outcome, and nothing of it is sent after the response to its cancellation.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hub_calls import WAIT_S, quiet
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp_peer import HANDSHAKES, STATELESS, McpPeer

from native_rpc.framing import MESSAGES
from native_rpc.protocol import NativeConnection
from plexus import Activation, Content, Plexus, method
from plexus.limits import Limits
from plexus.principal import LOCAL
from plexus.rpc import wire
from plexus.runtime.builtin import PlexusActivation
from substrate.driver import Connection

pytestmark = pytest.mark.timeout(120)

LIMITS = Limits()
TERMINALS = ("complete", "error", "cancelled")
#: After how many turns of the loop something is done: a run of ten items ends within these.
TURNS = st.integers(0, 30)


class Race(Activation):
    """An activation that ends after a number of turns, or later if it cleans up first."""

    namespace = "race"
    version = "1.0.0"

    @method
    async def run(self, turns: int, cleanup: int = 0) -> AsyncIterator[Content]:
        """Yield a word at each turn."""
        try:
            for number in range(turns):
                yield Content(text=f"{number}")
                await asyncio.sleep(0)
        finally:
            for _ in range(cleanup):
                await asyncio.sleep(0)


def open_hub() -> Plexus:
    hub = Plexus()
    hub.register(PlexusActivation(hub))
    hub.register(Race())
    return hub


# --- the native view --------------------------------------------------------------------------

NATIVE_WAYS = st.sampled_from(
    ["unsubscribe", "cancel", "unknown", "unsubscribe unknown", "notify", "hub", "none"]
)


class NativePeer:
    """A client that records everything it receives, in order."""

    def __init__(self, hub: Plexus) -> None:
        self.connection = Connection(hub, NativeConnection(MESSAGES, hub.limits, hub.new_id), LOCAL)
        self.heard: list[Any] = []
        self._next = 0

    def say(self, method: str, params: Any = None, *, silently: bool = False) -> int:
        self._next += 1
        message = {"jsonrpc": "2.0", "method": method, "params": params or {}}
        if not silently:
            message["id"] = self._next
        self.connection.receive(wire.decode(wire.encode(message), LIMITS))
        self.hear()
        return self._next

    def hear(self) -> None:
        self.heard += [wire.decode_value(f, LIMITS) for f in self.connection.collect()]

    def answer(self, request: int) -> Any:
        [answer] = [each for each in self.heard if each.get("id") == request]
        return answer

    def items(self, subscription: int) -> list[Any]:
        items_sent = [each["params"] for each in self.heard if "method" in each]
        return [each["result"] for each in items_sent if each["subscription"] == subscription]


async def native_race(length: int, cleanup: int, acts: list[tuple[int, str]]) -> None:
    hub = open_hub()
    peer = NativePeer(hub)
    call = peer.say("race.run", {"turns": length, "cleanup": cleanup})
    run = peer.answer(call)["result"]
    unsubscribed: int | None = None
    for turns, way in acts:
        for _ in range(turns):
            await asyncio.sleep(0)
            peer.hear()
        before = len(peer.items(run))
        match way:
            case "unsubscribe":
                request = peer.say("plexus.unsubscribe", [run])
                if peer.answer(request)["result"]:
                    assert unsubscribed is None, "it was ended twice"
                    unsubscribed = len(peer.items(run))
            case "cancel":
                peer.say("plexus.cancel", {"run": run})
            case "unknown":
                peer.say("plexus.cancel", {"run": run + 1})
            case "unsubscribe unknown":
                assert peer.answer(peer.say("plexus.unsubscribe", [run + 1]))["result"] is False
                assert len(peer.items(run)) >= before
            case "notify":
                peer.say("plexus.cancel", {"run": run}, silently=True)
            case "hub":
                hub.runs.cancel_all("because")
    async with asyncio.timeout(WAIT_S):
        await hub.runs.wait_idle(WAIT_S)
    for _ in range(5):
        await quiet(5)
        peer.hear()
    items = peer.items(run)
    ends = [place for place, item in enumerate(items) if item["type"] in TERMINALS]
    if unsubscribed is not None:
        # Nothing came after the answer, not even its terminal, unless that was there before.
        assert len(items) == unsubscribed
        assert ends == []
    else:
        assert ends == [len(items) - 1]
    assert hub.runs.running() == []
    await hub.close()


@settings(max_examples=200)
@given(
    st.integers(0, 10),
    st.integers(0, 5),
    st.lists(st.tuples(TURNS, NATIVE_WAYS), max_size=4),
)
def test_a_native_call_has_one_outcome_however_it_is_cancelled(
    length: int, cleanup: int, acts: list[tuple[int, str]]
) -> None:
    asyncio.run(native_race(length, cleanup, acts))


# --- MCP --------------------------------------------------------------------------------------

MCP_WAYS = st.sampled_from(["cancelled", "unknown", "other type", "hub", "hash", "none"])


async def mcp_race(revision: str, length: int, cleanup: int, acts: list[tuple[int, str]]) -> None:
    hub = open_hub()
    peer = McpPeer(hub, revision)
    arguments = {"turns": length, "cleanup": cleanup}
    request = peer.begin_tool("race.run", arguments, progressToken="t")
    other = peer.begin_tool("race.run", {"turns": 3})
    stopped_at: int | None = None

    def answered() -> bool:
        return any(frame.get("id") == request for frame in peer.frames)

    for turns, way in acts:
        for _ in range(turns):
            await asyncio.sleep(0)
            peer.collect()
        match way:
            case "cancelled":
                if not answered() and stopped_at is None:
                    stopped_at = len(peer.frames)
                peer.notify("notifications/cancelled", {"requestId": request, "reason": "x"})
            case "unknown":
                peer.notify("notifications/cancelled", {"requestId": 10**6})
            case "other type":
                peer.notify("notifications/cancelled", {"requestId": str(request)})
            case "hub":
                for run in hub.runs.running():
                    if run.log.last < length:
                        run.cancel("because")
            case "hash":
                peer.begin("tools/list")
    async with asyncio.timeout(WAIT_S):
        await hub.runs.wait_idle(WAIT_S)
    await peer.quiet()
    answers = [frame for frame in peer.frames if frame.get("id") == request]
    if stopped_at is None:
        assert len(answers) == 1
    else:
        assert answers == []
        after = peer.frames[stopped_at:]
        assert not [f for f in after if f.get("params", {}).get("progressToken") == "t"]
    assert len([frame for frame in peer.frames if frame.get("id") == other]) == 1
    assert peer.view.idle
    await hub.close()


@settings(max_examples=200)
@given(
    st.sampled_from([*HANDSHAKES, STATELESS]),
    st.integers(0, 10),
    st.integers(0, 5),
    st.lists(st.tuples(TURNS, MCP_WAYS), max_size=4),
)
def test_an_mcp_call_has_one_response_or_was_cancelled_and_has_none(
    revision: str, length: int, cleanup: int, acts: list[tuple[int, str]]
) -> None:
    asyncio.run(mcp_race(revision, length, cleanup, acts))
