"""Leases: one turn per session, the queue, and recovery from dead owners."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from chat_hub import (
    ENGINES,
    SCRIPT,
    Room,
    Script,
    new_database,
    talking,
    text_in,
    words,
)
from hub_calls import WAIT_S, happened, until

from activations.arbor.store import Store
from activations.chat import lease, recorder
from activations.chat.lease import LEASE_TIMEOUT_S, lease_owner
from activations.chat.message import Draft

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


@pytest.fixture(params=ENGINES)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return new_database(request.param, tmp_path)


@pytest.fixture
async def room(database: str) -> AsyncIterator[Room]:
    async with talking(database) as room:
        await room.create()
        yield room


def piece_of(text: str) -> str:
    draft = Draft()
    draft.add("assistant", text)
    return draft.take_piece() or ""


def dead_owner() -> str:
    """Return the owner id of a process that has exited."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    here, _, started, _ = lease_owner(1).split("/")
    child.wait(10)
    return f"{here}/{child.pid}/{started}/7"


async def wait_until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(WAIT_S):
        while not await holds():  # noqa: ASYNC110 - another store is looked at
            await asyncio.sleep(0.01)


async def acquire_for(room: Room, holder: str, text: str, silent_s: float = 0) -> None:
    """Acquire the session for another owner, with a user message and part of an answer."""
    store = await room.arbor.store()
    now = time.time_ns() // 1_000_000 - int(silent_s * 1000)
    store._clock, clock = lambda: now, store._clock  # noqa: SLF001 - it is turned back below
    try:
        head = await store.acquire_head("local", "chat", "s", holder)
        await store.renew_head("local", head.id, holder, piece_of(text))
    finally:
        store._clock = clock  # noqa: SLF001 - the store's own


# --- mutual exclusion ----------------------------------------------------------------------------


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_second_turn_is_refused_while_one_is_in_progress(
    elsewhere: bool, room: Room, database: str
) -> None:
    gate = asyncio.Event()
    room.script.rounds = [[*words("a"), gate, *words("b")]]
    live = room.begin("send", session="s", message="hi")
    await live.wait_for_text("a")
    node = (await room.history())[0]["node_id"]
    async with talking(database) as other:
        asked = other if elsewhere else room
        for method, more in (
            ("send", {"message": "too"}),
            ("regenerate", {}),
            ("edit", {"node_id": node, "message": "x"}),
            ("set_head", {"node_id": node}),
            ("delete", {}),
        ):
            error = await asked.error(method, session="s", **more)
            assert error["code"] == "turn_under_way", method
            assert error["data"] == {"session": "s"}
            assert "queue" in error["message"]
        assert (await asked.value("get", session="s"))["busy"]
        assert (await asked.value("list"))["sessions"][0]["busy"]
    gate.set()
    assert (await live.end())["type"] == "complete"
    assert await room.messages() == [("user", "hi"), ("assistant", "ab")]
    assert await room.is_free()


async def test_sessions_do_not_wait_for_each_other(room: Room) -> None:
    gate = asyncio.Event()
    room.script.rounds = [[*words("a"), gate]]
    await room.create("t")
    live = room.begin("send", session="s", message="hi")
    await live.wait_for_text("a")
    assert text_in(await room.send("hi", "t")) == "yes"
    gate.set()
    await live.end()


async def test_forks_in_one_tree_do_not_wait_for_each_other(room: Room) -> None:
    await room.send("one")
    await room.value("fork", session="s", new_name="t")
    gate = asyncio.Event()
    room.script.rounds = [[*words("a"), gate], words("beside")]
    live = room.begin("send", session="s", message="two")
    await live.wait_for_text("a")
    assert text_in(await room.send("three", "t")) == "beside"
    gate.set()
    await live.end()
    assert (await room.messages())[-1] == ("assistant", "a")
    assert (await room.messages("t"))[-1] == ("assistant", "beside")


async def test_queued_turns_run_in_order_of_arrival(room: Room) -> None:
    gate = asyncio.Event()
    room.script.rounds = [[*words("a"), gate], *(words(f"to {n}") for n in range(5))]
    live = room.begin("send", session="s", message="hi")
    await live.wait_for_text("a")
    queued = []
    for n in range(5):
        queued.append(room.begin("send", session="s", message=f"q{n}", when_busy="queue"))
        await asyncio.sleep(0.05)
    gate.set()
    for each in queued:
        assert (await each.end())["type"] == "complete"
    said = await room.messages()
    assert [text for kind, text in said if kind == "user"] == ["hi", "q0", "q1", "q2", "q3", "q4"]
    assert [text for kind, text in said[3:] if kind == "assistant"] == [f"to {n}" for n in range(5)]
    # Each request contains all earlier messages.
    assert [len(ask.messages) for ask in room.script.asks] == [1, 3, 5, 7, 9, 11]


