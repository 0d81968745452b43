"""When a server of models fails: what is tried again, and what callers are told."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import httpx2
import pytest
from model_server import (
    End,
    Fail,
    HangUp,
    ModelServer,
    Pause,
    Ping,
    Raw,
    Refusal,
    Reply,
    Silence,
    Think,
    reply,
)
from provider_asking import asked, asking, failed, stopped, text_of

from activations.chat.providers.endpoints import built_in_endpoint, parse_endpoint
from activations.chat.providers.keys import Keys
from activations.chat.providers.provider import Delta, Retry, Text, TokenUsage
from activations.chat.providers.pydantic_ai import provider as api_provider
from activations.chat.providers.pydantic_ai.clients import CONNECT_S
from activations.chat.providers.pydantic_ai.provider import PydanticAiProvider
from activations.chat.providers.registry import Providers
from plexus import Failed

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

MODELS = {
    "anthropic": "anthropic:claude-sonnet-5-5",
    "openai": "openai:gpt-6-sol",
    "google": "google:gemini-3.8-flash",
    "compatible": "local:llama3",
}
#: Too short for a server that says nothing, long enough for one that does.
SILENT_S = 2.0


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer() as opened:
        yield opened


@asynccontextmanager
async def opened(server: ModelServer, silent_s: float = 60.0) -> AsyncIterator[Providers]:
    providers = Providers(
        [f"local={server.openai_url}"],
        silent_s=silent_s,
        environment={**server.environment(), "LOCAL_API_KEY": "sk-test-local"},
    )
    try:
        yield providers
    finally:
        await providers.close()


@pytest.fixture
async def providers(server: ModelServer) -> AsyncIterator[Providers]:
    async with opened(server) as made:
        yield made


@pytest.fixture(params=list(MODELS))
def name(request: pytest.FixtureRequest) -> str:
    return MODELS[request.param]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> tuple[float, float]:
    """Pauses between attempts that nobody notices."""
    monkeypatch.setattr(api_provider, "RETRY_DELAYS_S", (0.01, 0.02))
    return (0.01, 0.02)


def waits(deltas: list[Delta]) -> list[float]:
    return [delta.seconds for delta in deltas if isinstance(delta, Retry)]


# --- refused -------------------------------------------------------------------------------------

REFUSALS = [
    (401, "bad_key"),
    (403, "bad_key"),
    (404, "unknown_model"),
    (400, "provider_refused"),
    (413, "provider_refused"),
    (422, "provider_refused"),
]


@pytest.mark.parametrize(("status", "code"), REFUSALS)
async def test_a_refusal_has_its_code_and_is_not_tried_again(
    server: ModelServer, providers: Providers, name: str, status: int, code: str
) -> None:
    server.otherwise = Refusal(status, "the reason is this")
    deltas, error = await failed(providers, name)
    assert (deltas, error.code) == ([], code)
    assert "the reason is this" in error.message
    assert error.data["status"] == status
    assert error.data["model"] == name
    assert len(server.requests) == 1


async def test_a_refused_key_says_which_variable_it_is_in(
    server: ModelServer, providers: Providers, name: str
) -> None:
    server.otherwise = Refusal(401, "invalid key")
    _, error = await failed(providers, name)
    variable = f"{name.partition(':')[0].upper()}_API_KEY"
    assert error.data["variable"] == variable
    assert variable in error.message


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500])
async def test_a_key_is_in_no_error(
    server: ModelServer, providers: Providers, name: str, status: int, quick: tuple[float, float]
) -> None:
    assert quick
    key = f"sk-test-{name.partition(':')[0]}"
    server.otherwise = Refusal(status, f"what is {key} to me")
    deltas, error = await failed(providers, name)
    assert "what is *** to me" in error.message
    # Not in what is told, and not in what a log would show of the error.
    shown = [repr(error), str(error), str(error.data), str(deltas), str(error.__cause__)]
    assert error.__suppress_context__
    assert not [text for text in shown if key in text]


async def test_what_is_too_long_for_a_model_can_be_told_apart(
    server: ModelServer, providers: Providers
) -> None:
    server.otherwise = Refusal(400, "prompt is too long", kind="invalid_request_error")
    _, error = await failed(providers, MODELS["anthropic"])
    assert error.code == "provider_refused"
    assert error.data["reason"] == "too_long"


# --- tried again ---------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [429, 503, 529, 500])
async def test_what_passes_is_waited_for(
    server: ModelServer, providers: Providers, name: str, status: int, quick: tuple[float, float]
) -> None:
    server.script(Refusal(status, "busy"), Refusal(status, "busy"), "Hello.")
    deltas = await asked(providers, name, "Hi.")
    assert waits(deltas) == list(quick)
    assert [type(delta) for delta in deltas[:2]] == [Retry, Retry]
    assert all("busy" in delta.reason for delta in deltas if isinstance(delta, Retry))
    assert text_of(deltas) == "Hello."
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("status", "code"), [(429, "rate_limited"), (503, "provider_down"), (529, "provider_down")]
)
async def test_what_does_not_pass_is_given_up_on_after_three_attempts(
    server: ModelServer,
    providers: Providers,
    name: str,
    status: int,
    code: str,
    quick: tuple[float, float],
) -> None:
    server.otherwise = Refusal(status, "busy")
    deltas, error = await failed(providers, name)
    assert waits(deltas) == list(quick)
    assert error.code == code
    assert "retry_after_s" not in error.data
    assert len(server.requests) == 3


def test_the_pauses_are_half_a_second_and_a_second() -> None:
    assert api_provider.RETRY_DELAYS_S == (0.5, 1.0)


@pytest.mark.parametrize("seconds", ["0", "1"])
async def test_a_server_says_how_long_to_wait(
    server: ModelServer, providers: Providers, name: str, seconds: str
) -> None:
    server.script(Refusal(429, headers={"retry-after": seconds}), "Hello.")
    start = asyncio.get_running_loop().time()
    deltas = await asked(providers, name, "Hi.")
    assert waits(deltas) == [float(seconds)]
    assert asyncio.get_running_loop().time() - start >= float(seconds)
    assert text_of(deltas) == "Hello."


@pytest.mark.parametrize(("status", "code"), [(429, "rate_limited"), (503, "provider_down")])
async def test_a_long_wait_is_left_to_the_caller(
    server: ModelServer, providers: Providers, name: str, status: int, code: str
) -> None:
    server.otherwise = Refusal(status, headers={"retry-after": "31"})
    deltas, error = await failed(providers, name)
    assert (waits(deltas), error.code) == ([], code)
    assert error.data["retry_after_s"] == 31
    assert "31 s" in error.message
    assert len(server.requests) == 1


async def test_a_server_that_is_not_there_is_tried_again(quick: tuple[float, float]) -> None:
    with socket.socket() as held:  # bound and never listened at, so that nobody else has it
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}/v1"
        providers = Providers([f"local={url}"], environment={})
        deltas, error = await failed(providers, "local:llama3")
        await providers.close()
    assert waits(deltas) == list(quick)
    assert error.code == "provider_down"
    assert url in error.message


async def test_a_connection_that_is_cut_before_a_word_is_tried_again(
    server: ModelServer, providers: Providers, name: str, quick: tuple[float, float]
) -> None:
    server.script(reply(HangUp()), "Hello.")
    deltas = await asked(providers, name, "Hi.")
    assert waits(deltas) == [quick[0]]
    assert text_of(deltas) == "Hello."


async def test_an_error_in_the_stream_before_a_word_is_tried_again(
    server: ModelServer, providers: Providers, name: str, quick: tuple[float, float]
) -> None:
    server.script(reply(Fail("overloaded_error", "Overloaded")), "Hello.")
    deltas = await asked(providers, name, "Hi.")
    assert waits(deltas) == [quick[0]]
    assert text_of(deltas) == "Hello."


# --- broken off ----------------------------------------------------------------------------------

BROKEN = {
    "an error": reply("One ", "two ", Fail("overloaded_error", "Overloaded")),
    "a rate limit": reply("One ", "two ", Fail("rate_limit_error", "slow down")),
    "a cut connection": reply("One ", "two ", HangUp()),
    "no JSON": reply("One ", "two ", Raw(b"event: content_block_delta\ndata: {oh no\n\n")),
}


@pytest.mark.parametrize("how", BROKEN)
async def test_an_answer_that_breaks_off_keeps_what_it_said_and_is_not_asked_for_again(
    server: ModelServer, providers: Providers, name: str, how: str
) -> None:
    server.otherwise = BROKEN[how]
    deltas, error = await failed(providers, name)
    assert text_of(deltas) == "One two "
    assert error.code == "provider_broke"
    assert waits(deltas) == []
    assert len(server.requests) == 1


async def test_a_thought_is_a_word_too(
    server: ModelServer, providers: Providers, name: str
) -> None:
    server.otherwise = reply(Think("let me see"), HangUp())
    _, error = await failed(providers, name)
    assert error.code == "provider_broke"
    assert len(server.requests) == 1


@pytest.mark.parametrize("kind", ["anthropic", "openai", "google"])
@pytest.mark.parametrize("answer", [reply("One ", "two ", End()), reply(Ping(), End())])
async def test_a_stream_that_ends_without_a_reason_was_broken_off(
    server: ModelServer, providers: Providers, kind: str, answer: Reply
) -> None:
    if kind == "google" and answer.steps[0] == Ping():
        answer = reply(End())
    server.otherwise = answer
    _, error = await failed(providers, MODELS[kind])
    assert error.code == "provider_broke"
    assert len(server.requests) == 1


async def test_other_servers_need_give_no_reason_to_stop(
    server: ModelServer, providers: Providers
) -> None:
    server.otherwise = reply("One ", "two.", End())
    deltas = await asked(providers, MODELS["compatible"], "Hi.")
    assert text_of(deltas) == "One two."
    assert stopped(deltas) == "end_turn"


GARBAGE = [
    b"\xff\xfe\x00",
    b"data: []\n\n",
    b"data: 5\n\n",
    b'data: {"choices": 5}\n\n',
    b'data: {"choices": [{"delta": 5}]}\n\n',
    b'data: {"candidates": [5]}\n\n',
    b'event: message_start\ndata: {"type": "message_start"}\n\n',
    b'event: content_block_delta\ndata: {"type": "content_block_delta", "index": 7}\n\n',
    b"<html>Bad gateway</html>",
    b"",
]


@pytest.mark.parametrize("garbage", GARBAGE)
async def test_whatever_a_server_answers_is_an_error_that_callers_know(
    server: ModelServer, providers: Providers, name: str, garbage: bytes
) -> None:
    server.otherwise = reply(Raw(garbage), End())
    told = ""
    try:
        told = text_of(await asked(providers, name, "Hi."))
    except Failed as error:
        told = error.code
    assert told in ("", "provider_broke")


# --- silent --------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [reply(Silence()), reply("One ", Silence())])
async def test_a_server_that_says_nothing_more_is_given_up_on(
    server: ModelServer, name: str, answer: Reply
) -> None:
    server.otherwise = answer
    async with opened(server, silent_s=0.3) as providers:
        deltas, error = await failed(providers, name)
    assert error.code == "provider_silent"
    assert error.data["silent_s"] == 0.3
    assert [d for d in deltas if not isinstance(d, Text | TokenUsage)] == []
    assert len(server.requests) == 1


@pytest.mark.parametrize("name", [MODELS["anthropic"], MODELS["openai"], MODELS["compatible"]])
async def test_a_server_that_says_that_it_is_at_work_is_not_silent(
    server: ModelServer, name: str
) -> None:
    # Longer than it may be silent for, but never silent for half as long.
    working = [step for _ in range(6) for step in (Ping(), Pause(SILENT_S / 4))]
    server.otherwise = reply("One ", *working, "two.")
    async with opened(server, SILENT_S) as providers:
        assert text_of(await asked(providers, name, "Hi.")) == "One two."


async def test_an_answer_that_takes_longer_than_a_silence_may_is_no_silence(
    server: ModelServer, name: str
) -> None:
    slow = [step for word in "abcdef" for step in (f"{word} ", Pause(SILENT_S / 4))]
    server.otherwise = reply(*slow)
    async with opened(server, SILENT_S) as providers:
        assert text_of(await asked(providers, name, "Hi.")) == "a b c d e f "


@pytest.mark.parametrize("kind", MODELS)
async def test_a_connection_has_a_deadline_of_its_own(server: ModelServer, kind: str) -> None:
    name, _, model = MODELS[kind].partition(":")
    at = parse_endpoint(f"{name}={server.openai_url}")
    if kind != "compatible":
        at = built_in_endpoint(name, server.environment())
    provider = PydanticAiProvider(at, Keys(server.environment()), silent_s=60.0)
    deadlines: list[dict[str, float]] = []

    async def note(request: httpx2.Request) -> None:
        deadlines.append(request.extensions["timeout"])

    # What is really asked of the network.
    http = (await provider._get_clients())._http  # noqa: SLF001
    http.event_hooks = {**http.event_hooks, "request": [*http.event_hooks["request"], note]}
    async with aclosing(provider.stream(asking(model, "Hi."))) as answer:
        assert text_of([delta async for delta in answer]) == "Hello."
    await provider.close()
    assert [(each["connect"], each["read"]) for each in deadlines] == [(CONNECT_S, 60.0)]
