"""Complete turns with models over HTTP: a hub, a store, pydantic-ai and a server on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from chat_hub import Live, Room, Script, error_of, text_in
from model_server import (
    Fail,
    Gate,
    HangUp,
    ModelServer,
    Refusal,
    Silence,
    Think,
    Use,
    reply,
)

from activations.arbor import Arbor
from activations.bash import Bash
from activations.chat import Chat
from activations.chat.providers.registry import Providers
from plexus import Plexus
from plexus.runtime.builtin import PlexusActivation

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

MODELS = ("anthropic:claude-x", "openai:gpt-x", "google:gemini-x", "local:llama-x")


@asynccontextmanager
async def opened(folder: Path, providers: Providers) -> AsyncIterator[Room]:
    hub = Plexus()
    arbor = Arbor(str(folder / "arbor.db"))
    chat = Chat(arbor, lambda: providers)
    for activation in (PlexusActivation(hub), Bash(), arbor, chat):
        hub.register(activation)
    try:
        yield Room(hub, arbor, chat, Script())
    finally:
        async with asyncio.timeout(20):
            await hub.close()


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer() as server:
        yield server


@pytest.fixture(params=MODELS, ids=lambda model: model.partition(":")[0])
async def room(
    request: pytest.FixtureRequest, tmp_path: Path, server: ModelServer
) -> AsyncIterator[Room]:
    endpoints = [f"local={server.openai_url}"]
    providers = Providers(endpoints, silent_s=2.0, environment=server.environment())
    async with opened(tmp_path, providers) as room:
        await room.create(model=request.param)
        yield room


async def fails(room: Room, message: str = "hi") -> Any:
    return error_of(await room.events("send", session="s", message=message))


def begin(room: Room, message: str = "hi") -> Live:
    return room.begin("send", session="s", message=message)


async def test_an_answer_streams_as_the_model_produces_it(room: Room, server: ModelServer) -> None:
    go_on = asyncio.Event()
    server.script(reply("one two ", Gate(go_on), "three", tokens=(7, 3)))
    live = begin(room)
    await live.wait_for_text("one two ")
    assert live.run.terminal is None  # the rest was not sent yet, and this was forwarded
    go_on.set()
    end = await live.end()
    assert text_in(live.events) == "one two three"
    assert end["stop_reason"] == "end_turn"
    assert end["usage"]["input_tokens"] == 7
    assert end["usage"]["output_tokens"] == 3
    assert await room.messages() == [("user", "hi"), ("assistant", "one two three")]


async def test_the_model_receives_the_earlier_messages(room: Room, server: ModelServer) -> None:
    server.script(reply("Tea."), reply("Green."))
    await room.send("What shall we drink?")
    await room.send("Which?")
    sent = str(server.requests[1].body)
    for said in ("What shall we drink?", "Tea.", "Which?"):
        assert said in sent


async def test_a_model_calls_a_tool_and_continues_its_answer(
    room: Room, server: ModelServer
) -> None:
    await room.value("configure", session="s", tools=["bash.execute"], approve="none")
    server.script(reply("Let me see. ", Use("bash_execute", {"command": "echo tea"})), "It is tea.")
    events = await room.send("What is it?")
    [use] = [event for event in events if event["type"] == "tool_use"]
    assert (use["tool_name"], use["input"]) == ("bash.execute", {"command": "echo tea"})
    [result] = [event for event in events if event["type"] == "tool_result"]
    assert result["output"] == "tea\n"
    assert events[-1]["stop_reason"] == "end_turn"
    assert "tea\\n" in str(server.requests[1].body)
    kinds = [kind for kind, _ in await room.messages()]
    assert kinds == ["user", "assistant", "tool_use", "tool_result", "assistant"]
    server.script("You are welcome.")
    await room.send("Thanks.")  # the stored messages can be sent again


async def test_an_error_in_the_middle_keeps_the_partial_answer(
    room: Room, server: ModelServer
) -> None:
    server.script(reply("so far ", Fail("overloaded_error", "too much")))
    error = await fails(room)
    assert error["code"] == "provider_broke"
    last = await room.last()
    assert (last["text"], last["status"]) == ("so far ", "error")
    assert last["error"]["code"] == "provider_broke"
    assert error["data"]["position"]["node_id"] == last["node_id"]
    assert await room.is_free()
    server.script("better")
    assert text_in(await room.send("again")) == "better"


async def test_a_lost_connection_keeps_the_partial_answer(room: Room, server: ModelServer) -> None:
    server.script(reply("so far ", HangUp()))
    assert (await fails(room))["code"] == "provider_broke"
    assert (await room.last())["text"] == "so far "


async def test_a_server_that_sends_nothing_times_out(room: Room, server: ModelServer) -> None:
    server.script(reply("so far ", Silence()))
    error = await fails(room)
    assert error["code"] == "provider_silent"
    assert (await room.last())["text"] == "so far "
    await asyncio.wait_for(server.requests[0].gone.wait(), 10)


async def test_a_rate_limit_is_retried_and_logged(room: Room, server: ModelServer) -> None:
    server.script(Refusal(429, "slow down", headers={"retry-after": "1"}), "at last")
    events = await room.send("hi")
    assert text_in(events) == "at last"
    [log] = [event for event in events if event["type"] == "log"]
    assert "1 s" in log["message"]


async def test_a_lasting_rate_limit_reports_when_to_retry(room: Room, server: ModelServer) -> None:
    server.script(Refusal(429, "come tomorrow", headers={"retry-after": "3600"}))
    error = await fails(room)
    assert error["code"] == "rate_limited"
    assert error["data"]["retry_after_s"] == 3600
    assert await room.messages() == [("user", "hi")]  # the message can be answered later
    server.script("now")
    assert text_in(await room.events("regenerate", session="s")) == "now"
    assert await room.messages() == [("user", "hi"), ("assistant", "now")]


async def test_cancelling_a_turn_cancels_the_request(room: Room, server: ModelServer) -> None:
    server.script(reply("so far ", Silence()))
    live = begin(room)
    await live.wait_for_text("so far ")
    end = await live.cancel()
    assert end["type"] == "cancelled"
    await asyncio.wait_for(server.requests[0].gone.wait(), 10)
    assert (await room.last())["status"] == "cancelled"


async def test_reasoning_is_streamed_stored_and_sent_back(
    tmp_path: Path, server: ModelServer
) -> None:
    async with opened(tmp_path, Providers(environment=server.environment())) as room:
        await room.create(model="anthropic:claude-x", thinking=True, tools=["bash.execute"])
        await room.value("configure", session="s", approve="none")
        use = Use("bash_execute", {"command": "true"})
        server.script(reply(Think("Hm, tea.", "sig-1"), use), "Tea.")
        events = await room.send("Which?")
        thoughts = [event["text"] for event in events if event["type"] == "thinking"]
        assert "".join(thoughts) == "Hm, tea."
        assert "sig-1" in str(server.requests[1].body)
        kinds = [kind for kind, _ in await room.messages()]
        assert kinds == ["user", "thinking", "tool_use", "tool_result", "assistant"]


def read_files(folder: Path) -> bytes:
    """Return the contents of all files of a folder."""
    return b"".join(file.read_bytes() for file in folder.iterdir())


# --- errors before a turn starts -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "variable"),
    [
        ("anthropic:x", "ANTHROPIC_API_KEY"),
        ("openai:x", "OPENAI_API_KEY"),
        ("google:x", "GOOGLE_API_KEY"),
    ],
)
async def test_a_missing_key_names_the_variable_and_stores_nothing(
    tmp_path: Path, model: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")
    async with opened(tmp_path, Providers(environment={})) as room:
        await room.create(model=model)
        error = await room.error("send", session="s", message="hi")
        assert error["code"] == "missing_key"
        assert error["data"]["variable"] == variable
        assert variable in error["message"]
        assert await room.messages() == []
        await room.value("configure", session="s", model="echo:echo")
        await room.send("hi")


async def test_a_provider_that_is_down_leaves_the_session_usable(tmp_path: Path) -> None:
    async with ModelServer() as gone:
        environment = gone.environment()
    async with opened(tmp_path, Providers(environment=environment)) as room:
        await room.create(model="anthropic:claude-x")
        assert (await fails(room))["code"] == "provider_down"
        assert await room.messages() == [("user", "hi")]
        assert await room.is_free()


async def test_a_key_is_in_no_stored_data_or_output(
    tmp_path: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "sk-very-secret-0123456789"
    for name, value in server.environment(key).items():
        monkeypatch.setenv(name, value)
    async with opened(tmp_path, Providers()) as room:
        await room.create(model="anthropic:claude-x", tools=["bash.execute"], approve="none")
        server.script(
            Refusal(401, f"invalid key {key}-anthropic"),
            reply(Use("bash_execute", {"command": "env"})),
            "done",
        )
        said = [await fails(room), *await room.send("again"), await room.value("models")]
        assert "PATH=" in str(said)  # the tool reports the environment that it sees
        assert key not in str(said)
        assert key in str(server.requests[0].headers)
    assert key.encode() not in read_files(tmp_path)
