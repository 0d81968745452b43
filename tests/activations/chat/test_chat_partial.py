"""A partial answer is stored and marked, whatever ends it, and the session continues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from chat_hub import ENGINES, SCRIPT, Live, Room, Script, new_database, talking, words
from hub_calls import happened, ignore, local, until

from activations.arbor.store import Store
from activations.chat import recorder
from activations.chat.providers.provider import (
    ProviderRequest,
    Text,
    ThinkingText,
    ToolCall,
    ToolOutput,
)
from plexus import Failed
from plexus.limits import Limits

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

NEVER = asyncio.Event
BROKE = Failed("the connection was lost", code="provider_broke", data={"at": 3})


@pytest.fixture(params=ENGINES)
async def room(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Room]:
    async with talking(new_database(request.param, tmp_path)) as room:
        await room.create()
        yield room


async def check_partial(room: Room, live: Live | None, text: str, status: str) -> dict[str, Any]:
    """Check that the partial answer is stored once and marked, and that the session continues."""
    messages = await room.history()
    assert [each["kind"] for each in messages] == ["user", "assistant"]
    partial = messages[1]
    assert (partial["text"], partial["status"]) == (text, status)
    assert partial["model"] == SCRIPT
    assert "stop_reason" not in partial
    session = await room.value("get", session="s")
    assert not session["busy"]
    assert session["position"]["node_id"] == partial["node_id"]
    if live is not None:
        assert live.run.terminal is not None
    assert len(await room.nodes()) == 2
    room.script.rounds = []
    await room.send("go on")
    assert room.script.seen() == [("user", "hi"), ("assistant", text), ("user", "go on")]
    assert len(await room.nodes()) == 4
    return partial


# --- errors --------------------------------------------------------------------------------------


async def test_an_error_of_the_provider_keeps_the_partial_answer(room: Room) -> None:
    room.script.rounds = [[*words("so ", "far"), BROKE]]
    events = await room.events("send", session="s", message="hi")
    error = events[-1]
    assert (error["type"], error["code"]) == ("error", "provider_broke")
    position = (await room.value("get", session="s"))["position"]
    assert error["data"] == {
        "at": 3,
        "position": {name: position[name] for name in ("tree_id", "node_id")},
    }
    partial = await check_partial(room, None, "so far", "error")
    assert partial["error"] == {"code": "provider_broke", "message": "the connection was lost"}


async def test_a_defect_of_the_provider_keeps_the_partial_answer(room: Room) -> None:
    room.script.rounds = [[*words("so ", "far"), RuntimeError("key sk-123 is wrong")]]
    events = await room.events("send", session="s", message="hi")
    assert events[-1]["code"] == "internal"
    assert "sk-123" not in str(events)
    partial = await check_partial(room, None, "so far", "error")
    assert "sk-123" not in str(partial)


async def test_an_error_before_the_first_output_reports_the_position_of_the_message(
    room: Room,
) -> None:
    room.script.rounds = [[BROKE]]
    events = await room.events("send", session="s", message="hi")
    [user] = await room.history()
    assert (user["kind"], user["text"]) == ("user", "hi")
    assert "status" not in user
    assert events[-1]["data"]["position"]["node_id"] == user["node_id"]
    assert await room.is_free()
    await room.send("again")
    assert room.script.seen() == [("user", "hi"), ("user", "again")]


async def test_every_part_of_a_partial_answer_is_marked(room: Room) -> None:
    room.script.rounds = [
        [ThinkingText("hm"), Text("I will"), ToolCall("1", "bash_execute", {"command": "x"}), BROKE]
    ]
    await room.events("send", session="s", message="hi")
    found = await room.history()
    assert [(each["kind"], each.get("status")) for each in found] == [
        ("user", None),
        ("thinking", "error"),
        ("assistant", "error"),
        ("tool_use", "error"),
    ]
    assert ["error" in each for each in found] == [False, False, False, True]


async def test_a_tool_call_of_the_provider_is_stored_immediately(room: Room) -> None:
    room.script.runs_tools = True
    stored: list[Any] = []

    async def look(_: ProviderRequest) -> None:
        stored.extend(await room.messages())

    room.script.rounds = [
        [
            Text("a"),
            ToolCall("1", "Read", {"x": 1}),
            ToolOutput("1", "file"),
            look,
            Text("b"),
            BROKE,
        ]
    ]
    await room.events("send", session="s", message="hi")
    first = [("user", "hi"), ("assistant", "a"), ("tool_use", '{"x":1}'), ("tool_result", "file")]
    assert stored == first
    assert await room.messages() == [*first, ("assistant", "b")]
    marks = [each.get("status") for each in await room.history()]
    assert marks == [None, None, None, None, "error"]


# --- cancelling ----------------------------------------------------------------------------------


async def test_a_turn_cancelled_while_it_waits_for_output_keeps_the_partial_answer(
    room: Room,
) -> None:
    room.script.rounds = [[*words("so ", "far"), NEVER()]]
    live = room.begin("send", session="s", message="hi")
    await live.wait_for_text("so far")
    assert not await room.is_free()
    assert (await live.cancel())["type"] == "cancelled"
    assert room.script.closed == 1
    await check_partial(room, live, "so far", "cancelled")


async def test_a_turn_cancelled_before_the_first_output_keeps_the_message(room: Room) -> None:
    room.script.rounds = [[NEVER()]]
    live = room.begin("send", session="s", message="hi")
    await live.wait_for_event("start")
    await until(lambda: len(room.script.asks) == 1)
    assert (await live.cancel())["type"] == "cancelled"
    assert await room.messages() == [("user", "hi")]
    assert await room.is_free()


async def test_a_turn_cancelled_while_its_reader_is_slow_keeps_the_partial_answer(
    tmp_path: Path,
) -> None:
    """The turn is suspended at a `yield` while its task waits for the reader."""
    async with talking(tmp_path / "chat.db", limits=Limits(high_water_bytes=8192)) as room:
        await room.create()
        room.script.rounds = [words(*(f"{n} " for n in range(100_000)))]
        live = room.begin("send", session="s", message="hi")
        live.run.reader(0, ignore, owner=True)
        await until(lambda: live.run.log.is_blocked)
        assert (await live.cancel())["type"] == "cancelled"
        [_, partial] = await room.history()
        said = "".join(f"{n} " for n in range(100_000))
        assert partial["status"] == "cancelled"
        assert len(partial["text"]) > 10
        assert said.startswith(partial["text"])
        heard = "".join(each["text"] for each in live.sent("content"))
        assert partial["text"].startswith(heard)
        await check_partial(room, live, partial["text"], "cancelled")


async def test_a_turn_can_be_cancelled_at_every_step(tmp_path: Path) -> None:
    """At every step the message is stored once or not at all, the answer at most once, and the
    session is released.
    """
    async with talking(tmp_path / "chat.db") as room:
        await room.create()
        for turns in range(60):
            before = len(await room.nodes())
            room.script.rounds = [[*words("a", "b"), *words("c")]]
            live = room.begin("send", session="s", message=f"turn {turns}")
            for _ in range(turns):
                await asyncio.sleep(0)
            if turns > 30:
                await asyncio.sleep((turns - 30) / 10_000)
            end = await live.cancel()
            assert end["type"] in ("cancelled", "complete")
            added = (await room.nodes())[before:]
            assert [each["metadata"]["kind"] for each in added] in (
                [],
                ["user"],
                ["user", "assistant"],
            )
            if end["type"] == "complete":
                assert added[1]["content"] == "abc"
            assert await room.is_free()


async def test_a_run_past_its_deadline_keeps_the_partial_answer(tmp_path: Path) -> None:
    async with talking(tmp_path / "chat.db") as room:
        await room.create()
        room.script.rounds = [[*words("so far"), NEVER()]]
        live = room.begin("send", session="s", message="hi")
        await live.wait_for_text("so far")
        local(live.run).expire(0.1)
        end = await live.end()
        assert (end["type"], end["code"]) == ("error", "deadline")
        await check_partial(room, live, "so far", "cancelled")


@pytest.mark.parametrize("engine", ENGINES)
async def test_closing_the_hub_keeps_the_partial_answer(engine: str, tmp_path: Path) -> None:
    database = new_database(engine, tmp_path)
    async with talking(database, Script([*words("so far"), NEVER()])) as room:
        await room.create()
        live = room.begin("send", session="s", message="hi")
        await live.wait_for_text("so far")
    assert (await live.end())["type"] == "cancelled"
    async with talking(database) as room:
        await check_partial(room, None, "so far", "cancelled")


# --- writes in progress --------------------------------------------------------------------------


class Slow:
    """Delay of the store's next `advance`, before or after its write."""

    def __init__(self, patch: pytest.MonkeyPatch, *, after: bool, number: int) -> None:
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()
        self.calls = 0
        advance = Store.advance

        async def slow(*args: Any, **more: Any) -> Any:
            self.calls += 1
            mine = self.calls == number
            if mine and not after:
                self.reached.set()
                await self.go_on.wait()
            result = await advance(*args, **more)
            if mine and after:
                self.reached.set()
                await self.go_on.wait()
            return result

        patch.setattr(Store, "advance", slow)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("number", [1, 2])
