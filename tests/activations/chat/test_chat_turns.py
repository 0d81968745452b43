"""Turns: their order of events, stored messages, and ephemeral turns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from chat_hub import (
    ENGINES,
    SCRIPT,
    Room,
    Script,
    begin,
    new_database,
    talking,
    text_in,
    words,
)

from activations.chat.providers.provider import (
    ProviderRequest,
    Retry,
    Stop,
    Text,
    ThinkingText,
    TokenUsage,
    ToolCall,
    ToolOutput,
)
from plexus import PlexusError

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


@pytest.fixture
async def room(tmp_path: Path) -> AsyncIterator[Room]:
    async with talking(tmp_path / "chat.db") as room:
        await room.create()
        yield room


def types(events: list[Any]) -> list[str]:
    return [event["type"] for event in events]


# --- order ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
async def test_the_message_is_stored_before_the_model_is_called(
    engine: str, tmp_path: Path
) -> None:
    stored: list[Any] = []

    async def look(_: ProviderRequest) -> None:
        stored.extend(await talk.nodes())

    async with talking(new_database(engine, tmp_path), Script([look, Text("hello")])) as talk:
        await talk.create()
        events = await talk.send("hi")
        [node] = stored
        assert (node["content"], node["metadata"]) == ("hi", {"kind": "user"})
        assert events[0]["type"] == "start"
        assert events[0]["user_position"]["node_id"] == node["node_id"]


async def test_another_store_sees_the_message_too(room: Room, tmp_path: Path) -> None:
    seen: list[Any] = []

    async def look(_: ProviderRequest) -> None:
        async with talking(tmp_path / "chat.db") as other:
            seen.extend(await other.messages())

    room.script.rounds = [[look, Text("hello")]]
    await room.send("hi")
    assert seen == [("user", "hi")]


async def test_events_have_the_order_of_the_model_output(room: Room) -> None:
    room.script.rounds = [
        [
            ThinkingText("hm "),
            ThinkingText("hm"),
            Text("a"),
            Text(""),
            ThinkingText("wait"),
            Text("b"),
            TokenUsage(3, 1),
            Retry(0.5, "rate limited"),
            TokenUsage(5, 2, 1, 4, 0.25),
            Stop("max_tokens"),
        ]
    ]
    events = await room.send("hi")
    assert types(events) == [
        "start", "thinking", "thinking", "content", "thinking", "content", "log", "usage",
        "complete",
    ]  # fmt: skip
    assert [event.get("text") for event in events[1:6]] == ["hm ", "hm", "a", "wait", "b"]
    assert "rate limited" in events[6]["message"]
    usage = {
        "type": "usage",
        "input_tokens": 5,
        "output_tokens": 2,
        "cache_read_tokens": 1,
        "cache_write_tokens": 4,
        "cost_usd": 0.25,
    }
    assert events[-2] == usage
    end = events[-1]
    assert (end["stop_reason"], end["usage"]) == ("max_tokens", usage)
    assert await room.messages() == [
        ("user", "hi"),
        ("thinking", "hm hm"),
        ("assistant", "a"),
        ("thinking", "wait"),
        ("assistant", "b"),
    ]
    last = await room.last()
    assert end["position"] == (await room.value("get", session="s"))["position"]
    assert end["position"]["node_id"] == last["node_id"]
    assert (last["model"], last["stop_reason"]) == (SCRIPT, "max_tokens")
    assert last["usage"] == {name: value for name, value in usage.items() if name != "type"}
    assert "status" not in last


async def test_a_message_is_one_node_however_many_tokens_it_has(room: Room) -> None:
    room.script.rounds = [words(*(f"w{n} " for n in range(3000)))]
    events = await room.send("hi")
    answer = "".join(f"w{n} " for n in range(3000))
    assert text_in(events) == answer
    assert [node["content"] for node in await room.nodes()] == ["hi", answer]


async def test_a_long_slow_answer_is_one_node_too(room: Room) -> None:
    """It is saved in pieces meanwhile, and none of them remains."""

    async def rest(_: ProviderRequest) -> None:
        await asyncio.sleep(0.03)

    steps = [step for n in range(20) for step in (Text(f"w{n} "), rest)]
    room.script.rounds = [steps]
    await room.send("hi")
    assert len(await room.nodes()) == 2
    store = await room.arbor.store()
    head = await store.get_head("local", "chat", "s")
    assert await store.pieces("local", head.id) == []
    assert head.holder is None


async def test_an_answer_longer_than_a_node_continues_in_another(room: Room) -> None:
    room.script.rounds = [words(*["x" * 100_000] * 12)]
    await room.send("hi")
    head = await (await room.arbor.store()).get_head("local", "chat", "s")
    path = await (await room.arbor.store()).path("local", *head.position)
    stored = [node.content or "" for node in path][2:]
    assert "".join(stored) == "x" * 1_200_000
    assert len(stored) == 2


async def test_an_empty_answer_is_an_answer(room: Room) -> None:
    room.script.rounds = [[Stop("refusal")]]
    events = await room.send("hi")
    assert types(events) == ["start", "usage", "complete"]
    assert events[-1]["stop_reason"] == "refusal"
    assert await room.messages() == [("user", "hi"), ("assistant", "")]
    assert text_in(await room.send("again")) == "yes"


async def test_the_request_contains_the_conversation_so_far(room: Room) -> None:
    room.script.rounds = [[ThinkingText("hm", {"signature": "s"}), Text("one")]]
    await room.send("first")
    await room.send("second")
    assert room.script.seen() == [
        ("user", "first"),
        ("thinking", "hm"),
        ("assistant", "one"),
        ("user", "second"),
    ]
    thought = room.script.asks[-1].messages[1]
    assert thought.meta["signature"] == "s"
    assert thought.meta["model"] == SCRIPT


async def test_metadata_of_a_provider_is_sent_back(room: Room) -> None:
    room.script.rounds = [
        [ToolCall("1", "nothing", {}, {"provider": {"x": 1}}), Stop("tool_use", {"id": "m"})],
        words("done"),
    ]
    await room.send("first")
    await room.send("second")
    uses = [each for each in room.script.asks[-1].messages if each.kind == "tool_use"]
    assert uses[0].meta["provider"] == {"x": 1}
    assert uses[0].meta["model"] == SCRIPT
    assert uses[0].meta["memory"] == {"id": "m"}


async def test_a_provider_with_its_own_session_gets_the_branching_flag(room: Room) -> None:
    room.script.runs_tools = True
    remembered = Stop("end_turn", {"id": "m"})
    room.script.rounds = [[Text("one"), remembered], [Text("two"), remembered]]
    await room.send("first")
    await room.send("second")
    assert [ask.branching for ask in room.script.asks] == [False, False]
    await room.value(
        "fork", session="s", new_name="t", node_id=(await room.history())[1]["node_id"]
    )
    await room.send("elsewhere", "t")
    assert room.script.asks[-1].branching
    await room.events("regenerate", session="s")
    assert room.script.asks[-1].branching
    assert room.script.asks[-1].tools == ()


# --- user messages -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "code"), [("", "empty_message"), (" \n\t", "empty_message"), ("a\0b", "bad_text")]
)
async def test_an_invalid_message_is_refused_and_not_stored(
    room: Room, message: str, code: str
) -> None:
    await room.send("before")
    node = (await room.history())[0]["node_id"]
    for method, more in (("send", {}), ("send", {"ephemeral": True}), ("edit", {"node_id": node})):
        error = await room.error(method, session="s", message=message, **more)
        assert error["code"] == code, method
    assert len(await room.nodes()) == 2
    assert len(room.script.asks) == 1
    assert await room.is_free()


async def test_a_lone_surrogate_is_refused_and_not_stored(room: Room) -> None:
    """No transport can send one, but a caller in the same process can."""
    live = begin(room.hub, "claudecode.chat", session_name="s", query="a\ud800b")
    error = await live.end()
    assert error["code"] == "bad_text"
    with pytest.raises(PlexusError):
        room.hub.call("chat.send", {"session": "s", "message": "a\ud800b"})
    assert await room.nodes() == []
    assert await room.is_free()


async def test_a_message_larger_than_a_node_is_refused_and_not_stored(room: Room) -> None:
    error = await room.error("send", session="s", message="x" * (4 * 1024 * 1024 + 1))
    assert error["code"] == "too_big"
    assert await room.nodes() == []
    assert await room.is_free()


async def test_unstorable_characters_are_replaced_in_model_output(room: Room) -> None:
    room.script.rounds = [[ThinkingText("t\0"), Text("a\0b"), Text("c\ud800d"), Text("é\udfff")]]
    events = await room.send("hi")
    assert text_in(events) == "a\ufffdbc?dé?"
    assert await room.messages() == [
        ("user", "hi"),
        ("thinking", "t\ufffd"),
        ("assistant", "a\ufffdbc?dé?"),
    ]


async def test_a_tool_input_can_contain_unstorable_characters(room: Room) -> None:
    given = {"text": "a\0b"}
    room.script.rounds = [[ToolCall("1", "nothing", given)], words("done")]
    events = await room.events("send", session="s", message="hi")
    assert events[-1]["type"] == "complete", events
    assert (await room.last())["text"] == "done"


# --- ephemeral turns -----------------------------------------------------------------------------


def rows(path: Path) -> dict[str, list[Any]]:
    """Return every row of every table."""
    connection = apsw.Connection(str(path))
    tables = [name for (name,) in connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]  # fmt: skip
    found = {}
    for table in tables:
        found[table] = list(connection.execute(f'SELECT * FROM "{table}"'))
    connection.close()
    return found


@pytest.mark.parametrize("kind", ["whole", "failing", "cancelled", "tools", "summarised"])
async def test_an_ephemeral_turn_stores_nothing(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    async with talking(path) as room:
        await room.create(tools=["arbor.tree_list"], overflow="summarise")
        await room.send("one")
        await room.send("two " * 100)
        before = rows(path)
        assert len(before) > 5
        rounds: dict[str, list[Any]] = {
            "whole": [words("three")],
            "failing": [[*words("thr"), RuntimeError("broken")]],
            "cancelled": [[*words("thr"), asyncio.Event()]],
            "tools": [[ToolCall("1", "arbor_tree_list", {})], words("three")],
            "summarised": [*[words("what was")] * 20],
        }
        room.script.rounds = rounds[kind]
        if kind == "summarised":
            room.script.context = 300
        live = room.begin("send", session="s", message="psst", ephemeral=True)
        if kind == "cancelled":
            await live.wait_for_text("thr")
            await asyncio.sleep(0.3)  # longer than the save delay
            await live.cancel()
        end = await live.end()
        after = rows(path)
        assert after == before
        if kind in ("whole", "tools", "summarised"):
            assert end["type"] == "complete", end
            assert "position" not in end
            assert "user_position" not in live.events[0]
        seen = room.script.seen(-1 if kind != "tools" else -2)
        assert seen[-1] == ("user", "psst")
        assert seen[0] == (("summary", "what was") if kind == "summarised" else ("user", "one"))
        assert room.script.asks[-1].ephemeral


async def test_an_ephemeral_turn_can_run_concurrently_with_another(room: Room) -> None:
    gate = asyncio.Event()
    room.script.rounds = [[*words("a"), gate, *words("b")], words("aside")]
    live = room.begin("send", session="s", message="hi")
    await live.wait_for_text("a")
    assert text_in(await room.send("psst", ephemeral=True)) == "aside"
    gate.set()
    await live.end()
    assert await room.messages() == [("user", "hi"), ("assistant", "ab")]


async def test_a_piece_too_long_for_an_event_is_split(tmp_path: Path) -> None:
    text = "\u0001" * 250_000  # six bytes each when encoded
    async with talking(tmp_path / "arbor.db", Script([Text(text)])) as room:
        await room.create()
        events = await room.send("hi")
        assert text_in(events) == text
        assert (await room.nodes())[-1]["size"] == len(text)


async def test_a_long_result_of_a_providers_tool_keeps_head_and_tail(tmp_path: Path) -> None:
    output = "a" * 2_000_000 + "z"
    script = Script([ToolCall("1", "Read", {}), ToolOutput("1", output), Text("done")])
    script.runs_tools = True
    async with talking(tmp_path / "arbor.db", script) as room:
        await room.create()
        events = await room.send("hi")
        [result] = [event for event in events if event["type"] == "tool_result"]
        assert len(result["output"]) < 70_000
        assert result["output"].startswith("aaa")
        assert result["output"].endswith("z")
        assert "left out" in result["output"]
