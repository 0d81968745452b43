"""Export as Markdown and JSON, search, and sessions as prompts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from chat_hub import ENGINES, SCRIPT, Room, new_database, talking, text_in, words

from activations.chat.message import Message, to_markdown
from activations.chat.providers.provider import Text, ThinkingText, TokenUsage, ToolCall
from plexus import Failed

anyio = pytest.mark.anyio
pytestmark = pytest.mark.timeout(60)

PNG = "iVBORw0KGgo="
ECHO = {"command": "echo ``"}


@pytest.fixture(params=ENGINES)
async def room(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Room]:
    async with talking(new_database(request.param, tmp_path)) as room:
        yield room


async def everything(room: Room) -> None:
    """Create a session with a message of every kind."""
    await room.create("all", system_prompt="Be brief.", tools=["bash.execute"], approve="none")
    room.script.rounds = [
        [
            ThinkingText("hm\nhm"),
            Text("Let me see."),
            ToolCall("1", "bash_execute", {"command": "echo ``"}),
        ],
        [Text("It is done."), TokenUsage(9, 4)],
        [Text("so f"), Failed("it broke", code="provider_broke")],
    ]
    files = [{"text": "a ```` b", "name": "a.md"}, {"data": PNG, "mime_type": "image/png"}]
    await room.send("Look.", "all", attachments=files)
    await room.events("send", session="all", message="Again?")


async def exported(room: Room, **params: Any) -> str:
    events = await room.events("export", session="all", **params)
    assert events[-1]["type"] == "complete"
    return text_in(events)


# --- Markdown ------------------------------------------------------------------------------------


@anyio
async def test_markdown_has_everything_in_order(room: Room) -> None:
    await everything(room)
    text = await exported(room)
    assert text.startswith(f"# all\n\n*{SCRIPT}*\n\n## System\n\nBe brief.\n\n")
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert headings == [
        "## System",
        "## Attachment: a.md (text/plain)",
        "## Attachment: attachment 2 (image/png)",
        "## User",
        "## Thinking",
        "## Assistant",
        "## Tool: bash.execute",
        "## Tool result",
        "## Assistant",
        "## User",
        "## Assistant (error)",
    ]
    assert "`````\na ```` b\n`````" in text  # a fence that is longer than any in the text
    assert '```json\n{"command":"echo ``"}\n```' in text
    assert "> hm\n> hm" in text
    assert PNG not in text
    assert "It is done." in text


@anyio
async def test_a_long_conversation_is_exported_completely_in_chunks(room: Room) -> None:
    await room.create("all")
    room.script.rounds = [words(*("x" * 50_000 for _ in range(6)))]
    await room.send("go", "all")
    events = await room.events("export", session="all")
    assert len(events) > 3
    assert all(len(event.get("text", "")) <= 100_000 for event in events)
    assert "x" * 300_000 in text_in(events)


@anyio
async def test_an_empty_conversation_is_exported_too(room: Room) -> None:
    await room.create("all")
    assert await exported(room) == f"# all\n\n*{SCRIPT}*\n\n"
    assert json.loads(await exported(room, format="json"))["messages"] == []


def test_empty_reasoning_and_an_empty_result_are_valid_markdown() -> None:
    for kind in ("thinking", "tool_result", "assistant"):
        text = to_markdown(Message(kind, "", {}))
        assert text.startswith("## ")
        assert text.endswith("\n\n")


# --- JSON ----------------------------------------------------------------------------------------


@anyio
async def test_json_has_everything_that_is_stored(room: Room) -> None:
    await everything(room)
    document = json.loads(await exported(room, format="json"))
    session = document["session"]
    assert (session["name"], session["model"]) == ("all", SCRIPT)
    assert session["system_prompt"] == "Be brief."
    nodes = await room.nodes("all")
    assert [each["node_id"] for each in document["messages"]] == [node["node_id"] for node in nodes]
    for each, node in zip(document["messages"], nodes, strict=True):
        for name, value in node["metadata"].items():
            assert each[name] == value
        assert each["text"] == node["content"]
        assert each["created_ms"] == node["created_ms"]
    assert document["messages"][1]["text"] == PNG
    assert document["messages"][-1]["error"] == {"code": "provider_broke", "message": "it broke"}


@anyio
async def test_json_is_valid_for_any_text(room: Room) -> None:
    await room.create("all")
    strange = 'quotes " and \\ and \u2028 and \x01 and 😀 and }]'
    room.script.rounds = [words(*strange)]
    await room.send(strange, "all")
    document = json.loads(await exported(room, format="json"))
    assert [each["text"] for each in document["messages"]] == [strange, strange]


# --- searching -----------------------------------------------------------------------------------


async def found(room: Room, text: str, **params: Any) -> list[tuple[str, list[str]]]:
    hits = (await room.value("search", text=text, **params))["hits"]
    return [(hit["excerpt"], hit["sessions"]) for hit in hits]


@anyio
async def test_messages_are_found_in_all_sessions_or_in_one(room: Room) -> None:
    for name in ("a", "b"):
        await room.create(name)
        room.script.rounds = [words(f"The heron of {name}")]
        await room.send(f"What of the Heron, {name}?", name)
    await room.value("fork", session="a", new_name="a2")
    assert await found(room, "heron") == [
        ("The heron of b", ["b"]),
        ("What of the Heron, b?", ["b"]),
        ("The heron of a", ["a", "a2"]),
        ("What of the Heron, a?", ["a", "a2"]),
    ]
    assert [text for text, _ in await found(room, "heron what", session="b")] == [
        "What of the Heron, b?"
    ]
    assert await found(room, "stork") == []
    hit = (await room.value("search", text="heron", session="a"))["hits"][0]
    last = await room.last("a")
    assert (hit["node_id"], hit["kind"]) == (last["node_id"], "assistant")


@anyio
async def test_trees_without_a_session_are_not_searched(room: Room) -> None:
    await room.create("a")
    await room.send("the heron", "a")
    tree = (await room.value("arbor.tree_create"))["tree_id"]
    for _ in range(5):
        await room.value("arbor.node_create_text", tree_id=tree, content="a heron of the notes")
    await room.create("b")
    await room.send("a heron of a session that is gone", "b")
    await room.value("delete", session="b")
    assert await found(room, "heron", limit=2) == [("the heron", ["a"])]


@anyio
@pytest.mark.parametrize("limit", [1, 2, 3, 10])
async def test_matches_are_returned_page_by_page(limit: int, room: Room) -> None:
    await room.create("a")
    for n in range(3):
        await room.send(f"heron {n}", "a")
    hits: list[str] = []
    before = None
    for _ in range(10):
        page = await room.value("search", text="heron", before=before, limit=limit)
        hits += [hit["excerpt"] for hit in page["hits"]]
        before = page.get("next")
        if before is None:
            break
    assert hits == ["heron 2", "heron 1", "heron 0"]


@anyio
@pytest.mark.parametrize("text", ["", " ", "?!", "\0"])
async def test_a_search_without_words_is_refused(text: str, room: Room) -> None:
    await room.create("a")
    error = await room.error("search", text=text)
    assert error["code"] in ("invalid_params", "bad_text")


# --- prompts -------------------------------------------------------------------------------------


@anyio
async def test_every_session_is_a_prompt(room: Room) -> None:
    await everything(room)
    await room.create("b")
    listed = await room.value("plexus.prompts")
    assert [each["name"] for each in listed] == ["chat.session.all", "chat.session.b"]
    page = await room.value("plexus.prompts", after="chat.session.all", limit=1)
    assert [each["name"] for each in page] == ["chat.session.b"]
    assert await room.value("plexus.prompts", after="chat.session.b") == []
    assert len(await room.value("plexus.prompts", after="a")) == 2
    assert await room.value("plexus.prompts", after="zzz") == []
