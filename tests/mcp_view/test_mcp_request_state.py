"""Questions to stateless clients: a result, after which the client repeats its request."""

from __future__ import annotations

import base64
import time
from typing import Any

import pytest
from conftest import OpenHub
from hub_calls import OTHER, happened, until
from hypothesis import given
from hypothesis import strategies as st
from mcp_asking import PIXEL, Asking
from mcp_peer import CAPABLE, STATELESS, Clock, McpPeer, make_server, text_of

from mcp_view.elicitation import RequestState, open_state, seal_state
from mcp_view.server import McpServer
from plexus import InvalidParams, Plexus
from plexus.limits import Limits

anyio = pytest.mark.anyio
pytestmark = pytest.mark.timeout(30)

SECRET = b"k" * 32
STATE = RequestState(2**53 - 1, 7, 2, "d" * 32, 1000)


def accept(**content: Any) -> dict[str, Any]:
    return {"action": "accept", "content": content}


def peer_of(hub: Plexus, **more: Any) -> McpPeer:
    return McpPeer(hub, STATELESS, **({"capabilities": CAPABLE} | more))


async def call(peer: McpPeer, tool: str, arguments: Any = None, **more: Any) -> dict[str, Any]:
    """Call a tool with additional parameters. Returns its result."""
    params = {"name": tool, "arguments": arguments or {}} | more
    result: dict[str, Any] = await peer.result("tools/call", params)
    return result


async def refused(peer: McpPeer, tool: str, arguments: Any = None, **more: Any) -> dict[str, Any]:
    params = {"name": tool, "arguments": arguments or {}} | more
    error: dict[str, Any] = await peer.error("tools/call", params)
    assert peer.status == 400
    return error


# --- request state -------------------------------------------------------------------------------


def test_a_state_is_read_as_it_was_written() -> None:
    assert open_state(seal_state(STATE, SECRET), SECRET, 1000) == STATE


def test_a_state_is_safe_in_urls_and_headers() -> None:
    sealed = seal_state(STATE, SECRET)
    assert sealed.isascii()
    assert not {*sealed} & {*"+/ \n"}


def test_a_state_is_valid_until_its_expiry() -> None:
    with pytest.raises(InvalidParams, match="expired"):
        open_state(seal_state(STATE, SECRET), SECRET, 1001)


def test_a_state_of_another_server_is_refused() -> None:
    with pytest.raises(InvalidParams, match="requestState is invalid"):
        open_state(seal_state(STATE, b"x" * 32), SECRET, 0)


