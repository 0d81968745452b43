"""Calls of chat in tests: through a hub, over a real database, with a scripted model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from arbor_databases import ENGINES, new_database
from hub_calls import WAIT_S, Namespace, register, settled, until

from activations.approvals import Approvals
from activations.arbor import Arbor
from activations.bash import Bash
from activations.chat import Chat, ClaudeCode
from activations.chat.events import ModelData
from activations.chat.providers.provider import (
    Delta,
    Provider,
    ProviderRequest,
    Stop,
    Text,
    ToolCall,
)
from activations.chat.providers.registry import Providers
from plexus import Activation, Plexus, Principal
from plexus.limits import Limits
from plexus.principal import LOCAL
from plexus.rpc import wire
from plexus.runtime.builtin import PlexusActivation
from plexus.runtime.run import Run

__all__ = (
    "ENGINES",
    "SCRIPT",
    "Live",
    "Room",
    "Script",
    "Step",
    "begin",
    "error_of",
    "new_database",
    "talking",
    "text_in",
    "words",
)

#: The scripted model; a test may choose any name after the colon.
SCRIPT = "script:one"

#: A step of a model: yield a delta, raise, wait until the test sets an event, or call a function
#: with the request.
Step: TypeAlias = (
    Delta | BaseException | asyncio.Event | Callable[[ProviderRequest], Awaitable[None]]
)


class Script:
    """A provider with scripted rounds, which records all requests."""

    def __init__(self, *rounds: Sequence[Step], context: int | None = None) -> None:
        self.rounds = list(rounds)
        self.asks: list[ProviderRequest] = []
        #: The size of the context window in tokens.
        self.context = context
        self.runs_tools = False
        #: The number of rounds that ended, in any way.
        self.closed = 0

    async def check(self, model: str) -> None:
        """Accept every model."""

    def context_tokens(self, model: str) -> int | None:
        return self.context if model else None

    async def stream(self, ask: ProviderRequest) -> AsyncGenerator[Delta, None]:
        """Play the next round; a round without a Stop ends with the usual reason."""
        self.asks.append(ask._replace(messages=list(ask.messages)))
        steps = self.rounds.pop(0) if self.rounds else words("yes")
        reason = "end_turn"
        try:
            for step in steps:
                if isinstance(step, BaseException):
                    raise step
                if isinstance(step, asyncio.Event):
                    await step.wait()
                elif isinstance(step, tuple):
                    reason = "tool_use" if isinstance(step, ToolCall) else reason
                    yield step
                    if isinstance(step, Stop):
                        return
                else:
                    await step(ask)
            yield Stop(reason)
        finally:
            self.closed += 1

    async def close(self) -> None:
        """Do nothing; the script has no resources."""

    def seen(self, ask: int = -1) -> list[tuple[str, str]]:
        """Return the kind and text of each message of a request."""
        return [(each.kind, each.text) for each in self.asks[ask].messages]


class _Sources:
    """The scripted provider in addition to the real ones."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._real = Providers(environment={})

    def find(self, name: str) -> tuple[Provider, str]:
        provider, _, model = name.partition(":")
        return (self._script, model) if provider == "script" and model else self._real.find(name)

    def list_providers(self) -> list[ModelData]:
        return [ModelData("script", SCRIPT, True), *self._real.list_providers()]

    async def close(self) -> None:
        await self._real.close()


class Live:
    """A call in progress."""

    def __init__(self, hub: Plexus, run: Run) -> None:
        self._hub = hub
        self.run = run

    @property
    def events(self) -> list[Any]:
        """The events so far, as on the wire."""
        events: list[Any] = wire.decode_plain(list(self.run.log.events))
        return events

    def sent(self, type_: str) -> list[Any]:
        """Return the events of this type so far."""
        return [event for event in self.events if event["type"] == type_]

    async def wait_for_event(self, type_: str, count: int = 1) -> Any:
        """Wait until `count` events of this type were sent, and return the last of them."""
        await until(lambda: len(self.sent(type_)) >= count)
        return self.sent(type_)[count - 1]

    async def wait_for_text(self, text: str) -> None:
        """Wait until the answer contains a text."""
        await until(lambda: text in text_in(self.events))

    async def end(self) -> Any:
        """Wait for the terminal, and return it."""
        return wire.decode_plain(await settled(self.run))

    async def cancel(self) -> Any:
        """Cancel the call, and wait for its terminal."""
        self.run.cancel("enough")
        return await self.end()

    def answer(self, request: Any, answer: Any) -> None:
        """Answer a question of the run."""
        self.run.answer(request["request"], answer)


