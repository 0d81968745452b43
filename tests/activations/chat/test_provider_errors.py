"""Failures of model servers: which are retried, and the errors for callers."""

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
#: A timeout that only a server which sends nothing exceeds.
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
def short_delays(monkeypatch: pytest.MonkeyPatch) -> tuple[float, float]:
    """Short delays between attempts."""
    monkeypatch.setattr(api_provider, "RETRY_DELAYS_S", (0.01, 0.02))
    return (0.01, 0.02)


def waits(deltas: list[Delta]) -> list[float]:
    return [delta.seconds for delta in deltas if isinstance(delta, Retry)]


# --- rejected requests ---------------------------------------------------------------------------

REFUSALS = [
    (401, "bad_key"),
    (403, "bad_key"),
    (404, "unknown_model"),
    (400, "provider_refused"),
    (413, "provider_refused"),
    (422, "provider_refused"),
]


@pytest.mark.parametrize(("status", "code"), REFUSALS)
async def test_a_rejected_request_has_its_code_and_is_not_retried(
    server: ModelServer, providers: Providers, name: str, status: int, code: str
) -> None:
    server.otherwise = Refusal(status, "the reason is this")
    deltas, error = await failed(providers, name)
    assert (deltas, error.code) == ([], code)
    assert "the reason is this" in error.message
    assert error.data["status"] == status
    assert error.data["model"] == name
    assert len(server.requests) == 1


async def test_a_rejected_key_names_its_variable(
    server: ModelServer, providers: Providers, name: str
) -> None:
    server.otherwise = Refusal(401, "invalid key")
    _, error = await failed(providers, name)
    variable = f"{name.partition(':')[0].upper()}_API_KEY"
    assert error.data["variable"] == variable
    assert variable in error.message


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500])
async def test_a_key_is_in_no_error(
    server: ModelServer,
    providers: Providers,
    name: str,
    status: int,
    short_delays: tuple[float, float],
) -> None:
    assert short_delays
    key = f"sk-test-{name.partition(':')[0]}"
    server.otherwise = Refusal(status, f"what is {key} to me")
    deltas, error = await failed(providers, name)
    assert "what is *** to me" in error.message
    # Neither in the error nor in its logged traceback.
    shown = [repr(error), str(error), str(error.data), str(deltas), str(error.__cause__)]
    assert error.__suppress_context__
    assert not [text for text in shown if key in text]


async def test_a_conversation_too_long_for_the_model_has_its_own_reason(
    server: ModelServer, providers: Providers
) -> None:
    server.otherwise = Refusal(400, "prompt is too long", kind="invalid_request_error")
    _, error = await failed(providers, MODELS["anthropic"])
    assert error.code == "provider_refused"
    assert error.data["reason"] == "too_long"


# --- retries -------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [429, 503, 529, 500])
async def test_transient_errors_are_retried(
    server: ModelServer,
    providers: Providers,
    name: str,
    status: int,
    short_delays: tuple[float, float],
) -> None:
    server.script(Refusal(status, "busy"), Refusal(status, "busy"), "Hello.")
    deltas = await asked(providers, name, "Hi.")
    assert waits(deltas) == list(short_delays)
    assert [type(delta) for delta in deltas[:2]] == [Retry, Retry]
    assert all("busy" in delta.reason for delta in deltas if isinstance(delta, Retry))
    assert text_of(deltas) == "Hello."
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("status", "code"), [(429, "rate_limited"), (503, "provider_down"), (529, "provider_down")]
)
async def test_lasting_errors_are_raised_after_three_attempts(
    server: ModelServer,
    providers: Providers,
    name: str,
    status: int,
    code: str,
    short_delays: tuple[float, float],
) -> None:
    server.otherwise = Refusal(status, "busy")
    deltas, error = await failed(providers, name)
    assert waits(deltas) == list(short_delays)
    assert error.code == code
    assert "retry_after_s" not in error.data
    assert len(server.requests) == 3


def test_the_retry_delays_are_half_a_second_and_a_second() -> None:
    assert api_provider.RETRY_DELAYS_S == (0.5, 1.0)


@pytest.mark.parametrize("seconds", ["0", "1"])
async def test_the_server_sets_the_retry_delay(
    server: ModelServer, providers: Providers, name: str, seconds: str
) -> None:
    server.script(Refusal(429, headers={"retry-after": seconds}), "Hello.")
    start = asyncio.get_running_loop().time()
    deltas = await asked(providers, name, "Hi.")
    assert waits(deltas) == [float(seconds)]
    assert asyncio.get_running_loop().time() - start >= float(seconds)
    assert text_of(deltas) == "Hello."


@pytest.mark.parametrize(("status", "code"), [(429, "rate_limited"), (503, "provider_down")])
async def test_a_long_retry_delay_is_left_to_the_caller(
    server: ModelServer, providers: Providers, name: str, status: int, code: str
) -> None:
    server.otherwise = Refusal(status, headers={"retry-after": "31"})
    deltas, error = await failed(providers, name)
    assert (waits(deltas), error.code) == ([], code)
    assert error.data["retry_after_s"] == 31
    assert "31 s" in error.message
    assert len(server.requests) == 1


