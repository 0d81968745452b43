"""The HTTP client of a server, and the adapter's models that use it.

Whatever the packages of the servers' makers would take from the environment (addresses, keys,
organisations, retries) is said here, so that a key goes to its own server only.
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

#: Making a connection. What takes longer is not there, or not reachable from here.
CONNECT_S = 15.0
#: A server that wants no key is given this word, since the package wants one.
NO_KEY = "none"

T = TypeVar("T")

#: Makes a model of its name.
Make: TypeAlias = "Callable[[str], Model[Any]]"

#: Where the responses are noted that are opened just now.
_opened: ContextVar[list[httpx2.Response] | None] = ContextVar("opened", default=None)


class Clients:
    """The connections to one server."""

    def __init__(self, endpoint: Endpoint, silent_s: float) -> None:
        import httpx2

        self._endpoint = endpoint
        self._timeout = httpx2.Timeout(silent_s, connect=CONNECT_S)
        self._http = httpx2.AsyncClient(
            timeout=self._timeout,
            # A proxy is for what is elsewhere.
            trust_env=not endpoint.is_local,
            # A redirect would take the key to another server.
            follow_redirects=False,
            event_hooks={"request": [self._set_timeout], "response": [_note]},
        )
        self._made: tuple[str | None, Make] | None = None

    def model(self, name: str, key: str | None) -> Model[Any]:
        """The adapter's model of this name; it blocks when it is called for the first time."""
        if self._made is None or self._made[0] != key:
            self._made = (key, MAKERS[self._endpoint.dialect](self._endpoint, key, self._http))
        return self._made[1](name)

    @asynccontextmanager
    async def opened(self, request: AbstractAsyncContextManager[T]) -> AsyncGenerator[T, None]:
        """Open a request of the adapter's, and see to it that its response is closed.

        Not every package does that itself when one leaves in the middle of an answer.
        """
        responses: list[httpx2.Response] = []
        async with AsyncExitStack() as stack:
            stack.push_async_callback(_close, responses)
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
        """Ours counts, and not that of the package which made the request."""
        request.extensions = {**request.extensions, "timeout": self._timeout.as_dict()}


async def _note(response: httpx2.Response) -> None:
    responses = _opened.get()
    if responses is not None:
        responses.append(response)


async def _close(responses: list[httpx2.Response]) -> None:
    for response in responses:
        await response.aclose()


def _anthropic(endpoint: Endpoint, key: str | None, http: httpx2.AsyncClient) -> Make:
    from anthropic import AsyncAnthropic  # each only where it is needed: they are large
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    client = AsyncAnthropic(
        api_key=key or NO_KEY, base_url=endpoint.url, http_client=http, max_retries=0
    )
    provider = AnthropicProvider(anthropic_client=client)
    return lambda name: AnthropicModel(name, provider=provider)


def _openai(endpoint: Endpoint, key: str | None, http: httpx2.AsyncClient) -> Make:
    from openai import AsyncOpenAI
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.profiles.openai import OpenAIModelProfile
    from pydantic_ai.providers.openai import OpenAIProvider
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    client = AsyncOpenAI(
        api_key=key or NO_KEY, base_url=endpoint.url, http_client=http, max_retries=0
    )
    if endpoint.dialect == "openai":
        # A stream without a reason to stop was cut off; of others, some never give one.
        profile = OpenAIModelProfile(openai_chat_streaming_requires_finish_reason=True)
        provider = OpenAIProvider(openai_client=client)
        return lambda name: OpenAIChatModel(name, provider=provider, profile=profile)
    # Whose account it is at OpenAI is nobody else's business.
    client.organization = client.project = client.admin_api_key = None
    # The older word for the limit is the one that everybody knows.
    other_profile = OpenAIModelProfile(openai_chat_supports_max_completion_tokens=False)
    other = OpenAICompatibleProvider(endpoint.name, openai_client=client)
    return lambda name: OpenAIChatModel(name, provider=other, profile=other_profile)


def _google(endpoint: Endpoint, key: str | None, http: httpx2.AsyncClient) -> Make:
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


MAKERS: dict[Dialect, Callable[[Endpoint, str | None, httpx2.AsyncClient], Make]] = {
    "anthropic": _anthropic,
    "openai": _openai,
    "compatible": _openai,
    "google": _google,
}