class Room(Namespace):
    """A hub with chat, and shortcuts for its methods."""

    def __init__(self, hub: Plexus, arbor: Arbor, chat: Chat, script: Script) -> None:
        super().__init__(hub, "chat")
        self.arbor = arbor
        self.chat = chat
        self.script = script

    async def error(self, method: str, _as: Principal = LOCAL, **params: Any) -> Any:
        """Return the error of a call, which must be its only event."""
        events = await self.events(method, _as, **params)
        assert [event["type"] for event in events] == ["error"], events
        return events[0]

    def begin(self, method: str, _as: Principal = LOCAL, **params: Any) -> Live:
        """Start a call of chat without waiting for its end."""
        return begin(self.hub, f"chat.{method}", _as, **params)

    async def create(self, name: str = "s", model: str = SCRIPT, **params: Any) -> Any:
        """Create a session with the scripted model."""
        return await self.value("create", name=name, model=model, **params)

    async def send(self, message: str, session: str = "s", **params: Any) -> list[Any]:
        """Send a message, and return the events of the completed turn."""
        events = await self.events("send", session=session, message=message, **params)
        assert events[-1]["type"] == "complete", events[-1]
        return events

    async def history(self, session: str = "s", **params: Any) -> list[dict[str, Any]]:
        """Return the latest messages of a session."""
        page = await self.value("history", session=session, **params)
        messages: list[dict[str, Any]] = page["messages"]
        return messages

    async def messages(self, session: str = "s", **params: Any) -> list[tuple[str, Any]]:
        """Return the kinds and texts of the latest messages."""
        found = await self.history(session, **params)
        return [(each["kind"], each.get("text")) for each in found]

    async def last(self, session: str = "s") -> dict[str, Any]:
        """Return the last message of a session."""
        return (await self.history(session))[-1]

    async def nodes(self, session: str = "s") -> list[dict[str, Any]]:
        """Return all nodes of a session's tree except the root, in creation order."""
        tree = (await self.value("get", session=session))["position"]["tree_id"]
        events = await self.events("arbor.tree_get", tree_id=tree)
        nodes = [node for event in events if event["type"] == "nodes" for node in event["nodes"]]
        return [node for node in nodes if node.get("parent")]

    async def is_free(self, session: str = "s") -> bool:
        """Return whether no turn of a session is in progress."""
        return not (await self.value("get", session=session))["busy"]


def begin(hub: Plexus, method: str, _as: Principal = LOCAL, **params: Any) -> Live:
    """Start a call without waiting for its end."""
    return Live(hub, hub.call(method, params, _as).run)


def words(*texts: str) -> list[Step]:
    """Return a round in which a model streams these texts."""
    return [Text(text) for text in texts]


def text_in(events: Sequence[Any]) -> str:
    """Return the answer's text in these events."""
    return "".join(event["text"] for event in events if event["type"] == "content")


def error_of(events: Sequence[Any]) -> Any:
    """Return the error that a call ended with."""
    assert events[-1]["type"] == "error", events[-1]
    return events[-1]


@asynccontextmanager
async def talking(
    database: object,
    script: Script | None = None,
    *others: Activation,
    limits: Limits | None = None,
    model: str = "echo:echo",
) -> AsyncIterator[Room]:
    """Open a hub with chat over this database for the duration of the block."""
    script = script or Script()
    hub = Plexus(limits=limits or Limits())
    arbor = Arbor(str(database))
    chat = Chat(arbor, lambda: _Sources(script), model)
    built_in = (PlexusActivation(hub), Bash(), arbor, chat, ClaudeCode(chat), Approvals())
    register(hub, *built_in, *others)
    try:
        yield Room(hub, arbor, chat, script)
    finally:
        async with asyncio.timeout(WAIT_S * 2):
            await hub.close()
