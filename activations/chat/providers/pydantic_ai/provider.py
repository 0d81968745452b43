"""The provider of models over HTTP: Anthropic, OpenAI, Google, and OpenAI-compatible servers.

Everything is checked before anything is sent, and a request is retried only before the first word
of the answer. pydantic-ai speaks to the servers; importing it takes a second or more, so it is
imported in a thread when the first request is made. There is one HTTP client for an endpoint;
pydantic-ai's own retries and telemetry are off. Nothing waits for longer than `silent_s` without
a byte from the server, counted where bytes are read, so that keep-alive messages count.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

from activations.chat.providers.endpoints import Endpoint, context_tokens
from activations.chat.providers.keys import Keys
from activations.chat.providers.provider import (
    Delta,
    ProviderRequest,
    Retry,
    Stop,
    Text,
    ThinkingText,
    TokenUsage,
    ToolCall,
)
from activations.chat.providers.pydantic_ai.clients import Clients
from activations.chat.providers.pydantic_ai.errors import provider_error, request_errors
from activations.chat.providers.pydantic_ai.message_conversion import (
    model_messages,
    thinking_meta,
    tool_meta,
)
from plexus.errors import Failed

if TYPE_CHECKING:  # heavy and optional: imported when first used
    from pydantic_ai.messages import (
        ModelMessage,
        ModelResponseStreamEvent,
        ThinkingPart,
        ToolCallPart,
    )
    from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
    from pydantic_ai.settings import ModelSettings

__all__ = ("PydanticAiProvider",)

#: Errors that may be over soon. Nothing was answered yet, so that a retry repeats nothing.
TRANSIENT = frozenset({"rate_limited", "provider_down"})
#: Seconds before the second and the third attempt, where the server does not say how long.
PAUSES = (0.5, 1.0)
#: A longer pause that a server asks for is left to the caller.
LONGEST_WAIT_S = 30.0

#: What the adapter calls the reasons to stop, as callers know them.
STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_call": "tool_use",
    "content_filter": "refusal",
}


class PydanticAiProvider:
    """The models of one endpoint."""

    runs_tools = False

    def __init__(self, endpoint: Endpoint, keys: Keys, silent_s: float = 120.0) -> None:
        self._endpoint = endpoint
        self._keys = keys
        self._silent_s = silent_s
        self._clients: Clients | None = None
        self._opening = asyncio.Lock()

    async def check(self, model: str) -> None:
        """Raise if a package or a key is missing, or this cannot be a model's name."""
        await self._key(model)

    def context_tokens(self, model: str) -> int | None:
        """Return how many tokens the model takes, as far as that is known."""
        return context_tokens(self._endpoint.name, model)

    async def stream(self, request: ProviderRequest) -> AsyncGenerator[Delta, None]:
        """Ask the model; transient errors before its first word are retried, twice at most."""
        key = await self._key(request.model)
        clients = await self._opened()
        for pause in (*PAUSES, None):
            # Its first use reads files; not on the loop.
            model = await asyncio.to_thread(clients.model, request.model, key)
            response_stream = model.request_stream(*self._model_request(request, model))
            said = False
            try:
                async with clients.opened(response_stream) as response:
                    reader = _ResponseReader(self._endpoint, response)
                    events = cast("AsyncGenerator[ModelResponseStreamEvent, None]", aiter(response))
                    async with aclosing(events):
                        async for event in events:
                            for delta in reader.read(event):
                                said = said or not isinstance(delta, TokenUsage)
                                yield delta
                    for delta in reader.end():
                        said = said or not isinstance(delta, TokenUsage)
                        yield delta
            except request_errors() as error:
                failed = provider_error(
                    error, self._endpoint, request.model, key, self._silent_s, said=said
                )
                seconds = _retry_delay(failed, pause)
                if said or seconds is None:
                    # The cause may hold the key, in a request or in what the server said of it.
                    raise failed from None
            else:
                return
            yield Retry(seconds, failed.message)
            await asyncio.sleep(seconds)

    async def close(self) -> None:
        """Close the connections."""
        async with self._opening:
            clients, self._clients = self._clients, None
            if clients is not None:
                await clients.close()

    async def _key(self, model: str) -> str | None:
        """Return the key; raises if something is missing."""
        self._endpoint.check_model(model)
        self._endpoint.check_installed()
        return await self._keys.find(self._endpoint)

    async def _opened(self) -> Clients:
        """Return the clients; the first caller loads them, and the others wait."""
        async with self._opening:
            if self._clients is None:
                self._clients = await asyncio.to_thread(_load, self._endpoint, self._silent_s)
            return self._clients

    def _model_request(
        self, request: ProviderRequest, model: Model[Any]
    ) -> tuple[list[ModelMessage], ModelSettings, ModelRequestParameters]:
        from pydantic_ai.messages import InstructionPart
        from pydantic_ai.models import ModelRequestParameters
        from pydantic_ai.settings import ModelSettings
        from pydantic_ai.tools import ToolDefinition

        name = f"{self._endpoint.name}:{request.model}"
        messages = model_messages(request.messages, name, self._endpoint.dialect, model.system)
        settings = ModelSettings()
        if request.max_tokens is not None:
            settings["max_tokens"] = request.max_tokens
        if request.temperature is not None:
            settings["temperature"] = request.temperature
        if request.thinking:
            settings["thinking"] = True
        if self._endpoint.dialect == "anthropic" and not request.ephemeral:
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
                for tool in request.tools
            ],
            instruction_parts=[InstructionPart(request.system_prompt)]
            if request.system_prompt
            else None,
        )
        return messages, settings, parameters