@given(st.data())
def test_a_state_that_was_changed_anywhere_is_refused(data: st.DataObject) -> None:
    sealed = base64.urlsafe_b64decode(seal_state(STATE, SECRET))
    place = data.draw(st.integers(0, len(sealed) - 1))
    changed = bytearray(sealed)
    changed[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(InvalidParams):
        open_state(base64.urlsafe_b64encode(changed).decode(), SECRET, 0)


@given(st.one_of(st.text(), st.none(), st.integers(), st.lists(st.text())))
def test_anything_else_is_refused(text: Any) -> None:
    with pytest.raises(InvalidParams):
        open_state(text, SECRET, 0)


# --- questions -----------------------------------------------------------------------------------


@anyio
@pytest.mark.parametrize(
    ("kind", "method", "answer", "made"),
    [
        ("confirm", "elicitation/create", accept(answer=True), "True"),
        ("prompt", "elicitation/create", accept(answer="Bob"), "'Bob'"),
        ("select", "elicitation/create", accept(answer="here"), "'here'"),
        ("select_labelled", "elicitation/create", accept(answer="r"), "'r'"),
        ("select_many", "elicitation/create", accept(answer=["x"]), "['x']"),
        ("select_many_labelled", "elicitation/create", accept(answer=["b"]), "['b']"),
        ("json_form", "elicitation/create", accept(size=1), "{'size': 1}"),
        ("visit", "elicitation/create", {"action": "accept"}, "True"),
        (
            "sample",
            "sampling/createMessage",
            {"role": "assistant", "content": {"type": "text", "text": "Hi"}, "model": "m"},
            "SampleResult(text='Hi', model='m', stop_reason=None)",
        ),
        (
            "roots",
            "roots/list",
            {"roots": [{"uri": "file:///a"}]},
            "[Root(uri='file:///a', name=None)]",
        ),
    ],
)
async def test_a_question_is_a_result_and_its_answer_another_request(
    open_hub: OpenHub, kind: str, method: str, answer: Any, made: str
) -> None:
    asking = Asking()
    peer = peer_of(open_hub(asking))
    wanting = await call(peer, "asking.ask", {"kind": kind})
    assert wanting["resultType"] == "input_required"
    assert set(wanting) == {"resultType", "inputRequests", "requestState", "_meta"}
    [(key, request)] = wanting["inputRequests"].items()
    assert request["method"] == method
    assert "elicitationId" not in request.get("params", {})
    assert peer.view.idle
    done = await call(
        peer,
        "asking.ask",
        {"kind": kind},
        inputResponses={key: answer},
        requestState=wanting["requestState"],
    )
    assert done["resultType"] == "complete"
    # The output before the question is part of the result.
    assert text_of(done) == f"before answered {made}"
    assert asking.started == 1


@anyio
async def test_a_key_of_the_author_names_the_question(open_hub: OpenHub) -> None:
    peer = peer_of(open_hub(Asking))
    wanting = await call(peer, "asking.ask", {"kind": "confirm", "key": "sure"})
    assert list(wanting["inputRequests"]) == ["sure"]


@anyio
async def test_several_questions_are_sent_in_one_result(open_hub: OpenHub) -> None:
    peer = peer_of(open_hub(Asking))
    wanting = await call(peer, "asking.both")
    assert set(wanting["inputRequests"]) == {"sure", "name"}
    answers = {"sure": accept(answer=True), "name": accept(answer="Ada")}
    state = wanting["requestState"]
    done = await call(peer, "asking.both", inputResponses=answers, requestState=state)
    assert text_of(done) == "True Ada"


@anyio
async def test_only_open_questions_are_asked_again(open_hub: OpenHub) -> None:
    peer = peer_of(open_hub(Asking))
    state = (await call(peer, "asking.both"))["requestState"]
    first = {"sure": accept(answer=True)}
    wanting = await call(peer, "asking.both", inputResponses=first, requestState=state)
    assert set(wanting["inputRequests"]) == {"name"}
    second = {"name": accept(answer="Ada")}
    state = wanting["requestState"]
    done = await call(peer, "asking.both", inputResponses=second, requestState=state)
    assert text_of(done) == "True Ada"


@anyio
async def test_one_round_follows_another(open_hub: OpenHub) -> None:
    asking = Asking()
    peer = peer_of(open_hub(asking))
    first = await call(peer, "asking.rounds")
    [key] = first["inputRequests"]
    second = await call(
        peer,
        "asking.rounds",
        inputResponses={key: accept(answer=True)},
        requestState=first["requestState"],
    )
    assert second["resultType"] == "input_required"
    [key] = second["inputRequests"]
    done = await call(
        peer,
        "asking.rounds",
        inputResponses={key: accept(answer="Ada")},
        requestState=second["requestState"],
    )
    assert text_of(done) == "one True two Ada three"
    assert asking.started == 1


@anyio
@pytest.mark.parametrize(
    ("method", "params", "answer", "found"),
    [
        ("prompts/get", {"name": "asking.letter"}, "Ada", "Dear Ada"),
        ("resources/read", {"uri": "secret://x"}, True, "x: True"),
    ],
)
async def test_prompts_and_resources_ask_in_the_same_way(
    open_hub: OpenHub, method: str, params: dict[str, Any], answer: Any, found: str
) -> None:
    peer = peer_of(open_hub(Asking))
    wanting = await peer.result(method, params)
    assert wanting["resultType"] == "input_required"
    [key] = wanting["inputRequests"]
    more = {
        "inputResponses": {key: accept(answer=answer)},
        "requestState": wanting["requestState"],
    }
    done = await peer.result(method, params | more)
    assert done["resultType"] == "complete"
    assert found in str(done)


@anyio
@pytest.mark.parametrize(
    ("action", "made"),
    [
        ("accept", "answered True"),
        ("decline", "answered False"),
        ("cancel", "refused: declined: Sure?"),
    ],
)
async def test_each_action_answers_a_confirm(open_hub: OpenHub, action: str, made: str) -> None:
    peer = peer_of(open_hub(Asking))
    wanting = await call(peer, "asking.ask", {"kind": "confirm"})
    [key] = wanting["inputRequests"]
    done = await call(
        peer,
        "asking.ask",
        {"kind": "confirm"},
        inputResponses={key: {"action": action}},
        requestState=wanting["requestState"],
    )
    assert text_of(done) == f"before {made}"


@anyio
@pytest.mark.parametrize(
    "answers",
    [
        {},
        {"other": accept(answer=True)},
        {"1": None},
        {"1": 5},
        {"1": {"action": "maybe"}},
        {"1": accept(answer="yes")},
        {"1": {"action": "accept", "content": 5}},
    ],
)
async def test_missing_and_malformed_answers_are_asked_for_again(
    open_hub: OpenHub, answers: dict[str, Any]
) -> None:
    asking = Asking()
    peer = peer_of(open_hub(asking))
    arguments = {"kind": "confirm"}
    first = await call(peer, "asking.ask", arguments)
    again = await call(
        peer,
        "asking.ask",
        arguments,
        inputResponses=answers,
        requestState=first["requestState"],
    )
    assert again["resultType"] == "input_required"
    assert again["inputRequests"] == first["inputRequests"]
    done = await call(
        peer,
        "asking.ask",
        arguments,
        inputResponses={"1": accept(answer=False)},
        requestState=again["requestState"],
    )
    assert text_of(done) == "before answered False"
    assert asking.started == 1


@anyio
@pytest.mark.parametrize("answers", [None, 5, [], "x"])
async def test_answers_that_are_no_object_are_refused(open_hub: OpenHub, answers: Any) -> None:
    asking = Asking()
    peer = peer_of(open_hub(asking))
    error = await refused(peer, "asking.ask", {"kind": "confirm"}, inputResponses=answers)
    assert error["code"] == -32602
    assert asking.started == 0


@anyio
async def test_answers_may_come_with_the_first_request(open_hub: OpenHub) -> None:
    asking = Asking()
    peer = peer_of(open_hub(asking))
    arguments = {"kind": "confirm", "key": "sure"}
    answers = {"sure": accept(answer=True), "other": accept(answer=1)}
    done = await call(peer, "asking.ask", arguments, inputResponses=answers)
    assert text_of(done) == "before answered True"
    done = await call(peer, "asking.ask", arguments, inputResponses=answers, requestState=None)
    assert done["resultType"] == "complete"


@anyio
async def test_an_answer_is_used_once(open_hub: OpenHub) -> None:
    """A question that is asked again with the same key is a new question."""
    peer = peer_of(open_hub(Asking))
    first = await call(peer, "asking.again")
    no = {"word": accept(answer="no")}
    second = await call(peer, "asking.again", inputResponses=no, requestState=first["requestState"])
    assert second["resultType"] == "input_required"
    yes = {"word": accept(answer="yes")}
    done = await call(peer, "asking.again", inputResponses=yes, requestState=second["requestState"])
    assert text_of(done) == "after 2"


@anyio
async def test_a_repeated_answer_does_not_answer_the_next_question(
    open_hub: OpenHub,
) -> None:
    """The response with the second question was lost, so the client repeats its first answer."""
    peer = peer_of(open_hub(Asking))
    first = await call(peer, "asking.again")
    more = {
        "inputResponses": {"word": accept(answer="no")},
        "requestState": first["requestState"],
    }
    await call(peer, "asking.again", **more)
    again = await call(peer, "asking.again", **more)
    assert again["resultType"] == "input_required"
    yes = {"word": accept(answer="yes")}
    done = await call(peer, "asking.again", inputResponses=yes, requestState=again["requestState"])
    assert text_of(done) == "after 2"


@anyio
async def test_a_lost_answer_is_sent_again_and_nothing_runs_twice(
    open_hub: OpenHub,
) -> None:
    asking = Asking()
    peer = peer_of(open_hub(asking))
    wanting = await call(peer, "asking.ask", {"kind": "confirm"})
    more = {
        "inputResponses": {"1": accept(answer=True)},
        "requestState": wanting["requestState"],
    }
    done = await call(peer, "asking.ask", {"kind": "confirm"}, **more)
    again = await call(peer, "asking.ask", {"kind": "confirm"}, **more)
    assert again == done
    assert (asking.started, asking.answered) == (1, 1)


@anyio
async def test_pictures_and_much_text_before_the_question_are_in_the_result(
    open_hub: OpenHub,
) -> None:
    peer = peer_of(open_hub(Asking))
    wanting = await call(peer, "asking.loud", {"size": 400})
    more = {
        "inputResponses": {"1": accept(answer=True)},
        "requestState": wanting["requestState"],
    }
    done = await call(peer, "asking.loud", {"size": 400}, **more)
    output, image, link = done["content"]
    assert output["text"].startswith("b" * 24_000)
    assert output["text"].endswith("a" * 23_997 + "end")
    assert f"[... {800_003 - 48_000} characters omitted" in output["text"]
    assert image["data"] == PIXEL
    assert link["type"] == "resource_link"


@anyio
async def test_progress_is_sent_for_new_items_only(open_hub: OpenHub) -> None:
    peer = peer_of(open_hub(Asking))
    params = {"name": "asking.ask", "arguments": {"kind": "confirm"}}
    wanting = await peer.result("tools/call", params, progressToken=1)
    more = {
        "inputResponses": {"1": accept(answer=True)},
        "requestState": wanting["requestState"],
    }
    await peer.result("tools/call", params | more, progressToken=2)
    progress = [
        (each["progressToken"], each["message"])
        for each in peer.notifications("notifications/progress")
    ]
    assert progress[0] == (1, "before \nAsks: Sure?")
    assert [message for token, message in progress if token == 2] == ["answered True"]


@anyio
async def test_a_call_that_is_cancelled_after_the_answer_stops_the_run(open_hub: OpenHub) -> None:
    asking = Asking()
    peer = peer_of(open_hub(asking))
    wanting = await call(peer, "asking.stuck")
    answers = {"1": accept(answer=True)}
    params = {"name": "asking.stuck", "arguments": {}, "inputResponses": answers}
    again = peer.begin("tools/call", params | {"requestState": wanting["requestState"]})
    await peer.quiet()
    assert not asking.ended.is_set()
    peer.notify("notifications/cancelled", {"requestId": again})
    await happened(asking.ended)
    assert await peer.quiet() == []


# --- invalid states ------------------------------------------------------------------------------


@anyio
@pytest.mark.parametrize("state", ["", "garbage", "AAAA", 5, {}, [1], True])
async def test_a_forged_state_is_refused(open_hub: OpenHub, state: Any) -> None:
    asking = Asking()
    error = await refused(
        peer_of(open_hub(asking)), "asking.ask", {"kind": "confirm"}, requestState=state
    )
    assert error == {"code": -32602, "message": "requestState is invalid."}
    assert asking.started == 0


@anyio
async def test_a_state_is_valid_for_its_request_only(open_hub: OpenHub) -> None:
    peer = peer_of(open_hub(Asking))
    wanting = await call(peer, "asking.ask", {"kind": "confirm"})
    state = wanting["requestState"]
    for tool, arguments in (
        ("asking.ask", {"kind": "prompt"}),
        ("asking.ask", {"kind": "confirm", "timeout_s": 1}),
        ("asking.rounds", {}),
    ):
        error = await refused(peer, tool, arguments, requestState=state)
        assert error["message"] == "requestState belongs to another request."
    error = await peer.error("prompts/get", {"name": "asking.letter", "requestState": state})
    assert error["code"] == -32602
    # The order of arguments and the spelling of the tool do not matter.
    answers = {"1": accept(answer=True)}
    done = await call(
        peer, "asking_ask", {"kind": "confirm"}, inputResponses=answers, requestState=state
    )
    assert done["resultType"] == "complete"


@anyio
async def test_a_state_of_another_principal_is_refused(open_hub: OpenHub) -> None:
    hub = open_hub(Asking)
    server = make_server(hub)
    mine = peer_of(hub, server=server)
    theirs = peer_of(hub, server=server, principal=OTHER)
    wanting = await call(mine, "asking.ask", {"kind": "confirm"})
    more = {
        "inputResponses": {"1": accept(answer=True)},
        "requestState": wanting["requestState"],
    }
    error = await refused(theirs, "asking.ask", {"kind": "confirm"}, **more)
    assert error["code"] == -32602
    assert (
        error["message"]
        == "The run of this requestState no longer exists. Repeat the request without it."
    )
    assert (await call(mine, "asking.ask", {"kind": "confirm"}, **more))["isError"] is False


@anyio
async def test_any_connection_of_the_same_principal_may_resume(open_hub: OpenHub) -> None:
    hub = open_hub(Asking)
    server = make_server(hub)
    wanting = await call(peer_of(hub, server=server), "asking.ask", {"kind": "confirm"})
    more = {
        "inputResponses": {"1": accept(answer=True)},
        "requestState": wanting["requestState"],
    }
    done = await call(peer_of(hub, server=server), "asking.ask", {"kind": "confirm"}, **more)
    assert text_of(done) == "before answered True"


@anyio
async def test_a_state_expires_with_its_question(open_hub: OpenHub) -> None:
    wall = Clock()
    hub = open_hub(Asking)
    server = McpServer(hub, secret=SECRET, monotonic=time.monotonic, wall=wall)
    peer = peer_of(hub, server=server)
    wanting = await call(peer, "asking.ask", {"kind": "confirm"})
    more = {
        "inputResponses": {"1": accept(answer=True)},
        "requestState": wanting["requestState"],
    }
    wall.now += 62
    error = await refused(peer, "asking.ask", {"kind": "confirm"}, **more)
    assert error["message"] == "requestState has expired. Repeat the request without it."
    wall.now -= 3
    assert "content" in await call(peer, "asking.ask", {"kind": "confirm"}, **more)


@anyio
async def test_a_suspended_run_ends_without_an_answer(open_hub: OpenHub) -> None:
    asking = Asking()
    peer = peer_of(open_hub(asking))
    arguments = {"kind": "confirm", "timeout_s": 0.05}
    wanting = await call(peer, "asking.ask", arguments)
    await happened(asking.ended)
    assert not peer.hub.runs.running()
    # A client that returns before the state expires gets the outcome.
    late = await call(
        peer,
        "asking.ask",
        arguments,
        inputResponses={"1": accept(answer=True)},
        requestState=wanting["requestState"],
    )
    assert late["isError"] is True
    assert "No answer within" in text_of(late)


@anyio
async def test_a_suspended_run_that_no_longer_exists_is_refused(open_hub: OpenHub) -> None:
    hub = open_hub(Asking, limits=Limits(finished_runs=0))
    peer = peer_of(hub)
    wanting = await call(peer, "asking.ask", {"kind": "confirm"})
    hub.runs.cancel_all("enough")
    await until(lambda: not hub.runs.running())
    state = wanting["requestState"]
    error = await refused(peer, "asking.ask", {"kind": "confirm"}, requestState=state)
    assert (
        error["message"]
        == "The run of this requestState no longer exists. Repeat the request without it."
    )


@anyio
async def test_a_suspended_run_does_not_end_with_its_connection(open_hub: OpenHub) -> None:
    hub = open_hub(Asking)
    server = make_server(hub)
    first = peer_of(hub, server=server)
    wanting = await call(first, "asking.ask", {"kind": "confirm"})
    first.connection.lost()
    more = {
        "inputResponses": {"1": accept(answer=True)},
        "requestState": wanting["requestState"],
    }
    done = await call(peer_of(hub, server=server), "asking.ask", {"kind": "confirm"}, **more)
    assert text_of(done) == "before answered True"


# --- clients without support ---------------------------------------------------------------------


@anyio
@pytest.mark.parametrize(
    ("kind", "required"),
    [
        ("sample", {"sampling": {}}),
        ("roots", {"roots": {}}),
        ("visit", {"elicitation": {"url": {}}}),
    ],
)
async def test_a_capability_that_is_missing_is_named(
    open_hub: OpenHub, kind: str, required: dict[str, Any]
) -> None:
    peer = peer_of(open_hub(Asking), capabilities={})
    error = await refused(peer, "asking.ask", {"kind": kind})
    assert error["code"] == -32021
    assert error["data"] == {"requiredCapabilities": required}


@anyio
async def test_a_capability_that_a_prompt_lacks_is_named_too(open_hub: OpenHub) -> None:
    peer = peer_of(open_hub(Asking), capabilities={})
    error = await peer.error("prompts/get", {"name": "asking.needy"})
    assert error["code"] == -32021
    assert error["data"] == {"requiredCapabilities": {"sampling": {}}}


@anyio
async def test_a_failure_of_the_same_name_is_no_missing_capability(open_hub: OpenHub) -> None:
    result = await call(peer_of(open_hub(Asking)), "asking.unwilling")
    assert result["isError"] is True
    assert text_of(result) == "not here"


@anyio
async def test_older_revisions_have_no_request_states(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Asking), "2025-11-25", capabilities=CAPABLE)
    params = {"name": "asking.ask", "arguments": {"kind": "confirm"}, "requestState": "x"}
    again = peer.begin("tools/call", params | {"inputResponses": {"1": accept(answer=False)}})
    peer.respond(await peer.asked("elicitation/create"), accept(answer=True))
    assert text_of((await peer.answer_to(again))["result"]) == "before answered True"
