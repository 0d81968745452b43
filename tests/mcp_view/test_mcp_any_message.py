"""Arbitrary messages in any order: each request has one answer, and nothing fails."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from hub_calls import WAIT_S
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp_activations import Show, Watched
from mcp_asking import Asking
from mcp_peer import CAPABLE, REVISIONS, STATELESS, TASKS, McpPeer, envelope

from mcp_view.methods import METHODS
from mcp_view.server import McpOptions
from plexus import Plexus
from plexus.runtime.builtin import PlexusActivation

pytestmark = pytest.mark.timeout(120)

#: Words with a meaning in the protocol, and meaningless words.
WORDS = st.sampled_from(
    [
        *("show.words", "show_media", "show-value", "show.fails", "show.found", "watched.wait"),
        *("asking.ask", "asking.rounds", "asking.behind", "asking.letter", "plexus.hash"),
        *("run://1", "run://{run}{?after}", "secret://x", "info", "ref/prompt", "ref/resource"),
        *REVISIONS,
    ]
)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 5), st.floats(0, 1), st.text(max_size=3), WORDS
)
ARGUMENTS = st.sampled_from(
    [{}, {"texts": ["a", "b"]}, {"kind": "confirm"}, {"kind": "sample"}, {"name": "x"}, {"run": 1}]
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=3,
)
ANSWER = {"action": "accept", "content": {"answer": True}}
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "name": WORDS,
    "uri": WORDS,
    "arguments": ARGUMENTS,
    "cursor": JSON,
    "taskId": st.one_of(JSON, st.just("1")),
    "level": WORDS,
    "ref": st.fixed_dictionaries({"type": WORDS, "name": WORDS, "uri": WORDS}),
    "argument": st.fixed_dictionaries({"name": WORDS, "value": SCALARS}),
    "notifications": st.sampled_from([{}, {"toolsListChanged": True}]),
    "inputResponses": st.one_of(JSON, st.just({"1": ANSWER, "sure": ANSWER})),
    "requestState": SCALARS,
    "task": st.one_of(st.just({}), JSON),
    "protocolVersion": st.sampled_from(REVISIONS),
    "capabilities": st.sampled_from([{}, CAPABLE]),
    "_meta": st.one_of(JSON, st.just({"progressToken": 0})),
}
PARAMS = st.one_of(
    st.fixed_dictionaries({}, optional=FIELDS),
    st.fixed_dictionaries({}, optional=FIELDS | dict.fromkeys(FIELDS, JSON)),
)
ENVELOPED = st.builds(
    lambda params, capabilities: envelope({**params, "_meta": {"progressToken": 1}}, capabilities),
    PARAMS,
    st.sampled_from([{}, CAPABLE, TASKS, CAPABLE | TASKS]),
)
REQUESTS = st.fixed_dictionaries(
    {
        "method": st.one_of(
            st.sampled_from([*METHODS, "initialize", "tools/call", "no/such", "show.silence"])
        ),
        "params": st.one_of(PARAMS, ENVELOPED, st.lists(JSON, max_size=1)),
    }
)
#: A reference to an earlier request, by its distance.
BACKWARDS = st.tuples(st.sampled_from(["cancel", "answer", "error"]), st.integers(0, 3))
STEPS = st.lists(st.one_of(REQUESTS, REQUESTS, BACKWARDS, st.just("wait"), JSON), max_size=12)


async def session(revision: str | None, steps: list[Any]) -> None:
    hub = Plexus()
    hub.register(PlexusActivation(hub))
    for activation in (Show, Asking, Watched):
        hub.register(activation())
    peer = McpPeer(
        hub,
        revision,
        capabilities=CAPABLE,
        options=McpOptions(page_size=2, progress_rate=0),
        native=True,
        checked=False,
    )
    sent: list[int] = []
    cancelled: set[int] = set()
    for number, step in enumerate(steps):
        if isinstance(step, dict) and "method" in step:
            sent.append(number)
            peer.send(step | {"id": number})
        elif step == "wait":
            await asyncio.sleep(0)
            peer.collect()
        elif isinstance(step, tuple):
            kind, back = step
            refers_to = sent[-1 - back] if back < len(sent) else 99
            if kind == "cancel":
                if not any(frame.get("id") == refers_to for frame in answers(peer)):
                    cancelled.add(refers_to)
                peer.notify("notifications/cancelled", {"requestId": refers_to})
            elif kind == "answer":
                peer.send({"id": back + 1, "result": ANSWER})
            else:
                peer.send({"id": back + 1, "error": {"code": -1, "message": "no"}})
        else:
            peer.send(step)
    peer.connection.finish()
    async with asyncio.timeout(WAIT_S):
        closing = asyncio.create_task(hub.close())
        while not peer.connection.finished:
            await peer.connection.ready(0.01)
            peer.collect()
        await closing
    peer.collect()
    counted = Counter(frame["id"] for frame in answers(peer) if frame["id"] is not None)
    assert set(counted.values()) <= {1}
    assert set(sent) - cancelled <= set(counted)
    assert not cancelled & set(counted)
    assert peer.view.idle


def answers(peer: McpPeer) -> list[Any]:
    """Return the answers so far, including those in batches."""
    frames = [each for f in peer.frames for each in (f if isinstance(f, list) else [f])]
    return [frame for frame in frames if "method" not in frame]


@settings(max_examples=300)
@given(st.sampled_from([None, *REVISIONS[:-1], STATELESS]), STEPS)
def test_every_request_has_one_answer_and_a_cancelled_one_has_none(
    revision: str | None, steps: list[Any]
) -> None:
    asyncio.run(session(revision, steps))
