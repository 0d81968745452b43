"""The messages of the task list as agents exchange them over stdio, to the letter.

Two windows are two processes that share one list.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import network
import pytest
from stdio_process import Server, serving

from native_rpc.client import Client, connect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]

INITIALIZE = {
    "protocolVersion": "2025-03-26",
    "capabilities": {},
    "clientInfo": {"name": "ExampleClient", "version": "1.0.0"},
}
SIX = ("create_task", "list_tasks", "next_task", "update_task", "close_task", "link_tasks")
#: Limits of what a host pays for tools, in tokens of four characters.
CHARACTERS = 4
SIX_TOKENS = 1500
ALL_TOKENS = 4000
ALL_TOOLS = 25


@pytest.fixture
def data(tmp_path: Path) -> str:
    return str(tmp_path / "data")


def ask(window: Server, method: str, params: Any) -> Any:
    """Return the response to a request."""
    number = window.request(method, params)
    response = window.read_until(lambda message: message.get("id") == number)[-1]
    assert response["jsonrpc"] == "2.0"
    return response


def open_window(window: Server) -> Server:
    answer = ask(window, "initialize", INITIALIZE)
    assert answer["result"]["protocolVersion"] == "2025-03-26"
    window.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
    return window


@pytest.fixture
def window(data: str) -> Iterator[Server]:
    with serving("--mcp", XDG_DATA_HOME=data) as server:
        yield open_window(server)


def call(window: Server, name: str, **arguments: Any) -> Any:
    answer = ask(window, "tools/call", {"name": name, "arguments": arguments})
    return answer.get("result", answer)


def value(window: Server, name: str, **arguments: Any) -> Any:
    result = call(window, name, **arguments)
    assert result["isError"] is False, result
    return json.loads(result["content"][0]["text"])


def test_a_task_is_created_with_the_messages_of_the_guide(window: Server) -> None:
    result = call(window, "create_task", description="Fix parser bug")
    [block] = result["content"]
    assert set(result) == {"content", "isError"}
    assert result["isError"] is False
    assert block["type"] == "text"
    assert re.fullmatch(
        r'\{"id":"task_[0-9a-z]{8}","description":"Fix parser bug","status":"pending"\}',
        block["text"],
    )


def test_an_unknown_task_is_an_execution_error_with_that_text(window: Server) -> None:
    for name, more in (
        ("close_task", {}),
        ("update_task", {"note": "x"}),
        ("link_tasks", {"kind": "blocks", "target": "task_abc"}),
        ("tasks.get", {}),
    ):
        assert call(window, name, task_id="task_xyz", **more) == {
            "content": [{"type": "text", "text": "error: task not found: task_xyz"}],
            "isError": True,
        }


def test_an_unknown_tool_and_wrong_parameters_are_protocol_errors(window: Server) -> None:
    answer = ask(window, "tools/call", {"name": "nonexistent_tool", "arguments": {}})
    assert answer["error"] == {"code": -32602, "message": "Unknown tool: nonexistent_tool"}
    for arguments in ({}, {"description": 5}, {"description": "a", "more": 1}):
        error = call(window, "create_task", **arguments)["error"]
        assert error["code"] == -32602
        assert re.search("description|more", error["message"])


def test_the_six_tools_have_closed_and_described_schemas_within_their_limits(data: str) -> None:
    with serving("--mcp", "--mcp-tools", "tasks.*", XDG_DATA_HOME=data) as server:
        tools = ask(open_window(server), "tools/list", {})["result"]["tools"]
    six = [tool for tool in tools if tool["name"].removeprefix("tasks.") in SIX]
    assert len(six) == len(SIX)
    for tool in six:
        schema = tool["inputSchema"]
        assert schema["additionalProperties"] is False
        assert all(each.get("description") for each in schema["properties"].values()), schema
        assert len(re.findall(r"[.!?](?:\s|$)", tool["description"])) <= 3
    [create] = [tool for tool in six if tool["name"] == "tasks.create_task"]
    assert create["inputSchema"]["required"] == ["description"]
    assert create["inputSchema"]["properties"]["description"] == {
        "type": "string",
        "description": "Task description",
    }
    assert size_of(six) < SIX_TOKENS


def size_of(tools: list[Any]) -> float:
    """Return the size of listed tools in tokens."""
    return len(json.dumps(tools, ensure_ascii=False, separators=(",", ":"))) / CHARACTERS


def test_the_standard_set_has_four_of_them_and_stays_within_its_limits(data: str) -> None:
    with serving("--mcp", "--without", "demo", XDG_DATA_HOME=data) as server:
        tools = ask(open_window(server), "tools/list", {})["result"]["tools"]
    names = {tool["name"] for tool in tools}
    assert {name for name in names if name.startswith("tasks.")} == {
        "tasks.create_task",
        "tasks.list_tasks",
        "tasks.next_task",
        "tasks.close_task",
    }
    assert len(tools) <= ALL_TOOLS
    assert size_of(tools) <= ALL_TOKENS


def test_what_is_not_listed_is_reached_by_search_and_call(window: Server) -> None:
    name = value(window, "create_task", description="a")["id"]
    found = call(window, "plexus.search", query="change a task note")["content"][0]["text"]
    assert "tasks.update_task" in found
    changed = value(
        window,
        "plexus.call",
        method="tasks.update_task",
        params={"task_id": name, "priority": 0, "note": "urgent"},
    )
    assert changed["priority"] == 0


def test_two_windows_share_a_list_and_a_killed_window_loses_its_claim(
    data: str, window: Server
) -> None:
    name = value(window, "create_task", description="Shared")["id"]
    with serving("--mcp", XDG_DATA_HOME=data) as other:
        open_window(other)
        taken = value(other, "next_task")
        assert taken["id"] == name
        refused = call(window, "update_task", task_id=name, status="in_progress")
        assert refused["isError"] is True
        assert f"{name} is claimed by ExampleClient/1.0.0 #" in refused["content"][0]["text"]
        assert value(window, "next_task")["message"] == "No task is ready."
        other.process.kill()
        other.process.wait(10)
        again = value(window, "next_task")
    assert again["id"] == name
    assert again["lost"] == 1


def test_the_same_texts_are_native_results(data: str) -> None:
    with serving(XDG_DATA_HOME=data) as server:
        made = server.terminal(server.start("create_task", {"description": "Fix parser bug"}))
        assert made["type"] == "complete"
        assert list(made["result"]) == ["id", "description", "status"]
        failed = server.terminal(server.start("tasks.close_task", {"task_id": "task_xyz"}))
        assert failed["type"] == "error"
        assert failed["code"] == "not_found"
        assert failed["message"] == "error: task not found: task_xyz"


async def becomes_pending(client: Client, name: str) -> None:
    """Wait until a task is free, as this client sees it."""
    async with asyncio.timeout(10):
        watch = client.call("tasks.watch")
        async with watch:
            async for event in watch:
                tasks = event["tasks"]
                if any((task["id"], task["status"]) == (name, "pending") for task in tasks):
                    return


@pytest.mark.anyio
async def test_over_a_websocket_a_claim_ends_with_the_connection_and_over_http_with_time() -> None:
    with network.serving() as server:
        url = f"ws://127.0.0.1:{server.port}"
        async with connect(url, client="watcher/1") as watcher:
            name = (await watcher.call("tasks.create_task", {"description": "a"}))["id"]
            async with connect(url, client="agent/1") as agent:
                taken = await agent.call("tasks.next_task")
                assert taken["holder"].startswith("agent/1 #")
            await becomes_pending(watcher, name)
            with server.call("tasks.next_task", {}, **{"Substrate-Client": "script/1"}) as answer:
                assert answer.status == 200
            found = await watcher.call("tasks.get", {"task_id": name})
            assert found["holder"] == "script/1"
