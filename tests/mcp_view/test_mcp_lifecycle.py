"""The start of a connection: the handshake, stateless requests, and both together."""

from __future__ import annotations

from typing import Any

import pytest
from activations_for_tests import Demo
from conftest import OpenHub
from mcp_peer import HANDSHAKES, PREFIX, REVISIONS, STATELESS, McpPeer, envelope

from mcp_view.server import McpOptions
from plexus.limits import Limits
from plexus.rpc import wire

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

LISTS = ("tools/list", "resources/templates/list", "prompts/list")
#: Methods that need a handshake or an envelope.
WORK = (*LISTS, "tools/call", "resources/list", "resources/read", "completion/complete")


def initialize(revision: Any, **more: Any) -> dict[str, Any]:
    params = {"protocolVersion": revision, "capabilities": {}, "clientInfo": {"name": "t"}}
    return {"id": 1, "method": "initialize", "params": params | more}


def error_of(frames: list[Any]) -> tuple[int, str]:
    [frame] = frames
    return frame["error"]["code"], frame["error"]["message"]


# --- the handshake -------------------------------------------------------------------------------


@pytest.mark.parametrize("revision", HANDSHAKES)
async def test_a_known_revision_is_negotiated(open_hub: OpenHub, revision: str) -> None:
    [answer] = McpPeer(open_hub(Demo)).send(initialize(revision))
    assert answer["result"]["protocolVersion"] == revision
    assert answer["result"]["serverInfo"]["name"] == "substrate"


@pytest.mark.parametrize("wanted", ["2027-01-01", "1999-01-01", "newest", "", STATELESS])
async def test_an_unknown_revision_is_answered_with_the_newest_supported(
    open_hub: OpenHub, wanted: str
) -> None:
    peer = McpPeer(open_hub(Demo))
    [answer] = peer.send(initialize(wanted))
    assert answer["result"]["protocolVersion"] == "2025-11-25"
    peer.revision = "2025-11-25"
    assert (await peer.tool("demo.echo", {"text": "hi"}))["content"][0]["text"] == "hi"


@pytest.mark.parametrize("wanted", [None, 5, ["2025-11-25"]])
async def test_a_handshake_without_a_revision_is_refused_and_may_be_repeated(
    open_hub: OpenHub, wanted: Any
) -> None:
    peer = McpPeer(open_hub(Demo))
    assert error_of(peer.send(initialize(wanted)))[0] == wire.INVALID_PARAMS
    assert error_of(peer.send(initialize("2025-11-25", capabilities=[])))[0] == wire.INVALID_PARAMS
    assert "result" in peer.send(initialize("2025-11-25"))[0]


async def test_a_handshake_without_capabilities_is_accepted(open_hub: OpenHub) -> None:
    params = {"protocolVersion": "2025-06-18", "capabilities": None}
    peer = McpPeer(open_hub(Demo))
    assert "result" in peer.send({"id": 1, "method": "initialize", "params": params})[0]


async def test_a_second_handshake_is_refused_and_changes_nothing(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Demo), "2024-11-05")
    code, message = error_of(peer.send(initialize("2025-11-25")))
    assert (code, message) == (wire.INVALID_REQUEST, "Server is already initialized")
    [answer] = peer.send({"id": 2, "method": "tools/list"})
    assert "annotations" not in answer["result"]["tools"][0]


@pytest.mark.parametrize("revision", HANDSHAKES)
async def test_server_information_has_the_fields_of_the_revision(
    open_hub: OpenHub, revision: str
) -> None:
    peer = McpPeer(open_hub(Demo), options=McpOptions(instructions="Be brief."))
    [answer] = peer.send(initialize(revision))
    result = answer["result"]
    assert result["instructions"] == "Be brief."
    assert (
        set(result["serverInfo"])
        == {"name", "version"}
        | {
            "2024-11-05": set(),
            "2025-03-26": set(),
            "2025-06-18": {"title"},
            "2025-11-25": {"title", "description"},
        }[revision]
    )
    assert (
        set(result["capabilities"])
        == {"tools", "resources", "prompts", "logging"}
        | {
            "2024-11-05": set(),
            "2025-03-26": {"completions"},
            "2025-06-18": {"completions"},
            "2025-11-25": {"completions", "tasks"},
        }[revision]
    )
    assert result["capabilities"]["tools"] == {"listChanged": True}
    assert result["capabilities"]["resources"] == {"subscribe": True, "listChanged": True}


