"""Complete turns with Claude Code: a hub, a store, and a stand-in for `claude`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from chat_hub import Room, Script, error_of, text_in
from claude_stand_in import StandIn, answers, asks, crashes, is_silent, says, spawns, uses
from hub_calls import call, until

from activations.arbor import Arbor
from activations.chat import Chat, ClaudeCode
from activations.chat.providers.registry import Providers
from plexus import Plexus
from plexus.events import ErrorEvent
from plexus.runtime.builtin import PlexusActivation
from substrate.build_hub import built_in_hub
from substrate.settings import Settings

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


@pytest.fixture
def claude(tmp_path: Path) -> StandIn:
    folder = tmp_path / "claude"
    folder.mkdir()
    return StandIn(folder)


@pytest.fixture
async def room(tmp_path: Path, claude: StandIn) -> AsyncIterator[Room]:
    hub = Plexus()
    arbor = Arbor(str(tmp_path / "arbor.db"))
    providers = Providers(claude_command=claude.command, environment=claude.environment)
    chat = Chat(arbor, lambda: providers)
    for activation in (PlexusActivation(hub), arbor, chat, ClaudeCode(chat)):
        hub.register(activation)
    try:
        room = Room(hub, arbor, chat, Script())
        await room.value("claudecode.create", name="s", working_dir=str(tmp_path))
        yield room
    finally:
        async with asyncio.timeout(20):
            await hub.close()


async def chat(room: Room, query: str, **more: Any) -> list[Any]:
    return await room.events("claudecode.chat", session_name="s", query=query, **more)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_an_answer_streams_and_is_stored(room: Room, claude: StandIn, tmp_path: Path) -> None:
    claude.plays(says("Two ", "files."))
    events = await chat(room, "What is here?", max_turns=3)
    assert [event["type"] for event in events][:3] == ["start", "content", "content"]
    assert text_in(events) == "Two files."
    assert events[-1]["stop_reason"] == "end_turn"
    assert await room.messages() == [("user", "What is here?"), ("assistant", "Two files.")]
    [run] = claude.runs
    assert run.options["--max-turns"] == "3"
    assert Path(run.directory) == tmp_path


async def test_a_session_is_resumed_from_turn_to_turn(room: Room, claude: StandIn) -> None:
    for answer in ("One.", "Two.", "Three."):
        claude.plays(says(answer))
        await chat(room, f"say {answer}")
    first, second, third = claude.runs
    assert "--resume" not in first.options
    assert second.options["--resume"] == third.options["--resume"]
    assert "--fork-session" not in second.options
    assert "say One." not in third.text  # the program remembers earlier messages itself


async def test_another_branch_continues_in_a_copy_of_the_session(
    room: Room, claude: StandIn
) -> None:
    claude.plays(says("Tea."))
    await chat(room, "What?")
    tea = (await room.last())["node_id"]
    claude.plays(says("Green."))
    await chat(room, "Which?")
    await room.value("set_head", session="s", node_id=tea)
    claude.plays(says("Black."))
    await chat(room, "Which, really?")
    other = claude.runs[-1].options
    assert "--fork-session" in other
    assert other["--resume-session-at"]
    assert await room.messages() == [
        ("user", "What?"),
        ("assistant", "Tea."),
        ("user", "Which, really?"),
        ("assistant", "Black."),
    ]


async def test_a_regenerated_answer_does_not_contain_the_first_one(
    room: Room, claude: StandIn
) -> None:
    claude.plays(says("Tea."))
    await chat(room, "What?")
    claude.plays(says("One."))
    await chat(room, "Again?")
    claude.plays(says("Two."))
    await room.events("regenerate", session="s")
    again = claude.runs[-1]
    assert "--fork-session" in again.options
    assert "Again?" in again.text
    assert (await room.messages())[-1] == ("assistant", "Two.")


@pytest.mark.parametrize("allow", [True, False])
async def test_approval_is_requested_before_a_tool_is_used(
    room: Room, claude: StandIn, allow: bool
) -> None:
    claude.plays(uses("Bash", {"command": "ls"}), asks(), answers("a b"), says("Done."))
    live = room.begin("send", session="s", message="What is here?")
    request = await live.wait_for_event("request")
    assert request["details"]["tool_name"] == "Bash"
    assert request["details"]["input"] == {"command": "ls"}
    live.answer(request, allow)
    await live.end()
    [use] = live.sent("tool_use")
    [result] = live.sent("tool_result")
    assert use["tool_use_id"] == result["tool_use_id"]
    assert result["is_error"] is not allow
    kinds = [kind for kind, _ in await room.messages()]
    assert kinds == ["user", "tool_use", "tool_result", "assistant"]


async def test_a_session_without_approvals_asks_no_questions(room: Room, claude: StandIn) -> None:
    await room.value("configure", session="s", approve="none")
    claude.plays(uses("Bash", {"command": "ls"}), asks(), answers("a b"), says("Done."))
    events = await chat(room, "What is here?")
    assert not [event for event in events if event["type"] == "request"]
    assert text_in(events) == "Done."


async def test_a_crash_keeps_the_partial_answer(room: Room, claude: StandIn) -> None:
    claude.plays(says("so far"), crashes(3, "out of memory"))
    error = error_of(await chat(room, "hi"))
    assert error["code"] == "provider_broke"
    last = await room.last()
    assert (last["text"], last["status"]) == ("so far", "error")
    claude.plays(says("better"))
    assert text_in(await chat(room, "again")) == "better"


async def test_cancellation_kills_the_program_and_its_descendants(
    room: Room, claude: StandIn
) -> None:
    claude.plays(says("so far"), spawns(), is_silent())
    live = room.begin("send", session="s", message="hi")
    await live.wait_for_text("so far")
    await until(lambda: bool(claude.children))
    end = await live.cancel()
    assert end["type"] == "cancelled"
    await until(lambda: all(gone(pid) for pid in (*claude.pids, *claude.children)))
    assert (await room.last())["status"] == "cancelled"


async def test_an_ephemeral_turn_stores_nothing_here_or_in_claude_code(
    room: Room, claude: StandIn
) -> None:
    claude.plays(says("Tea."))
    await chat(room, "What?")
    before, kept = await room.messages(), claude.sessions
    claude.plays(says("Psst."))
    await room.send("A secret.", ephemeral=True)
    assert await room.messages() == before
    assert claude.sessions == kept


async def test_a_conversation_with_another_model_continues_with_claude_code(
    room: Room, claude: StandIn
) -> None:
    await room.value("configure", session="s", model="echo:echo")
    await room.send("Remember the word tangerine.")
    await room.value("configure", session="s", model="claude-code:sonnet")
    claude.plays(says("Tangerine."))
    await chat(room, "Which word?")
    [run] = claude.runs
    assert "tangerine" in run.text
    assert run.options["--model"] == "sonnet"


async def test_a_missing_program_is_reported_with_install_instructions(tmp_path: Path) -> None:
    hub = Plexus()
    arbor = Arbor(str(tmp_path / "arbor.db"))
    missing = Providers(claude_command="no-such-claude", environment={"PATH": "/nowhere"})
    chat = Chat(arbor, lambda: missing)
    for activation in (PlexusActivation(hub), arbor, chat, ClaudeCode(chat)):
        hub.register(activation)
    try:
        room = Room(hub, arbor, chat, Script())
        await room.value("claudecode.create", name="s")
        error = await room.error("claudecode.chat", session_name="s", query="hi")
        assert error["code"] == "not_installed"
        assert await room.messages() == []
    finally:
        await hub.close()


async def test_claude_code_is_refused_with_a_sandbox_unless_allowed(
    claude: StandIn, tmp_path: Path
) -> None:
    allowed = Settings(
        database=str(tmp_path / "arbor.db"),
        bash_sandbox="workspace",
        chat_claude_command=claude.command,
        chat_claude_unconfined=True,
    )
    confined = msgspec.structs.replace(allowed, chat_claude_unconfined=False)
    # The session was created while Claude Code was allowed, and cannot continue once it is refused.
    steps = (
        (confined, "claudecode.create", {"name": "s"}),
        (allowed, "claudecode.create", {"name": "s"}),
        (confined, "claudecode.chat", {"session_name": "s", "query": "hi"}),
        (confined, "chat.send", {"session": "s", "message": "hi"}),
    )
    codes = []
    for settings, method, params in steps:
        hub = built_in_hub(settings, tmp_path)
        try:
            end = (await call(hub, method, params))[-1]
        finally:
            await hub.close()
        codes.append(end.code if isinstance(end, ErrorEvent) else None)
        if isinstance(end, ErrorEvent):
            assert "chat_claude_unconfined" in end.message
    assert codes == ["sandboxed", None, "sandboxed", "sandboxed"]
    assert claude.runs == []
