"""Call states: every step in every state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from activations_for_tests import Demo
from mcp_peer import CAPABLE, STATELESS, TASKS, envelope, make_server

from mcp_view.calls.call import TRANSITIONS, Call, State, Step
from mcp_view.protocol import McpConnection
from mcp_view.session import Session
from plexus import Activation, Complete, Content, Event, Plexus, prompt, resource
from plexus.errors import Busy, InvalidParams, PlexusError
from plexus.events import Detached, QuestionAsked
from plexus.limits import Limits
from plexus.principal import LOCAL
from plexus.rpc import wire
from plexus.rpc.effects import AnswerQuestion, Effect, KeepRun, Send
from plexus.runtime.log import Batch
from plexus.runtime.run import LocalRun

CORE = "2025-11-25"
QUESTION = QuestionAsked(
    request="1", kind="confirm", message="Sure?", schema={"type": "boolean"}, timeout_s=60
)


#: Requests that start a run, one for each kind of call.
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "tool": ("tools/call", {"name": "demo.wait", "_meta": {"progressToken": "t"}}),
    "prompt": ("prompts/get", {"name": "desk.letter"}),
    "resource": ("resources/read", {"uri": "desk://letter"}),
}
#: The states that a call of each kind can be in: only tools become tasks.
STATES = {
    kind: [state for state in State if kind == "tool" or state is not State.KEEPING]
    for kind in REQUESTS
}
CASES = [(kind, state) for kind, states in STATES.items() for state in states]


class Desk(Activation):
    """A prompt and a resource."""

    namespace = "desk"
    version = "1.0.0"

    @prompt
    async def letter(self) -> str:
        """A letter."""
        return "Write a letter."

    @resource("desk://letter")
    async def written(self) -> str:
        """The letter."""
        return "Dear reader"


class Scene:
    """A view with one call in one state, and no driver."""

    def __init__(self, revision: str, state: State, kind: str = "tool") -> None:
        hub = Plexus()
        hub.register(Demo)
        hub.register(Desk)
        self.view = McpConnection(make_server(hub), Session())
        if revision != STATELESS:
            params = {"protocolVersion": revision, "capabilities": CAPABLE}
            self.view.receive(wire.Request(0, "initialize", params))
        method, params = REQUESTS[kind]
        params = dict(params)
        if state is State.KEEPING and revision != STATELESS:
            params["task"] = {}
        if revision == STATELESS:
            params = envelope(params, CAPABLE | TASKS)
        [start] = self.view.receive(wire.Request(1, method, params))
        self.call: Call = start.call  # type: ignore[union-attr]  # it is a StartCall
        if state is not State.STARTING:
            self.view.on_started(self.call, run())
        if state is State.KEEPING and revision == STATELESS:
            self.view.on_items(self.call, batch(Detached()))
        if state is State.ANSWERED:
            self.view.on_items(self.call, batch(Complete()))
        # Simulates an open request to the client.
        self.call.client_requests = {1: QUESTION}
        assert self.call.state is state


def run() -> LocalRun:
    return LocalRun(7, "demo.wait", LOCAL, Limits(), lambda _: None)


def batch(event: Event) -> Batch:
    return Batch(1, [event], [wire.encode_event(event)])


def outcome(scene: Scene, error: PlexusError | None) -> list[Effect]:
    keeps = scene.call.state is State.KEEPING
    effect = KeepRun(scene.call, 7, 1.0) if keeps else AnswerQuestion(scene.call, 7, "1", True)
    return scene.view.on_outcome(effect, error)


def cancel(scene: Scene) -> list[Effect]:
    return scene.view.receive(wire.Notification("notifications/cancelled", {"requestId": 1}))


#: Every step, in all variants that lead to different states.
STEPS: dict[Step, list[Callable[[Scene], list[Effect]]]] = {
    Step.STARTED: [lambda s: s.view.on_started(s.call, run())],
    Step.REFUSED: [lambda s: s.view.on_refused(s.call, Busy("too many"))],
    Step.ITEMS: [
        lambda s: s.view.on_items(s.call, batch(Content("x"))),
        lambda s: s.view.on_items(s.call, batch(Detached())),
        lambda s: s.view.on_items(s.call, batch(Complete())),
    ],
    Step.TIMER: [lambda s: s.view.on_timer(s.call)],
    Step.RESPONSE: [lambda s: s.view.receive(wire.Response(1, {"action": "accept"}, None))],
    Step.OUTCOME: [lambda s: outcome(s, None), lambda s: outcome(s, InvalidParams("no"))],
    Step.CANCELLED: [cancel],
    Step.FAILED: [lambda s: s.view.on_call_error(s.call, PlexusError("no"), 1)],
}


@pytest.mark.parametrize("revision", [CORE, STATELESS])
@pytest.mark.parametrize("step", Step)
@pytest.mark.parametrize(("kind", "state"), CASES)
def test_a_step_leads_where_the_table_says(
    kind: str, state: State, step: Step, revision: str
) -> None:
    for take in STEPS[step]:
        scene = Scene(revision, state, kind)
        effects = take(scene)
        if step in TRANSITIONS[state]:
            assert scene.call.state in TRANSITIONS[state][step]
        else:
            assert (effects, scene.call.state) == ([], state)


@pytest.mark.parametrize("kind", REQUESTS)
@pytest.mark.parametrize("step", Step)
def test_nothing_about_a_call_is_sent_after_its_answer(step: Step, kind: str) -> None:
    for state in STATES[kind]:
        for take in STEPS[step]:
            scene = Scene(CORE, state, kind)
            if not any(isinstance(effect, Send) for effect in take(scene)):
                continue
            if scene.call.state is State.ANSWERED:
                for later in (each for steps in STEPS.values() for each in steps):
                    assert later(scene) == []
                assert scene.view.idle


def test_the_table_names_no_state_that_is_never_reached() -> None:
    reached: dict[tuple[State, Step], set[State]] = defaultdict(set)
    for state in State:
        for step, ways in STEPS.items():
            for revision in (CORE, STATELESS):
                for take in ways:
                    scene = Scene(revision, state)
                    take(scene)
                    reached[state, step].add(scene.call.state)
    # A call that starts as a task retains its run when it starts; answers to a task are a separate
    # call, which ends with the last answer; and a question that is answered by the input responses
    # may be followed by a question that is not.
    reached[State.STARTING, Step.STARTED].add(State.KEEPING)
    reached[State.STARTING, Step.OUTCOME].add(State.ANSWERED)
    reached[State.RUNNING, Step.OUTCOME].add(State.ANSWERED)
    table: Any = {(s, step): set(to) for s, row in TRANSITIONS.items() for step, to in row.items()}
    assert {key: reached[key] for key in table} == table


def test_a_call_that_starts_as_a_task_is_kept_when_its_run_starts() -> None:
    scene = Scene(CORE, State.KEEPING)
    assert outcome(scene, Busy("too many")) != []
    assert scene.call.state is State.ANSWERED


def test_every_state_and_every_step_is_in_the_table() -> None:
    assert set(TRANSITIONS) == set(State)
    assert set(STEPS) == set(Step)
    assert TRANSITIONS[State.ANSWERED] == {}
