"""Questions of a run: requests of each revision, answers, and clients without support."""

from __future__ import annotations

import re
from typing import Any

import pytest
from conftest import OpenHub
from hub_calls import happened, until
from mcp_asking import PIXEL, Asking
from mcp_peer import CAPABLE, HANDSHAKES, STATELESS, McpPeer, text_of

from mcp_view.catalogue import SPELLINGS
from mcp_view.server import McpOptions
from plexus.limits import Limits

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

FORMS = ("2025-06-18", "2025-11-25")
NEWEST = "2025-11-25"
FORMLESS = ("2024-11-05", "2025-03-26")


def accept(**content: Any) -> dict[str, Any]:
    return {"action": "accept", "content": content}


async def outcome(
    peer: McpPeer, kind: str, method: str, answer: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Ask and answer a question. Returns its parameters and the result of the call."""
    call = peer.begin_tool("asking.ask", {"kind": kind})
    request = await peer.asked(method)
    assert request.get("params") != {}
    peer.respond(request, answer)
    result = (await peer.answer_to(call))["result"]
    return request.get("params", {}), result


# --- the forms of each revision ------------------------------------------------------------------

RED_OR_BLUE = [{"const": "r", "title": "Red"}, {"const": "b", "title": "Blue"}]
PERSON = {
    "name": {"type": "string", "title": "Name", "minLength": 1, "description": "In full."},
    "age": {"type": "integer", "title": "Age"},
    "mail": {"type": "string", "title": "Mail", "format": "email"},
    "sure": {"type": "boolean", "title": "Sure", "default": True},
}

#: By kind: the fields of the form in the older and newer revisions, the required fields, the
#: content of an answer in both, and the answer that the run gets.
SHOWN: dict[str, Any] = {
    "confirm": (
        {},
        {},
        {},
        {},
        "True",
    ),
    "prompt": (
        {"answer": {"type": "string", "title": "Answer"}},
        {"answer": {"type": "string", "title": "Answer", "default": "Ada"}},
        {"answer": "Bob"},
        {"answer": "Bob"},
        "'Bob'",
    ),
    "select": (
        {"answer": {"type": "string", "title": "Answer", "enum": ["here", "there"]}},
        {
            "answer": {
                "type": "string",
                "title": "Answer",
                "enum": ["here", "there"],
                "default": "there",
            }
        },
        {"answer": "here"},
        {"answer": "here"},
        "'here'",
    ),
    "select_labelled": (
        {
            "answer": {
                "type": "string",
                "title": "Answer",
                "enum": ["r", "b"],
                "enumNames": ["Red", "Blue"],
            }
        },
        {"answer": {"type": "string", "title": "Answer", "oneOf": RED_OR_BLUE}},
        {"answer": "b"},
        {"answer": "b"},
        "'b'",
    ),
    "select_many": (
        {name: {"type": "boolean", "title": name} for name in ("x", "y", "z")},
        {
            "answer": {
                "type": "array",
                "title": "Answer",
                "items": {"type": "string", "enum": ["x", "y", "z"]},
                "default": ["y"],
            }
        },
        {"x": True, "y": False, "z": True},
        {"answer": ["x", "z"]},
        "['x', 'z']",
    ),
    "select_many_labelled": (
        {"r": {"type": "boolean", "title": "Red"}, "b": {"type": "boolean", "title": "Blue"}},
        {"answer": {"type": "array", "title": "Answer", "items": {"anyOf": RED_OR_BLUE}}},
        {"b": True},
        {"answer": ["b"]},
        "['b']",
    ),
    "form": (
        PERSON | {"colour": {"type": "string", "title": "Colour", "enum": ["red", "blue"]}},
        PERSON
        | {
            "colour": {
                "type": "string",
                "title": "Colour",
                "enum": ["red", "blue"],
                "default": "red",
            }
        },
        {"name": "Ada", "age": 36},
        {"name": "Ada", "age": 36},
        "{'name': 'Ada', 'age': 36, 'mail': None, 'sure': True, 'colour': 'red'}",
    ),
    "json_form": (
        {
            "size": {"type": "number", "minimum": 1},
            "kind": {"type": "string", "enum": ["a", "b"], "enumNames": ["Kind A", "Kind B"]},
            "path": {"type": "string"},
        },
        {
            "size": {"type": "number", "minimum": 1, "default": 2.5},
            "kind": {
                "type": "string",
                "oneOf": [{"const": "a", "title": "Kind A"}, {"const": "b", "title": "Kind B"}],
            },
            "path": {"type": "string"},
        },
        {"size": 3, "kind": "b"},
        {"size": 3, "kind": "b"},
        "{'size': 3, 'kind': 'b'}",
    ),
}
REQUIRED: dict[str, list[str]] = {"confirm": [], "form": ["name"], "json_form": ["size"]}


@pytest.mark.parametrize("kind", SHOWN)
@pytest.mark.parametrize("revision", FORMS)
async def test_a_question_for_a_person_is_a_form(
    open_hub: OpenHub, revision: str, kind: str
) -> None:
    older, newer, old_content, new_content, made = SHOWN[kind]
    rich = revision == NEWEST
    peer = McpPeer(open_hub(Asking), revision, capabilities=CAPABLE)
    content = new_content if rich else old_content
    params, result = await outcome(peer, kind, "elicitation/create", accept(**content))
    assert params["requestedSchema"]["properties"] == (newer if rich else older)
    boxes = kind.startswith("select_many") and not rich
    required = [] if boxes else REQUIRED.get(kind, ["answer"])
    assert params["requestedSchema"].get("required", []) == required
    assert params.get("mode") == ("form" if rich else None)
    assert result["content"] == [{"type": "text", "text": f"before answered {made}"}]


@pytest.mark.parametrize(
    ("answer", "made"),
    [
        ({"action": "accept"}, "True"),
        ({"action": "accept", "content": None}, "True"),
        (accept(), "True"),
        (accept(answer=True), "True"),
        (accept(answer=False), "False"),
        (accept(other=False), "True"),
        ({"action": "decline"}, "False"),
        ({"action": "decline", "content": {"answer": True}}, "False"),
    ],
)
@pytest.mark.parametrize("revision", FORMS)
async def test_accepting_means_yes_and_declining_means_no(
    open_hub: OpenHub, revision: str, answer: dict[str, Any], made: str
) -> None:
    peer = McpPeer(open_hub(Asking), revision, capabilities=CAPABLE)
    _, result = await outcome(peer, "confirm", "elicitation/create", answer)
    assert text_of(result) == f"before answered {made}"


@pytest.mark.parametrize("revision", HANDSHAKES)
async def test_a_model_is_asked_by_sampling(open_hub: OpenHub, revision: str) -> None:
    peer = McpPeer(open_hub(Asking), revision, capabilities=CAPABLE)
    sampled = {
        "role": "assistant",
        "content": {"type": "text", "text": "Hello."},
        "model": "m-1",
        "stopReason": "endTurn",
    }
    params, result = await outcome(peer, "sample", "sampling/createMessage", sampled)
    assert params == {
        "messages": [
            {"role": "user", "content": {"type": "text", "text": "Hi"}},
            {"role": "assistant", "content": {"type": "text", "text": "Yes?"}},
        ],
        "maxTokens": 50,
        "systemPrompt": "Be brief.",
    }
    made = "SampleResult(text='Hello.', model='m-1', stop_reason='endTurn')"
    assert text_of(result) == f"before answered {made}"


@pytest.mark.parametrize("revision", HANDSHAKES)
async def test_a_client_is_asked_for_its_folders(open_hub: OpenHub, revision: str) -> None:
    peer = McpPeer(open_hub(Asking), revision, capabilities={"roots": {"listChanged": True}})
    roots = {"roots": [{"uri": "file:///a", "name": "a"}, {"uri": "file:///b"}]}
    params, result = await outcome(peer, "roots", "roots/list", roots)
    assert params == {}
    assert "Root(uri='file:///a', name='a'), Root(uri='file:///b', name=None)" in text_of(result)


async def test_a_url_elicitation_has_its_own_id(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Asking), NEWEST, capabilities=CAPABLE)
    params, result = await outcome(peer, "visit", "elicitation/create", {"action": "accept"})
    number = params.pop("elicitationId")
    assert params == {
        "message": "Log in there.",
        "mode": "url",
        "url": "https://example.org/login",
    }
    assert text_of(result) == "before answered True"
    again, _ = await outcome(peer, "visit", "elicitation/create", {"action": "accept"})
    assert again["elicitationId"] != number


@pytest.mark.parametrize("elicitation", [{}, {"form": {}}])
async def test_a_client_that_names_no_mode_supports_forms(
    open_hub: OpenHub, elicitation: dict[str, Any]
) -> None:
    peer = McpPeer(open_hub(Asking), NEWEST, capabilities={"elicitation": elicitation})
    _, result = await outcome(peer, "confirm", "elicitation/create", accept(answer=True))
    assert text_of(result) == "before answered True"
    assert text_of(await peer.tool("asking.able", {"kind": "visit"})) == "false"


async def test_a_client_that_only_opens_urls_gets_no_form(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Asking), NEWEST, capabilities={"elicitation": {"url": {}}})
    assert text_of(await peer.tool("asking.able", {"kind": "visit"})) == "true"
    assert "is waiting for an answer" in text_of(await peer.tool("asking.ask", {"kind": "confirm"}))


async def test_a_method_knows_what_its_caller_can_answer(open_hub: OpenHub) -> None:
    hub = open_hub(Asking)
    for capabilities, kinds in (
        (CAPABLE, {"confirm", "form", "sample", "roots", "visit"}),
        ({"sampling": {}}, {"sample"}),
        ({"roots": {}}, {"roots"}),
        ({"sampling": None, "roots": [], "elicitation": 5}, set()),
    ):
        peer = McpPeer(hub, NEWEST, capabilities=capabilities)
        able = {
            kind
            for kind in ("confirm", "form", "sample", "roots", "visit")
            if text_of(await peer.tool("asking.able", {"kind": kind})) == "true"
        }
        assert able == kinds


async def test_several_questions_are_asked_together(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Asking), NEWEST, capabilities=CAPABLE)
    call = peer.begin_tool("asking.both")
    first = await peer.asked("elicitation/create")
    second = await peer.asked("elicitation/create")
    assert first["id"] != second["id"]
    peer.respond(second, accept(answer="Ada"))
    assert await peer.quiet() == []
    peer.respond(first, accept(answer=True))
    assert text_of((await peer.answer_to(call))["result"]) == "True Ada"


async def test_a_question_that_comes_later_does_not_repeat_the_first(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Asking), NEWEST, capabilities=CAPABLE)
    call = peer.begin_tool("asking.later")
    first = await peer.asked("elicitation/create")
    second = await peer.asked("elicitation/create")
    assert [first["params"]["message"], second["params"]["message"]] == ["Sure?", "Your name?"]
    assert await peer.quiet() == []
    peer.respond(first, accept(answer=False))
    peer.respond(second, accept(answer="Ada"))
    assert text_of((await peer.answer_to(call))["result"]) == "False Ada"


async def test_multiple_choice_is_one_field_if_the_revision_has_it(open_hub: OpenHub) -> None:
    hub = open_hub(Asking)
    peer = McpPeer(hub, NEWEST, capabilities=CAPABLE)
    call = peer.begin_tool("asking.picks")
    request = await peer.asked("elicitation/create")
    assert request["params"]["requestedSchema"]["properties"]["colours"]["items"] == {
        "type": "string",
        "enum": ["red", "blue"],
    }
    peer.respond(request, accept(colours=["blue", "red"]))
    assert text_of((await peer.answer_to(call))["result"]) == "blue,red"
    older = McpPeer(hub, "2025-06-18", capabilities=CAPABLE)
    assert instructions(await older.tool("asking.picks"))[0] == "plexus.respond"


async def test_consecutive_questions_have_different_numbers(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Asking), NEWEST, capabilities=CAPABLE)
    calls = [peer.begin_tool("asking.rounds") for _ in range(2)]
    numbers = []
    for _ in range(4):
        request = await peer.asked("elicitation/create")
        numbers.append(request["id"])
        wanted = request["params"]["requestedSchema"]["properties"]
        peer.respond(request, accept(answer="Ada") if "answer" in wanted else accept())
    assert len(set(numbers)) == 4
    for call in calls:
        assert text_of((await peer.answer_to(call))["result"]) == "one True two Ada three"


async def test_a_question_in_a_prompt_or_a_resource_is_asked_too(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Asking), NEWEST, capabilities=CAPABLE)
    call = peer.begin("prompts/get", {"name": "asking.letter"})
    peer.respond(await peer.asked("elicitation/create"), accept(answer="Ada"))
    [message] = (await peer.answer_to(call))["result"]["messages"]
    assert message["content"]["text"] == "Dear Ada"
    call = peer.begin("resources/read", {"uri": "secret://x"})
    peer.respond(await peer.asked("elicitation/create"), accept(answer=True))
    [contents] = (await peer.answer_to(call))["result"]["contents"]
    assert contents["text"] == "x: True"


async def test_a_question_of_a_call_within_a_call_is_asked(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Asking), NEWEST, capabilities=CAPABLE)
    inner = {"method": "asking.ask", "params": {"kind": "confirm"}}
    call = peer.begin_tool("plexus.call", inner)
    peer.respond(await peer.asked("elicitation/create"), accept(answer=True))
    assert "answered True" in text_of((await peer.answer_to(call))["result"])


# --- answers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "action", "question"),
    [
        ("confirm", "cancel", "Sure?"),
        ("prompt", "decline", "Your name?"),
        ("prompt", "cancel", "Your name?"),
        ("select", "decline", "Which?"),
    ],
)
@pytest.mark.parametrize("revision", FORMS)
async def test_a_person_may_decline(
    open_hub: OpenHub, revision: str, kind: str, action: str, question: str
) -> None:
    peer = McpPeer(open_hub(Asking), revision, capabilities=CAPABLE)
    _, result = await outcome(peer, kind, "elicitation/create", {"action": action})
    assert text_of(result) == f"before refused: declined: {question}"
    assert result["isError"] is False


@pytest.mark.parametrize(
    "answer",
    [
        None,
        5,
        [],
        {},
        {"action": "maybe"},
        {"action": "accept", "content": [True]},
        {"action": "accept", "content": True},
        accept(answer="yes"),
        accept(answer=None, other=1),
    ],
)
async def test_an_invalid_answer_declines_the_question(open_hub: OpenHub, answer: Any) -> None:
    peer = McpPeer(open_hub(Asking), NEWEST, capabilities=CAPABLE)
    _, result = await outcome(peer, "confirm", "elicitation/create", answer)
    assert text_of(result).startswith("before refused: ")


@pytest.mark.parametrize(
    ("kind", "method", "answer"),
    [
        ("sample", "sampling/createMessage", {}),
        ("sample", "sampling/createMessage", {"content": 5}),
        ("sample", "sampling/createMessage", "text"),
        ("roots", "roots/list", {"roots": 5}),
        ("roots", "roots/list", {"roots": [{"name": "no uri"}]}),
        ("roots", "roots/list", []),
        ("form", "elicitation/create", accept(age=5)),
        ("select", "elicitation/create", accept(answer="nowhere")),
        ("select_many", "elicitation/create", accept(answer=["w"])),
        ("visit", "elicitation/create", {}),
    ],
)
async def test_a_malformed_answer_of_any_kind_declines_the_question(
    open_hub: OpenHub, kind: str, method: str, answer: Any
) -> None:
    peer = McpPeer(open_hub(Asking), NEWEST, capabilities=CAPABLE)
    _, result = await outcome(peer, kind, method, answer)
    assert text_of(result).startswith("before refused: Invalid answer: ")


@pytest.mark.parametrize(
    "error", [{"code": -1, "message": "User rejected sampling request"}, {"code": -32601}, {}]
)
async def test_a_client_may_answer_with_an_error(open_hub: OpenHub, error: dict[str, Any]) -> None:
    peer = McpPeer(open_hub(Asking), NEWEST, capabilities=CAPABLE)
    call = peer.begin_tool("asking.ask", {"kind": "sample"})
    request = await peer.asked("sampling/createMessage")
    peer.send({"id": request["id"], "error": error})
    reason = error.get("message", "no reason was given")
    result = (await peer.answer_to(call))["result"]
    assert text_of(result) == f"before refused: The client could not answer the question: {reason}"


@pytest.mark.parametrize("answer", [accept(answer=True), {"action": "maybe"}, None])
async def test_a_late_answer_is_ignored(open_hub: OpenHub, answer: Any) -> None:
    peer = McpPeer(open_hub(Asking), NEWEST, capabilities=CAPABLE)
    call = peer.begin_tool("asking.patient")
    request = await peer.asked("elicitation/create")
    [run] = [run for run in peer.hub.runs.running() if run.method == "asking.patient"]
    await until(lambda: not run.questions)
    if answer is None:
        peer.send({"id": request["id"], "error": {"code": -1, "message": "too late"}})
    else:
        peer.respond(request, answer)
    assert text_of((await peer.answer_to(call))["result"]) == "no answer; continued"
    peer.respond(request, accept(answer=True))
    assert await peer.quiet() == []


async def test_an_unanswered_question_ends_the_run(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Asking), NEWEST, capabilities=CAPABLE)
    call = peer.begin_tool("asking.ask", {"kind": "confirm", "timeout_s": 0.05})
    request = await peer.asked("elicitation/create")
    result = (await peer.answer_to(call))["result"]
    assert result["isError"] is True
    assert "No answer within 0.05 s" in text_of(result)
    assert peer.notifications("notifications/cancelled") == [
        {"requestId": request["id"], "reason": "The answer is no longer needed."}
    ]
    withdrawn, answer = peer.frames[-2:]
    assert (withdrawn["method"], answer["id"]) == ("notifications/cancelled", call)


@pytest.mark.parametrize("method", ["prompts/get", "resources/read"])
async def test_a_question_is_withdrawn_when_the_run_ends_first(
    open_hub: OpenHub, method: str
) -> None:
    peer = McpPeer(open_hub(Asking), NEWEST, capabilities=CAPABLE)
    call = peer.begin(method, {"name": "asking.letter", "uri": "secret://x"})
    request = await peer.asked("elicitation/create")
    peer.hub.runs.cancel_all("enough")
    assert "error" in await peer.answer_to(call)
    [withdrawn] = peer.notifications("notifications/cancelled")
    assert withdrawn["requestId"] == request["id"]


async def test_a_cancelled_call_is_not_answered_when_its_question_is(open_hub: OpenHub) -> None:
    asking = Asking()
    peer = McpPeer(open_hub(asking), NEWEST, capabilities=CAPABLE)
    call = peer.begin_tool("asking.ask", {"kind": "confirm"})
    request = await peer.asked("elicitation/create")
    [withdrawn] = peer.notify("notifications/cancelled", {"requestId": call})
    assert withdrawn["method"] == "notifications/cancelled"
    assert withdrawn["params"]["requestId"] == request["id"]
    await happened(asking.ended)
    peer.respond(request, accept(answer=True))
    await peer.quiet()
    assert [frame for frame in peer.frames if frame.get("id") == call] == []
    assert asking.answered == 0


# --- clients without support ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sample", "roots", "visit"])
@pytest.mark.parametrize("revision", HANDSHAKES)
async def test_a_missing_capability_is_a_failure_that_names_it(
    open_hub: OpenHub, revision: str, kind: str
) -> None:
    result = await McpPeer(open_hub(Asking), revision).tool("asking.ask", {"kind": kind})
    assert result["isError"] is True
    assert f"questions of the kind {kind!r}" in text_of(result)


def instructions(result: dict[str, Any]) -> tuple[str, int, str, int]:
    """Return the instructions in a result: the tool, the run, the request, and the last item."""
    found = re.search(
        r'the tool (\S+) with run (\d+), request "(\w+)".*?after (\d+) to read',
        text_of(result),
        re.S,
    )
    assert found is not None, result
    return found[1], int(found[2]), found[3], int(found[4])


@pytest.mark.parametrize(
    ("revision", "capabilities"),
    [(revision, {}) for revision in HANDSHAKES] + [(revision, CAPABLE) for revision in FORMLESS],
)
async def test_a_client_without_forms_is_asked_in_text_and_answers_by_a_tool(
    open_hub: OpenHub, revision: str, capabilities: dict[str, Any]
) -> None:
    asking = Asking()
    peer = McpPeer(open_hub(asking), revision, capabilities=capabilities)
    result = await peer.tool("asking.ask", {"kind": "select"})
    assert result["isError"] is False
    output, words = (block["text"] for block in result["content"])
    assert output == "before "
    assert "Question: Which?" in words
    assert '"enum":["here","there"]' in words
    assert "plexus.attach" in words
    tool, run, request, after = instructions(result)
    assert tool == "plexus.respond"
    arguments = {"run": run, "request": request, "answer": "there"}
    assert text_of(await peer.tool("plexus.respond", arguments)) == "true"
    rest = await peer.tool("plexus.attach", {"run": run, "after": after})
    assert text_of(rest) == "answered 'there'"
    assert asking.started == 1


async def test_instructions_name_tools_as_they_are_listed(open_hub: OpenHub) -> None:
    options = McpOptions(names=SPELLINGS["underscore"])
    peer = McpPeer(open_hub(Asking), NEWEST, options=options)
    result = await peer.tool("asking_ask", {"kind": "confirm"})
    assert instructions(result)[0] == "plexus_respond"
    assert "plexus_attach" in text_of(result)


async def test_a_form_that_is_not_flat_is_asked_in_text(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Asking), NEWEST, capabilities=CAPABLE)
    _, run, request, after = instructions(await peer.tool("asking.ask", {"kind": "nested"}))
    person = {"inner": {"name": "Ada"}}
    await peer.tool("plexus.respond", {"run": run, "request": request, "answer": person})
    rest = await peer.tool("plexus.attach", {"run": run, "after": after})
    assert "'name': 'Ada'" in text_of(rest)


async def test_questions_that_are_asked_in_text_are_not_asked_twice(open_hub: OpenHub) -> None:
    """The first is shown as a form; the second has no form, so both are asked in text."""
    peer = McpPeer(open_hub(Asking), NEWEST, capabilities=CAPABLE)
    call = peer.begin_tool("asking.later", {"second": "nested"})
    request = await peer.asked("elicitation/create")
    words = text_of((await peer.answer_to(call))["result"])
    assert "Question: Sure?" in words
    assert "Question: What?" in words
    [withdrawn] = peer.notifications("notifications/cancelled")
    assert withdrawn["requestId"] == request["id"]


async def test_a_question_in_text_can_be_declined(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Asking), NEWEST)
    _, run, request, after = instructions(await peer.tool("asking.ask", {"kind": "confirm"}))
    await peer.tool("plexus.respond", {"run": run, "request": request, "answer": None})
    rest = await peer.tool("plexus.attach", {"run": run, "after": after})
    assert text_of(rest) == "refused: declined: Sure?"


async def test_an_invalid_answer_by_a_tool_leaves_the_question_open(
    open_hub: OpenHub,
) -> None:
    peer = McpPeer(open_hub(Asking), NEWEST)
    _, run, request, _ = instructions(await peer.tool("asking.ask", {"kind": "confirm"}))
    arguments = {"run": run, "request": request, "answer": "perhaps"}
    result = await peer.tool("plexus.respond", arguments)
    assert result["isError"] is True
    result = await peer.tool("plexus.respond", arguments | {"answer": False})
    assert text_of(result) == "true"


async def test_a_run_that_was_answered_by_a_tool_is_not_blocked_by_its_output(
    open_hub: OpenHub,
) -> None:
    """No client reads it meanwhile, and it must not wait for the caller, which was answered."""
    hub = open_hub(Asking, limits=Limits(high_water_bytes=50_000))
    peer = McpPeer(hub, NEWEST, options=McpOptions(result_chars=1_000_000))
    _, run, request, after = instructions(await peer.tool("asking.loud", {"size": 300}))
    await peer.tool("plexus.respond", {"run": run, "request": request, "answer": True})
    await until(lambda: hub.runs.find(run, peer.view.peer.principal).terminal is not None)
    rest = await peer.tool("plexus.attach", {"run": run, "after": after})
    assert text_of(rest) == "a" * 300_000 + "end"


async def test_instructions_follow_the_output_so_far(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Asking), NEWEST, options=McpOptions(result_chars=1000))
    result = await peer.tool("asking.loud", {"size": 3})
    output, image, link, words = result["content"]
    _, run, _, _ = instructions(result)
    assert f"[... 2000 characters omitted; full output: run://{run} ...]" in output["text"]
    assert image == {"type": "image", "data": PIXEL, "mimeType": "image/png"}
    assert link["uri"] == f"run://{run}"
    assert "is waiting for an answer" in words["text"]


@pytest.mark.parametrize("revision", HANDSHAKES)
async def test_instructions_instead_of_an_object_are_a_failed_result(
    open_hub: OpenHub, revision: str
) -> None:
    """A tool with an output schema returns a matching value or fails; clients check that."""
    result = await McpPeer(open_hub(Asking), revision).tool("asking.model")
    assert "structuredContent" not in result
    assert result["isError"] is (revision >= "2025-06-18")
    assert "plexus.respond" in text_of(result)


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_prompt_that_cannot_ask_its_client_is_refused_with_instructions(
    open_hub: OpenHub, streaming: bool
) -> None:
    capabilities = {} if streaming else CAPABLE
    peer = McpPeer(open_hub(Asking), NEWEST, capabilities=capabilities, streaming=streaming)
    error = await peer.error("prompts/get", {"name": "asking.letter"})
    assert error["code"] == -32603
    assert "plexus.respond" in error["message"]


async def test_a_connection_for_answers_only_asks_in_text(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Asking), NEWEST, capabilities=CAPABLE, streaming=False)
    result = await peer.tool("asking.ask", {"kind": "confirm"})
    assert instructions(result)[0] == "plexus.respond"
    result = await peer.tool("asking.ask", {"kind": "sample"})
    assert result["isError"] is True


async def test_an_unanswered_question_in_text_ends_its_run(open_hub: OpenHub) -> None:
    asking = Asking()
    peer = McpPeer(open_hub(asking), NEWEST)
    _, run, request, after = instructions(
        await peer.tool("asking.ask", {"kind": "confirm", "timeout_s": 0.05})
    )
    await happened(asking.ended)
    result = await peer.tool("plexus.attach", {"run": run, "after": after})
    assert "No answer within" in text_of(result)
    late = {"run": run, "request": request, "answer": True}
    assert (await peer.tool("plexus.respond", late))["isError"] is True


async def test_a_stateless_client_without_forms_is_asked_in_text_too(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Asking), STATELESS)
    _, run, request, after = instructions(await peer.tool("asking.ask", {"kind": "prompt"}))
    await peer.tool("plexus.respond", {"run": run, "request": request, "answer": "Ada"})
    rest = await peer.tool("plexus.attach", {"run": run, "after": after})
    assert text_of(rest) == "answered 'Ada'"