async def test_without_instructions_none_are_sent(open_hub: OpenHub) -> None:
    [answer] = McpPeer(open_hub(Demo)).send(initialize("2025-11-25"))
    assert "instructions" not in answer["result"]


# --- before the handshake ------------------------------------------------------------------------


@pytest.mark.parametrize("method", [*WORK, "server/discover", "logging/setLevel", "no/such"])
async def test_a_request_before_the_handshake_is_refused(open_hub: OpenHub, method: str) -> None:
    frames = McpPeer(open_hub(Demo)).send({"id": 1, "method": method, "params": {}})
    assert error_of(frames) == (-32002, "Server not initialized")


async def test_ping_is_answered_in_every_state(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Demo))
    ping = {"id": "p", "method": "ping"}
    assert [frame["result"] for frame in peer.send(ping)] == [{}]
    peer.send(initialize("2025-06-18"))
    assert [frame["result"] for frame in peer.send(ping)] == [{}]
    peer.notify("notifications/initialized")
    assert [frame["result"] for frame in peer.send(ping | {"params": {}})] == [{}]


@pytest.mark.parametrize(
    "method",
    [
        "notifications/initialized",
        "notifications/cancelled",
        "notifications/roots/list_changed",
        "notifications/no/such",
    ],
)
async def test_notifications_are_never_answered(open_hub: OpenHub, method: str) -> None:
    peer = McpPeer(open_hub(Demo))
    assert peer.notify(method) == []
    assert peer.notify(method, {"requestId": 1}) == []
    assert not peer.view.peer.session.initialized
    assert "result" in peer.send(initialize("2025-11-25"))[0]


async def test_a_handshake_is_confirmed_only_after_initialize(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Demo))
    peer.send(initialize("2025-11-25"))
    assert not peer.view.peer.session.initialized
    peer.notify("notifications/initialized")
    assert peer.view.peer.session.initialized


# --- without a handshake -------------------------------------------------------------------------


async def test_discovery_returns_revisions_and_capabilities(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Demo), STATELESS, options=McpOptions(instructions="Be brief."))
    result = await peer.result("server/discover")
    assert result["supportedVersions"] == list(reversed(REVISIONS))
    assert result["instructions"] == "Be brief."
    assert result["resultType"] == "complete"
    assert result["ttlMs"] >= 0
    assert result["cacheScope"] in ("public", "private")
    assert result["capabilities"]["extensions"] == {PREFIX + "tasks": {}}
    assert "tasks" not in result["capabilities"]
    assert result["_meta"][PREFIX + "serverInfo"]["name"] == "substrate"


@pytest.mark.parametrize("method", LISTS)
async def test_lists_need_only_an_envelope_and_may_be_cached(
    open_hub: OpenHub, method: str
) -> None:
    result = await McpPeer(open_hub(Demo), STATELESS).result(method)
    assert {"resultType", "ttlMs", "cacheScope", "_meta"} < set(result)


@pytest.mark.parametrize(
    "method",
    [
        *("ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"),
        *("tasks/list", "tasks/result", "no/such"),
    ],
)
async def test_methods_missing_in_the_stateless_revision_are_not_found(
    open_hub: OpenHub, method: str
) -> None:
    peer = McpPeer(open_hub(Demo), STATELESS)
    assert (await peer.error(method))["code"] == wire.METHOD_NOT_FOUND
    assert peer.status == 404


@pytest.mark.parametrize("method", ["server/discover", "subscriptions/listen", "tasks/update"])
@pytest.mark.parametrize("revision", HANDSHAKES)
async def test_methods_of_the_stateless_revision_are_not_found_in_others(
    open_hub: OpenHub, method: str, revision: str
) -> None:
    peer = McpPeer(open_hub(Demo), revision)
    assert (await peer.error(method))["code"] == wire.METHOD_NOT_FOUND


@pytest.mark.parametrize("named", ["2025-11-25", "2024-11-05", "2099-01-01", ""])
async def test_an_envelope_of_an_unknown_revision_gets_the_supported_ones(
    open_hub: OpenHub, named: str
) -> None:
    peer = McpPeer(open_hub(Demo))
    request = {"id": 1, "method": "tools/list", "params": envelope(revision=named)}
    [answer] = peer.send(request)
    assert answer["error"]["code"] == -32022
    assert answer["error"]["data"] == {"supported": list(reversed(REVISIONS)), "requested": named}
    assert peer.status == 400
    [answer] = peer.send(request | {"method": "no/such"})
    assert answer["error"]["code"] == -32022