async def test_a_turn_without_queue_does_not_overtake_queued_turns(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, waits, looks = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def wait_longer(*_: Any) -> None:
        waits.set()
        await looks.wait()

    monkeypatch.setattr(lease, "_wait_for_change", wait_longer)
    room.script.rounds = [[*words("a"), gate], words("b")]
    live = room.begin("send", session="s", message="hi")
    await live.wait_for_text("a")
    queued = room.begin("send", session="s", message="q", when_busy="queue")
    await happened(waits)
    gate.set()
    await live.end()
    assert await room.is_free()  # and the queued turn has not noticed yet
    error = await room.error("send", session="s", message="me first")
    assert error["code"] == "turn_under_way"
    looks.set()
    await queued.end()
    assert [text for _, text in await room.messages()] == ["hi", "a", "q", "b"]
    assert text_in(await room.send("now")) == "yes"  # the queue is empty


async def test_a_queued_turn_of_another_store_runs_afterwards(room: Room, database: str) -> None:
    gate = asyncio.Event()
    room.script.rounds = [[*words("a"), gate, *words("b")]]
    live = room.begin("send", session="s", message="hi")
    await live.wait_for_text("a")
    async with talking(database, Script(words("later"))) as other:
        queued = other.begin("send", session="s", message="me too", when_busy="queue")
        await asyncio.sleep(0.1)
        assert not other.script.asks
        gate.set()
        assert (await queued.end())["type"] == "complete"
        assert other.script.seen() == [("user", "hi"), ("assistant", "ab"), ("user", "me too")]
    assert (await live.end())["type"] == "complete"
    assert len(await room.messages()) == 4


async def test_a_cancelled_queued_turn_owns_no_lease(room: Room) -> None:
    gate = asyncio.Event()
    room.script.rounds = [[*words("a"), gate]]
    live = room.begin("send", session="s", message="hi")
    await live.wait_for_text("a")
    queued = room.begin("send", session="s", message="me too", when_busy="queue")
    await asyncio.sleep(0.05)
    assert (await queued.cancel())["type"] == "cancelled"  # immediately: the other turn still runs
    assert live.run.terminal is None
    gate.set()
    await live.end()
    assert await room.is_free()
    assert text_in(await room.send("next")) == "yes"
    assert [text for kind, text in await room.messages() if kind == "user"] == ["hi", "next"]


async def test_a_turn_cancelled_while_it_acquires_the_lease_owns_no_lease(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, go_on = asyncio.Event(), asyncio.Event()
    hold = Store.acquire_head

    async def slow(*args: Any, **more: Any) -> Any:
        head = await hold(*args, **more)
        reached.set()
        await go_on.wait()
        return head

    monkeypatch.setattr(Store, "acquire_head", slow)
    live = room.begin("send", session="s", message="hi")
    await happened(reached)
    live.run.cancel("enough")
    await asyncio.sleep(0.02)
    go_on.set()
    assert (await live.end())["type"] == "cancelled"
    assert await room.is_free()
    assert await room.nodes() == []
    assert text_in(await room.send("next")) == "yes"


async def test_a_queued_turn_uses_the_configuration_at_its_start(room: Room) -> None:
    gate = asyncio.Event()
    room.script.rounds = [[*words("a"), gate]]
    live = room.begin("send", session="s", message="hi")
    await live.wait_for_text("a")
    queued = room.begin("send", session="s", message="me too", when_busy="queue")
    await asyncio.sleep(0.05)
    await room.value("configure", session="s", model="echo:echo")
    gate.set()
    await queued.end()
    assert text_in(queued.events) == "You said: me too"


async def test_a_queued_turn_times_out(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "QUEUE_TIMEOUT_S", 0.1)
    gate = asyncio.Event()
    room.script.rounds = [[*words("a"), gate]]
    live = room.begin("send", session="s", message="hi")
    await live.wait_for_text("a")
    error = await room.error("send", session="s", message="me too", when_busy="queue")
    assert error["code"] == "turn_under_way"
    gate.set()
    await live.end()


# --- dead owners ---------------------------------------------------------------------------------

LOOKS: list[tuple[str, dict[str, Any]]] = [
    ("history", {}),
    ("send", {"message": "next"}),
    ("get", {}),
    ("export", {}),
]


@pytest.mark.parametrize(("method", "params"), LOOKS)
async def test_the_lease_of_a_dead_owner_is_taken_over_immediately(
    method: str, params: dict[str, Any], room: Room
) -> None:
    await acquire_for(room, dead_owner(), "so far")
    await room.events(method, session="s", **params)
    found = await room.history()
    assert (found[0]["kind"], found[0]["text"]) == ("assistant", "so far")
    assert found[0]["status"] == "interrupted"
    assert len(found) == (3 if method == "send" else 1)
    assert await room.is_free()
    assert (await room.value("get", session="s"))["position"]["node_id"] == found[-1]["node_id"]


async def test_a_reused_process_id_is_not_the_owner(room: Room) -> None:
    here, pid, started, run = lease_owner(7).split("/")
    assert (int(pid), run) == (os.getpid(), "7")
    await acquire_for(room, f"{here}/{pid}/{int(started) - 1}/7", "so far")
    assert (await room.last())["status"] == "interrupted"


@pytest.mark.parametrize("where", ["elsewhere", "here"])
async def test_an_expired_lease_is_taken_over(where: str, room: Room) -> None:
    holder = "another machine/1/2/3" if where == "elsewhere" else lease_owner(3)
    await acquire_for(room, holder, "so far", silent_s=LEASE_TIMEOUT_S + 1)
    await room.send("next")
    assert [each.get("status") for each in await room.history()] == ["interrupted", None, None]


@pytest.mark.parametrize("where", ["elsewhere", "here", "unreadable"])
async def test_the_lease_of_an_owner_that_may_be_alive_is_respected(where: str, room: Room) -> None:
    holders = {"elsewhere": "another machine/1/2/3", "here": lease_owner(3), "unreadable": "x"}
    await acquire_for(room, holders[where], "so far", silent_s=LEASE_TIMEOUT_S - 10)
    error = await room.error("send", session="s", message="next")
    assert error["code"] == "turn_under_way"
    [streaming] = await room.history()
    assert (streaming["text"], streaming["status"]) == ("so far", "streaming")
    assert await room.nodes() == []
    store = await room.arbor.store()
    assert (await store.get_head("local", "chat", "s")).holder == holders[where]


async def test_the_draft_of_a_dead_owner_is_stored_once(room: Room, database: str) -> None:
    await acquire_for(room, dead_owner(), "so far")
    async with talking(database) as other:
        await asyncio.gather(
            *(each.value("get", session="s") for _ in range(5) for each in (room, other))
        )
    assert [each["content"] for each in await room.nodes()] == ["so far"]
    assert await room.is_free()


async def test_cancelling_a_recovery_does_not_lose_the_draft(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    await acquire_for(room, dead_owner(), "so far")
    reached, go_on = asyncio.Event(), asyncio.Event()
    pieces = Store.pieces

    async def slow(*args: Any) -> Any:
        reached.set()
        await go_on.wait()
        return await pieces(*args)

    monkeypatch.setattr(Store, "pieces", slow)
    live = room.begin("get", session="s")
    await happened(reached)
    live.run.cancel("enough")
    await asyncio.sleep(0.02)
    go_on.set()
    await live.end()
    assert (await room.last())["text"] == "so far"
    assert await room.is_free()


async def test_an_owner_renews_its_lease_while_it_waits_for_output(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "RENEW_S", 0.05)
    gate = asyncio.Event()
    room.script.rounds = [[gate]]
    live = room.begin("send", session="s", message="hi")
    await until(lambda: len(room.script.asks) == 1)
    store = await room.arbor.store()
    first = (await store.get_head("local", "chat", "s")).held_ms or 0

    async def is_later() -> bool:
        return ((await store.get_head("local", "chat", "s")).held_ms or 0) > first

    await wait_until(is_later)
    gate.set()
    await live.end()


async def test_a_live_turn_can_be_watched_from_another_store(
    room: Room, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "SAVE_DELAY_S", 0.01)
    gate, more = asyncio.Event(), asyncio.Event()
    room.script.rounds = [[*words("so ", "far"), gate, *words(" and on"), more]]
    live = room.begin("send", session="s", message="hi")
    async with talking(database) as other:

        async def is_there() -> bool:
            return await other.messages() == [("user", "hi"), ("assistant", "".join(said))]

        said = ["so far"]
        await wait_until(is_there)
        streaming = await other.last()
        assert streaming["status"] == "streaming"
        assert "node_id" not in streaming
        gate.set()
        said.append(" and on")
        await wait_until(is_there)
        more.set()
        await live.end()
        last = await other.last()
        assert ("status" not in last, last["model"]) == (True, SCRIPT)
