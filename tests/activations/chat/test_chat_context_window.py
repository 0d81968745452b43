"""Conversations that exceed the context window: refused, shortened or summarised."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from chat_hub import Room, talking, words
from hypothesis import given
from hypothesis import strategies as st

from activations.chat.context_window import estimate_tokens, fit_messages, visible_messages
from activations.chat.message import Kind, Message
from activations.chat.providers.provider import Text, TokenUsage, Tool
from plexus import Failed

anyio = pytest.mark.anyio
pytestmark = pytest.mark.timeout(60)

#: About 150 tokens.
LONG = "word " * 100


@pytest.fixture
async def room(tmp_path: Path) -> AsyncIterator[Room]:
    async with talking(tmp_path / "chat.db") as room:
        room.script.context = 1000
        await room.create()
        yield room


async def fill(room: Room, turns: int = 4) -> None:
    """Fill the context window of a session."""
    room.script.context = None
    for n in range(turns):
        room.script.rounds = [words(f"answer {n} {LONG}")]
        await room.send(f"question {n} {LONG}")
    room.script.context = 1000


def request_words(room: Room, ask: int = -1) -> list[str]:
    """Return the kinds and first words of the messages of the last request."""
    return [f"{kind} {' '.join(text.split()[:2])}" for kind, text in room.script.seen(ask)]


# --- refusing ------------------------------------------------------------------------------------


@anyio
async def test_a_conversation_that_does_not_fit_is_refused_before_anything_is_stored(
    room: Room,
) -> None:
    await fill(room)
    before, count = await room.value("get", session="s"), len(room.script.asks)
    error = await room.error("send", session="s", message="more")
    assert error["code"] == "context_too_long"
    assert error["data"]["limit"] == 1000
    assert error["data"]["tokens"] > 1000
    assert error["data"]["choices"] == ["drop", "summarise"]
    assert "summarise" in error["message"]
    after = await room.value("get", session="s")
    assert after == before
    assert len(await room.nodes()) == 8
    assert len(room.script.asks) == count


@anyio
@pytest.mark.parametrize("overflow", ["refuse", "drop", "summarise"])
async def test_a_message_that_alone_is_too_long_is_refused(overflow: str, room: Room) -> None:
    await room.send("hi")
    count = len(room.script.asks)
    error = await room.error("send", session="s", message=LONG * 12, overflow=overflow)
    assert error["code"] == "context_too_long"
    assert error["data"]["choices"] == []
    assert "newest message alone exceeds" in error["message"]
    assert len(await room.nodes()) == 2
    assert len(room.script.asks) == count


@anyio
async def test_context_tokens_of_the_session_set_the_limit(room: Room) -> None:
    await fill(room)
    await room.value("configure", session="s", context_tokens=5000)
    await room.send("more")
    await room.value("configure", session="s", context_tokens=300)
    error = await room.error("send", session="s", message="more")
    assert error["data"]["limit"] == 300


@anyio
async def test_without_a_known_limit_everything_is_sent(room: Room) -> None:
    await fill(room)
    room.script.context = None
    await room.send("more")
    assert len(room.script.seen()) == 9


@anyio
async def test_tools_and_system_prompt_count_towards_the_limit(room: Room) -> None:
    await room.value("configure", session="s", tools=["*"])
    error = await room.error("send", session="s", message="hi")
    assert error["code"] == "context_too_long"
    await room.value("configure", session="s", tools=[], system_prompt=LONG * 10)
    error = await room.error("send", session="s", message="hi")
    assert error["code"] == "context_too_long"


# --- dropping ------------------------------------------------------------------------------------


@anyio
@pytest.mark.parametrize("by", ["session", "turn"])
async def test_drop_omits_the_oldest_turns_from_the_request(by: str, room: Room) -> None:
    await fill(room)
    if by == "session":
        await room.value("configure", session="s", overflow="drop")
        events = await room.send("more")
    else:
        events = await room.send("more", overflow="drop")
    assert request_words(room) == ["user question 2", "assistant answer 2", "user question 3",
                           "assistant answer 3", "user more"]  # fmt: skip
    [log] = [event for event in events if event["type"] == "log"]
    assert "omitting the 4 oldest messages" in log["message"]
    assert len(await room.nodes()) == 10  # everything is still stored
    assert len(await room.messages()) == 10


@anyio
async def test_an_answer_is_regenerated_without_the_oldest_turns(room: Room) -> None:
    await fill(room)
    room.script.context = 700
    events = await room.events("regenerate", session="s", overflow="drop")
    assert events[-1]["type"] == "complete"
    assert request_words(room)[-1] == "user question 3"
    assert request_words(room)[0] == "user question 2"


# --- summarising ---------------------------------------------------------------------------------


@anyio
async def test_summarise_replaces_the_oldest_turns_and_stores_the_summary(room: Room) -> None:
    await fill(room)
    room.script.rounds = [[Text("they "), Text("talked"), TokenUsage(7, 3)]] * 20
    count = len(room.script.asks)
    events = await room.send("more", overflow="summarise")
    room.script.rounds = []
    assert request_words(room) == [
        "summary they talked",
        "user question 2",
        "assistant answer 2",
        "user question 3",
        "assistant answer 3",
        "user more",
    ]
    summarising = room.script.asks[count]
    assert summarising.ephemeral
    assert summarising.tools == ()
    assert "question 0" in summarising.messages[0].text
    stored = [(node["metadata"]["kind"], node["content"]) for node in (await room.nodes())[8:]]
    assert stored == [("summary", "they talked"), ("user", "more"), ("assistant", "they talked")]
    asks = len(room.script.asks) - count
    assert events[-1]["usage"]["input_tokens"] == 7 * asks
    [start] = [event for event in events if event["type"] == "start"]
    assert start["user_position"]["node_id"] == (await room.nodes())[9]["node_id"]
    # Later turns send the summary instead of the messages that it replaces.
    await room.send("and then?")
    assert request_words(room)[:2] == ["summary they talked", "user question 2"]
    assert request_words(room)[-3:] == ["user more", "assistant they talked", "user and then?"]
    assert len(room.script.asks) == count + asks + 1
    # In the history it has the position where it was created.
    kinds = [kind for kind, _ in await room.messages()]
    assert kinds.index("summary") == 8
    assert len(kinds) == 13


@anyio
async def test_a_summary_is_summarised_again_when_the_conversation_grows(room: Room) -> None:
    await fill(room)
    room.script.rounds = [words("first summary")] * 20
    await room.send("more", overflow="summarise")
    await fill(room, 3)
    room.script.rounds = [words("second summary")] * 20
    count = len(room.script.asks)
    await room.send("again", overflow="summarise")
    assert request_words(room)[0] == "summary second summary"
    assert sum(line.startswith("summary") for line in request_words(room)) == 1
    assert "first summary" in room.script.asks[count].messages[0].text
    summaries = [each for each in await room.nodes() if each["metadata"]["kind"] == "summary"]
    assert [each["content"] for each in summaries] == ["first summary", "second summary"]


@anyio
async def test_an_answer_regenerated_with_a_summary_reports_the_position_of_the_message(
    room: Room,
) -> None:
    await fill(room)
    user = (await room.history())[-2]["node_id"]
    room.script.context = 700
    room.script.rounds = [words("summary")] * 20
    events = await room.events("regenerate", session="s", overflow="summarise")
    [start] = [event for event in events if event["type"] == "start"]
    assert start["user_position"]["node_id"] == user
    assert request_words(room)[0] == "summary summary"
    assert request_words(room)[-1] == "user question 3"
    room.script.context = None
    await room.send("next")
    assert request_words(room)[0] == "summary summary"
    assert "user question 3" in request_words(room)
    assert "user question 0" not in request_words(room)


@anyio
@pytest.mark.parametrize("wrong", ["empty", "error"])
async def test_without_a_summary_nothing_is_sent_or_stored(wrong: str, room: Room) -> None:
    await fill(room)
    broke = Failed("it is down", code="provider_down")
    room.script.rounds = [words(" ")] if wrong == "empty" else [[broke]]
    events = await room.events("send", session="s", message="more", overflow="summarise")
    assert events[-1]["code"] == ("no_summary" if wrong == "empty" else "provider_down")
    assert len(await room.nodes()) == 8
    assert await room.is_free()


# --- fit_messages --------------------------------------------------------------------------------

MESSAGES = st.lists(
    st.builds(
        Message,
        st.sampled_from(["user", "assistant", "attachment", "tool_use", "tool_result"]),
        st.text(max_size=40),
        st.just({}),
        st.none(),
    ),
    min_size=1,
    max_size=12,
)


@given(MESSAGES, st.integers(1, 200), st.one_of(st.none(), st.integers(1, 50)))
def test_the_selected_messages_are_a_suffix_that_starts_with_a_turn(
    messages: list[Message], limit: int, max_tokens: int | None
) -> None:
    fit = fit_messages(messages, "Be brief.", [Tool("a", "b", {})], limit, max_tokens)
    assert [*fit.omitted, *fit.messages] == messages
    assert fit.tokens >= sum(estimate_tokens(message) for message in messages)
    if not fit.omitted:
        assert fit.tokens <= limit
    elif fit.messages:
        assert fit.messages[0].kind in ("user", "attachment")
        assert fit.omitted[-1].kind != "attachment"
        assert sum(estimate_tokens(message) for message in fit.messages) <= limit


@given(MESSAGES)
def test_without_a_limit_everything_fits(messages: list[Message]) -> None:
    fit = fit_messages(messages, None, [], None, None)
    assert (fit.messages, fit.omitted, fit.limit) == (messages, [], None)


@pytest.mark.parametrize(
    ("meta", "least", "most"),
    [
        ({"encoding": "base64", "mime_type": "image/png"}, 1000, 2000),
        ({"encoding": "base64", "mime_type": "application/pdf"}, 10_000, 100_000),
        ({"encoding": "text"}, 100_000, 1_000_000),
        ({}, 100_000, 1_000_000),
    ],
)
def test_an_image_costs_the_same_whatever_its_size(
    meta: dict[str, Any], least: int, most: int
) -> None:
    assert least < estimate_tokens(Message("attachment", "x" * 1_000_000, meta)) < most


def test_the_latest_summary_replaces_all_earlier_messages() -> None:
    def said(kind: Kind, node: str, **meta: Any) -> Message:
        return Message(kind, node, meta, node)

    talk = [
        said("user", "1"),
        said("assistant", "2"),
        said("summary", "3", through="2"),
        said("user", "4"),
        said("assistant", "5"),
        said("user", "6"),
        said("summary", "7", through="5"),
        said("assistant", "8"),
    ]
    assert [each.node for each in visible_messages(talk)] == ["7", "6", "8"]
    assert [each.node for each in visible_messages(talk[:5])] == ["3", "4", "5"]
    assert [each.node for each in visible_messages(talk[:2])] == ["1", "2"]
    assert visible_messages([]) == []
