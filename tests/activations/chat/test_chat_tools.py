"""Tools: which a model can call, how they run, and the results that it receives."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from chat_hub import Room, talking, text_in, words
from chat_kit import EmptyKit, Kit, use
from child_processes import is_alive
from hub_calls import OTHER, until

from activations.chat.providers.provider import Text, TokenUsage
from activations.chat.tools import RESULT_CHARACTERS
from plexus.principal import LOCAL

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


@pytest.fixture
async def room(tmp_path: Path) -> AsyncIterator[Room]:
    async with talking(tmp_path / "chat.db", None, Kit()) as room:
        yield room


async def tool_result(room: Room, name: str, **given: Any) -> Any:
    """Return the result that a model receives for a tool call."""
    await room.create(tools=["kit.*"], approve="none")
    room.script.rounds = [use(name, **given), words("done")]
    events = await room.send("go")
    [result] = [event for event in events if event["type"] == "tool_result"]
    assert room.script.seen()[-1] == ("tool_result", result["output"])
    assert text_in(events) == "done"
    return result


def tool_names(room: Room) -> list[str]:
    return [tool.name for tool in room.script.asks[-1].tools]


# --- selection -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        ([], []),
        (["kit.add"], ["kit_add"]),
        (["kit.add", "kit.add"], ["kit_add"]),
        (["bash.execute", "kit.a*"], ["bash_execute", "kit_add"]),
        (["kit.[fs]*"], ["kit_fail", "kit_flood", "kit_silent", "kit_sure"]),
    ],
)
async def test_patterns_choose_the_tools_of_a_session(
    patterns: list[str], names: list[str], room: Room
) -> None:
    await room.create(tools=patterns)
    await room.send("hi")
    assert tool_names(room) == names


async def test_unlisted_and_following_methods_are_not_tools(room: Room) -> None:
    await room.create(tools=["*"])
    await room.send("hi")
    assert {"kit_add", "bash_execute", "arbor_tree_list", "chat_send"} <= set(tool_names(room))
    assert not {"kit_hidden", "plexus_attach", "plexus_unsubscribe"} & set(tool_names(room))
    assert all("." not in name for name in tool_names(room))


async def test_a_tool_definition_has_the_description_and_schema_of_its_method(room: Room) -> None:
    await room.create(tools=["kit.add"])
    await room.send("hi")
    [tool] = room.script.asks[-1].tools
    assert tool.description.startswith("Add two numbers.")
    properties = tool.schema["properties"]
    assert properties["a"] == {"type": "integer", "description": "The first number."}
    assert (properties["b"]["default"], tool.schema["required"]) == (1, ["a"])


async def test_a_removed_tool_is_reported_before_anything_is_stored(room: Room) -> None:
    await room.create(tools=["kit.add"])
    room.hub.register(EmptyKit())
    error = await room.error("send", session="s", message="hi")
    assert (error["code"], error["data"]) == ("unknown_tool", {"pattern": "kit.add"})
    assert await room.nodes() == []
    assert await room.is_free()


# --- calls ---------------------------------------------------------------------------------------


async def test_a_tool_call_is_a_separate_run_and_its_result_is_sent_back(room: Room) -> None:
    await room.create(tools=["kit.*"], approve="none")
    room.script.rounds = [[Text("Let me see."), *use("kit_add", a=2, b=3)], words("It is 5.")]
    live = room.begin("send", session="s", message="2+3?")
    await live.end()
    kinds = [event["type"] for event in live.events]
    assert kinds == [
        "start", "content", "tool_use", "usage", "tool_start", "tool_result", "content", "usage",
        "complete",
    ]  # fmt: skip
    [asked], [started], [result] = (
        live.sent(kind) for kind in ("tool_use", "tool_start", "tool_result")
    )
    assert (asked["tool_name"], asked["input"]) == ("kit.add", {"a": 2, "b": 3})
    assert asked["tool_use_id"] == started["tool_use_id"] == result["tool_use_id"] == "1"
    assert (result["output"], result["is_error"]) == ("5", False)
    runs = {each["run"]: each for each in await room.value("plexus.runs")}
    assert runs[started["run"]]["method"] == "kit.add"
    assert runs[started["run"]]["parent"] == live.run.id
    found = await room.history()
    assert [(each["kind"], each["text"]) for each in found] == [
        ("user", "2+3?"),
        ("assistant", "Let me see."),
        ("tool_use", '{"a":2,"b":3}'),
        ("tool_result", "5"),
        ("assistant", "It is 5."),
    ]
    assert (found[2]["tool_name"], found[2]["tool_use_id"]) == ("kit.add", "1")
    assert (found[3]["tool_name"], found[3]["run"]) == ("kit.add", started["run"])
    assert found[3]["is_error"] is False
    assert room.script.seen() == [(each["kind"], each["text"]) for each in found[:-1]]


async def test_several_tools_of_one_round_run_in_order(room: Room) -> None:
    await room.create(tools=["kit.*"], approve="none")
    room.script.rounds = [
        [*use("kit_add", "x", a=1), *use("kit_fail", "y"), *use("kit_add", "z", a=5)],
        words("done"),
    ]
    events = await room.send("go")
    results = [event for event in events if event["type"] == "tool_result"]
    assert [(each["tool_use_id"], each["is_error"]) for each in results] == [
        ("x", False),
        ("y", True),
        ("z", False),
    ]
    kinds = [kind for kind, _ in await room.messages()]
    assert kinds == ["user", *["tool_use"] * 3, *["tool_result"] * 3, "assistant"]


async def test_a_tool_runs_as_the_principal_of_the_turn(room: Room) -> None:
    await room.value(
        "create", OTHER, name="s", model="script:one", tools=["kit.whoami"], approve="none"
    )
    room.script.rounds = [use("kit_whoami"), words("done")]
    events = await room.events("send", OTHER, session="s", message="who?")
    [result] = [event for event in events if event["type"] == "tool_result"]
    assert result["output"] == OTHER.name


@pytest.mark.parametrize(
    ("tool", "given", "expected"),
    [
        ("kit_fail", {}, "it cannot be done"),
        ("kit_break_down", {}, "failed"),
        ("kit_add", {"a": "one"}, "a"),
        ("kit_add", {}, "a"),
        ("kit_add", {"a": 1, "c": 2}, "c"),
        ("kit_add", {"_raw": "{broken"}, "_raw"),
        ("bash_execute", {"command": "ls"}, "Unknown tool bash_execute. Available tools: kit_add,"),
        ("kit.add", {"a": 1}, "Unknown tool kit.add."),
    ],
)
async def test_a_tool_error_is_returned_to_the_model(
    tool: str, given: dict[str, Any], expected: str, room: Room
) -> None:
    result = await tool_result(room, tool, **given)
    assert result["is_error"] is True
    assert expected in result["output"]
    assert "secret" not in result["output"]
    stored = [each for each in await room.history() if each["kind"] == "tool_result"]
    assert [each["is_error"] for each in stored] == [True]


async def test_a_tool_without_output_returns_a_note(room: Room) -> None:
    assert (await tool_result(room, "kit_silent"))["output"] != ""


@pytest.mark.parametrize("size", [RESULT_CHARACTERS - 1000, RESULT_CHARACTERS + 5000, 3_000_000])
async def test_a_long_tool_result_keeps_head_and_tail(size: int, room: Room) -> None:
    result = await tool_result(room, "kit_flood", size=size)
    output = result["output"]
    assert output.startswith("<head>")
    assert output.endswith("<tail>")
    whole = size // 1000 * 1000 + len("<head><tail>")
    if whole <= RESULT_CHARACTERS:
        assert len(output) == whole
    else:
        left_out = whole - RESULT_CHARACTERS
        assert f"{left_out} characters left out" in output
        assert "run://" in output
        assert len(output) < RESULT_CHARACTERS + 200


async def test_max_turns_limits_the_model_calls_of_a_turn(room: Room) -> None:
    await room.create(tools=["kit.*"], approve="none")
    room.script.rounds = [use("kit_add", str(n), a=n) for n in range(5)]
    events = await room.send("go", max_turns=2)
    assert len(room.script.asks) == 2
    assert events[-1]["stop_reason"] == "max_turns"
    assert [event["type"] for event in events].count("tool_result") == 1
    assert [kind for kind, _ in await room.messages()] == [
        "user", "tool_use", "tool_result", "tool_use"
    ]  # fmt: skip
    room.script.rounds = []
    await room.send("and now?")


@pytest.mark.parametrize("turns", [0, -1])
async def test_max_turns_must_be_at_least_one(turns: int, room: Room) -> None:
    await room.create()
    error = await room.error("send", session="s", message="hi", max_turns=turns)
    assert error["code"] == "invalid_params"
    assert await room.nodes() == []


async def test_the_usage_of_a_turn_is_the_sum_of_its_rounds(room: Room) -> None:
    await room.create(tools=["kit.*"], approve="none")
    room.script.rounds = [
        [*use("kit_add", a=1), TokenUsage(10, 2, cost_usd=0.5)],
        [Text("done"), TokenUsage(15, 3, 4)],
    ]
    events = await room.send("go")
    usages = [event for event in events if event["type"] == "usage"]
    assert [(each["input_tokens"], each["output_tokens"]) for each in usages] == [(10, 2), (15, 3)]
    total = events[-1]["usage"]
    assert (total["input_tokens"], total["output_tokens"]) == (25, 5)
    assert (total["cache_read_tokens"], total["cost_usd"]) == (4, 0.5)


# --- cancelling ----------------------------------------------------------------------------------


async def test_cancelling_a_turn_cancels_its_tool(room: Room, tmp_path: Path) -> None:
    await room.create(tools=["bash.execute"], approve="none")
    pid_file = tmp_path / "pid"
    command = f"echo $$ > {pid_file}; sleep 1000"
    room.script.rounds = [use("bash_execute", command=command)]
    live = room.begin("send", session="s", message="go")
    started = await live.wait_for_event("tool_start")
    await until(lambda: pid_file.exists() and bool(pid_file.read_text()))
    pid = int(pid_file.read_text())
    assert is_alive(pid)
    assert (await live.cancel())["type"] == "cancelled"
    await until(lambda: not is_alive(pid))
    tool = room.hub.runs.find(started["run"], LOCAL)
    await until(lambda: tool.terminal is not None)  # its process exits before the run ends
    assert tool.state == "cancelled"
    assert [kind for kind, _ in await room.messages()] == ["user", "tool_use"]
    assert await room.is_free()
    assert text_in(await room.send("next")) == "yes"
