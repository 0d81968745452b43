"""Sessions: creation, names, lists, configuration, forks, deletion and ownership."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from chat_hub import ENGINES, SCRIPT, Room, Script, new_database, talking, text_in, words
from hub_calls import OTHER

from plexus import Failed, InvalidParams

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


@pytest.fixture
async def room(tmp_path: Path) -> AsyncIterator[Room]:
    async with talking(tmp_path / "chat.db") as room:
        yield room


@pytest.fixture(params=ENGINES)
async def any_room(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Room]:
    async with talking(new_database(request.param, tmp_path)) as room:
        yield room


async def names(room: Room) -> list[str]:
    return [each["name"] for each in (await room.value("list"))["sessions"]]


# --- creating ------------------------------------------------------------------------------------


async def test_a_session_has_the_configuration_it_was_created_with(any_room: Room) -> None:
    room = any_room
    setup: dict[str, Any] = {
        "system_prompt": "Be brief.",
        "tools": ["bash.execute", "arbor.*"],
        "approve": "all",
        "overflow": "drop",
        "thinking": True,
        "max_tokens": 100,
        "temperature": 0.5,
        "context_tokens": 5000,
        "working_dir": "/tmp",
        "allowed_tools": ["Read"],
    }
    made = await room.create("work", **setup)
    assert {name: made[name] for name in setup} == setup
    assert (made["name"], made["model"], made["busy"]) == ("work", SCRIPT, False)
    assert await room.value("get", session="work") == made
    [listed] = (await room.value("list"))["sessions"]
    assert listed == made


async def test_a_session_without_a_model_gets_the_default_model(room: Room) -> None:
    made = await room.value("create", name="a")
    assert made["model"] == "echo:echo"
    assert text_in(await room.send("hello", "a")).startswith("You said: hello")


async def test_the_configuration_reaches_the_provider(room: Room) -> None:
    await room.create(system_prompt="Be brief.", max_tokens=7, temperature=0.0, thinking=True)
    await room.send("hi")
    ask = room.script.asks[-1]
    assert (ask.model, ask.system_prompt, ask.max_tokens) == ("one", "Be brief.", 7)
    assert (ask.temperature, ask.thinking, ask.tools) == (0.0, True, [])


@pytest.mark.parametrize("again", ["create", "rename", "fork"])
async def test_an_existing_name_is_refused(any_room: Room, again: str) -> None:
    room = any_room
    await room.create("a")
    await room.create("b")
    params: dict[str, Any] = (
        {"name": "a"} if again == "create" else {"session": "b", "new_name": "a"}
    )
    error = await room.error(again, **params)
    assert error["code"] == "name_taken"
    assert "'a'" in error["message"]
    assert error["data"] == {"session": "a"}
    assert await names(room) == ["a", "b"]


@pytest.mark.parametrize("name", ["", "  ", "a\0b", "x" * 257])
async def test_an_invalid_name_is_refused(room: Room, name: str) -> None:
    error = await room.error("create", name=name)
    assert error["code"] in ("bad_name", "bad_text", "too_big"), error
    await room.create("a")
    assert (await room.error("rename", session="a", new_name=name))["code"] == error["code"]
    assert await names(room) == ["a"]


@pytest.mark.parametrize("name", ["a.b", "Grüße 你好", "a/b", "{x}", "x" * 256, " a "])
async def test_any_other_name_is_accepted(room: Room, name: str) -> None:
    await room.create(name)
    await room.send("hi", name)
    assert (await room.value("get", session=name))["name"] == name


@pytest.mark.parametrize("model", ["unknown:x", "gpt", "echo:", ":x", ""])
async def test_an_unknown_provider_is_refused(room: Room, model: str) -> None:
    if model == "":  # like an omitted value
        assert (await room.create("a", model=""))["model"] == "echo:echo"
        return
    error = await room.error("create", name="a", model=model)
    assert error["code"] == "unknown_model"
    assert await names(room) == []
    await room.create("b")
    assert (await room.error("configure", session="b", model=model))["code"] == "unknown_model"
    assert (await room.value("get", session="b"))["model"] == SCRIPT


async def test_a_model_that_its_provider_does_not_know_stores_nothing(room: Room) -> None:
    await room.value("create", name="s", model="echo:nonsense")
    error = await room.error("send", session="s", message="hi")
    assert error["code"] == "unknown_model"
    assert await room.nodes() == []
    assert await room.is_free()


@pytest.mark.parametrize("pattern", ["nothing.here", "bash", "", "*.nothing"])
async def test_a_pattern_that_matches_no_tool_is_refused(room: Room, pattern: str) -> None:
    error = await room.error("create", name="a", tools=["bash.execute", pattern])
    assert error["code"] == "unknown_tool"
    assert error["data"] == {"pattern": pattern}
    assert await names(room) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": 0},
        {"max_tokens": -1},
        {"context_tokens": 0},
        {"temperature": -0.1},
        {"temperature": 2.1},
    ],
)
async def test_an_invalid_configuration_is_refused(room: Room, wrong: dict[str, Any]) -> None:
    error = await room.error("create", name="a", **wrong)
    assert error["code"] == "invalid_params"
    assert [each["at"] for each in error["data"]["errors"]] == list(wrong)
    assert await names(room) == []


async def test_an_unknown_choice_is_refused(room: Room) -> None:
    for wrong in ({"approve": "some"}, {"overflow": "explode"}):
        with pytest.raises(InvalidParams):
            room.hub.call("chat.create", {"name": "a", **wrong})


# --- listing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 6, 1000])
async def test_sessions_are_listed_page_by_page(any_room: Room, limit: int) -> None:
    room = any_room
    made = ["a", "b", "c", "d", "é"]
    for name in reversed(made):
        await room.create(name)
    found: list[str] = []
    after = None
    for _ in range(10):
        page = await room.value("list", after=after, limit=limit)
        assert len(page["sessions"]) <= limit
        found += [each["name"] for each in page["sessions"]]
        after = page.get("next")
        if after is None:
            break
    assert found == made


@pytest.mark.parametrize("limit", [0, -1, 1001])
async def test_an_invalid_page_size_is_refused(room: Room, limit: int) -> None:
    await room.create()
    for method in ("list", "history", "branches", "search"):
        given: dict[str, dict[str, Any]] = {"list": {}, "search": {"text": "x"}}
        params = given.get(method, {"session": "s"})
        with pytest.raises(InvalidParams, match=f"chat.{method}: limit: "):
            await room.error(method, limit=limit, **params)


async def test_without_a_file_there_are_no_sessions_and_still_no_file(tmp_path: Path) -> None:
    async with talking(tmp_path / "none.db") as room:
        assert await names(room) == []
        assert (await room.value("plexus.prompts")) == []
    assert not (tmp_path / "none.db").exists()


async def test_the_sessions_of_claude_code_are_listed_apart(room: Room) -> None:
    for index in range(5):
        await room.create(f"chat {index}")
        await room.value("claudecode.create", name=f"code {index}")
    page = await room.value("claudecode.list", limit=3)
    assert [each["name"] for each in page["sessions"]] == ["code 0", "code 1", "code 2"]
    rest = await room.value("claudecode.list", limit=3, after=page["next"])
    assert [each["name"] for each in rest["sessions"]] == ["code 3", "code 4"]
    assert "next" not in rest
    assert len(await names(room)) == 10


# --- changing ------------------------------------------------------------------------------------


async def test_omitted_values_stay_and_empty_values_are_removed(room: Room) -> None:
    await room.create(system_prompt="a", max_tokens=5, tools=["bash.*"], working_dir="/tmp")
    changed = await room.value("configure", session="s", temperature=0.0, overflow="drop")
    assert (changed["system_prompt"], changed["max_tokens"]) == ("a", 5)
    assert (changed["temperature"], changed["overflow"]) == (0.0, "drop")
    changed = await room.value(
        "configure", session="s", system_prompt="", max_tokens=0, tools=[], working_dir=""
    )
    assert not {"system_prompt", "max_tokens", "working_dir"} & set(changed)
    assert changed["tools"] == []
    assert await room.value("get", session="s") == changed


async def test_another_model_continues_the_same_conversation(room: Room) -> None:
    await room.create()
    await room.send("one")
    await room.value("configure", session="s", model="echo:echo")
    assert text_in(await room.send("two")) == "You said: two"
    assert [kind for kind, _ in await room.messages()] == ["user", "assistant"] * 2


async def test_a_renamed_session_keeps_its_conversation(any_room: Room) -> None:
    room = any_room
    made = await room.create("old")
    await room.send("hi", "old")
    renamed = await room.value("rename", session="old", new_name="new")
    assert renamed["session_id"] == made["session_id"]
    assert (await room.error("get", session="old"))["code"] == "not_found"
    assert await room.messages("new") == [("user", "hi"), ("assistant", "yes")]
    tree = await room.value("arbor.tree_list")
    assert "new" in str(tree)
    assert "old" not in str(tree)


async def test_a_session_can_be_renamed_in_the_middle_of_a_turn(room: Room) -> None:
    gate = asyncio.Event()
    room.script.rounds = [[*words("a"), gate, *words("b")]]
    await room.create()
    live = room.begin("send", session="s", message="hi")
    await live.wait_for_text("a")
    await room.value("rename", session="s", new_name="t")
    gate.set()
    assert (await live.end())["type"] == "complete"
    assert await room.messages("t") == [("user", "hi"), ("assistant", "ab")]


# --- deleting and forking ------------------------------------------------------------------------


async def test_a_deleted_session_is_gone_and_its_tree_is_scheduled(any_room: Room) -> None:
    room = any_room
    made = await room.create()
    tree = made["position"]["tree_id"]
    gone = await room.value("delete", session="s")
    assert gone == {
        "type": "deleted",
        "session_id": made["session_id"],
        "name": "s",
        "tree_id": tree,
    }
    assert (await room.error("get", session="s"))["code"] == "not_found"
    assert (await room.error("delete", session="s"))["code"] == "not_found"
    assert tree in str(await room.value("arbor.tree_list_scheduled"))
    await room.create()  # the name is free again
    assert (await room.value("get", session="s"))["position"]["tree_id"] != tree


async def test_forks_share_the_conversation_and_continue_independently(any_room: Room) -> None:
    room = any_room
    first = await room.create("a", system_prompt="Be brief.")
    await room.send("one", "a")
    fork = await room.value("fork", session="a", new_name="b")
    assert fork["position"]["tree_id"] == first["position"]["tree_id"]
    assert fork["system_prompt"] == "Be brief."
    room.script.rounds = [words("A"), words("B")]
    await room.send("for a", "a")
    await room.send("for b", "b")
    shared = [("user", "one"), ("assistant", "yes")]
    assert await room.messages("a") == [*shared, ("user", "for a"), ("assistant", "A")]
    assert await room.messages("b") == [*shared, ("user", "for b"), ("assistant", "B")]
    assert len(await room.nodes("a")) == 6
    await room.value("delete", session="a")
    tree = first["position"]["tree_id"]
    assert tree not in str(await room.value("arbor.tree_list_scheduled"))
    assert text_in(await room.send("still here", "b")) == "yes"
    await room.value("delete", session="b")
    assert tree in str(await room.value("arbor.tree_list_scheduled"))


async def test_a_fork_can_begin_at_an_earlier_message(room: Room) -> None:
    await room.create("a")
    await room.send("one", "a")
    first = (await room.history("a"))[0]["node_id"]
    await room.send("two", "a")
    await room.value("fork", session="a", new_name="b", node_id=first)
    assert await room.messages("b") == [("user", "one")]
    await room.create("c")
    await room.send("elsewhere", "c")
    other = (await room.last("c"))["node_id"]
    error = await room.error("fork", session="a", new_name="d", node_id=other)
    assert error["code"] == "not_found"
    assert await names(room) == ["a", "b", "c"]


# --- ownership -----------------------------------------------------------------------------------

EVERYTHING: list[tuple[str, dict[str, Any]]] = [
    ("get", {}),
    ("send", {"message": "hi"}),
    ("send", {"message": "hi", "ephemeral": True}),
    ("regenerate", {}),
    ("edit", {"node_id": "x", "message": "hi"}),
    ("history", {}),
    ("branches", {}),
    ("search", {"text": "secret"}),
    ("export", {}),
    ("configure", {"max_tokens": 5}),
    ("rename", {"new_name": "t"}),
    ("fork", {"new_name": "t"}),
    ("set_head", {"node_id": "x"}),
    ("delete", {}),
]


@pytest.mark.parametrize(("method", "params"), EVERYTHING)
async def test_an_unknown_session_is_not_found(
    room: Room, method: str, params: dict[str, Any]
) -> None:
    error = await room.error(method, session="my-session", **params)
    assert error["code"] == "not_found"
    assert error["message"] == "Session 'my-session' not found"
    assert error["data"] == {"session": "my-session"}


async def test_another_principal_sees_nothing_and_changes_nothing(any_room: Room) -> None:
    room = any_room
    await room.create()
    await room.send("secret")
    before = await room.value("get", session="s")
    for method, params in EVERYTHING:
        error = await room.error(method, OTHER, session="s", **params)
        assert error["message"] == "Session 's' not found", method
    assert (await room.value("list", OTHER))["sessions"] == []
    assert (await room.value("search", OTHER, text="secret"))["hits"] == []
    assert (await room.value("plexus.prompts", OTHER)) == []
    assert await room.value("get", session="s") == before
    await room.value(
        "create", OTHER, name="s", model=SCRIPT
    )  # a separate session with the same name
    assert (await room.value("history", OTHER, session="s"))["messages"] == []
    assert len(await room.messages()) == 2


# --- models --------------------------------------------------------------------------------------


async def test_the_models_report_readiness_and_advice(room: Room) -> None:
    models = await room.value("models")
    assert models["default"] == "echo:echo"
    known = {each["provider"]: each for each in models["providers"]}
    assert known["echo"]["ready"]
    assert "advice" not in known["echo"]
    assert not known["anthropic"]["ready"]
    assert known["anthropic"]["advice"]


async def test_the_health_check_reports_the_default_model(room: Room) -> None:
    assert await room.chat.check_health() == "default model echo:echo"


async def test_the_health_check_fails_if_the_default_model_cannot_be_used(tmp_path: Path) -> None:
    async with talking(tmp_path / "chat.db", Script(), model="echo:nonsense") as room:
        with pytest.raises(Failed):
            await room.chat.check_health()