async def test_an_unreachable_server_is_retried(short_delays: tuple[float, float]) -> None:
    with socket.socket() as held:  # bound but not listening, so that no other process uses the port
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}/v1"
        providers = Providers([f"local={url}"], environment={})
        deltas, error = await failed(providers, "local:llama3")
        await providers.close()
    assert waits(deltas) == list(short_delays)
    assert error.code == "provider_down"
    assert url in error.message


async def test_a_connection_lost_before_the_first_output_is_retried(
    server: ModelServer, providers: Providers, name: str, short_delays: tuple[float, float]
) -> None:
    server.script(reply(HangUp()), "Hello.")
    deltas = await asked(providers, name, "Hi.")
    assert waits(deltas) == [short_delays[0]]
    assert text_of(deltas) == "Hello."


async def test_a_stream_error_before_the_first_output_is_retried(
    server: ModelServer, providers: Providers, name: str, short_delays: tuple[float, float]
) -> None:
    server.script(reply(Fail("overloaded_error", "Overloaded")), "Hello.")
    deltas = await asked(providers, name, "Hi.")
    assert waits(deltas) == [short_delays[0]]
    assert text_of(deltas) == "Hello."


# --- incomplete answers --------------------------------------------------------------------------

BROKEN = {
    "an error": reply("One ", "two ", Fail("overloaded_error", "Overloaded")),
    "a rate limit": reply("One ", "two ", Fail("rate_limit_error", "slow down")),
    "a cut connection": reply("One ", "two ", HangUp()),
    "no JSON": reply("One ", "two ", Raw(b"event: content_block_delta\ndata: {oh no\n\n")),
}


@pytest.mark.parametrize("how", BROKEN)
async def test_an_incomplete_answer_is_kept_and_not_retried(
    server: ModelServer, providers: Providers, name: str, how: str
) -> None:
    server.otherwise = BROKEN[how]
    deltas, error = await failed(providers, name)
    assert text_of(deltas) == "One two "
    assert error.code == "provider_broke"
    assert waits(deltas) == []
    assert len(server.requests) == 1


async def test_reasoning_counts_as_output(
    server: ModelServer, providers: Providers, name: str
) -> None:
    server.otherwise = reply(Think("let me see"), HangUp())
    _, error = await failed(providers, name)
    assert error.code == "provider_broke"
    assert len(server.requests) == 1


@pytest.mark.parametrize("kind", ["anthropic", "openai", "google"])
@pytest.mark.parametrize("answer", [reply("One ", "two ", End()), reply(Ping(), End())])
async def test_a_stream_without_a_finish_reason_is_incomplete(
    server: ModelServer, providers: Providers, kind: str, answer: Reply
) -> None:
    if kind == "google" and answer.steps[0] == Ping():
        answer = reply(End())
    server.otherwise = answer
    _, error = await failed(providers, MODELS[kind])
    assert error.code == "provider_broke"
    assert len(server.requests) == 1


async def test_compatible_servers_may_omit_the_finish_reason(
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
async def test_every_malformed_response_is_a_documented_error(
    server: ModelServer, providers: Providers, name: str, garbage: bytes
) -> None:
    server.otherwise = reply(Raw(garbage), End())
    outcome = ""
    try:
        outcome = text_of(await asked(providers, name, "Hi."))
    except Failed as error:
        outcome = error.code
    assert outcome in ("", "provider_broke")


# --- timeouts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [reply(Silence()), reply("One ", Silence())])
async def test_a_server_that_stops_sending_times_out(
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
async def test_keep_alive_messages_prevent_the_timeout(server: ModelServer, name: str) -> None:
    # Longer than the timeout in total, with pauses of less than half of it.
    working = [step for _ in range(6) for step in (Ping(), Pause(SILENT_S / 4))]
    server.otherwise = reply("One ", *working, "two.")
    async with opened(server, SILENT_S) as providers:
        assert text_of(await asked(providers, name, "Hi.")) == "One two."


async def test_a_long_answer_does_not_time_out(server: ModelServer, name: str) -> None:
    slow = [step for word in "abcdef" for step in (f"{word} ", Pause(SILENT_S / 4))]
    server.otherwise = reply(*slow)
    async with opened(server, SILENT_S) as providers:
        assert text_of(await asked(providers, name, "Hi.")) == "a b c d e f "


@pytest.mark.parametrize("kind", MODELS)
async def test_connecting_has_a_separate_timeout(server: ModelServer, kind: str) -> None:
    name, _, model = MODELS[kind].partition(":")
    at = parse_endpoint(f"{name}={server.openai_url}")
    if kind != "compatible":
        at = built_in_endpoint(name, server.environment())
    provider = PydanticAiProvider(at, Keys(server.environment()), silent_s=60.0)
    deadlines: list[dict[str, float]] = []

    async def note(request: httpx2.Request) -> None:
        deadlines.append(request.extensions["timeout"])

    # The timeout that is passed to the network layer.
    http = (await provider._get_clients())._http  # noqa: SLF001
    http.event_hooks = {**http.event_hooks, "request": [*http.event_hooks["request"], note]}
    async with aclosing(provider.stream(asking(model, "Hi."))) as answer:
        assert text_of([delta async for delta in answer]) == "Hello."
    await provider.close()
    assert [(each["connect"], each["read"]) for each in deadlines] == [(CONNECT_S, 60.0)]
