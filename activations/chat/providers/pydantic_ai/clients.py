"""The HTTP client of an endpoint, and the pydantic-ai models that use it.

Everything that the client packages would read from the environment (URLs, keys, organisations,
retries) is set explicitly, so that a key is sent only to its own server.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from activations.chat.providers.endpoints import Dialect, Endpoint

if TYPE_CHECKING:  # heavy and optional: imported when first used
    import httpx2
    from pydantic_ai.models import Model

__all__ = ("CONNECT_S", "Clients")

#: Timeout for connecting; a server that needs longer is considered unreachable.
CONNECT_S = 15.0
#: Sent to servers that need no key, since the client packages require one.
NO_KEY = "none"

T = TypeVar("T")

#: Creates a model from its name.
ModelFactory: TypeAlias = "Callable[[str], Model[Any]]"

#: Collects the responses of the request that is being opened.
_opened: ContextVar[list[httpx2.Response] | None] = ContextVar("opened", default=None)


class Clients:
    """The connections to one endpoint."""

    def __init__(self, endpoint: Endpoint, silent_s: float) -> None:
        import httpx2

        self._endpoint = endpoint
        self._timeout = httpx2.Timeout(silent_s, connect=CONNECT_S)
        self._http = httpx2.AsyncClient(
            timeout=self._timeout,
            # Local servers are reached without a proxy.
            trust_env=not endpoint.is_local,
            # A redirect could send the key to another server.
            follow_redirects=False,
            event_hooks={"request": [self._set_timeout], "response": [_collect_response]},
        )
        self._factory: tuple[str | None, ModelFactory] | None = None

    def model(self, name: str, key: str | None) -> Model[Any]:
        """Return the pydantic-ai model of this name. The first call blocks."""
        if self._factory is None or self._factory[0] != key:
            self._factory = (
                key,
                FACTORIES[self._endpoint.dialect](self._endpoint, key, self._http),
            )
        return self._factory[1](name)

    @asynccontextmanager
    async def open_request(
        self, request: AbstractAsyncContextManager[T]
    ) -> AsyncGenerator[T, None]:
        """Open a request of pydantic-ai and ensure that its response is closed.

        Not every client package closes it when the caller leaves in the middle of an answer.
        """
        responses: list[httpx2.Response] = []
        async with AsyncExitStack() as stack:
            stack.push_async_callback(_close_responses, responses)
            token = _opened.set(responses)
            try:
                response = await stack.enter_async_context(request)
            finally:
                _opened.reset(token)
            yield response

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _set_timeout(self, request: httpx2.Request) -> None:
        """Replace the timeout of the client package by ours."""
        request.extensions = {**request.extensions, "timeout": self._timeout.as_dict()}


async def _collect_response(response: httpx2.Response) -> None:
    responses = _opened.get()
    if responses is not None:
        responses.append(response)


async def _close_responses(responses: list[httpx2.Response]) -> None:
    for response in responses:
        await response.aclose()


def _anthropic(endpoint: Endpoint, key: str | None, http: httpx2.AsyncClient) -> ModelFactory:
    from anthropic import AsyncAnthropic  # large, so imported only where needed
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    client = AsyncAnthropic(
        api_key=key or NO_KEY, base_url=endpoint.url, http_client=http, max_retries=0
    )
    provider = AnthropicProvider(anthropic_client=client)
    return lambda name: AnthropicModel(name, provider=provider)


def _openai(endpoint: Endpoint, key: str | None, http: httpx2.AsyncClient) -> ModelFactory:
    from openai import AsyncOpenAI
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.profiles.openai import OpenAIModelProfile
    from pydantic_ai.providers.openai import OpenAIProvider
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    client = AsyncOpenAI(
        api_key=key or NO_KEY, base_url=endpoint.url, http_client=http, max_retries=0
    )
    if endpoint.dialect == "openai":
        # At OpenAI a stream without a finish reason was cut off; other servers may send none.
        profile = OpenAIModelProfile(openai_chat_streaming_requires_finish_reason=True)
        provider = OpenAIProvider(openai_client=client)
        return lambda name: OpenAIChatModel(name, provider=provider, profile=profile)
    # The OpenAI account must not be disclosed to other servers.
    client.organization = client.project = client.admin_api_key = None
    # All servers know the older name of the token limit.
    other_profile = OpenAIModelProfile(openai_chat_supports_max_completion_tokens=False)
    other = OpenAICompatibleProvider(endpoint.name, openai_client=client)
    return lambda name: OpenAIChatModel(name, provider=other, profile=other_profile)


def _google(endpoint: Endpoint, key: str | None, http: httpx2.AsyncClient) -> ModelFactory:
    from google.genai.types import HttpRetryOptions
    from pydantic_ai.models.google import GoogleModel
    from pydantic_ai.providers.google import GoogleProvider

    provider = GoogleProvider(
        api_key=key or NO_KEY,
        base_url=endpoint.url,
        http_client=http,
        retry_options=HttpRetryOptions(attempts=1),
    )
    return lambda name: GoogleModel(name, provider=provider)


FACTORIES: dict[Dialect, Callable[[Endpoint, str | None, httpx2.AsyncClient], ModelFactory]] = {
    "anthropic": _anthropic,
    "openai": _openai,
    "compatible": _openai,
    "google": _google,
}
