"""Real servers on one database: one is killed during an answer, another continues."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from chat_hub import ENGINES, new_database
from chat_process import PROCESS_S, Server, serving

from native_rpc.client import Call, ConnectionLost, Item
from plexus import Failed

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(90)]

#: A message whose answer takes ten seconds.
QUESTION = " ".join(f"word{n}" for n in range(200))
ANSWER = f"You said: {QUESTION}"


async def read_call(call: Call, on_event: Callable[[Item], object]) -> None:
    """Read a call until its end."""
    async with asyncio.timeout(PROCESS_S):
        async for item in call:
            on_event(item)


async def kill_during_answer(server: Server, for_s: float) -> str:
    """Kill a server during its answer; return the text that had arrived a second before."""
    heard: list[tuple[float, str]] = []
    killed = 0.0
    call = server.client.call("chat.send", {"session": "s", "message": QUESTION})

    def on_event(item: Item) -> None:
        nonlocal killed
        if item.type != "content" or killed:
            return
        heard.append((time.monotonic(), item.text))
        if heard[-1][0] - heard[0][0] > for_s:
            server.kill()
            killed = heard[-1][0]

    with pytest.raises(ConnectionLost):
        await read_call(call, on_event)
    assert killed
    return "".join(text for when, text in heard if when < killed - 1)


@pytest.mark.parametrize("engine", ENGINES)
async def test_the_partial_answer_of_a_killed_server_is_kept_and_the_session_continues(
    engine: str, tmp_path: Path
) -> None:
    database = new_database(engine, tmp_path)
    async with serving(database, "first", tmp_path) as first:
        await first.value("create", name="s", model="echo:slow")
        had_come = await kill_during_answer(first, 2.0)
    assert had_come.startswith("You said: word0")
    async with serving(database, "second", tmp_path) as second:
        user, partial = await second.messages()
        assert (user["kind"], user["text"]) == ("user", QUESTION)
        assert (partial["kind"], partial["status"]) == ("assistant", "interrupted")
        assert partial["text"].startswith(had_come)
        assert ANSWER.startswith(partial["text"])
        assert len(partial["text"]) < len(ANSWER)
        session = await second.value("get", session="s")
        assert not session["busy"]
        assert session["position"]["node_id"] == partial["node_id"]
        await second.value("configure", session="s", model="echo:echo")
        await second.value("send", session="s", message="next")
        assert [each["text"] for each in await second.messages()] == [
            QUESTION,
            partial["text"],
            "next",
            "You said: next",
        ]


async def test_a_second_server_waits_for_a_live_turn_and_takes_over_when_its_server_dies(
    tmp_path: Path,
) -> None:
    database = tmp_path / "chat.db"
    async with (
        serving(database, "first", tmp_path) as first,
        serving(database, "second", tmp_path) as second,
    ):
        await first.value("create", name="s", model="echo:slow")
        begun = asyncio.Event()
        call = first.client.call("chat.send", {"session": "s", "message": QUESTION})
        asking = asyncio.create_task(read_call(call, lambda _: begun.set()))
        async with asyncio.timeout(PROCESS_S):
            await begun.wait()
            while len(found := await second.messages()) < 2:  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.05)
        assert found[1]["status"] == "streaming"
        assert ANSWER.startswith(found[1]["text"])
        assert (await second.value("get", session="s"))["busy"]
        with pytest.raises(Failed, match="has a turn in progress") as refused:
            await second.value("send", session="s", message="too")
        assert refused.value.code == "turn_under_way"
        await second.value("configure", session="s", model="echo:echo")
        queued = asyncio.create_task(
            second.value("send", session="s", message="after", when_busy="queue")
        )
        await asyncio.sleep(0.5)
        assert not queued.done()
        first.kill()
        end = await queued  # long before the lease expires
        assert end["stop_reason"] == "end_turn"
        with pytest.raises(ConnectionLost):
            await asking
        said = await second.messages()
        assert [each.get("status") for each in said] == [None, "interrupted", None, None]
        assert [each["text"] for each in said[2:]] == ["after", "You said: after"]
