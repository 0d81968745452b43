"""The Claude Code provider, with a stand-in for the program."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from claude_stand_in import (
    StandIn,
    answers,
    asks,
    crashes,
    ends,
    fails,
    is_limited,
    is_silent,
    reaches_turns,
    requests,
    retries,
    says,
    spawns,
    takes_back,
    thinks,
    uses,
    waits_for,
    writes,
    writes_much,
)
from provider_asking import WAIT_S, calls, stopped, text_of, thought

from activations.chat.message import Message
from activations.chat.providers.claude_code import provider as claude_provider
from activations.chat.providers.claude_code.provider import ClaudeCodeProvider
from activations.chat.providers.claude_code.stream_json import LINE_BYTES
from activations.chat.providers.provider import (
    Approve,
    Delta,
    ProviderRequest,
    Retry,
    Stop,
    Text,
    TokenUsage,
    ToolCall,
    ToolOutput,
    Verdict,
)
from plexus import Declined, Failed, InvalidParams

pytestmark = pytest.mark.anyio

GONE = "11111111-1111-4111-8111-111111111111"


@pytest.fixture
def claude(tmp_path: Path) -> StandIn:
    return StandIn(tmp_path / "claude")


@pytest.fixture
async def provider(claude: StandIn) -> AsyncIterator[ClaudeCodeProvider]:
    subject = ClaudeCodeProvider(claude.command, environment=claude.environment)
    yield subject
    await subject.close()


class Approver:
    """Scripted approvals of tool calls, which records the requests."""

    def __init__(self, verdict: Verdict = Verdict(True)) -> None:  # noqa: B008 - a tuple
        self.asked: list[tuple[str, str, dict[str, Any]]] = []
        self._verdict = verdict

    async def __call__(self, tool: str, use: str, given: dict[str, Any]) -> Verdict:
        self.asked.append((tool, use, given))
        return self._verdict


def request(
    *messages: Message | str, approve: Approve | None = None, **more: Any
) -> ProviderRequest:
    given = [Message("user", each) if isinstance(each, str) else each for each in messages]
    model = more.pop("model", "default")
    return ProviderRequest(model, given or [Message("user", "Hi.")], approve or Approver(), **more)


async def ask(provider: ClaudeCodeProvider, *messages: Message | str, **more: Any) -> list[Delta]:
    """Return all deltas of a round."""
    async with (
        asyncio.timeout(WAIT_S),
        aclosing(provider.stream(request(*messages, **more))) as answer,
    ):
        return [delta async for delta in answer]


async def fail(provider: ClaudeCodeProvider, *messages: Message | str, **more: Any) -> Failed:
    """Return the error of a round."""
    with pytest.raises(Failed) as caught:
        await ask(provider, *messages, **more)
    return caught.value


def answer_of(deltas: list[Delta]) -> Message:
    """Return the answer as it is stored, with the data to resume the session."""
    finished = deltas[-1]
    assert isinstance(finished, Stop)
    assert finished.memory is not None
    meta = {"model": "claude-code:default", "memory": dict(finished.memory)}
    return Message("assistant", text_of(deltas), meta)


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


# --- output ---------------------------------------------------------------------------------------


async def test_an_answer_streams_in_pieces_and_only_once(
    claude: StandIn, provider: ClaudeCodeProvider
) -> None:
    claude.plays(thinks("Let me ", "see."), says("Good ", "morning."), says(" And more."))
    deltas = await ask(provider)
    assert thought(deltas) == "Let me see."
    pieces = [delta.text for delta in deltas if isinstance(delta, Text)]
    assert pieces == ["Good ", "morning.", " And more."]
    assert stopped(deltas) == "end_turn"


async def test_an_older_program_that_streams_nothing_is_supported(
    claude: StandIn, provider: ClaudeCodeProvider
) -> None:
    claude.plays(thinks("Hm.", streamed=False), says("Good ", "morning.", streamed=False))
    deltas = await ask(provider)
    assert thought(deltas) == "Hm."
    assert [delta.text for delta in deltas if isinstance(delta, Text)] == ["Good morning."]


async def test_a_program_that_sends_only_the_result_is_supported(
    claude: StandIn, provider: ClaudeCodeProvider
) -> None:
    claude.plays(ends(result="All of it."))
    assert text_of(await ask(provider)) == "All of it."


async def test_tool_calls_are_reported_with_their_results(
    claude: StandIn, provider: ClaudeCodeProvider
) -> None:
    picture = [{"type": "text", "text": "one"}, {"type": "image", "source": {}}]
    claude.plays(
        says("I look."),
        uses("Bash", {"command": "ls"}, "a"),
        uses("Read", {"path": "x"}, "b"),
        answers("no such file", "b", is_error=True),
        answers(picture, "a"),
        says("Done."),
    )
    deltas = await ask(provider)
    assert calls(deltas) == [
        ToolCall("a", "Bash", {"command": "ls"}),
        ToolCall("b", "Read", {"path": "x"}),
    ]
    assert [delta for delta in deltas if isinstance(delta, ToolOutput)] == [
        ToolOutput("b", "no such file", True),
        ToolOutput("a", "one\n[image]", False),
    ]
    assert text_of(deltas) == "I look.Done."


async def test_output_of_a_subagent_is_not_part_of_the_answer(
    claude: StandIn, provider: ClaudeCodeProvider
) -> None:
    claude.plays(
        uses("Task", {"prompt": "look"}, "task"),
        says("an agent's words", agent="task"),
        says("more of them", agent="task", streamed=False),
        uses("Bash", {"command": "ls"}, "inner", agent="task"),
        answers("found", "task"),
        says("It is there."),
    )
    deltas = await ask(provider)
    assert text_of(deltas) == "It is there."
    assert [call.id for call in calls(deltas)] == ["task"]


async def test_unknown_messages_are_ignored(claude: StandIn, provider: ClaudeCodeProvider) -> None:
    strange = ["", "no JSON", "[1, 2]", '{"type": "new_in_a_later_version"}', '{"type": 5}', "{"]
    half = ['{"type": "assistant"}', '{"type": "user", "message": {"content": "text"}}']
    more = ['{"type": "assistant", "message": {"content": [7, {"type": "text"}]}}']
    event = ['{"type": "stream_event", "event": {"type": "content_block_delta", "delta": null}}']
    claude.plays(*map(writes, strange + half + more + event), says("Still here."))
    assert text_of(await ask(provider)) == "Still here."


async def test_the_usage_is_that_of_the_round(
    claude: StandIn, provider: ClaudeCodeProvider
) -> None:
    model = {"inputTokens": 1, "outputTokens": 2, "cacheReadInputTokens": 3, "costUSD": 0.25}
    each = {"one": model, "two": model | {"cacheCreationInputTokens": 4}}
    claude.plays(says("Yes."), ends(model_usage_since_last_result=each, total_cost_usd=9.0))
    deltas = await ask(provider)
    assert deltas[-2] == TokenUsage(2, 4, 6, 4, 0.5)


async def test_an_older_program_reports_the_cost_of_a_first_round_only(
    provider: ClaudeCodeProvider,
) -> None:
    first = await ask(provider, "One.")
    assert first[-2] == TokenUsage(11, 22, 3, 2, 0.5)
    second = await ask(provider, "One.", answer_of(first), "Two.")
    assert second[-2] == TokenUsage(11, 22, 3, 2, None)


async def test_a_long_line_is_read(claude: StandIn, provider: ClaudeCodeProvider) -> None:
    text = "many words " * 300_000
    claude.plays(says(text))
    assert text_of(await ask(provider)) == text


async def test_a_line_without_an_end_is_refused(
    claude: StandIn, provider: ClaudeCodeProvider
) -> None:
    claude.plays(says("So far"), writes_much(LINE_BYTES + (1 << 20)), is_silent())
    error = await fail(provider)
    assert error.code == "provider_broke"
    assert error.data["limit"] == LINE_BYTES
    assert not alive(claude.pids)


# --- input ----------------------------------------------------------------------------------------


async def test_the_program_is_started_in_print_mode_with_json_messages(
    claude: StandIn, provider: ClaudeCodeProvider, tmp_path: Path
) -> None:
    await ask(
        provider,
        "Good morning.",
        model="opus[1m]",
        system_prompt="Be -- brief.",
        max_turns=7,
        allowed_tools=["Bash(git *)", "Read"],
        working_dir=str(tmp_path),
    )
    [run] = claude.runs
    assert run.options == {
        "--print": "",
        "--output-format": "stream-json",
        "--input-format": "stream-json",
        "--verbose": "",
        "--include-partial-messages": "",
        "--permission-prompt-tool": "stdio",
        "--disallowed-tools": "AskUserQuestion,CronCreate,ScheduleWakeup",
        "--model": "opus[1m]",
        "--max-turns": "7",
        "--append-system-prompt": "Be -- brief.",
        "--allowed-tools": "Bash(git *),Read",
    }
    assert run.directory == str(tmp_path)
    assert run.prompt == [{"type": "text", "text": "Good morning."}]
    assert run.received[0]["request"] == {"subtype": "initialize", "systemPromptSnapshot": False}
    assert run.received[1]["client_composed"] is True


async def test_the_default_model_is_chosen_by_the_program(
    claude: StandIn, provider: ClaudeCodeProvider
) -> None:
    await ask(provider)
    assert "--model" not in claude.runs[0].options
    assert "--max-turns" not in claude.runs[0].options
    assert claude.runs[0].directory == os.getcwd()  # noqa: PTH109 - as the system says it


async def test_files_go_before_the_message_that_they_belong_to(
    claude: StandIn, provider: ClaudeCodeProvider
) -> None:
    def file(name: str, mime_type: str, text: str, encoding: str) -> Message:
        meta = {"name": name, "mime_type": mime_type, "encoding": encoding}
        return Message("attachment", text, meta)

    await ask(
        provider,
        file("a.png", "image/png", "cGljdHVyZQ==", "base64"),
        file("b.pdf", "application/pdf", "cGRm", "base64"),
        file('"c".txt', "text/plain", "some text", "text"),
        file("d.zip", "application/zip", "emlw", "base64"),
        "What is this?",
    )
    picture, document, text, other, question = claude.runs[0].prompt
    source = {"type": "base64", "media_type": "image/png", "data": "cGljdHVyZQ=="}
    assert picture == {"type": "image", "source": source}
    assert document["type"] == "document"
    assert text["text"] == '<file name="\\"c\\".txt">\nsome text\n</file>'
    assert "d.zip" in other["text"]
    assert "emlw" not in other["text"]
    assert question["text"] == "What is this?"


async def test_a_prompt_larger_than_a_pipe_is_sent_completely(
    claude: StandIn, provider: ClaudeCodeProvider
) -> None:
    text = "many words " * 300_000
    await ask(provider, text)
    assert claude.runs[0].text == text


async def test_only_allowed_environment_variables_are_passed(claude: StandIn) -> None:
    given = {
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "https_proxy": "http://localhost:1",
        "ANTHROPIC_API_KEY": "a-key",
        "CLAUDE_CODE_OAUTH_TOKEN": "a-token",
        "CLAUDE_CONFIG_DIR": "/somewhere",
        "AWS_REGION": "north",
        "DISABLE_TELEMETRY": "1",
    }
    kept_back = {
        "SUBSTRATE_TOKEN": "ours",
        "OPENAI_API_KEY": "another's",
        "LD_PRELOAD": "x.so",
        "CLAUDECODE": "1",
        "CLAUDE_CODE_ENTRYPOINT": "cli",
        "CLAUDE_CODE_SESSION_ID": GONE,
        "CLAUDE_CODE_MESSAGING_TOKEN": "x",
        "CLAUDE_PID": "1",
        "SECRET": "s",
    }
    provider = ClaudeCodeProvider(
        claude.command, environment=claude.environment | given | kept_back
    )
    try:
        await ask(provider)
    finally:
        await provider.close()
    environment = claude.runs[0].environment
    assert given.items() <= environment.items()
    assert not kept_back.keys() & environment.keys()
    assert environment["CLAUDE_CODE_DISABLE_BACKGROUND_TASKS"] == "1"


@pytest.mark.parametrize("folder", ["/no/such/folder", "a\0b", "~no-such-user/x"])
async def test_a_missing_working_directory_is_refused(
    provider: ClaudeCodeProvider, folder: str
) -> None:
    with pytest.raises(InvalidParams, match="working_dir"):
        await ask(provider, working_dir=folder)


async def test_a_system_prompt_that_cannot_be_an_argument_is_refused(
    provider: ClaudeCodeProvider,
) -> None:
    with pytest.raises(InvalidParams):
        await ask(provider, system_prompt="a\0b")
    assert (await fail(provider, system_prompt="a" * 300_000)).code == "provider_refused"


# --- sessions -------------------------------------------------------------------------------------


async def test_a_resumed_session_gets_only_new_messages(
    claude: StandIn, provider: ClaudeCodeProvider
) -> None:
    claude.plays(says("First."))
    claude.plays(says("Second."))
    first = await ask(provider, "One.")
    second = await ask(provider, "One.", answer_of(first), "Two.")
    [session] = claude.sessions.items()
    assert session[1] == ["One.", "First.", "Two.", "Second."]
    memory = answer_of(first).meta["memory"]
    assert memory["session_id"] == session[0]
    assert claude.runs[1].options["--resume"] == session[0]
    assert claude.runs[1].options["--resume-session-at"] == memory["message_uuid"]
    assert claude.runs[1].text == "Two."
    assert answer_of(second).meta["memory"]["session_id"] == session[0]


async def test_another_branch_continues_in_a_copy(
    claude: StandIn, provider: ClaudeCodeProvider
) -> None:
    first = answer_of(await ask(provider, "One."))
    second = answer_of(await ask(provider, "One.", first, "Two."))
    other = answer_of(await ask(provider, "One.", first, "Or two?", branching=True))
    sessions = claude.sessions
    assert sessions[first.meta["memory"]["session_id"]] == ["One.", "Yes.", "Two.", "Yes."]
    assert sessions[other.meta["memory"]["session_id"]] == ["One.", "Yes.", "Or two?", "Yes."]
    await ask(provider, "One.", first, "Two.", second, "Three.")
    await ask(provider, "One.", first, "Or two?", other, "Or three?")
    assert sorted(map(len, claude.sessions.values())) == [6, 6]


async def test_a_cancelled_round_is_not_part_of_the_resumed_session(
    claude: StandIn, provider: ClaudeCodeProvider
) -> None:
    first = answer_of(await ask(provider, "One."))
    claude.plays(says("I am "), is_silent())
    async with aclosing(provider.stream(request("One.", first, "Two."))) as answer:
        await anext(answer)
    cut = Message("assistant", "I am ", {"status": "cancelled", "model": "claude-code:default"})
    await ask(provider, "One.", first, "Two.", cut, "Three.")
    [(_, texts)] = claude.sessions.items()
    assert texts[:2] == ["One.", "Yes."]
    assert texts[2].count("Two.") == 1
    assert "I am " in texts[2]
    assert texts[2].endswith("Three.")
    assert len(texts) == 4


async def test_an_ephemeral_round_leaves_no_session_and_changes_none(
    claude: StandIn, provider: ClaudeCodeProvider
) -> None:
    deltas = await ask(provider, "One.", ephemeral=True)
    assert deltas[-1] == Stop("end_turn", None)
    assert claude.sessions == {}
    first = answer_of(await ask(provider, "One."))
    kept = claude.sessions
    await ask(provider, "One.", first, "Two.", ephemeral=True)
    assert claude.sessions == kept
    assert claude.runs[2].text == "Two."


async def test_answers_of_another_model_are_sent_as_a_transcript(
    claude: StandIn, provider: ClaudeCodeProvider
) -> None:
    await ask(
        provider,
        "What is here?",
        Message("thinking", "secret thoughts", {"model": "anthropic:x"}),
        Message("tool_use", '{"command": "ls"}', {"tool_name": "bash_execute"}),
        Message("tool_result", "a b " + "c" * 10_000, {"tool_name": "bash_execute"}),
        Message(
            "assistant", "Two files.", {"model": "anthropic:x", "memory": {"session_id": GONE}}
        ),
        "Which is larger?",
    )
    [run] = claude.runs
    earlier, question = run.prompt
    assert "--resume" not in run.options
    for text in ("What is here?", "bash_execute", '{"command": "ls"}', "a b c", "Two files."):
        assert text in earlier["text"]
    assert "secret thoughts" not in earlier["text"]
    assert len(earlier["text"]) < 6_000
    assert question["text"] == "Which is larger?"


async def test_later_answers_of_another_model_are_sent_as_a_transcript(
    claude: StandIn, provider: ClaudeCodeProvider
) -> None:
    first = answer_of(await ask(provider, "One."))
    other = Message("assistant", "A second opinion.", {"model": "openai:x"})
    await ask(provider, "One.", first, "And you?", other, "Three.")
    run = claude.runs[1]
    assert run.options["--resume"] == first.meta["memory"]["session_id"]
    earlier, question = run.prompt
    assert "A second opinion." in earlier["text"]
    assert "One." not in earlier["text"]
    assert question["text"] == "Three."


async def test_a_summary_replaces_everything_before_it(
    claude: StandIn, provider: ClaudeCodeProvider
) -> None:
    first = answer_of(await ask(provider, "One."))
    await ask(provider, "One.", first, Message("summary", "They have counted."), "Two.")
    run = claude.runs[1]
    assert "--resume" not in run.options
    assert "They have counted." in run.text
    assert "One." not in run.text


async def test_a_very_long_transcript_keeps_its_end(
    claude: StandIn, provider: ClaudeCodeProvider
) -> None:
    long = [Message("assistant", f"number {n} " + "x" * 50_000) for n in range(20)]
    await ask(provider, "The first.", *long, "The last.")
    text = claude.runs[0].text
    assert "number 19 " in text
    assert "number 2 " not in text
    assert "earlier messages are omitted" in text
    assert len(text) < 500_000


async def test_a_lost_session_is_replaced_by_a_new_one_with_a_transcript(
    claude: StandIn, provider: ClaudeCodeProvider
) -> None:
    memory = {"session_id": GONE, "message_uuid": GONE}
    earlier = Message("assistant", "First.", {"model": "claude-code:x", "memory": memory})
    deltas = await ask(provider, "One.", earlier, "Two.")
    assert isinstance(deltas[0], Retry)
    assert deltas[0].seconds == 0
    assert text_of(deltas) == "Yes."
    gone, anew = claude.runs
    assert gone.options["--resume"] == GONE
    assert "--resume" not in anew.options
    assert "First." in anew.text
    assert anew.text.endswith("Two.")


async def test_a_message_missing_from_its_session_starts_a_new_session(
    provider: ClaudeCodeProvider,
) -> None:
    first = answer_of(await ask(provider, "One."))
    memory = first.meta["memory"] | {"message_uuid": GONE}
    deltas = await ask(
        provider, "One.", first._replace(meta=first.meta | {"memory": memory}), "Two."
    )
    assert isinstance(deltas[0], Retry)
    assert text_of(deltas) == "Yes."


async def test_a_lost_session_reported_on_stderr_is_recognised(
    claude: StandIn, provider: ClaudeCodeProvider
) -> None:
    first = answer_of(await ask(provider, "One."))
    claude.plays(crashes(1, f"No conversation found with session ID: {GONE}\n"))
    deltas = await ask(provider, "One.", first, "Two.")
    assert isinstance(deltas[0], Retry)
    assert text_of(deltas) == "Yes."


@pytest.mark.parametrize("session", ["--help", "a title", "", 5, GONE + "\n"])
async def test_an_invalid_session_id_is_never_an_argument(
    claude: StandIn, provider: ClaudeCodeProvider, session: Any
) -> None:
    memory = {"session_id": session, "message_uuid": GONE}
    earlier = Message("assistant", "First.", {"model": "claude-code:x", "memory": memory})
    await ask(provider, "One.", earlier, "Two.")
    assert "--resume" not in claude.runs[0].options


# --- permissions ----------------------------------------------------------------------------------


async def test_an_approved_tool_is_used(claude: StandIn, provider: ClaudeCodeProvider) -> None:
    approver = Approver()
    claude.plays(uses("Bash", {"command": "ls"}), asks(), answers("a b"), says("Done."))
    deltas = await ask(provider, approve=approver)
    assert approver.asked == [("Bash", "use_1", {"command": "ls"})]
    assert ToolOutput("use_1", "a b") in deltas
    [response] = claude.runs[0].responses
    assert response["subtype"] == "success"
    assert response["response"] == {"behavior": "allow", "updatedInput": {"command": "ls"}}


async def test_a_tool_that_is_not_approved_is_not_used(
    claude: StandIn, provider: ClaudeCodeProvider
) -> None:
    approver = Approver(Verdict(False, "Not on a Sunday."))
    claude.plays(uses("Bash", {"command": "ls"}), asks(), answers("a b"), says("Well then."))
    deltas = await ask(provider, approve=approver)
    assert ToolOutput("use_1", "Not on a Sunday.", True) in deltas
    assert text_of(deltas) == "Well then."
    [response] = claude.runs[0].responses
    assert response["response"] == {"behavior": "deny", "message": "Not on a Sunday."}


async def test_a_denial_without_a_message_gets_a_default(
    claude: StandIn, provider: ClaudeCodeProvider
) -> None:
    claude.plays(uses("Bash", {}), asks(), says("Well then."))
    await ask(provider, approve=Approver(Verdict(False)))
    assert claude.runs[0].responses[0]["response"]["message"]


async def test_output_is_read_while_an_approval_is_pending(
    claude: StandIn, provider: ClaudeCodeProvider
) -> None:
    heard = asyncio.Event()

    async def approve(tool: str, use: str, given: dict[str, Any]) -> Verdict:  # noqa: ARG001
        await heard.wait()
        return Verdict(True)

    claude.plays(
        uses("Bash", {}, "a"),
        uses("Bash", {}, "b"),
        asks("a", waits=False),
        answers("meanwhile", "b"),
        asks("b"),
        answers("later", "a"),
    )
    async with (
        asyncio.timeout(WAIT_S),
        aclosing(provider.stream(request(approve=approve))) as answer,
    ):
        async for delta in answer:
            if isinstance(delta, ToolOutput) and delta.output == "meanwhile":
                heard.set()
    assert len(claude.runs[0].responses) == 2


async def test_a_withdrawn_request_cancels_its_approval(
    claude: StandIn, provider: ClaudeCodeProvider
) -> None:
    taken_back = asyncio.Event()

    async def approve(tool: str, use: str, given: dict[str, Any]) -> Verdict:  # noqa: ARG001
        try:
            await asyncio.Event().wait()
        finally:
            taken_back.set()
        raise AssertionError

    claude.plays(
        uses("Bash", {}), asks(waits=False), is_silent(0.2), takes_back(), says("Never mind.")
    )
    assert text_of(await ask(provider, approve=approve)) == "Never mind."
    assert taken_back.is_set()


async def test_the_end_of_a_round_cancels_every_approval(
    claude: StandIn, provider: ClaudeCodeProvider
) -> None:
    async def approve(tool: str, use: str, given: dict[str, Any]) -> Verdict:  # noqa: ARG001
        await asyncio.Event().wait()
        raise AssertionError

    claude.plays(uses("Bash", {}), asks(waits=False), is_silent(0.2), says("I go."))
    assert text_of(await ask(provider, approve=approve)) == "I go."


async def test_an_error_of_an_approval_ends_the_round(
    claude: StandIn, provider: ClaudeCodeProvider
) -> None:
    async def approve(tool: str, use: str, given: dict[str, Any]) -> Verdict:  # noqa: ARG001
        raise Declined("no user is present")

    claude.plays(spawns(), uses("Bash", {}), asks(), answers("a b"))
    with pytest.raises(Declined, match="no user is present"):
        await ask(provider, approve=approve)
    assert not alive(claude.pids + claude.children)


async def test_unknown_requests_are_refused(claude: StandIn, provider: ClaudeCodeProvider) -> None:
    claude.plays(requests("hook_callback"), says("Then not."))
    assert text_of(await ask(provider)) == "Then not."
    [response] = claude.runs[0].responses
    assert response["subtype"] == "error"
    assert "hook_callback" in response["error"]


# --- ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["max_tokens", "refusal", "stop_sequence"])
async def test_the_stop_reason_is_reported(
    claude: StandIn, provider: ClaudeCodeProvider, reason: str
) -> None:
    claude.plays(says("Well"), ends(reason))
    assert stopped(await ask(provider)) == reason


async def test_a_round_that_reached_max_turns_can_be_continued(
    claude: StandIn, provider: ClaudeCodeProvider
) -> None:
    claude.plays(says("I look."), uses("Bash", {}), answers("a b"), reaches_turns())
    deltas = await ask(provider, "One.", max_turns=1)
    assert stopped(deltas) == "max_turns"
    assert any(isinstance(delta, TokenUsage) for delta in deltas)
    # The metadata of the round is stored with its last message, a tool result.
    last = answer_of(deltas)._replace(kind="tool_result", text="a b")
    await ask(provider, "One.", last, "Go on.")
    assert claude.runs[1].text == "Go on."
    [texts] = claude.sessions.values()
    assert texts == ["One.", "I look.", "Bash use_1", "a b", "Go on.", "Yes."]


@pytest.mark.parametrize(
    ("text", "error", "status", "code"),
    [
        ("Not logged in · Please run /login", "authentication_failed", None, "missing_key"),
        ("Failed to authenticate. API Error: 401", "authentication_failed", 401, "bad_key"),
        ("Invalid API key · Fix external API key", "unknown", None, "bad_key"),
        ("API Error: Request rejected (429)", "rate_limit", 429, "rate_limited"),
        ("Claude AI usage limit reached", "unknown", None, "rate_limited"),
        ("API Error: 529 Overloaded", "server_error", 529, "provider_down"),
        ("API Error: 502", "unknown", 502, "provider_down"),
        ("API Error: Connection refused", "server_error", None, "provider_down"),
        ("There's an issue with the selected model", "unknown", 404, "unknown_model"),
        ("API Error: 400 scripted", "unknown", 400, "provider_refused"),
        ("Prompt is too long", "unknown", None, "provider_refused"),
        ("Credit balance is too low", "billing_error", None, "provider_refused"),
        ("Something else", "unknown", None, "provider_broke"),
    ],
)
async def test_api_errors_are_mapped_to_our_codes(
    claude: StandIn,
    provider: ClaudeCodeProvider,
    text: str,
    error: str,
    status: int | None,
    code: str,
) -> None:
    claude.plays(fails(text, error, status))
    failure = await fail(provider)
    assert failure.code == code
    assert text in failure.message
    if code in ("missing_key", "bad_key"):
        assert failure.data["variable"] == "ANTHROPIC_API_KEY"
        assert "/login" in failure.message


async def test_an_error_is_not_part_of_the_answer(
    claude: StandIn, provider: ClaudeCodeProvider
) -> None:
    claude.plays(says("So far "), fails("API Error: 529", "overloaded", 529))
    async with aclosing(provider.stream(request())) as answer:
        assert await anext(answer) == Text("So far ")
        with pytest.raises(Failed) as caught:
            await anext(answer)
    assert caught.value.code == "provider_broke"
    assert caught.value.data["status"] == 529


async def test_a_rate_limit_reports_when_it_is_lifted(
    claude: StandIn, provider: ClaudeCodeProvider
) -> None:
    claude.plays(is_limited(time.time() + 3600), fails("limit", "rate_limit", 429))
    failure = await fail(provider)
    assert 3000 < failure.data["retry_after_s"] <= 3600


async def test_a_retry_of_the_api_is_reported(
    claude: StandIn, provider: ClaudeCodeProvider
) -> None:
    claude.plays(retries(529, 0.5), says("There."))
    deltas = await ask(provider)
    assert isinstance(deltas[0], Retry)
    assert deltas[0].seconds == 0.5
    assert "529" in deltas[0].reason


async def test_a_program_that_exits_in_the_middle_is_reported(
    claude: StandIn, provider: ClaudeCodeProvider
) -> None:
    claude.plays(says("So far"), crashes(7, "x" * 20_000 + " out of memory"))
    failure = await fail(provider)
    assert failure.code == "provider_broke"
    assert failure.data["exit_code"] == 7
    assert "exit code 7" in failure.message
    assert failure.message.endswith("out of memory")
    assert len(failure.message) < 1200


async def test_no_error_contains_a_key(claude: StandIn) -> None:
    key, token = "sk-ant-api03-abcdefgh", "something-plain"
    names = {"ANTHROPIC_API_KEY": key, "ANTHROPIC_AUTH_TOKEN": token}
    provider = ClaudeCodeProvider(claude.command, environment=claude.environment | names)
    claude.plays(crashes(1, f"bad {key} and {token} and Bearer abcdefghijkl"))
    claude.plays(fails(f"{token} is no good", "authentication_failed", 401))
    try:
        for failure in (await fail(provider), await fail(provider)):
            assert "***" in failure.message
            for secret in (key, token, "abcdefghijkl"):
                assert secret not in failure.message
                assert secret not in str(failure.data)
    finally:
        await provider.close()


#: Timeout without output, much longer than a start of the program on a busy machine.
SILENT_S = 1.5


@contextlib.asynccontextmanager
async def short_timeout_provider(claude: StandIn) -> AsyncIterator[ClaudeCodeProvider]:
    provider = ClaudeCodeProvider(claude.command, SILENT_S, claude.environment)
    try:
        yield provider
    finally:
        await provider.close()


async def test_a_program_without_output_times_out(claude: StandIn) -> None:
    claude.plays(spawns(), says("So far"), is_silent())
    async with short_timeout_provider(claude) as provider:
        failure = await fail(provider)
    assert failure.code == "provider_silent"
    assert failure.data["silent_s"] == SILENT_S
    assert not alive(claude.pids + claude.children)


async def test_a_running_tool_has_a_longer_timeout(
    claude: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    claude.plays(uses("Bash", {}), is_silent(SILENT_S + 1), answers("a b"), says("Done."))
    claude.plays(uses("Bash", {}), is_silent())
    async with short_timeout_provider(claude) as provider:
        assert text_of(await ask(provider)) == "Done."
        monkeypatch.setattr(claude_provider, "TOOL_TIMEOUT_S", SILENT_S + 0.2)
        failure = await fail(provider)
    assert failure.code == "provider_silent"
    assert failure.data["silent_s"] == SILENT_S + 0.2
    assert "tool" in failure.message


async def test_a_pending_approval_suspends_the_timeout(
    claude: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claude_provider, "TOOL_TIMEOUT_S", SILENT_S)

    async def approve(tool: str, use: str, given: dict[str, Any]) -> Verdict:  # noqa: ARG001
        await asyncio.sleep(SILENT_S + 1)
        return Verdict(True)

    claude.plays(uses("Bash", {}), asks(), answers("a b"), says("Done."))
    claude.plays(uses("Bash", {}), asks(), is_silent())
    async with short_timeout_provider(claude) as provider:
        assert text_of(await ask(provider, approve=approve)) == "Done."
        assert (await fail(provider, approve=approve)).code == "provider_silent"


async def test_a_slow_reader_does_not_cause_a_timeout(claude: StandIn, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    claude.plays(says("One."), waits_for(gate), says("Two."))
    async with short_timeout_provider(claude) as provider:
        deltas = []
        async with aclosing(provider.stream(request())) as answer:
            async for delta in answer:
                deltas.append(delta)
                if text_of(deltas) == "One." and not gate.exists():
                    await asyncio.sleep(SILENT_S + 1)
                    gate.touch()
    assert text_of(deltas) == "One.Two."


async def test_an_announced_retry_delay_extends_the_timeout(claude: StandIn) -> None:
    claude.plays(retries(529, 60), is_silent(SILENT_S + 1), says("There."))
    async with short_timeout_provider(claude) as provider:
        assert text_of(await ask(provider)) == "There."


async def test_closing_the_stream_kills_the_whole_process_tree(
    claude: StandIn, provider: ClaudeCodeProvider
) -> None:
    claude.plays(spawns(), says("So far"), is_silent())
    async with aclosing(provider.stream(request())) as answer:
        await anext(answer)
        [child] = claude.children
        assert alive([child])
    assert not alive([*claude.pids, child])


async def test_cancellation_kills_the_whole_process_tree_and_withdraws_approvals(
    claude: StandIn, provider: ClaudeCodeProvider
) -> None:
    asked, ended = asyncio.Event(), asyncio.Event()

    async def approve(tool: str, use: str, given: dict[str, Any]) -> Verdict:  # noqa: ARG001
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    claude.plays(spawns(), uses("Bash", {}), asks(), answers("a b"))
    task = asyncio.create_task(ask(provider, approve=approve))
    async with asyncio.timeout(WAIT_S):
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert ended.is_set()
    assert not alive(claude.pids + claude.children)


async def test_closing_the_provider_kills_every_process(claude: StandIn) -> None:
    provider = ClaudeCodeProvider(claude.command, environment=claude.environment)
    claude.plays(spawns(), says("So far"), is_silent())
    async with aclosing(provider.stream(request())) as answer:
        await anext(answer)
        await provider.close()
        with pytest.raises(Failed) as caught:
            await anext(answer)
    assert caught.value.code == "provider_broke"
    assert not alive(claude.pids + claude.children)


async def test_remaining_processes_are_killed_at_the_end_of_the_round(
    claude: StandIn, provider: ClaudeCodeProvider
) -> None:
    claude.plays(spawns(), says("Done."))
    assert text_of(await ask(provider)) == "Done."
    assert not alive(claude.children)


# --- checks ---------------------------------------------------------------------------------------


async def test_a_missing_program_is_reported(tmp_path: Path) -> None:
    provider = ClaudeCodeProvider("claude", environment={"PATH": str(tmp_path)})
    with pytest.raises(Failed) as caught:
        await provider.check("sonnet")
    assert caught.value.code == "not_installed"
    assert "chat_claude_command" in caught.value.message
    assert (await fail(provider)).code == "not_installed"


async def test_a_missing_interpreter_is_reported(tmp_path: Path) -> None:
    program = tmp_path / "claude"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    provider = ClaudeCodeProvider(str(program), environment={"PATH": ""})
    try:
        assert (await fail(provider)).code == "not_installed"
    finally:
        await provider.close()


@pytest.mark.parametrize("path", ["", ".", "bin", ":/nowhere", "/nowhere:"])
async def test_a_program_in_the_servers_directory_is_not_found_by_name(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for planted in (tmp_path / "claude", tmp_path / "bin" / "claude"):
        planted.parent.mkdir(exist_ok=True)
        planted.write_text("#!/bin/sh\n")
        planted.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Failed) as caught:
        await ClaudeCodeProvider("claude", environment={"PATH": path}).check("sonnet")
    assert caught.value.code == "not_installed"


async def test_a_program_is_found_by_name(claude: StandIn) -> None:
    folder = str(Path(claude.command).parent)
    path = {"PATH": folder + os.pathsep + os.environ["PATH"]}
    provider = ClaudeCodeProvider("claude", environment=claude.environment | path)
    await provider.check("sonnet")
    try:
        assert text_of(await ask(provider)) == "Yes."
    finally:
        await provider.close()


@pytest.mark.parametrize(
    "model", ["default", "sonnet", "claude-opus-4-5[1m]", "us.anthropic.claude:0", "claude@2025"]
)
async def test_a_valid_model_name_is_accepted(provider: ClaudeCodeProvider, model: str) -> None:
    await provider.check(model)


@pytest.mark.parametrize("model", ["", "two words", "--help", "a\n", "a=b", "ü"])
async def test_an_invalid_model_name_is_refused(provider: ClaudeCodeProvider, model: str) -> None:
    with pytest.raises(Failed) as caught:
        await provider.check(model)
    assert caught.value.code == "unknown_model"


async def test_the_program_manages_its_context_window(provider: ClaudeCodeProvider) -> None:
    assert provider.context_tokens("sonnet") is None
    assert provider.runs_tools
