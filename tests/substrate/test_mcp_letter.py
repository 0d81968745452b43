"""The letter of each revision, in the places where servers are known to miss it.

Each promise is kept by a process that is spoken to over its stdin and stdout, and over HTTP where
that makes a difference. The hub is the conformance fixture; the command itself where it ends.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from conformance.serving import COMMAND, serving
from mcp_schema import REVISIONS, STATELESS
from mcp_speaking import CAPABILITIES, CLIENT, META, Peer, speaking
from mcp_wires import StdioWire, StreamableWire, Wire
from network import DEMO

FIXTURE = [*COMMAND, "--stdio"]
SUBSTRATE = [sys.executable, "-m", "substrate", "--stdio", "--mcp", "--activation", str(DEMO)]

LEGACY = [revision for revision in REVISIONS if revision != STATELESS]
OLDEST = "2024-11-05"
BATCHES = "2025-03-26"
LISTS = ["tools/list", "prompts/list", "resources/list", "resources/templates/list"]
HANDSHAKE = {"protocolVersion": BATCHES, "capabilities": CAPABILITIES, "clientInfo": CLIENT}

each_revision = pytest.mark.parametrize("revision", REVISIONS)
each_handshake = pytest.mark.parametrize("revision", LEGACY)


@contextmanager
def talking(revision: str, command: list[str] = FIXTURE) -> Iterator[Peer]:
    """A client of a process of its own."""
    with speaking(StdioWire(command), revision) as peer:
        yield peer


@contextmanager
def silent(wire: Wire, revision: str = BATCHES) -> Iterator[Peer]:
    """A client that has not said anything yet."""
    peer = Peer(wire, revision)
    try:
        yield peer
    finally:
        peer.close()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving() as address:
        port = urlsplit(address).port
        assert port is not None
        yield port


# --- batches and lines -----------------------------------------------------------------------


def check_batch(peer: Peer) -> None:
    """Send two requests and a notification at once, and see one array."""
    call = peer.request("tools/call", name="greet", arguments={"name": "Ada"})
    requests = [peer.request("ping"), call]
    notification = {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"}
    peer.wire.send(json.dumps([*requests, notification]))
    answers: Any = peer.wire.receive()
    assert isinstance(answers, list)
    results = {answer["id"]: answer["result"] for answer in answers}
    assert set(results) == {request["id"] for request in requests}
    assert results[requests[0]["id"]] == {}
    assert results[requests[1]["id"]]["content"][0]["text"] == "Hello, Ada!"
    # Nothing but notifications: nothing to answer.
    peer.wire.send(json.dumps([notification, notification]))
    assert peer.result("ping") == {}


def test_a_batch_at_2025_03_26_is_answered_over_stdio() -> None:
    with talking(BATCHES) as peer:
        check_batch(peer)


def test_a_batch_at_2025_03_26_is_answered_over_http(port: int) -> None:
    with speaking(StreamableWire(port), BATCHES) as peer:
        check_batch(peer)


@pytest.mark.parametrize("line", ["{", "nonsense", '{"jsonrpc": "2.0", "id": 1,', "\x00", "[1,"])
def test_a_line_that_cannot_be_parsed_is_answered_with_32700(line: str) -> None:
    with talking("2025-11-25") as peer:
        peer.expect(None)
        peer.wire.send(line)
        assert peer.answer(None)["error"]["code"] == -32700
        assert peer.result("ping") == {}


def test_a_handshake_may_follow_a_line_that_cannot_be_parsed() -> None:
    with silent(StdioWire(FIXTURE)) as peer:
        peer.expect(None)
        peer.wire.send("\ufeff???")
        assert peer.answer(None)["error"]["code"] == -32700
        peer.introduce()
        assert peer.settled["protocolVersion"] == BATCHES


# --- codes -----------------------------------------------------------------------------------


@each_revision
def test_an_unknown_tool_is_32602_and_no_result(revision: str) -> None:
    with talking(revision) as peer:
        for name in ("none_such", "", "plexus", "plexus.none_such"):
            assert peer.error("tools/call", name=name, arguments={})["code"] == -32602
        assert peer.error("tools/call", arguments={})["code"] == -32602


@each_revision
def test_bad_arguments_are_a_protocol_error_up_to_2025_06_18_and_a_result_after_it(
    revision: str,
) -> None:
    with talking(revision) as peer:
        for arguments in ({"name": 5}, {}, {"name": "Ada", "more": 1}):
            answer = peer.ask("tools/call", name="greet", arguments=arguments)
            if revision <= "2025-06-18":
                assert answer["error"]["code"] == -32602
            else:
                assert answer["result"]["isError"] is True
        # Arguments that are no object are no arguments of a tool at all.
        assert peer.error("tools/call", name="greet", arguments=["Ada"])["code"] == -32602


@each_revision
def test_a_missing_resource_is_32002_and_without_a_handshake_32602_with_its_uri(
    revision: str,
) -> None:
    with talking(revision) as peer:
        for uri in ("test://none-such", "run://12345", "test://template//data"):
            error = peer.error("resources/read", uri=uri)
            assert error["code"] == (-32602 if revision == STATELESS else -32002)
            assert error["data"] == {"uri": uri}
        assert peer.error("resources/read")["code"] == -32602


@each_revision
def test_an_invalid_cursor_is_32602_on_every_list(revision: str) -> None:
    with talking(revision) as peer:
        for method in LISTS:
            for cursor in ("nonsense", "", 7, {"page": 2}):
                assert peer.error(method, cursor=cursor)["code"] == -32602, (method, cursor)
            assert "nextCursor" not in peer.result(method)


# --- states ----------------------------------------------------------------------------------


@each_handshake
def test_a_second_initialize_is_32600_and_changes_nothing(revision: str) -> None:
    with talking(revision) as peer:
        for wanted in LEGACY:
            again = HANDSHAKE | {"protocolVersion": wanted}
            assert peer.error("initialize", **again)["code"] == -32600
        bad = peer.ask("tools/call", name="greet", arguments={"name": 5})
        assert ("error" in bad) == (revision <= "2025-06-18")


def test_a_request_before_initialize_is_32002_and_ping_is_answered() -> None:
    with silent(StdioWire(FIXTURE)) as peer:
        for method in (*LISTS, "tools/call", "resources/read", "logging/setLevel", "no/such"):
            assert peer.error(method)["code"] == -32002
        assert peer.result("ping") == {}
        peer.introduce()
        assert peer.result("tools/list")["tools"]


def test_without_a_handshake_the_first_message_may_be_any_request() -> None:
    with silent(StdioWire(FIXTURE), STATELESS) as peer:
        assert peer.call("greet", name="Ada") == ("Hello, Ada!", False)
        unknown = {META + "protocolVersion": "2031-01-01"}
        assert peer.error("tools/list", meta=unknown)["code"] == -32022


# --- what a revision does not have -----------------------------------------------------------


def test_nothing_in_2024_11_05_has_what_its_schema_does_not_have() -> None:
    with talking(OLDEST, SUBSTRATE) as peer:
        check_oldest(peer)
        assert set(peer.result("tools/call", name="health.check")) == {"content", "isError"}
        peer.call("demo.wait", seconds=0.1, meta={"progressToken": 1})
        told = peer.take_notices("notifications/progress")
        assert told
        assert all(each.keys() <= {"progressToken", "progress", "total"} for each in told)


def test_nothing_in_2024_11_05_is_of_a_kind_that_its_schema_does_not_have() -> None:
    with talking(OLDEST) as peer:
        check_oldest(peer)
        for name in (
            "test_image_content",
            "test_audio_content",
            "test_embedded_resource",
            "test_multiple_content_types",
        ):
            result = peer.result("tools/call", name=name, arguments={})
            kinds = {block["type"] for block in result["content"]}
            assert kinds <= {"text", "image", "resource"}
        for method in ("tasks/list", "tasks/get", "server/discover", "subscriptions/listen"):
            assert peer.error(method, taskId="1", notifications={})["code"] == -32601


def check_oldest(peer: Peer) -> None:
    """What every server says of itself, in the words of the oldest revision alone."""
    settled = peer.settled
    assert settled.keys() <= {"protocolVersion", "capabilities", "serverInfo", "instructions"}
    assert settled["serverInfo"].keys() == {"name", "version"}
    assert settled["capabilities"].keys() <= {"logging", "prompts", "resources", "tools"}
    tools = peer.result("tools/list")["tools"]
    assert {key for tool in tools for key in tool} == {"name", "description", "inputSchema"}
    prompts = peer.result("prompts/list")["prompts"]
    assert {key for each in prompts for key in each} <= {"name", "description", "arguments"}
    resources = peer.result("resources/list")["resources"]
    allowed = {"uri", "name", "description", "mimeType", "size"}
    assert {key for each in resources for key in each} <= allowed


def test_the_same_things_are_there_where_the_schema_has_them() -> None:
    with talking("2025-06-18", SUBSTRATE) as peer:
        tools = {tool["name"]: tool for tool in peer.result("tools/list")["tools"]}
        assert tools["health.check"].keys() >= {"annotations", "outputSchema"}
        assert "structuredContent" in peer.result("tools/call", name="health.check")
        peer.call("demo.wait", seconds=0.1, meta={"progressToken": 1})
        assert all("message" in each for each in peer.take_notices("notifications/progress"))


@each_handshake
def test_logging_is_declared_and_setting_its_level_is_answered_with_nothing(revision: str) -> None:
    with talking(revision) as peer:
        assert peer.settled["capabilities"]["logging"] == {}
        for level in ("debug", "emergency"):
            assert peer.result("logging/setLevel", level=level) == {}
        assert peer.error("logging/setLevel", level="loud")["code"] == -32602


# --- ends ------------------------------------------------------------------------------------


@each_revision
def test_a_cancel_in_mid_call_stops_it_without_a_response(revision: str) -> None:
    with talking(revision) as peer:
        numbers = []
        for token in range(3):
            meta = {"progressToken": token}
            wait = peer.begin("tools/call", name="wait_for_cancel", arguments={}, meta=meta)
            peer.notice("notifications/progress")
            numbers.append(wait)
        for number in numbers:
            peer.cancel(number)
        peer.wire.cancel(99)  # there is no such request
        peer.repeat_until(lambda: peer.call("stopped_calls")[0] == "3")
        # Whatever would come of them by now would not be waited for, which the client tells.
        assert peer.result("tools/list")["tools"]


@pytest.mark.parametrize("said", ["nothing", "a handshake", "a call", "half a line"])
def test_the_end_of_stdin_ends_the_server(said: str) -> None:
    wire = StdioWire(SUBSTRATE)
    with silent(wire, "2025-11-25") as peer:
        if said != "nothing":
            peer.introduce()
        if said == "a call":
            meta = {"progressToken": 1}
            peer.begin("tools/call", name="demo.wait", arguments={}, meta=meta)
            peer.notice("notifications/progress")
        if said == "half a line":
            assert wire.process.stdin is not None
            wire.process.stdin.write(b'{"jsonrpc": "2.0", "id": 7')
            peer.expect(None)
        assert wire.end_input() == 0
        if said == "half a line":
            assert peer.answer(None)["error"]["code"] == -32700
