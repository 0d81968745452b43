"""Five revisions over four transports: everything a client can ask for, in each of the cells.

A cell is one session with the conformance fixture, over a real process or a real socket. Whatever
the server sends in any of them is held against the official schema, if that is at hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from conformance.serving import COMMAND, serving
from mcp_schema import REVISIONS, STATELESS, needs_schemas
from mcp_speaking import META, Peer, speaking
from mcp_wires import PairWire, SocketWire, StdioWire, StreamableWire, Wire

LEGACY = [revision for revision in REVISIONS if revision != STATELESS]
WIRES: dict[str, Callable[[int], Wire]] = {
    "stdio": lambda _: StdioWire([*COMMAND, "--stdio"]),
    "streamable": StreamableWire,
    "pair": PairWire,
    "websocket": SocketWire,
}
#: The pair of routes is older than the revision without a handshake, and does not speak it.
CELLS = [
    (revision, wire)
    for revision in REVISIONS
    for wire in WIRES
    if (revision, wire) != (STATELESS, "pair")
]
WATCHED = "test://watched-resource"
TEXT = "test://static-text"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Where one server listens for all cells that need a network."""
    with serving() as address:
        port = urlsplit(address).port
        assert port is not None
        yield port


@pytest.fixture(scope="module", params=CELLS, ids="-".join)
def peer(request: pytest.FixtureRequest, port: int) -> Iterator[Peer]:
    """The client of one cell."""
    revision, wire = request.param
    with speaking(WIRES[wire](port), revision) as peer:
        yield peer


# --- what there is ---------------------------------------------------------------------------


def test_a_session_begins_with_what_the_server_can_do(peer: Peer) -> None:
    if peer.revision == STATELESS:
        assert peer.settled["supportedVersions"] == list(reversed(REVISIONS))
    else:
        assert peer.settled["protocolVersion"] == peer.revision
        assert peer.settled["serverInfo"]["name"] == "conformance-fixture"
    capabilities = peer.settled["capabilities"]
    assert {"tools", "resources", "prompts", "logging"} <= set(capabilities)
    assert ("completions" in capabilities) == (peer.revision >= "2025-03-26")
    assert ("extensions" in capabilities) == (peer.revision == STATELESS)


def test_tools_are_listed(peer: Peer) -> None:
    tools = {tool["name"]: tool for tool in peer.result("tools/list")["tools"]}
    assert {"test_simple_text", "wait_for_cancel", "plexus.respond"} <= set(tools)
    tool = tools["greet"]
    assert tool["inputSchema"]["properties"]["name"]["type"] == "string"
    assert ("annotations" in tools["test_simple_text"]) == (peer.revision >= "2025-03-26")


def test_ping_is_answered_where_there_is_one(peer: Peer) -> None:
    if peer.revision == STATELESS:
        assert peer.error("ping")["code"] == -32601
    else:
        assert peer.result("ping") == {}


def test_a_method_that_is_not_there_is_refused(peer: Peer) -> None:
    assert peer.error("no/such_method")["code"] == -32601
    newest = peer.ask("subscriptions/listen", notifications={}) if peer.revision in LEGACY else None
    assert newest is None or newest["error"]["code"] == -32601


# --- calls -----------------------------------------------------------------------------------


def test_a_call_is_answered(peer: Peer) -> None:
    before = len(peer.notices)
    assert peer.call("test_simple_text") == ("This is a simple text response for testing.", False)
    # A client that gave no token is told nothing on the way.
    assert peer.call("test_tool_with_progress") == ("All steps are done.", False)
    assert len(peer.notices) == before


def test_a_failed_call_is_marked_in_its_result(peer: Peer) -> None:
    said = "This tool intentionally returns an error for testing"
    assert peer.call("test_error_handling") == (said, True)


def test_a_result_has_every_kind_of_content(peer: Peer) -> None:
    call = {"name": "test_multiple_content_types", "arguments": {}}
    content = peer.result("tools/call", **call)["content"]
    assert [block["type"] for block in content] == ["text", "image", "resource"]
    [block] = peer.result("tools/call", name="test_audio_content", arguments={})["content"]
    assert (block["type"] == "audio") == (peer.revision >= "2025-03-26")


def test_progress_is_sent_before_the_answer(peer: Peer) -> None:
    text, failed = peer.call("test_tool_with_progress", meta={"progressToken": "steps"})
    assert (text, failed) == ("All steps are done.", False)
    told = peer.take_notices("notifications/progress")
    assert [(each["progress"], each["total"]) for each in told[:3]] == [
        (0, 100),
        (50, 100),
        (100, 100),
    ]


