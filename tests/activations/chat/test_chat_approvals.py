"""Approvals of tool calls: when they are requested, and the effect of the answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from chat_hub import Room, talking, words
from chat_kit import Kit, use

from activations.chat.providers.provider import ProviderRequest, Text
from plexus.limits import Limits

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


@pytest.fixture
async def room(tmp_path: Path) -> AsyncIterator[Room]:
    async with talking(tmp_path / "chat.db", None, Kit()) as room:
        yield room


@pytest.mark.parametrize(
    ("approve", "tool", "is_asked"),
    [
        ("all", "kit_whoami", True),
        ("all", "kit_silent", True),
        ("changes", "kit_whoami", False),
        ("changes", "kit_silent", True),
        ("none", "kit_whoami", False),
        ("none", "kit_silent", False),
    ],
)
async def test_approval_is_requested_for_the_configured_tools(
    approve: str, tool: str, is_asked: bool, room: Room
) -> None:
    await room.create(tools=["kit.*"], approve=approve)
    room.script.rounds = [use(tool), words("done")]
    live = room.begin("send", session="s", message="go")
    if is_asked:
        request = await live.wait_for_event("request")
        assert not live.sent("tool_start")
        assert request["kind"] == "confirm"
        assert tool.replace("_", ".") in request["message"]
        details = {"tool_name": tool.replace("_", "."), "tool_use_id": "1", "input": {}}
        assert request["details"] == details
        assert not await room.is_free()
        live.answer(request, True)
    assert (await live.end())["type"] == "complete"
    assert bool(live.sent("request")) == is_asked
    assert [each["is_error"] for each in live.sent("tool_result")] == [False]


@pytest.mark.parametrize("way", ["plexus.respond", "approvals.respond"])
@pytest.mark.parametrize("allowed", [True, False])
async def test_approvals_are_answered_like_other_questions(
    way: str, allowed: bool, room: Room
) -> None:
    await room.create(tools=["kit.*"], approve="all")
    room.script.rounds = [use("kit_add", a=1), words("done")]
    live = room.begin("send", session="s", message="go")
    request = await live.wait_for_event("request")
    if way == "plexus.respond":
        answer = {"run": live.run.id, "request": request["request"], "answer": allowed}
        await room.value(way, **answer)
    else:
        [pending] = (await room.value("approvals.pending"))["approvals"]
        assert pending["details"]["tool_name"] == "kit.add"
        await room.value(way, approval_id=pending["approval_id"], approve=allowed)
    await live.end()
    [result] = live.sent("tool_result")
    assert result["is_error"] is not allowed
    assert result["output"] == ("2" if allowed else "The user did not approve kit.add.")
    assert bool(live.sent("tool_start")) == allowed
    assert room.script.seen()[-1] == ("tool_result", result["output"])


async def test_a_declined_question_denies_the_tool_call(room: Room) -> None:
    await room.create(tools=["kit.*"], approve="all")
    room.script.rounds = [use("kit_add", a=1), words("done")]
    live = room.begin("send", session="s", message="go")
    live.answer(await live.wait_for_event("request"), None)
    assert (await live.end())["type"] == "complete"
    assert live.sent("tool_result")[0]["output"] == "The user did not approve kit.add."


async def test_an_unanswered_question_denies_the_tool_call(tmp_path: Path) -> None:
    limits = Limits(answer_s=0.2)
    async with talking(tmp_path / "chat.db", None, Kit(), limits=limits) as room:
        await room.create(tools=["kit.*"], approve="changes")
        room.script.rounds = [use("kit_add", a=1), words("done")]
        events = await room.send("go")
        [result] = [event for event in events if event["type"] == "tool_result"]
        assert result["is_error"] is True
        assert "No answer within" in result["output"]


async def test_a_long_input_is_shortened_in_the_message_and_complete_in_the_details(
    room: Room,
) -> None:
    await room.create(tools=["bash.execute"], approve="all")
    command = "echo " + "x" * 5000
    room.script.rounds = [use("bash_execute", command=command), words("done")]
    live = room.begin("send", session="s", message="go")
    request = await live.wait_for_event("request")
    assert len(request["message"]) < 1000
    assert request["details"]["input"] == {"command": command}
    live.answer(request, False)
    await live.end()


async def test_a_question_of_a_tool_reaches_the_caller(room: Room) -> None:
    await room.create(tools=["kit.*"], approve="none")
    room.script.rounds = [use("kit_sure"), words("done")]
    live = room.begin("send", session="s", message="go")
    request = await live.wait_for_event("request")
    assert request["message"] == "Are you sure?"
    live.answer(request, True)
    await live.end()
    assert live.sent("tool_result")[0]["output"] == "true"


async def test_a_provider_that_runs_its_own_tools_requests_approval(room: Room) -> None:
    room.script.runs_tools = True
    verdicts: list[Any] = []

    async def request_approval(ask: ProviderRequest) -> None:
        verdicts.append(await ask.approve("Bash", "u1", {"command": "rm x"}))

    for approve in ("changes", "none"):
        await room.create(approve, approve=approve)
        room.script.rounds = [[request_approval, Text("done")]]
        live = room.begin("send", session=approve, message="go")
        if approve == "changes":
            request = await live.wait_for_event("request")
            assert request["details"]["input"] == {"command": "rm x"}
            live.answer(request, False)
        await live.end()
    assert [verdict.allow for verdict in verdicts] == [False, True]


async def test_cancelling_a_turn_closes_its_question(room: Room) -> None:
    await room.create(tools=["kit.*"], approve="all")
    room.script.rounds = [use("kit_add", a=1)]
    live = room.begin("send", session="s", message="go")
    await live.wait_for_event("request")
    await live.cancel()
    assert (await room.value("approvals.pending"))["approvals"] == []
    assert await room.is_free()
