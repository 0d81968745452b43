"""Exceptions in a view or handler: the request is answered with a log reference."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from activations_for_tests import Demo
from conftest import OpenHub
from hub_calls import until
from mcp_peer import HANDSHAKES, McpPeer

from mcp_view import catalogue
from mcp_view.calls import tool
from mcp_view.subscriptions import is_visible
from native_rpc.framing import LINES, MESSAGES
from native_rpc.protocol import NativeConnection
from plexus import Plexus
from plexus.principal import LOCAL
from plexus.registry import schema
from plexus.rpc import wire
from substrate.driver import Connection

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

SECRET = "this text must stay in the log"


def explode(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError(SECRET)


def check_internal(error: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """Check that the error has a log reference and no text of the exception."""
    assert error["code"] == wire.INTERNAL_ERROR
    assert error["data"]["log_id"] in caplog.text
    assert SECRET not in json.dumps(error)
    assert SECRET in caplog.text


@pytest.fixture(autouse=True)
def _logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)


@pytest.mark.parametrize("revision", HANDSHAKES)
async def test_a_list_that_cannot_be_made_is_an_internal_error(
    open_hub: OpenHub,
    revision: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    peer = McpPeer(open_hub(Demo), revision)
    with monkeypatch.context() as patch:
        patch.setattr(schema, "parameters_schema", explode)
        check_internal(await peer.error("tools/list"), caplog)
    assert (await peer.result("tools/list"))["tools"]


async def test_a_handler_that_fails_after_it_began_a_call_leaves_its_id_free(
    open_hub: OpenHub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    peer = McpPeer(open_hub(Demo), "2025-11-25")
    params = {"name": "demo.echo", "arguments": {"text": "a"}}
    with monkeypatch.context() as patch:
        patch.setattr(tool.ToolCall, "start", explode)
        check_internal(await peer.error("tools/call", params), caplog)
    assert (await peer.result("tools/call", params))["content"][0]["text"] == "a"


async def test_a_failing_request_of_a_batch_does_not_prevent_the_other_answers(
    open_hub: OpenHub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    peer = McpPeer(open_hub(Demo), "2025-03-26")
    monkeypatch.setattr(catalogue.Catalogue, "tools", explode)
    batch = [
        {"jsonrpc": "2.0", "id": "bad", "method": "tools/list"},
        {"jsonrpc": "2.0", "id": "good", "method": "ping"},
    ]
    [answers] = peer.send(batch)
    by_id = {answer["id"]: answer for answer in answers}
    check_internal(by_id["bad"]["error"], caplog)
    assert by_id["good"]["result"] == {}


@pytest.mark.parametrize("step", ["on_started", "on_items"])
async def test_a_tool_whose_result_cannot_be_created_is_answered_and_stopped(
    open_hub: OpenHub,
    step: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    hub = open_hub(Demo)
    peer = McpPeer(hub, "2025-11-25")
    with monkeypatch.context() as patch:
        patch.setattr(tool.ToolCall, step, explode)
        check_internal(await peer.error("tools/call", {"name": "demo.wait"}), caplog)
    await until(lambda: not hub.runs.running())
    assert (await peer.tool("demo.echo", {"text": "a"}))["content"][0]["text"] == "a"


async def test_an_exception_of_any_view_is_answered_by_the_driver(
    open_hub: OpenHub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    view = NativeConnection(MESSAGES, open_hub(Demo).limits, lambda: 1)
    monkeypatch.setattr(view, "receive", explode)
    connection = Connection(open_hub(Demo), view, LOCAL)
    connection.receive([wire.Request(1, "demo.echo", None), wire.Request("b", "demo.echo", None)])
    answers = [json.loads(frame) for frame in connection.collect()]
    assert [answer["id"] for answer in answers] == [1, "b"]
    check_internal(answers[0]["error"], caplog)


async def test_a_call_that_fails_inside_the_hub_is_answered(
    open_hub: OpenHub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hub = open_hub(Demo)
    connection = native(hub)
    with monkeypatch.context() as patch:
        patch.setattr(hub, "call", explode)
        connection.receive(wire.Request(1, "demo.echo", {"text": "a"}))
    [answer] = [json.loads(frame) for frame in connection.collect()]
    check_internal(answer["error"], caplog)
    connection.receive(wire.Request(2, "demo.echo", {"text": "a"}))
    assert "result" in json.loads(connection.collect()[0])


async def test_a_native_stream_whose_items_cannot_be_written_ends_with_a_terminal(
    open_hub: OpenHub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hub = open_hub(Demo)
    connection = native(hub)
    connection.receive(wire.Request(1, "demo.wait", None))
    subscription = json.loads(connection.collect()[0])["result"]
    with monkeypatch.context() as patch:
        patch.setattr(NativeConnection, "on_items", explode)
        await connection.ready(5)
        [frame] = connection.collect()
    item = json.loads(frame)["params"]
    assert (item["subscription"], item["result"]["code"]) == (subscription, "internal")
    assert item["result"]["data"]["log_id"] in caplog.text
    await until(lambda: not hub.runs.running())


async def test_a_change_that_one_view_fails_to_report_reaches_the_others(
    open_hub: OpenHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = open_hub(Demo)
    broken, sound = McpPeer(hub, "2025-11-25"), McpPeer(hub, "2025-11-25")
    with monkeypatch.context() as patch:
        patch.setattr("mcp_view.protocol.is_visible", _once(is_visible))
        hub.unregister("demo")
    counts = [len(peer.collect()) for peer in (broken, sound)]
    assert sorted(counts) == [0, 1]


def _once(function: Any) -> Any:
    """Return a function that raises the first time and works afterwards."""
    calls = iter([explode])
    return lambda *args: next(calls, function)(*args)


def native(hub: Plexus) -> Connection:
    return Connection(hub, NativeConnection(LINES, hub.limits, hub.new_id), LOCAL)