def test_calls_that_are_under_way_together_are_answered_each(peer: Peer) -> None:
    numbers = [
        peer.begin("tools/call", name="greet", arguments={"name": f"number {n}"}) for n in range(5)
    ]
    for n, number in reversed(list(enumerate(numbers))):
        [block] = peer.answer(number)["result"]["content"]
        assert block["text"] == f"Hello, number {n}!"


def test_a_cancelled_call_is_stopped_and_never_answered(peer: Peer) -> None:
    before = stopped_calls(peer)
    meta = {"progressToken": "until stopped"}
    number = peer.begin("tools/call", name="wait_for_cancel", arguments={}, meta=meta)
    told = peer.notice("notifications/progress")
    assert told["progressToken"] == "until stopped"
    assert ("message" in told) == (peer.revision >= "2025-03-26")
    peer.cancel(number)
    # The client refuses whatever would still come of it, now or in the tests after this one.
    peer.repeat_until(lambda: stopped_calls(peer) == before + 1)
    assert peer.call("greet", name="Ada") == ("Hello, Ada!", False)


def stopped_calls(peer: Peer) -> int:
    text, _ = peer.call("stopped_calls")
    return int(text)


def test_bad_arguments_are_an_error_or_a_result_as_the_revision_says(peer: Peer) -> None:
    answer = peer.ask("tools/call", name="greet", arguments={"name": 5})
    if peer.revision <= "2025-06-18":
        assert answer["error"]["code"] == -32602
    else:
        assert answer["result"]["isError"] is True
        assert "name" in answer["result"]["content"][0]["text"]


def test_an_unknown_tool_is_an_error(peer: Peer) -> None:
    assert peer.error("tools/call", name="none_such", arguments={})["code"] == -32602


def test_a_batch_is_answered_by_one_revision_and_refused_by_all_others(peer: Peer) -> None:
    method = "tools/list" if peer.revision == STATELESS else "ping"
    batch = [peer.request(method), peer.request(method)]
    numbers = [message["id"] for message in batch]
    answered = peer.revision == "2025-03-26"
    for number in numbers if answered else [None]:
        peer.expect(number, "ping" if answered else None)
    peer.wire.send(json.dumps(batch))
    if answered:
        assert [peer.answer(number)["result"] for number in numbers] == [{}, {}]
    else:
        assert peer.answer(None)["error"]["code"] == -32600


# --- resources, prompts, completion ----------------------------------------------------------


def test_resources_are_listed_and_read(peer: Peer) -> None:
    listed = {entry["uri"] for entry in peer.result("resources/list")["resources"]}
    assert {TEXT, "test://static-binary", WATCHED} <= listed
    templates = peer.result("resources/templates/list")["resourceTemplates"]
    assert "test://template/{id}/data" in {entry["uriTemplate"] for entry in templates}
    [text] = peer.result("resources/read", uri=TEXT)["contents"]
    assert text == {
        "uri": TEXT,
        "mimeType": "text/plain",
        "text": "This is the content of the static text resource.",
    }
    [binary] = peer.result("resources/read", uri="test://static-binary")["contents"]
    assert binary["mimeType"] == "image/png"
    assert binary["blob"]
    [made] = peer.result("resources/read", uri="test://template/7/data")["contents"]
    assert json.loads(made["text"])["id"] == "7"


def test_a_resource_that_is_not_there_is_an_error(peer: Peer) -> None:
    error = peer.error("resources/read", uri="test://none-such")
    assert error["code"] == (-32602 if peer.revision == STATELESS else -32002)
    assert error["data"] == {"uri": "test://none-such"}


def test_prompts_are_listed_and_made(peer: Peer) -> None:
    listed = {entry["name"] for entry in peer.result("prompts/list")["prompts"]}
    assert {"test_simple_prompt", "test_prompt_with_arguments"} <= listed
    given = {"arg1": "hello", "arg2": "world"}
    made = peer.result("prompts/get", name="test_prompt_with_arguments", arguments=given)
    text = "Prompt with arguments: arg1='hello', arg2='world'"
    assert made["messages"] == [{"role": "user", "content": {"type": "text", "text": text}}]
    assert peer.error("prompts/get", name="none_such")["code"] == -32602
    assert peer.error("prompts/get", name="test_prompt_with_arguments")["code"] == -32602


