"""The provider of models over HTTP: Anthropic, OpenAI, Google, and OpenAI-compatible servers.

Everything is checked before anything is sent, and a request is retried only before the first word
of the answer. pydantic-ai speaks to the servers; importing it takes a second or more, so it is
imported in a thread when the first request is made. There is one HTTP client for an endpoint;
pydantic-ai's own retries and telemetry are off. Nothing waits for longer than `silent_s` without
a byte from the server, counted where bytes are read, so that keep-alive messages count.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

from activations.chat.providers.endpoints import Endpoint, context_tokens
from activations.chat.providers.keys import Keys
from activations.chat.providers.provider import (
    Delta,
    ProviderRequest,
    Retry,
    TokenUsage,
)
from activations.chat.providers.pydantic_ai.clients import Clients
from activations.chat.providers.pydantic_ai.message_conversion import (
    ResponseReader,
    model_messages,
)
from plexus.errors import Failed
from plexus.text import shorten

if TYPE_CHECKING:  # heavy and optional: imported when first used
    from pydantic_ai.exceptions import ModelAPIError
    from pydantic_ai.messages import ModelMessage, ModelResponseStreamEvent
    from pydantic_ai.models import Model, ModelRequestParameters
    from pydantic_ai.settings import ModelSettings

__all__ = ("PydanticAiProvider",)

#: Errors that may be over soon. Nothing was answered yet, so that a retry repeats nothing.
TRANSIENT = frozenset({"rate_limited", "provider_down"})
#: Seconds before the second and the third attempt, where the server does not say how long.
PAUSES = (0.5, 1.0)
#: A longer pause that a server asks for is left to the caller.
LONGEST_WAIT_S = 30.0


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
                    reader = ResponseReader(self._endpoint, response)
                    events = cast("AsyncGenerator[ModelResponseStreamEvent, None]", aiter(response))
                    async with aclosing(events):
                        async for event in events:
                            for delta in reader.read(event):
                                said = said or not isinstance(delta, TokenUsage)
                                yield delta
                    for delta in reader.end():
                        said = said or not isinstance(delta, TokenUsage)
                        yield delta
            except _request_errors() as error:
                failed = _failure(
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


# --- errors --------------------------------------------------------------------------------------

#: What pydantic-ai raises over an answer of another shape: it does not look before it reads.
UNREADABLE = (AssertionError, AttributeError, LookupError, TypeError, ValueError)
#: How much of what a server says is repeated.
QUOTED_CHARACTERS = 500


def _request_errors() -> tuple[type[Exception], ...]:
    """Return what a request may raise.

    pydantic-ai's own errors, and its refusal of what it cannot send, are RuntimeErrors; some of
    HTTP comes as it is.
    """
    import httpx2

    return (RuntimeError, httpx2.HTTPError, httpx2.InvalidURL, *UNREADABLE)


def _failure(
    error: Exception,
    endpoint: Endpoint,
    model: str,
    key: str | None,
    silent_s: float,
    *,
    said: bool,
) -> Failed:
    """Return the error for callers. `said`: whether some of the answer has come already."""
    import httpx2
    from pydantic_ai.exceptions import (
        ModelAuthenticationError,
        ModelConnectionError,
        ModelContextWindowExceededError,
        ModelHTTPError,
        ModelNotFoundError,
        ModelQuotaExceededError,
        ModelRateLimitError,
        ModelServerError,
        ModelUnavailableError,
    )

    name = endpoint.name
    text = _quoted(error, key)
    data: dict[str, Any] = {"provider": name, "model": f"{name}:{model}"}
    if isinstance(error, ModelHTTPError):
        data["status"] = error.status_code
    if _is_silence(error):
        data["silent_s"] = silent_s
        return Failed(f"{name} said nothing for {silent_s:g} s", code="provider_silent", data=data)
    if said:
        return Failed(f"{name} broke off its answer: {text}", code="provider_broke", data=data)
    if isinstance(error, ModelRateLimitError | ModelUnavailableError | ModelServerError):
        if error.retry_after is not None:
            data["retry_after_s"] = error.retry_after
        if isinstance(error, ModelRateLimitError):
            return Failed(
                f"{name} takes no more requests for now{_when(error)}: {text}",
                code="rate_limited",
                data=data,
            )
        return Failed(
            f"{name} cannot work now{_when(error)}: {text}", code="provider_down", data=data
        )
    if isinstance(error, ModelConnectionError | httpx2.TransportError):
        return Failed(
            f"{name} cannot be reached at {endpoint.url}: {text}", code="provider_down", data=data
        )
    if isinstance(error, ModelAuthenticationError):
        variable = endpoint.variables[0]
        data["variable"] = variable
        whose = "the key" if key else "a request without a key"
        return Failed(
            f"{name} refused {whose}: {text}. Set {variable} to one that it takes",
            code="bad_key",
            data=data,
        )
    if isinstance(error, ModelNotFoundError):
        return Failed(f"{name} has no model {model!r}: {text}", code="unknown_model", data=data)
    if isinstance(error, ModelContextWindowExceededError):
        data["reason"] = "too_long"
    elif isinstance(error, ModelQuotaExceededError):
        data["reason"] = "quota"
    if _is_unreadable(error):
        return Failed(
            f"{name} answered what cannot be read: {text}", code="provider_broke", data=data
        )
    return Failed(f"{name} refused the request: {text}", code="provider_refused", data=data)


def _is_silence(error: Exception) -> bool:
    """Whether nothing came for too long; a connection that is not made in time is another thing."""
    import httpx2
    from pydantic_ai.exceptions import ModelTimeoutError

    if isinstance(error, ModelTimeoutError):
        return error.phase == "read"
    return isinstance(error, httpx2.ReadTimeout)


def _is_unreadable(error: Exception) -> bool:
    """Whether an answer came, but none of this format. What was never sent is no such thing."""
    from pydantic_ai.exceptions import AgentRunError, ModelHTTPError

    if isinstance(error, AgentRunError):
        return not isinstance(error, ModelHTTPError)
    return isinstance(error, UNREADABLE)


def _when(error: ModelAPIError) -> str:
    return "" if error.retry_after is None else f", try again in {error.retry_after:g} s"


def _quoted(error: Exception, key: str | None) -> str:
    """What is said of it, by the server where it says something; never with the key."""
    from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError

    text = None
    if isinstance(error, ModelAPIError):
        text = _message(error.body)
    if not text:
        text = f"status {error.status_code}" if isinstance(error, ModelHTTPError) else str(error)
    if key:
        text = text.replace(key, "***")
    text = " ".join(text.split()).rstrip(".") or type(error).__name__
    return shorten(text, QUOTED_CHARACTERS)


def _message(body: object) -> str | None:
    """The message in the body of an error, however deep it is in there."""
    while isinstance(body, dict):
        body = body.get("error") or body.get("message")
    return body if isinstance(body, str) else None