def _load(endpoint: Endpoint, silent_s: float) -> Clients:
    """Import pydantic-ai and open the HTTP client of an endpoint; this blocks."""
    from pydantic_ai import exceptions, messages, models, settings, tools  # noqa: F401 - loaded here

    return Clients(endpoint, silent_s)


def _retry_delay(failed: Failed, pause: float | None) -> float | None:
    """Return how long to wait before the next attempt; None if there is none."""
    if pause is None or failed.code not in TRANSIENT:
        return None
    data: dict[str, Any] = failed.data or {}
    seconds: float = data.get("retry_after_s", pause)
    return seconds if seconds <= LONGEST_WAIT_S else None


class _ResponseReader:
    """Turns the events of an answer into deltas."""

    def __init__(self, endpoint: Endpoint, response: StreamedResponse) -> None:
        from pydantic_ai import messages

        self._kinds = messages
        self._endpoint = endpoint
        self._response = response
        self._used = TokenUsage()
        self._has_text = False
        #: The parts of the thought that is being thought: they are one until something is said.
        self._thinking: list[ThinkingPart] = []

    def read(self, event: ModelResponseStreamEvent) -> Iterator[Delta]:
        """Yield what is new with this event."""
        kinds = self._kinds
        if self._used == TokenUsage():  # what was sent is known early, and what came at the end
            yield from self._spent()
        if isinstance(event, kinds.PartStartEvent):
            if isinstance(event.part, kinds.TextPart):
                self._thinking = []
                yield from self._text(event.part.content)
            elif isinstance(event.part, kinds.ThinkingPart) and event.part.content:
                yield ThinkingText(event.part.content)
        elif isinstance(event, kinds.PartDeltaEvent):
            if isinstance(event.delta, kinds.TextPartDelta):
                yield from self._text(event.delta.content_delta)
            elif isinstance(event.delta, kinds.ThinkingPartDelta) and event.delta.content_delta:
                yield ThinkingText(event.delta.content_delta)
        elif isinstance(event, kinds.PartEndEvent) and isinstance(event.part, kinds.ThinkingPart):
            self._thinking.append(event.part)
            meta = thinking_meta(self._thinking)
            if meta is not None:
                yield ThinkingText("", meta)

    def end(self) -> Iterator[Delta]:
        """Yield what is known when the stream is over; raises if it ended too early."""
        from pydantic_ai.exceptions import UnexpectedModelBehavior

        response = self._response
        details = response.provider_details or {}
        word = details.get("finish_reason")
        if word is None and response.finish_reason is None:
            raise UnexpectedModelBehavior("the stream ended before the answer did")
        if self._endpoint.dialect == "anthropic" and isinstance(word, str):
            stop_reason = word
        else:
            stop_reason = STOP_REASONS.get(response.finish_reason or "") or str(word).lower()
        refusal = details.get("refusal")
        if not self._has_text and isinstance(refusal, str):
            yield from self._text(refusal)
        for part in response.get().parts:
            if isinstance(part, self._kinds.ToolCallPart):
                arguments = _arguments(part)
                if arguments is None:
                    if stop_reason == "max_tokens":  # it was cut off, and nobody can use it
                        continue
                    arguments = {"_raw": str(part.args)}
                if stop_reason == "end_turn":  # not every server tells the two apart
                    stop_reason = "tool_use"
                yield ToolCall(part.tool_call_id, part.tool_name, arguments, tool_meta(part))
        yield from self._spent()
        yield Stop(stop_reason)

    def _text(self, text: str) -> Iterator[Delta]:
        if text:
            self._has_text = True
            yield Text(text)

    def _spent(self) -> Iterator[Delta]:
        usage = self._response.usage
        used = TokenUsage(
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
