"""The number of generators that a token crosses from the provider to the pump."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import FrameType

import pytest
from chat_hub import Room, Script, talking
from hub_calls import WAIT_S
from model_server import ModelServer

from activations.arbor import Arbor
from activations.chat import Chat
from activations.chat.providers import echo
from activations.chat.providers.pydantic_ai.message_conversion import ResponseReader
from activations.chat.providers.registry import Providers
from plexus import Plexus
from plexus.runtime.builtin import PlexusActivation

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

#: A method returns the generator of the turn, which iterates over that of the provider.
MOST = 3
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module", autouse=True)
def _loaded() -> None:
    """Load the library before any deadline runs, and in no worker that only collects the test."""
    importlib.import_module("pydantic_ai.models.anthropic")


def suspended_generators(frame: FrameType | None) -> list[str]:
    """Return our async generators between a provider that runs now and the pump."""
    found = []
    while frame is not None and frame.f_code.co_name != "_stream_outcome":
        code = frame.f_code
        is_ours = ROOT in Path(code.co_filename).parents and ".venv" not in code.co_filename
        if code.co_flags & inspect.CO_ASYNC_GENERATOR and is_ours:
            found.append(code.co_qualname)
        frame = frame.f_back
    assert frame is not None, "the pump drives the turn"
    return found


@pytest.fixture
async def room(tmp_path: Path) -> AsyncIterator[Room]:
    async with talking(tmp_path / "chat.db") as room:
        yield room


@pytest.mark.parametrize("method", ["send", "regenerate", "edit"])
async def test_a_token_of_the_echo_model_crosses_at_most_three_generators(
    room: Room, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    seen: list[list[str]] = []
    real_sleep = asyncio.sleep

    async def sleep(seconds: float) -> None:
        if seconds == echo.WORD_DELAYS_S["slow"]:  # between two words
            seen.append(suspended_generators(sys._getframe()))  # noqa: SLF001 - the stack
        await real_sleep(0)

    await room.create(model="echo:echo")
    start = (await room.send("hello"))[0]
    await room.value("configure", session="s", model="echo:slow")
    monkeypatch.setattr(asyncio, "sleep", sleep)
    node = start["user_position"]["node_id"]
    params = {
        "send": {"message": "again"},
        "regenerate": {"node_id": node},
        "edit": {"node_id": node, "message": "again"},
    }[method]
    events = await room.events(method, session="s", **params)
    assert events[-1]["type"] == "complete"
    assert len(seen) > 1
    assert set(map(tuple, seen)) == {("EchoProvider.stream", "Turn.run")}
    assert len(seen[0]) <= MOST


async def test_a_token_of_a_model_over_http_crosses_at_most_three_of_our_generators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []
    read = ResponseReader.read

    def noting(self: object, event: object) -> object:
        seen.append(suspended_generators(sys._getframe()))  # noqa: SLF001 - the stack
        return read(self, event)  # type: ignore[arg-type]

    monkeypatch.setattr(ResponseReader, "read", noting)
    async with ModelServer() as server:
        providers = Providers(environment=server.environment())
        hub, arbor = Plexus(), Arbor(str(tmp_path / "chat.db"))
        chat = Chat(arbor, lambda: providers)
        try:
            for activation in (PlexusActivation(hub), arbor, chat):
                hub.register(activation)
            room = Room(hub, arbor, chat, Script())
            await room.create(model="anthropic:claude-x")
            await room.send("hello")
        finally:
            async with asyncio.timeout(WAIT_S):
                await hub.close()
    assert seen
    assert set(map(tuple, seen)) == {("PydanticAiProvider.stream", "Turn.run")}