async def test_a_write_in_progress_completes_and_is_not_repeated(
    after: bool, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(monkeypatch, after=after, number=number)
    async with talking(tmp_path / "chat.db", Script(words("all of it"))) as room:
        await room.create()
        live = room.begin("send", session="s", message="hi")
        await happened(slow.reached)
        live.run.cancel("enough")
        await asyncio.sleep(0.05)
        assert live.run.terminal is None
        slow.go_on.set()
        assert (await live.end())["type"] == "cancelled"
        stored = [("user", "hi"), ("assistant", "all of it")][:number]
        assert await room.messages() == stored
        assert len(await room.nodes()) == number
        assert "status" not in await room.last()
        assert await room.is_free()


async def test_a_partial_answer_is_stored_once_even_if_its_write_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(monkeypatch, after=True, number=2)
    async with talking(tmp_path / "chat.db", Script([*words("so far"), NEVER()])) as room:
        await room.create()
        live = room.begin("send", session="s", message="hi")
        await live.wait_for_text("so far")
        live.run.cancel("enough")
        await happened(slow.reached)
        live.run.cancel("really")
        slow.go_on.set()
        await live.end()
        await check_partial(room, live, "so far", "cancelled")


async def test_a_turn_cancelled_at_its_very_end_releases_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, go_on = asyncio.Event(), asyncio.Event()
    release_head = Store.release_head

    async def slow(*args: Any) -> None:
        reached.set()
        await go_on.wait()
        await release_head(*args)

    monkeypatch.setattr(Store, "release_head", slow)
    async with talking(tmp_path / "chat.db", Script(words("all of it"))) as room:
        await room.create()
        live = room.begin("send", session="s", message="hi")
        await happened(reached)
        live.run.cancel("enough")
        await asyncio.sleep(0.02)
        go_on.set()
        await live.end()
        assert await room.is_free()
        assert await room.messages() == [("user", "hi"), ("assistant", "all of it")]
        assert "status" not in await room.last()


async def test_a_draft_that_cannot_be_saved_ends_the_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "SAVE_DELAY_S", 0.01)
    broken = asyncio.Event()

    async def keep(*_: Any) -> None:
        broken.set()
        raise Failed("the disk is full", code="storage")

    async def later(_: ProviderRequest) -> None:
        await happened(broken)
        await asyncio.sleep(0.01)

    monkeypatch.setattr(Store, "renew_head", keep)
    script = Script([*words("so far"), later, *words(" and on"), NEVER()])
    async with talking(tmp_path / "chat.db", script) as room:
        await room.create()
        events = await room.events("send", session="s", message="hi")
        assert events[-1]["code"] == "storage"
        await check_partial(room, None, "so far and on", "error")


async def test_a_turn_that_lost_its_session_writes_nothing_more(tmp_path: Path) -> None:
    """Another process has taken over the lease."""
    gate = asyncio.Event()
    async with talking(tmp_path / "chat.db", Script([*words("a"), gate, *words("b")])) as room:
        await room.create()
        live = room.begin("send", session="s", message="hi")
        await live.wait_for_text("a")
        store = await room.arbor.store()
        head = await store.get_head("local", "chat", "s")
        await store.acquire_head("local", "chat", "s", "another owner", instead_of=head.holder)
        gate.set()
        end = await live.end()
        assert (end["type"], end["code"]) == ("error", "lost_hold")
        assert [each["content"] for each in await room.nodes()] == ["hi"]
        assert (await store.get_head("local", "chat", "s")).holder == "another owner"
