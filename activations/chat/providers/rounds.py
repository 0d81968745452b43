"""One round with a model over HTTP: what is sent, and what comes back as it comes.

Importing this imports the adapter, which takes a second or more. There is one HTTP client for a
server; the adapter's own retries and its telemetry are off. Nothing waits for longer than
`silent_s` without a byte from the server, counted where bytes are read, so that a server which
says that it is still at work is heard.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any, cast

from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.messages import (
    InstructionPart,
    ModelMessage,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
)
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from activations.chat.providers.clients import Clients
from activations.chat.providers.dialogue import history, thought_meta, tool_meta
from activations.chat.providers.faults import FAULTS, fault
from activations.chat.providers.provider import (
    Ask,
    Calling,
    Delta,
    Finished,
    Text,
    Thought,
    Used,
)
from activations.chat.providers.servers import Server

__all__ = ("Rounds",)

#: What the adapter calls the reasons to stop, as callers know them.
STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_call": "tool_use",
    "content_filter": "refusal",
}


class Rounds:
    """Asks one server."""

    def __init__(self, server: Server, silent_s: float) -> None:
        self._server = server
        self._silent_s = silent_s
        self._clients = Clients(server, silent_s)

    async def answer(self, ask: Ask, key: str | None) -> AsyncGenerator[Delta, None]:
        """Ask once; raises Failed with the codes of a provider."""
        # Its first use reads files; not on the loop.
        model = await asyncio.to_thread(self._clients.model, ask.model, key)
        request = model.request_stream(*self._request(ask, model))
        said = False
        try:
            async with self._clients.opened(request) as response:
                reading = _Reading(self._server, response)
                events = cast("AsyncGenerator[ModelResponseStreamEvent, None]", aiter(response))
                async with aclosing(events):
                    async for event in events:
                        for delta in reading.read(event):
                            said = said or not isinstance(delta, Used)
                            yield delta
                for delta in reading.end():
                    yield delta
        except FAULTS as error:
            # The cause may hold the key, in a request or in what the server said of it.
            failed = fault(error, self._server, ask.model, key, self._silent_s, said=said)
            raise failed from None

    async def close(self) -> None:
        """Close the connections."""
        await self._clients.close()

    def _request(
        self, ask: Ask, model: Model[Any]
    ) -> tuple[list[ModelMessage], ModelSettings, ModelRequestParameters]:
        name = f"{self._server.name}:{ask.model}"
        messages = history(ask.messages, name, self._server.dialect, model.system)
        settings = ModelSettings()
        if ask.max_tokens is not None:
            settings["max_tokens"] = ask.max_tokens
        if ask.temperature is not None:
            settings["temperature"] = ask.temperature
        if ask.thinking:
            settings["thinking"] = True
        if self._server.dialect == "anthropic" and not ask.ephemeral:
            # A conversation is sent again with each message; the others see to that unasked.
            settings["cache"] = True
        parameters = ModelRequestParameters(
            function_tools=[
                # Not strict: a schema is sent as it is, and the hub checks what comes back.
                ToolDefinition(
                    name=tool.name,
                    parameters_json_schema=tool.schema,
                    description=tool.description or None,
                    strict=False,
                )
                for tool in ask.tools
            ],
            instruction_parts=[InstructionPart(ask.system_prompt)] if ask.system_prompt else None,
        )
        return messages, settings, parameters


class _Reading:
    """What the adapter says of an answer, as deltas."""

    def __init__(self, server: Server, response: StreamedResponse) -> None:
        self._server = server
        self._response = response
        self._used = Used()
        self._has_text = False
        #: The parts of the thought that is being thought: they are one until something is said.
        self._thoughts: list[ThinkingPart] = []

    def read(self, event: ModelResponseStreamEvent) -> Iterator[Delta]:
        """What is new with this event."""
        if self._used == Used():  # what was sent is known early, and what came at the end
            yield from self._spent()
        if isinstance(event, PartStartEvent):
            if isinstance(event.part, TextPart):
                self._thoughts = []
                yield from self._text(event.part.content)
            elif isinstance(event.part, ThinkingPart) and event.part.content:
                yield Thought(event.part.content)
        elif isinstance(event, PartDeltaEvent):
            if isinstance(event.delta, TextPartDelta):
                yield from self._text(event.delta.content_delta)
            elif isinstance(event.delta, ThinkingPartDelta) and event.delta.content_delta:
                yield Thought(event.delta.content_delta)
        elif isinstance(event, PartEndEvent) and isinstance(event.part, ThinkingPart):
            self._thoughts.append(event.part)
            meta = thought_meta(self._thoughts)
            if meta is not None:
                yield Thought("", meta)

    def end(self) -> Iterator[Delta]:
        """What is known when the stream is over; raises if it ended too early."""
        response = self._response
        details = response.provider_details or {}
        word = details.get("finish_reason")
        if word is None and response.finish_reason is None:
            raise UnexpectedModelBehavior("the stream ended before the answer did")
        if self._server.dialect == "anthropic" and isinstance(word, str):
            stop_reason = word
        else:
            stop_reason = STOP_REASONS.get(response.finish_reason or "") or str(word).lower()
        refusal = details.get("refusal")
        if not self._has_text and isinstance(refusal, str):
            yield from self._text(refusal)
        for part in response.get().parts:
            if isinstance(part, ToolCallPart):
                arguments = _arguments(part)
                if arguments is None:
                    if stop_reason == "max_tokens":  # it was cut off, and nobody can use it
                        continue
                    arguments = {"_raw": str(part.args)}
                if stop_reason == "end_turn":  # not every server tells the two apart
                    stop_reason = "tool_use"
                yield Calling(part.tool_call_id, part.tool_name, arguments, tool_meta(part))
        yield from self._spent()
        yield Finished(stop_reason)

    def _text(self, text: str) -> Iterator[Delta]:
        if text:
            self._has_text = True
            yield Text(text)

    def _spent(self) -> Iterator[Delta]:
        usage = self._response.usage
        used = Used(
            usage.input_tokens,
            usage.output_tokens,
            usage.cache_read_tokens,
            usage.cache_write_tokens,
        )
        if used != self._used:
            self._used = used
            yield used


def _arguments(part: ToolCallPart) -> dict[str, Any] | None:
    """The arguments of a tool; None if they are no JSON object."""
    try:
        return part.args_as_dict(raise_if_invalid=True)
    except (ValueError, AssertionError):
        return None