@pytest.mark.parametrize(
    "broken",
    [
        {PREFIX + "protocolVersion": STATELESS},
        {PREFIX + "protocolVersion": 5, PREFIX + "clientCapabilities": {}},
        {PREFIX + "protocolVersion": STATELESS, PREFIX + "clientCapabilities": None},
        {PREFIX + "protocolVersion": STATELESS, PREFIX + "clientCapabilities": []},
    ],
)
async def test_an_incomplete_envelope_is_refused(open_hub: OpenHub, broken: dict[str, Any]) -> None:
    peer = McpPeer(open_hub(Demo))
    [answer] = peer.send({"id": 1, "method": "tools/list", "params": {"_meta": broken}})
    assert answer["error"]["code"] == wire.INVALID_PARAMS
    assert peer.status == 400


@pytest.mark.parametrize("params", [None, {}, {"_meta": {}}, {"_meta": None}, {"_meta": 5}, []])
@pytest.mark.parametrize("method", ["tools/list", "initialize", "no/such"])
async def test_a_stateless_connection_refuses_requests_without_an_envelope(
    open_hub: OpenHub, params: Any, method: str
) -> None:
    peer = McpPeer(open_hub(Demo), stateless=True)
    request = {"id": 1, "method": method}
    [answer] = peer.send(request if params is None else request | {"params": params})
    assert answer["error"]["code"] == wire.INVALID_PARAMS


async def test_a_stateless_connection_has_no_handshake(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Demo), stateless=True)
    params = envelope({"protocolVersion": "2025-11-25", "capabilities": {}})
    [answer] = peer.send({"id": 1, "method": "initialize", "params": params})
    assert answer["error"]["code"] == wire.METHOD_NOT_FOUND


# --- both eras on one connection -----------------------------------------------------------------


@pytest.mark.parametrize("revision", HANDSHAKES)
async def test_both_eras_are_answered_on_one_connection(open_hub: OpenHub, revision: str) -> None:
    peer = McpPeer(open_hub(Demo))
    modern = {"method": "tools/list", "params": envelope()}
    [answer] = peer.send({"id": "probe", "method": "server/discover", "params": envelope()})
    assert answer["result"]["resultType"] == "complete"
    peer.revision = revision
    assert "result" in peer.send(initialize(revision))[0]
    [old] = peer.send({"id": 2, "method": "tools/list"})
    [new] = peer.send(modern | {"id": 3})
    [old_again] = peer.send({"id": 4, "method": "tools/list"})
    assert "resultType" not in old["result"]
    assert new["result"]["resultType"] == "complete"
    assert old["result"] == old_again["result"]


async def test_an_envelope_applies_to_its_request_only(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Demo))
    peer.send({"id": 1, "method": "tools/list", "params": envelope()})
    assert error_of(peer.send({"id": 2, "method": "tools/list"}))[0] == -32002


async def test_calls_of_both_eras_run_together(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Demo), "2024-11-05")
    call = {"name": "demo.echo", "arguments": {"text": "x"}}
    peer.send({"id": "old", "method": "tools/call", "params": call})
    peer.send({"id": "new", "method": "tools/call", "params": envelope(call)})
    assert "resultType" not in (await peer.answer_to("old"))["result"]
    assert (await peer.answer_to("new"))["result"]["resultType"] == "complete"


# --- ids and shapes ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_id", [0, 1, -1, 2**53 + 1, 2**63, -(2**63), "", "0", "server-discover-1", "é\u2028"]
)
@pytest.mark.parametrize("revision", ["2025-11-25", STATELESS])
async def test_ids_are_echoed_exactly(open_hub: OpenHub, request_id: Any, revision: str) -> None:
    peer = McpPeer(open_hub(Demo), revision)
    params = {"name": "demo.echo", "arguments": {"text": "x"}}
    if revision == STATELESS:
        params = envelope(params)
    peer.send({"id": request_id, "method": "tools/call", "params": params})
    assert "result" in await peer.answer_to(request_id)
    peer.frames.clear()
    peer.send({"id": request_id, "method": "no/such", "params": envelope()})
    assert "error" in await peer.answer_to(request_id)