def test_arguments_are_completed(peer: Peer) -> None:
    found = peer.result(
        "completion/complete",
        ref={"type": "ref/prompt", "name": "test_prompt_with_arguments"},
        argument={"name": "arg1", "value": "par"},
    )
    assert found["completion"]["values"] == ["paris", "park", "party"]


# --- what the server says by itself ----------------------------------------------------------


def test_log_messages_come_to_those_who_want_them(peer: Peer) -> None:
    meta = None
    if peer.revision == STATELESS:
        assert peer.error("logging/setLevel", level="debug")["code"] == -32601
        meta = {META + "logLevel": "info"}
    else:
        assert peer.result("logging/setLevel", level="info") == {}
    assert peer.call("test_tool_with_logging", meta=meta)[1] is False
    told = peer.take_notices("notifications/message")
    assert [(each["level"], each["data"]) for each in told] == [
        ("info", "Tool execution started"),
        ("info", "Tool processing data"),
        ("info", "Tool execution completed"),
    ]
    if peer.revision != STATELESS:
        assert peer.result("logging/setLevel", level="error") == {}
    assert peer.call("test_tool_with_logging")[1] is False
    assert peer.take_notices("notifications/message") == []


def test_changes_are_sent_to_listening_clients(peer: Peer) -> None:
    if peer.revision == STATELESS:
        wanted = {"toolsListChanged": True, "resourceSubscriptions": [WATCHED]}
        number = peer.begin("subscriptions/listen", notifications=wanted)
        agreed = peer.notice("notifications/subscriptions/acknowledged")
        assert agreed["notifications"] == wanted
        tag = {"_meta": {META + "subscriptionId": number}}
    else:
        number, tag = None, {}
        assert peer.result("resources/subscribe", uri=WATCHED) == {}
    assert int(peer.call("touch_watched_resource")[0]) > 0
    assert peer.notice("notifications/resources/updated") == {"uri": WATCHED} | tag
    assert peer.call("test_trigger_tool_change")[1] is False
    assert peer.notice("notifications/tools/list_changed") == tag
    if number is None:
        assert peer.result("resources/unsubscribe", uri=WATCHED) == {}
    else:
        peer.cancel(number)
    assert int(peer.call("touch_watched_resource")[0]) > 0
    assert peer.call("test_trigger_prompt_change")[1] is False
    if number is None:  # it would come on the same way, and later
        peer.notice("notifications/prompts/list_changed")
    assert peer.take_notices("notifications/resources/updated") == []


def test_a_person_is_asked_as_the_revision_allows(peer: Peer) -> None:
    before = len(peer.asked)
    text, failed = peer.call("test_input_required_result_elicitation")
    if peer.revision >= "2025-06-18":
        assert peer.asked[before:] == ["elicitation/create"]
    else:
        # The client said that it could, but its revision cannot: whoever reads it is asked.
        assert peer.asked[before:] == []
        found = re.search(r"run (\d+), request \"(\w+)\"[^$]* run \1 and after (\d+)", text)
        assert found, text
        run, request, after = found.groups()
        reply = {"name": "Ada"}
        said = peer.call("plexus.respond", run=int(run), request=request, answer=reply)
        assert said[1] is False
        text, failed = peer.call("plexus.attach", run=int(run), after=int(after))
    assert (text, failed) == ("Hello, Ada!", False)


def test_models_and_folders_of_the_client_are_asked_for(peer: Peer) -> None:
    before = len(peer.asked)
    assert peer.call("test_sampling", prompt="Hello?") == ("LLM response: Hello!", False)
    roots = peer.call("test_input_required_result_list_roots")
    assert roots == ("Roots: file:///here", False)
    assert peer.asked[before:] == ["sampling/createMessage", "roots/list"]


# --- all of it -------------------------------------------------------------------------------


@needs_schemas
def test_every_message_so_far_fitted_the_schema_of_its_revision(peer: Peer) -> None:
    peer.result("tools/list")
    assert peer.checked == peer.received > 0


def test_a_response_that_the_server_ends_early_is_taken_up_again(port: int) -> None:
    with speaking(StreamableWire(port), "2025-11-25") as peer:
        said = "Reconnection test completed successfully."
        assert peer.call("test_reconnection") == (said, False)


def test_the_pair_refuses_the_revision_without_a_handshake(port: int) -> None:
    wire = PairWire(port)
    try:
        wire.send(json.dumps(Peer(wire, STATELESS).request("server/discover")))
        answer: Any = wire.receive()
        assert wire.status == 202
    finally:
        wire.close()
    assert answer["error"]["code"] == -32022
    assert answer["error"]["data"] == {"supported": LEGACY, "requested": STATELESS}
