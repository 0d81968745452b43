"""A token with the chat scope cannot run commands through a model."""

from __future__ import annotations

from pathlib import Path

import pytest
from chat_hub import Script, error_of, talking

from activations.chat.providers.provider import Text, ToolCall
from plexus import Principal

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

WHOLE = Principal("ada", frozenset({"chat", "bash", "arbor.write"}))
CHATS = Principal("ada", frozenset({"chat"}))


async def test_configuring_a_tool_requires_its_scope(tmp_path: Path) -> None:
    async with talking(tmp_path / "arbor.db") as room:
        error = await room.error(
            "create", CHATS, name="s", model="script:x", tools=["bash.execute"]
        )
        assert (error["code"], error["data"]) == ("denied", {"scope": "bash"})
        await room.value("create", WHOLE, name="s", model="script:x", tools=["bash.execute"])


async def test_a_model_gets_only_the_tools_that_its_caller_can_call(tmp_path: Path) -> None:
    script = Script([ToolCall("1", "bash_execute", {"command": "true"})], [Text("I cannot.")])
    async with talking(tmp_path / "arbor.db", script) as room:
        tools = ["bash.execute", "arbor.tree_list"]
        await room.value("create", WHOLE, name="s", model="script:x", tools=tools, approve="none")
        events = await room.events("send", CHATS, session="s", message="hi")
        assert [tool.name for tool in script.asks[0].tools] == ["arbor_tree_list"]
        [result] = [event for event in events if event["type"] == "tool_result"]
        assert result["is_error"]
        assert "Unknown tool bash_execute" in result["output"]


async def test_a_provider_that_runs_commands_requires_the_bash_scope(tmp_path: Path) -> None:
    script = Script()
    script.runs_tools = True
    async with talking(tmp_path / "arbor.db", script) as room:
        await room.value("create", WHOLE, name="s", model="script:x", approve="none")
        error = error_of(await room.events("send", CHATS, session="s", message="hi"))
        assert (error["code"], error["data"]) == ("denied", {"scope": "bash"})
        assert script.asks == []
        events = await room.events("send", WHOLE, session="s", message="hi")
        assert events[-1]["type"] == "complete"


async def test_attaching_a_file_of_the_server_requires_the_bash_scope(tmp_path: Path) -> None:
    async with talking(tmp_path / "arbor.db") as room:
        writer = Principal("ada", frozenset({"arbor.write"}))
        error = error_of(await room.events("arbor.tree_import", writer, path="/etc/hostname"))
        assert (error["code"], error["data"]) == ("denied", {"scope": "bash"})
