"""Branches: regenerating, editing, moving; and reading long conversations in pages."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from chat_hub import ENGINES, Room, new_database, talking, text_in, words

from activations.arbor.model import NewNode
from activations.arbor.store import Store
from activations.chat import history
from activations.chat.providers.provider import Text, ToolCall

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


@pytest.fixture(params=ENGINES)
async def room(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Room]:
    async with talking(new_database(request.param, tmp_path)) as room:
        await room.create()
        yield room


async def send_all(room: Room, *turns: tuple[str, str]) -> list[str]:
    """Send messages with scripted answers, and return the nodes of all messages."""
    for said, answer in turns:
        room.script.rounds = [words(answer)]
        await room.send(said)
    return [each["node_id"] for each in await room.history()]


# --- regenerating --------------------------------------------------------------------------------


@pytest.mark.parametrize("which", [None, 2, 3])
async def test_an_answer_is_regenerated_in_a_new_branch(which: int | None, room: Room) -> None:
    nodes = await send_all(room, ("one", "A"), ("two", "B"))
    room.script.rounds = [words("B2")]
    node_id = None if which is None else nodes[which]
    events = await room.events("regenerate", session="s", node_id=node_id)
    assert text_in(events) == "B2"
    assert events[0]["user_position"]["node_id"] == nodes[2]
    assert room.script.seen() == [("user", "one"), ("assistant", "A"), ("user", "two")]
    assert [text for _, text in await room.messages()] == ["one", "A", "two", "B2"]
    assert [node["content"] for node in await room.nodes()] == ["one", "A", "two", "B", "B2"]


async def test_an_earlier_message_is_answered_again(room: Room) -> None:
    nodes = await send_all(room, ("one", "A"), ("two", "B"))
    room.script.rounds = [words("A2")]
    await room.events("regenerate", session="s", node_id=nodes[1])
    assert [text for _, text in await room.messages()] == ["one", "A2"]
    assert len(await room.nodes()) == 5


async def test_an_answer_with_tools_is_regenerated_from_the_user_message(room: Room) -> None:
    await room.value("configure", session="s", tools=["arbor.tree_list"], approve="none")
    room.script.rounds = [[Text("a"), ToolCall("1", "arbor_tree_list", {})], words("b")]
    await room.send("go")
    room.script.rounds = [words("c")]
    await room.events("regenerate", session="s")
    assert await room.messages() == [("user", "go"), ("assistant", "c")]


async def test_a_session_without_messages_has_nothing_to_regenerate(room: Room) -> None:
    error = await room.error("regenerate", session="s")
    assert error["code"] == "nothing_said"
    await room.create("t")
    await room.send("elsewhere", "t")
    other = (await room.last("t"))["node_id"]
    assert (await room.error("regenerate", session="s", node_id=other))["code"] == "not_found"
    assert await room.is_free()


async def test_a_partial_answer_is_regenerated(room: Room) -> None:
    room.script.rounds = [[Text("so"), RuntimeError("broken")], words("whole")]
    await room.events("send", session="s", message="hi")
    await room.events("regenerate", session="s")
    assert await room.messages() == [("user", "hi"), ("assistant", "whole")]
    assert room.script.seen() == [("user", "hi")]


# --- editing -------------------------------------------------------------------------------------


async def test_an_edited_message_is_answered_in_a_branch(room: Room) -> None:
    nodes = await send_all(room, ("one", "A"), ("two", "B"), ("three", "C"))
    room.script.rounds = [words("B2")]
    events = await room.events("edit", session="s", node_id=nodes[2], message="too")
    assert events[-1]["type"] == "complete"
    assert room.script.seen() == [("user", "one"), ("assistant", "A"), ("user", "too")]
    assert [text for _, text in await room.messages()] == ["one", "A", "too", "B2"]
    stored = [node["content"] for node in await room.nodes()]
    assert stored == ["one", "A", "two", "B", "three", "C", "too", "B2"]


async def test_an_edited_message_keeps_its_attachments(room: Room) -> None:
    await room.send("look", attachments=[{"text": "x", "name": "a"}, {"text": "y", "name": "b"}])
    node = (await room.history())[2]["node_id"]
    await room.events("edit", session="s", node_id=node, message="look again")
    expected = [("attachment", "x"), ("attachment", "y"), ("user", "look again")]
    assert room.script.seen() == expected
    assert (await room.messages())[:3] == expected
    assert len(await room.nodes()) == 6  # the attachments are stored once


async def test_the_first_message_can_be_edited(room: Room) -> None:
    nodes = await send_all(room, ("one", "A"))
    await room.events("edit", session="s", node_id=nodes[0], message="uno")
    assert room.script.seen() == [("user", "uno")]
    assert [text for _, text in await room.messages()] == ["uno", "yes"]


async def test_an_edited_answer_is_only_stored(room: Room) -> None:
    nodes = await send_all(room, ("one", "A"), ("two", "B"))
    asked = len(room.script.asks)
    events = await room.events("edit", session="s", node_id=nodes[1], message="Aha")
    assert len(room.script.asks) == asked
    [end] = events
    assert (end["type"], end["stop_reason"]) == ("complete", "edited")
    assert [text for _, text in await room.messages()] == ["one", "Aha"]
    assert end["position"]["node_id"] == (await room.last())["node_id"]
    assert len(await room.nodes()) == 5
    assert await room.is_free()
    await room.send("go on")
    assert room.script.seen() == [("user", "one"), ("assistant", "Aha"), ("user", "go on")]


async def test_only_user_messages_and_answers_can_be_edited(room: Room) -> None:
    await room.send("look", attachments=[{"text": "x"}])
    attachment = (await room.history())[0]["node_id"]
    error = await room.error("edit", session="s", node_id=attachment, message="no")
    assert error["code"] == "invalid_params"
    assert error["data"]["errors"][0]["at"] == "node_id"
    store = await room.arbor.store()
    head = await store.get_head("local", "chat", "s")
    tree = await store.get_tree("local", head.position.tree)
    error = await room.error("edit", session="s", node_id=tree.root, message="no")
    assert error["code"] == "invalid_params"
    for node in ("nonsense", "00000000-0000-4000-8000-000000000000"):
        error = await room.error("edit", session="s", node_id=node, message="no")
        assert error["code"] == "not_found"
    assert len(await room.nodes()) == 3


# --- moving --------------------------------------------------------------------------------------


async def test_a_session_continues_from_its_new_position(room: Room) -> None:
    nodes = await send_all(room, ("one", "A"), ("two", "B"))
    moved = await room.value("set_head", session="s", node_id=nodes[1])
    assert moved["position"]["node_id"] == nodes[1]
    assert [text for _, text in await room.messages()] == ["one", "A"]
    await room.send("other")
    assert room.script.seen() == [("user", "one"), ("assistant", "A"), ("user", "other")]
    await room.value("set_head", session="s", node_id=nodes[3])
    assert [text for _, text in await room.messages()] == ["one", "A", "two", "B"]


async def test_a_session_cannot_move_to_a_node_of_another_tree(room: Room) -> None:
    nodes = await send_all(room, ("one", "A"))
    await room.create("t")
    await room.send("elsewhere", "t")
    for node in ((await room.last("t"))["node_id"], "nonsense", ""):
        error = await room.error("set_head", session="s", node_id=node)
        assert error["code"] == "not_found"
    assert (await room.value("get", session="s"))["position"]["node_id"] == nodes[-1]


# --- the list of branches ------------------------------------------------------------------------


async def test_branches_are_listed_with_the_node_where_they_leave(room: Room) -> None:
    assert (await room.value("branches", session="s"))["branches"] == []
    nodes = await send_all(room, ("one", "A"), ("two", "B"))
    room.script.rounds = [words("B2")]
    await room.events("regenerate", session="s")
    await room.value("fork", session="s", new_name="t", node_id=nodes[3])
    found = (await room.value("branches", session="s"))["branches"]
    assert [(each["excerpt"], each["messages"], each["current"]) for each in found] == [
        ("B2", 0, True),
        ("B", 1, False),
    ]
    assert [each.get("leaves_at") for each in found] == [None, nodes[2]]
    assert [each["sessions"] for each in found] == [["s"], ["t"]]
    assert found[0]["kind"] == "assistant"
    # The session is in the middle of a branch, so no branch is current.
    await room.value("set_head", session="s", node_id=nodes[0])
    found = (await room.value("branches", session="s"))["branches"]
    assert [(each["messages"], each["current"]) for each in found] == [(3, False), (3, False)]


@pytest.mark.parametrize("limit", [1, 2, 3, 10])
async def test_branches_are_listed_page_by_page(limit: int, room: Room) -> None:
    await send_all(room, ("one", "A"))
    for n in range(4):
        room.script.rounds = [words(f"A{n}")]
        await room.events("regenerate", session="s")
    found: list[str] = []
    after = None
    for _ in range(10):
        page = await room.value("branches", session="s", after=after, limit=limit)
        assert len(page["branches"]) <= limit
        found += [each["excerpt"] for each in page["branches"]]
        after = page.get("next")
        if after is None:
            break
    assert found == ["A3", "A2", "A1", "A0", "A"]


# --- pages of history ----------------------------------------------------------------------------


async def pages(room: Room, limit: int) -> list[list[str]]:
    """Return all pages of a conversation, latest first."""
    found = []
    before = None
    for _ in range(100):
        page = await room.value("history", session="s", before=before, limit=limit)
        found.append([each["text"] for each in page["messages"]])
        before = page.get("next")
        if before is None:
            return found
    raise AssertionError("the pages have no end")


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8, 9, 1000])
async def test_pages_of_history_lose_nothing_and_repeat_nothing(limit: int, room: Room) -> None:
    await send_all(room, *((f"q{n}", f"a{n}") for n in range(4)))
    found = await pages(room, limit)
    assert all(len(page) <= limit for page in found)
    assert all(found), "no page is empty"
    whole = [text for page in reversed(found) for text in page]
    assert whole == [text for n in range(4) for text in (f"q{n}", f"a{n}")]


async def test_a_page_ends_early_if_it_is_too_large(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "PAGE_CHARACTERS", 25)
    await send_all(room, *((f"q{n}" * 5, f"a{n}" * 5) for n in range(3)))
    found = await pages(room, 100)
    assert [len(page) for page in found] == [2, 2, 2]


async def test_an_empty_session_has_an_empty_history(room: Room) -> None:
    page = await room.value("history", session="s")
    assert page["messages"] == []
    assert "next" not in page


async def test_history_does_not_continue_in_another_tree(room: Room) -> None:
    await send_all(room, ("one", "A"))
    await room.create("t")
    await room.send("elsewhere", "t")
    other = (await room.last("t"))["node_id"]
    for before in (other, "nonsense"):
        error = await room.error("history", session="s", before=before)
        assert error["code"] == "not_found"


async def test_a_text_too_long_for_a_list_is_listed_with_its_size(room: Room) -> None:
    room.script.rounds = [words("x" * 100_001)]
    await room.send("hi")
    last = await room.last()
    assert "text" not in last
    assert last["size"] == 100_001


async def test_nodes_of_other_programs_are_not_messages(room: Room) -> None:
    nodes = await send_all(room, ("one", "A"))
    store = await room.arbor.store()
    tree = (await store.get_head("local", "chat", "s")).position.tree
    strange = [NewNode("note"), NewNode("x", metadata={"kind": "user", "status": 5, "usage": []})]
    note = (await store.append("local", tree, nodes[-1], strange[:1]))[0]
    below = (await store.append("local", tree, note.id, strange[1:]))[0]
    await room.value("set_head", session="s", node_id=below.id)
    assert await room.messages() == [("user", "one"), ("assistant", "A"), ("user", "x")]
    await room.send("go on")
    assert room.script.seen()[-2:] == [("user", "x"), ("user", "go on")]


# --- long conversations --------------------------------------------------------------------------


async def test_a_long_conversation_is_read_and_continued_with_few_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: Counter[str] = Counter()

    def counted(name: str) -> None:
        method = getattr(Store, name)

        async def count(*args: Any, **more: Any) -> Any:
            reads[name] += 1
            return await method(*args, **more)

        monkeypatch.setattr(Store, name, count)

    async with talking(tmp_path / "chat.db") as room:
        await room.create()
        store = await room.arbor.store()
        head = await store.get_head("local", "chat", "s")
        await store.acquire_head("local", "chat", "s", "filling")
        kinds = ("user", "assistant")
        for start in range(0, 10_000, 500):
            items = [
                NewNode(f"message {n}", metadata={"kind": kinds[n % 2]})
                for n in range(start, start + 500)
            ]
            await store.advance("local", head.id, "filling", items)
        await store.release_head("local", head.id, "filling")
        for name in ("path", "path_tail", "get_node", "children", "walk", "structure", "parent"):
            counted(name)
        async with asyncio.timeout(30):
            await room.send("and now?")
        assert reads == {"path": 1}
        assert len(room.script.asks[-1].messages) == 10_001
        assert room.script.seen()[9_999] == ("assistant", "message 9999")
        reads.clear()
        page = await room.history(limit=50)
        assert reads == {"path_tail": 1}
        assert [each["text"] for each in page[-3:]] == ["message 9999", "and now?", "yes"]
        reads.clear()
        [branch] = (await room.value("branches", session="s"))["branches"]
        assert branch["current"]
        assert reads["structure"] <= 12