@pytest.mark.parametrize("request_id", [None, 1.5, True, [1], {"a": 1}])
@pytest.mark.parametrize("revision", [None, "2025-06-18", STATELESS])
async def test_an_invalid_id_is_refused(
    open_hub: OpenHub, request_id: Any, revision: str | None
) -> None:
    peer = McpPeer(open_hub(Demo), revision)
    params = envelope() if revision == STATELESS else {}
    frames = peer.send({"id": request_id, "method": "tools/list", "params": params})
    assert error_of(frames)[0] == wire.INVALID_REQUEST
    assert frames[0]["id"] is None


async def test_a_duplicate_id_is_refused_and_the_first_call_continues(
    open_hub: OpenHub,
) -> None:
    peer = McpPeer(open_hub(Demo), "2025-11-25")
    call = {"name": "demo.wait", "arguments": {"seconds": 0.01}}
    peer.send({"id": 5, "method": "tools/call", "params": call})
    again = {"id": 5, "method": "tools/call", "params": call}
    assert error_of(peer.send(again))[0] == wire.INVALID_REQUEST
    peer.frames.clear()
    assert (await peer.answer_to(5))["result"]["content"][0]["text"] == "waitingwaited"
    assert "result" in peer.send({"id": 5, "method": "tools/list"})[0]


@pytest.mark.parametrize("revision", ["2025-11-25", None])
async def test_parameters_that_are_no_object_are_refused(
    open_hub: OpenHub, revision: str | None
) -> None:
    peer = McpPeer(open_hub(Demo), revision)
    frames = peer.send({"id": 1, "method": "tools/list", "params": [1]})
    assert error_of(frames)[0] == wire.INVALID_PARAMS


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"{", wire.PARSE_ERROR),
        (b"\xff", wire.PARSE_ERROR),
        (b"5", wire.INVALID_REQUEST),
        (b"[]", wire.INVALID_REQUEST),
        (b"{}", wire.INVALID_REQUEST),
        (b'{"id":1,"method":"ping"}', wire.INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","id":1,"method":5}', wire.INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":"x"}', wire.INVALID_REQUEST),
    ],
)
async def test_an_invalid_message_is_answered_and_closes_nothing(
    open_hub: OpenHub, data: bytes, code: int
) -> None:
    peer = McpPeer(open_hub(Demo), "2025-06-18")
    assert error_of(peer.send(data))[0] == code
    assert [frame["result"] for frame in peer.send({"id": 2, "method": "ping"})] == [{}]


async def test_unexpected_responses_are_ignored(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Demo), "2025-11-25")
    for request_id in (1, "1", None, 99):
        assert peer.send({"id": request_id, "result": {}}) == []
        assert peer.send({"id": request_id, "error": {"code": 1, "message": "no"}}) == []
    assert "result" in peer.send({"id": 2, "method": "ping"})[0]


# --- the end -------------------------------------------------------------------------------------


async def test_a_connection_is_idle_while_no_request_is_in_progress(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Demo), "2025-11-25", native=True)
    idle = [peer.view.idle]
    call = peer.begin_tool("demo.wait", {"seconds": 0.01})
    idle.append(peer.view.idle)
    await peer.answer_to(call)
    idle.append(peer.view.idle)
    peer.send({"id": "n", "method": "demo.wait", "params": {}})
    idle.append(peer.view.idle)
    assert idle == [True, False, True, False]


async def test_too_many_calls_are_refused_with_the_limit(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Demo, limits=Limits(calls_in_flight=2)), "2025-11-25")
    first = peer.begin_tool("demo.wait")
    peer.begin_tool("demo.wait")
    third = await peer.error("tools/call", {"name": "demo.echo", "arguments": {"text": "x"}})
    assert third["data"] == {"limit": 2, "name": "calls_in_flight"}
    peer.notify("notifications/cancelled", {"requestId": first})
    assert (await peer.tool("demo.echo", {"text": "x"}))["isError"] is False


@pytest.mark.parametrize("revision", HANDSHAKES)
async def test_server_info_returns_name_version_revision_and_capabilities(
    open_hub: OpenHub, revision: str
) -> None:
    # Not in the specification, but a validator calls it.
    about = await McpPeer(open_hub(Demo), revision).result("server/info")
    assert (about["name"], about["protocolVersion"]) == ("substrate", revision)
    assert about["version"]
    assert "tools" in about["capabilities"]


async def test_the_newest_revision_has_no_server_info(open_hub: OpenHub) -> None:
    assert (await McpPeer(open_hub(Demo), STATELESS).error("server/info"))["code"] == -32601
