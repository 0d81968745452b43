"""The echo model: it repeats messages deterministically, and calls tools on command."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st
from provider_asking import WAIT_S, asked, asking, calls, failed, stopped, text_of, thought

from activations.chat.message import Message
from activations.chat.providers.echo import CONTEXT_TOKENS, WELCOME, EchoProvider
from activations.chat.providers.provider import Text, ThinkingText, TokenUsage, Tool, ToolCall
from activations.chat.providers.registry import Providers

pytestmark = pytest.mark.anyio

EARLIER = Message("assistant", "Yes.")
EXECUTE = Tool("bash_execute", "Runs a command.", {"type": "object"})


@pytest.fixture
def providers() -> Providers:
    return Providers(environment={})


async def test_it_repeats_the_message(providers: Providers) -> None:
    deltas = await asked(providers, "echo:echo", "Before.", EARLIER, "Good  morning,\nall of you.")
    assert text_of(deltas) == "You said: Good  morning,\nall of you."
    assert stopped(deltas) == "end_turn"


async def test_each_delta_is_a_word(providers: Providers) -> None:
    deltas = await asked(providers, "echo:echo", "Hi.", EARLIER, "one two")
    words = [delta.text for delta in deltas if isinstance(delta, Text)]
    assert words == ["You ", "said: ", "one ", "two"]


async def test_the_first_answer_explains_how_to_use_a_real_model(providers: Providers) -> None:
    first = text_of(await asked(providers, "echo:echo", "Hi."))
    assert first == f"You said: Hi.{WELCOME}"
    for way in ("plexus-substrate[chat]", "ANTHROPIC_API_KEY", "anthropic:<model>", "ollama="):
        assert way in first
    again = text_of(await asked(providers, "echo:echo", "Hi.", EARLIER, "Hi again."))
    assert again == "You said: Hi again."


async def test_it_is_deterministic(providers: Providers) -> None:
    assert await asked(providers, "echo:echo", "Hi.") == await asked(providers, "echo:echo", "Hi.")


async def test_it_names_what_is_attached_to_the_last_message_only(providers: Providers) -> None:
    messages = [
        Message("attachment", "1", {"name": "old.txt"}),
        Message("user", "Hi."),
        EARLIER,
        Message("attachment", "2", {"name": "one.txt"}),
        Message("attachment", "3", {"name": "two.png"}),
        Message("user", "And these?"),
    ]
    answer = text_of(await asked(providers, "echo:echo", *messages))
    assert answer == "You said: And these?\n\nAttached: one.txt, two.png."


async def test_it_reasons_on_command(providers: Providers) -> None:
    deltas = await asked(providers, "echo:echo", "Hi.", EARLIER, "/think it over twice")
    assert thought(deltas) == "it over twice"
    assert text_of(deltas) == "You said: it over twice"
    kinds = [type(delta) for delta in deltas if isinstance(delta, Text | ThinkingText)]
    assert kinds == [ThinkingText] * 3 + [Text] * 5


@pytest.mark.parametrize("name", ["bash.execute", "bash_execute"])
async def test_it_calls_a_tool_on_command(providers: Providers, name: str) -> None:
    message = f'/tool {name} {{"command": "ls"}}'
    deltas = await asked(providers, "echo:echo", message, tools=[EXECUTE])
    assert calls(deltas) == [ToolCall("echo_1", "bash_execute", {"command": "ls"})]
    assert text_of(deltas) == ""
    assert stopped(deltas) == "tool_use"


async def test_a_tool_may_have_no_input(providers: Providers) -> None:
    deltas = await asked(providers, "echo:echo", "/tool bash.execute", tools=[EXECUTE])
    assert calls(deltas) == [ToolCall("echo_1", "bash_execute", {})]


async def test_each_tool_call_has_a_unique_id(providers: Providers) -> None:
    used = Message("tool_use", "{}", {"tool_name": "bash.execute", "tool_use_id": "echo_1"})
    answered = Message("tool_result", "ok", {"tool_use_id": "echo_1"})
    again = Message("user", "/tool bash.execute")
    messages = [again, used, answered, EARLIER, again]
    [calling] = calls(await asked(providers, "echo:echo", *messages, tools=[EXECUTE]))
    assert calling.id == "echo_2"


@pytest.mark.parametrize(("tools", "named"), [([], "no tools"), ([EXECUTE], "bash_execute")])
async def test_an_unknown_tool_is_answered_with_the_available_tools(
    providers: Providers, tools: list[Tool], named: str
) -> None:
    deltas = await asked(providers, "echo:echo", "/tool arbor.tree_list", tools=tools)
    assert calls(deltas) == []
    assert "Unknown tool 'arbor.tree_list'." in text_of(deltas)
    assert named in text_of(deltas)


@pytest.mark.parametrize("given", ["{", "[1]", '"text"', "[" * 100 + "]" * 100])
async def test_input_that_is_not_an_object_is_not_passed_to_a_tool(
    providers: Providers, given: str
) -> None:
    deltas = await asked(providers, "echo:echo", f"/tool bash.execute {given}", tools=[EXECUTE])
    assert calls(deltas) == []
    assert "must be a JSON object" in text_of(deltas)


async def test_it_reports_tool_results(providers: Providers) -> None:
    messages = [
        Message("user", "/tool bash.execute {}"),
        Message("tool_use", "{}", {"tool_name": "bash.execute", "tool_use_id": "1"}),
        Message("tool_use", "{}", {"tool_name": "bash.execute", "tool_use_id": "2"}),
        Message("tool_result", "a b", {"tool_name": "bash.execute", "tool_use_id": "1"}),
        Message("tool_result", "no", {"tool_name": "bash.execute", "is_error": True}),
    ]
    deltas = await asked(providers, "echo:echo", *messages)
    assert text_of(deltas) == "bash.execute returned: a b\nbash.execute failed: no"
    assert stopped(deltas) == "end_turn"


async def test_words_count_as_tokens(providers: Providers) -> None:
    deltas = await asked(providers, "echo:echo", "one two", EARLIER, "/think three four")
    [used] = [delta for delta in deltas if isinstance(delta, TokenUsage)]
    assert used == TokenUsage(input_tokens=2 + 1 + 3, output_tokens=2 + 4)


async def test_it_respects_max_tokens(providers: Providers) -> None:
    deltas = await asked(providers, "echo:echo", "a b c d", max_tokens=3)
    assert text_of(deltas) == "You said: a "
    assert stopped(deltas) == "max_tokens"


async def test_the_slow_model_pauses_between_words() -> None:
    loop = asyncio.get_running_loop()
    start = loop.time()
    async with asyncio.timeout(WAIT_S):
        async with aclosing(
            EchoProvider().stream(asking("slow", "Hi.", EARLIER, "one two"))
        ) as answer:
            count = sum([isinstance(delta, Text) async for delta in answer])
    # A lower bound only: a busy machine takes longer.
    assert loop.time() - start >= count * 0.04


async def test_it_can_be_closed_in_the_middle() -> None:
    answer = EchoProvider().stream(asking("slow", "one two three"))
    assert await anext(answer) == Text("You ")
    await answer.aclose()


async def test_other_models_are_unknown(providers: Providers) -> None:
    deltas, error = await failed(providers, "echo:loud")
    assert (deltas, error.code) == ([], "unknown_model")
    assert "echo:slow" in error.message


def test_its_context_window_is_known() -> None:
    assert EchoProvider().context_tokens("echo") == CONTEXT_TOKENS


@given(st.text())
def test_its_words_joined_are_the_message(text: str) -> None:
    async def answer() -> str:
        answer = EchoProvider().stream(asking("echo", "Hi.", EARLIER, Message("user", f"x{text}")))
        async with aclosing(answer):
            return "".join([d.text async for d in answer if isinstance(d, Text)])

    assert asyncio.run(answer()) == f"You said: x{text}"
