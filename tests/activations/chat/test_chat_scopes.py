"""A token that may chat may not run commands by way of a model."""

from __future__ import annotations

from pathlib import Path

import pytest
from chat_hub import Script, error_of, talking

from activations.chat.providers.provider import Text, ToolCall
from plexus import Principal

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

WHOLE = Principal("ada", frozenset({"chat", "bash", "arbor.write"}))
CHATS = Principal("ada", frozenset({"chat"}))


async def test_tools_can_be_named_only_by_who_may_call_them(tmp_path: Path) -> None:
    async with talking(tmp_path / "arbor.db") as room:
        error = await room.error(
            "create", CHATS, name="s", model="script:x", tools=["bash.execute"]
        )
        assert (error["code"], error["data"]) == ("denied", {"scope": "bash"})
        await room.value("create", WHOLE, name="s", model="script:x", tools=["bash.execute"])


async def test_a_model_is_offered_only_what_its_caller_may_call(tmp_path: Path) -> None:
    script = Script([ToolCall("1", "bash_execute", {"command": "true"})], [Text("I cannot.")])
    async with talking(tmp_path / "arbor.db", script) as room:
        tools = ["bash.execute", "arbor.tree_list"]
        await room.value("create", WHOLE, name="s", model="script:x", tools=tools, approve="none")
        events = await room.events("send", CHATS, session="s", message="hi")
        assert [tool.name for tool in script.asks[0].tools] == ["arbor_tree_list"]
        [result] = [event for event in events if event["type"] == "tool_result"]
        assert result["is_error"]
        assert "Unknown tool bash_execute" in result["output"]


async def test_a_provider_that_runs_commands_needs_the_scope_for_that(tmp_path: Path) -> None:
    script = Script()
    script.runs_tools = True
    async with talking(tmp_path / "arbor.db", script) as room:
        await room.value("create", WHOLE, name="s", model="script:x", approve="none")
        error = error_of(await room.events("send", CHATS, session="s", message="hi"))
        assert (error["code"], error["data"]) == ("denied", {"scope": "bash"})
        assert script.asks == []
        events = await room.events("send", WHOLE, session="s", message="hi")
        assert events[-1]["type"] == "complete"


async def test_a_file_of_the_server_is_read_only_for_who_may_run_commands(tmp_path: Path) -> None:
    async with talking(tmp_path / "arbor.db") as room:
        writer = Principal("ada", frozenset({"arbor.write"}))
        error = error_of(await room.events("arbor.tree_import", writer, path="/etc/hostname"))
        assert (error["code"], error["data"]) == ("denied", {"scope": "bash"})
