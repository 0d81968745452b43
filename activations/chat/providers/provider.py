"""What a provider of models is to the rest: it is asked, and streams what the model says.

A provider answers one round: from the conversation so far to the model's next stop. If the model
asks for tools, the round ends there; whoever asked runs them and asks again with the results. A
provider that runs its tools itself (`runs_tools`) reports them and goes on.

A provider stores nothing, retries only before the first word has come, and raises nothing but
plexus errors once it is asked:

- `missing_key`: no key; `data["variable"]` is the variable to set. `bad_key`: it was refused.
- `not_installed`: a package or a program is missing; the message says how to install it.
- `unknown_model`: the provider knows no such model.
- `rate_limited`: `data["retry_after_s"]` says when to try again, where that is known.
- `provider_down`: it cannot be reached, or says that it cannot work now.
- `provider_refused`: it does not accept what it was asked.
- `provider_broke`: the answer ended in the middle: an error, or the connection was lost.
- `provider_silent`: nothing came for too long.
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
    """Some more of what the model says."""

    text: str


class ThinkingText(NamedTuple):
    """Some more of what the model thinks. `meta` is added to what is kept with the thought, and
    is there again when the conversation is given back."""

    text: str
    meta: Mapping[str, Any] | None = None


class ToolCall(NamedTuple):
    """The model asks for a tool, whole. Arguments that are no JSON object stand in the input as
    `_raw`, so that no tool takes them and the model hears why. `meta` is kept as with a thought."""

    id: str
    name: str
    input: dict[str, Any]
    meta: Mapping[str, Any] | None = None


class ToolOutput(NamedTuple):
    """What a tool answered that the provider ran itself."""

    id: str
    output: str
    is_error: bool = False


class TokenUsage(NamedTuple):
    """What the round has cost so far; each says all of it, not what is new."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    #: In US dollars, where the provider says so itself.
    cost_usd: float | None = None

    def plus(self, other: TokenUsage) -> TokenUsage:
        """Return the usage of both."""
        costs = [each.cost_usd for each in (self, other) if each.cost_usd is not None]
        return TokenUsage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            sum(costs) if costs else None,
        )

    def as_event(self) -> Usage:
        """Return the usage as callers see it."""
        return Usage(
            self.input_tokens,
            self.output_tokens,
            self.cache_read_tokens or None,
            self.cache_write_tokens or None,
            self.cost_usd,
        )


class Retry(NamedTuple):
    """The provider is asked again after so many seconds, and why."""

    seconds: float
    reason: str


class Stop(NamedTuple):
    """The round is over; always the last. `memory` is kept with the answer and given back with
    the conversation, for a provider that keeps something of its own."""

    #: `end_turn`, `tool_use`, `max_tokens`, `max_turns`, `refusal`, `stop_sequence`, or the
    #: provider's own word.
    stop_reason: str
    memory: Mapping[str, Any] | None = None


Delta: TypeAlias = Text | ThinkingText | ToolCall | ToolOutput | TokenUsage | Retry | Stop


class Tool(NamedTuple):
    """A tool that the model may ask for. The name has only letters, digits, `_` and `-`."""

    name: str
    description: str
    schema: dict[str, Any]


class Verdict(NamedTuple):
    """Whether a tool may be used, and why not."""

    allow: bool
    message: str = ""


#: Asks a person whether a tool may be used: its name, the id of its use, its input.
Approve: TypeAlias = Callable[[str, str, dict[str, Any]], Awaitable[Verdict]]


class ProviderRequest(NamedTuple):
    """What a provider is asked."""

    #: The model, without the provider's name.
    model: str
    #: The conversation so far; the last message is a user's, or the last of a round's results.
    messages: Sequence[Message]
    approve: Approve
    system_prompt: str | None = None
    tools: Sequence[Tool] = ()
    max_tokens: int | None = None
    temperature: float | None = None
    #: Whether the model is to think first, where it can choose.
    thinking: bool = False
    #: Nothing may be left behind by this round.
    ephemeral: bool = False
    #: For a provider that runs its tools itself: how often the model may be asked, where it
    #: works, which of its own tools it may use unasked, and whether the last stored message
    #: before the newest user message has been answered before (this is another branch).
    max_turns: int | None = None
    working_dir: str | None = None
    allowed_tools: Sequence[str] = ()
    branching: bool = False


class Provider(Protocol):
    """One source of models."""

    #: Whether it runs tools itself, and is not to be given any.
    runs_tools: bool

    async def check(self, model: str) -> None:
        """Raise what keeps this model from being asked, as far as that is known: a missing key,
        package or program, or a name that cannot be a model's."""

    def context_tokens(self, model: str) -> int | None:
        """How many tokens the model takes; None if nobody knows, or the provider sees to it."""

    def stream(self, request: ProviderRequest) -> AsyncGenerator[Delta, None]:
        """Ask the model for the next round. Closing the generator ends the request."""

    async def close(self) -> None:
        """Release what is held."""


class ProviderSource(Protocol):
    """Where providers come from."""

    def find(self, name: str) -> tuple[Provider, str]:
        """Return the provider of `provider:model`, and the model; raises `unknown_model`."""

    def list_providers(self) -> list[ModelData]:
        """Return what there is to say of each provider; nothing is imported or asked."""

    async def close(self) -> None:
        """Close all of them."""
