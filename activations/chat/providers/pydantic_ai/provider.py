"""The provider of models over HTTP: Anthropic, OpenAI, Google, and OpenAI-compatible servers.

Requests are validated before anything is sent, and retried only before the first output. They are
sent by pydantic-ai, whose import takes a second or more, so it is imported in a thread at the first
request. There is one HTTP client per endpoint; pydantic-ai's own retries and telemetry are off. The
timeout `silent_s` restarts with every byte that is read, so keep-alive messages count.
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

#: Transient errors. They are retried before the first output, so that nothing is repeated.
TRANSIENT = frozenset({"rate_limited", "provider_down"})
#: Seconds before the second and third attempt, if the server does not specify a delay.
RETRY_DELAYS_S = (0.5, 1.0)
#: Longest delay of a retry. If a server requests a longer one, the error is raised instead.
MAX_RETRY_DELAY_S = 30.0


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
        """Raise if a package or a key is missing, or the model name is invalid."""
        await self._key(model)

    def context_tokens(self, model: str) -> int | None:
        """Return the context window of a model in tokens; None if it is unknown."""
        return context_tokens(self._endpoint.name, model)

    async def stream(self, request: ProviderRequest) -> AsyncGenerator[Delta, None]:
        """Request an answer; retry transient errors before the first output, at most twice."""
        key = await self._key(request.model)
        clients = await self._get_clients()
        for delay_s in (*RETRY_DELAYS_S, None):
            # The first use reads files, so not on the event loop.
            model = await asyncio.to_thread(clients.model, request.model, key)
            response_stream = model.request_stream(*self._model_request(request, model))
            has_output = False
            try:
                async with clients.open_request(response_stream) as response:
                    reader = ResponseReader(self._endpoint, response)
                    events = cast("AsyncGenerator[ModelResponseStreamEvent, None]", aiter(response))
                    async with aclosing(events):
                        async for event in events:
                            for delta in reader.read(event):
                                has_output = has_output or not isinstance(delta, TokenUsage)
                                yield delta
                    for delta in reader.end():
                        has_output = has_output or not isinstance(delta, TokenUsage)
                        yield delta
            except _request_errors() as error:
                failed = _failure(
                    error, self._endpoint, request.model, key, self._silent_s, has_output=has_output
                )
                seconds = _retry_delay(failed, delay_s)
                if has_output or seconds is None:
                    # The cause may contain the key, in the request or in the response.
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
        """Return the key of the endpoint. Raises like `check`."""
        self._endpoint.check_model(model)
        self._endpoint.check_installed()
        return await self._keys.find(self._endpoint)

    async def _get_clients(self) -> Clients:
        """Return the clients; the first caller loads them while others wait."""
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
            # Each message sends the conversation again; other servers cache it automatically.
            settings["cache"] = True
        parameters = ModelRequestParameters(
            function_tools=[
                # Not strict: the schema is sent unchanged, and the hub validates the arguments.
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
    """Import pydantic-ai and create the HTTP client of an endpoint. Blocks."""
    from pydantic_ai import exceptions, messages, models, settings, tools  # noqa: F401 - preloaded

    return Clients(endpoint, silent_s)


def _retry_delay(failed: Failed, default_s: float | None) -> float | None:
    """Return the delay before the next attempt; None if the error is not retried."""
    if default_s is None or failed.code not in TRANSIENT:
        return None
    data: dict[str, Any] = failed.data or {}
    seconds: float = data.get("retry_after_s", default_s)
    return seconds if seconds <= MAX_RETRY_DELAY_S else None


# --- errors --------------------------------------------------------------------------------------

#: Raised by pydantic-ai for malformed responses, which it does not validate.
MALFORMED_ERRORS = (AssertionError, AttributeError, LookupError, TypeError, ValueError)
#: Maximum characters of a server's message in an error.
QUOTED_CHARACTERS = 500


def _request_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that a request can raise.

    The errors of pydantic-ai, including those for unsupported requests, are RuntimeErrors; some
    HTTP errors are raised unchanged.
    """
    import httpx2

    return (RuntimeError, httpx2.HTTPError, httpx2.InvalidURL, *MALFORMED_ERRORS)


def _failure(
    error: Exception,
    endpoint: Endpoint,
    model: str,
    key: str | None,
    silent_s: float,
    *,
    has_output: bool,
) -> Failed:
    """Return the error for callers. `has_output`: part of the answer was already received."""
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
    if _is_read_timeout(error):
        data["silent_s"] = silent_s
        return Failed(f"{name} sent no data for {silent_s:g} s", code="provider_silent", data=data)
    if has_output:
        return Failed(
            f"{name} did not complete its answer: {text}", code="provider_broke", data=data
        )
    if isinstance(error, ModelRateLimitError | ModelUnavailableError | ModelServerError):
        if error.retry_after is not None:
            data["retry_after_s"] = error.retry_after
        if isinstance(error, ModelRateLimitError):
            return Failed(
                f"{name} is rate limited{_retry_advice(error)}: {text}",
                code="rate_limited",
                data=data,
            )
        return Failed(
            f"{name} is unavailable{_retry_advice(error)}: {text}", code="provider_down", data=data
        )
    if isinstance(error, ModelConnectionError | httpx2.TransportError):
        return Failed(
            f"{name} cannot be reached at {endpoint.url}: {text}", code="provider_down", data=data
        )
    if isinstance(error, ModelAuthenticationError):
        variable = endpoint.variables[0]
        data["variable"] = variable
        what = "the API key" if key else "the request without an API key"
        return Failed(
            f"{name} rejected {what}: {text}. Set {variable} to a valid key",
            code="bad_key",
            data=data,
        )
    if isinstance(error, ModelNotFoundError):
        return Failed(f"{name} has no model {model!r}: {text}", code="unknown_model", data=data)
    if isinstance(error, ModelContextWindowExceededError):
        data["reason"] = "too_long"
    elif isinstance(error, ModelQuotaExceededError):
        data["reason"] = "quota"
    if _is_malformed(error):
        return Failed(f"{name} sent a malformed response: {text}", code="provider_broke", data=data)
    return Failed(f"{name} rejected the request: {text}", code="provider_refused", data=data)


def _is_read_timeout(error: Exception) -> bool:
    """Return whether reading timed out; a connect timeout is a different error."""
    import httpx2
    from pydantic_ai.exceptions import ModelTimeoutError

    if isinstance(error, ModelTimeoutError):
        return error.phase == "read"
    return isinstance(error, httpx2.ReadTimeout)


def _is_malformed(error: Exception) -> bool:
    """Return whether a response was malformed, as opposed to a request that was never sent."""
    from pydantic_ai.exceptions import AgentRunError, ModelHTTPError

    if isinstance(error, AgentRunError):
        return not isinstance(error, ModelHTTPError)
    return isinstance(error, MALFORMED_ERRORS)


def _retry_advice(error: ModelAPIError) -> str:
    return "" if error.retry_after is None else f"; retry in {error.retry_after:g} s"


def _quoted(error: Exception, key: str | None) -> str:
    """Return the message of the server, or else of the exception, without the key."""
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
    """Return the innermost message in the body of an error."""
    while isinstance(body, dict):
        body = body.get("error") or body.get("message")
    return body if isinstance(body, str) else None
