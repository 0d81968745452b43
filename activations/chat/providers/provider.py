"""The interface of model providers: a request with the conversation, a stream of deltas.

A provider answers one round: from the conversation so far to the next stop of the model. If the
model calls tools, the round ends there; the caller runs them and requests another round with their
results. A provider that runs its own tools (`runs_tools`) reports the calls and continues.

A provider stores nothing, retries only before the first output, and raises only plexus errors from
`stream`, with these codes:

- `missing_key`: no key; `data["variable"]` is the variable to set. `bad_key`: it was rejected.
- `not_installed`: a package or a program is missing; the message says how to install it.
- `unknown_model`: the provider has no such model.
- `rate_limited`: `data["retry_after_s"]` is the time until a retry, if known.
- `provider_down`: it is unreachable, or reports that it is unavailable.
- `provider_refused`: it rejected the request.
- `provider_broke`: the answer was incomplete, because of an error or a lost connection.
- `provider_silent`: no data arrived within the timeout.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from activations.chat.events import ModelData, Usage
from activations.chat.message import Message

__all__ = (
    "Approve",
    "Delta",
    "Provider",
    "ProviderRequest",
    "ProviderSource",
    "Retry",
    "Stop",
    "Text",
    "ThinkingText",
    "TokenUsage",
    "Tool",
    "ToolCall",
    "ToolOutput",
    "Verdict",
)


class Text(NamedTuple):
    """A piece of the answer."""

    text: str


class ThinkingText(NamedTuple):
    """A piece of the model's reasoning.

    `meta` is stored with the message and included when the conversation is sent again.
    """

    text: str
    meta: Mapping[str, Any] | None = None


class ToolCall(NamedTuple):
    """A complete tool call of the model.

    Arguments that are not a JSON object are in the input as `_raw`, so that validation rejects
    them and the model receives the error. `meta` is stored like that of `ThinkingText`.
    """

    id: str
    name: str
    input: dict[str, Any]
    meta: Mapping[str, Any] | None = None


class ToolOutput(NamedTuple):
    """The output of a tool that the provider ran itself."""

    id: str
    output: str
    is_error: bool = False


class TokenUsage(NamedTuple):
    """Cumulative token usage of the round."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    #: Cost in US dollars, if the provider reports it.
    cost_usd: float | None = None

    def plus(self, other: TokenUsage) -> TokenUsage:
        """Return the sum of both."""
        costs = [each.cost_usd for each in (self, other) if each.cost_usd is not None]
        return TokenUsage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            sum(costs) if costs else None,
        )

    def as_event(self) -> Usage:
        """Return the usage as an event."""
        return Usage(
            self.input_tokens,
            self.output_tokens,
            self.cache_read_tokens or None,
            self.cache_write_tokens or None,
            self.cost_usd,
        )


class Retry(NamedTuple):
    """A retry: the delay in seconds, and the reason."""

    seconds: float
    reason: str


class Stop(NamedTuple):
    """The end of a round; always the last delta.

    `memory` is stored with the answer and included when the conversation is sent again, for
    providers that keep their own sessions.
    """

    #: `end_turn`, `tool_use`, `max_tokens`, `max_turns`, `refusal`, `stop_sequence`, or a word
    #: specific to the provider.
    stop_reason: str
    memory: Mapping[str, Any] | None = None


Delta: TypeAlias = Text | ThinkingText | ToolCall | ToolOutput | TokenUsage | Retry | Stop


class Tool(NamedTuple):
    """A tool that the model can call. The name has only letters, digits, `_` and `-`."""

    name: str
    description: str
    schema: dict[str, Any]


class Verdict(NamedTuple):
    """Whether a tool call is approved, and the reason if not."""

    allow: bool
    message: str = ""


#: Asks the user to approve a tool call: the name of the tool, the id of the call, the input.
Approve: TypeAlias = Callable[[str, str, dict[str, Any]], Awaitable[Verdict]]


class ProviderRequest(NamedTuple):
    """A request for one round."""

    #: The model, without the prefix of the provider.
    model: str
    #: The conversation so far; the last message is a user message or a tool result.
    messages: Sequence[Message]
    approve: Approve
    system_prompt: str | None = None
    tools: Sequence[Tool] = ()
    max_tokens: int | None = None
    temperature: float | None = None
    #: Whether the model reasons before it answers, if that is optional.
    thinking: bool = False
    #: Whether the provider must not store anything of this round.
    ephemeral: bool = False
    #: For a provider that runs its own tools: the maximum number of model calls, the working
    #: directory, the tools that need no approval, and whether the provider's own session was
    #: already continued in another branch.
    max_turns: int | None = None
    working_dir: str | None = None
    allowed_tools: Sequence[str] = ()
    branching: bool = False


class Provider(Protocol):
    """A source of models."""

    #: Whether it runs its own tools; requests then contain none.
    runs_tools: bool

    async def check(self, model: str) -> None:
        """Raise the known reason why a model cannot be used.

        That is a missing key, package or program, or an invalid model name.
        """

    def context_tokens(self, model: str) -> int | None:
        """Return the context window in tokens; None if unknown or managed by the provider."""

    def stream(self, request: ProviderRequest) -> AsyncGenerator[Delta, None]:
        """Request the next round. Closing the generator cancels the request."""

    async def close(self) -> None:
        """Release all resources."""


class ProviderSource(Protocol):
    """The available providers."""

    def find(self, name: str) -> tuple[Provider, str]:
        """Return the provider and the model of a name `provider:model`. Raises `unknown_model`."""

    def list_providers(self) -> list[ModelData]:
        """Return the state of each provider. Imports no packages and sends no requests."""

    async def close(self) -> None:
        """Close all providers."""
