"""A model that needs no key and no network: it says what was said to it.

Everything about it is the same each time. It is for trying a session out, tools and approvals
too: `/tool NAME {json}` makes it ask for a tool, `/think TEXT` makes it think first.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Iterator, Sequence

from activations.chat.message import Message
from activations.chat.providers.endpoints import INSTALL
from activations.chat.providers.provider import (
    Delta,
    ProviderRequest,
    Stop,
    Text,
    ThinkingText,
    TokenUsage,
    Tool,
    ToolCall,
)
from plexus.errors import Failed, TooBig
from plexus.limits import Limits
from plexus.rpc import wire

__all__ = ("EchoProvider",)

#: Seconds between two words.
PACES = {"echo": 0.0, "slow": 0.05}
CONTEXT_TOKENS = 100_000
LIMITS = Limits()
#: A word and the space after it; space before the first word goes with that.
WORDS = re.compile(r"\s*\S+\s*|\s+")

WELCOME = (
    "\n\nThis is the built-in echo model, which repeats what you say. For a real one, run"
    f" `{INSTALL}`, set ANTHROPIC_API_KEY and choose the model `anthropic:<model>`; or name a"
    " server on this machine as an endpoint, such as `ollama=http://127.0.0.1:11434/v1`, and"
    " choose `ollama:<model>`."
)


class EchoProvider:
    """The provider `echo`."""

    runs_tools = False

    async def check(self, model: str) -> None:
        """Raise `unknown_model` for any other model."""
        if model not in PACES:
            raise Failed(
                f"echo has no model {model!r}; choose 'echo:echo' or 'echo:slow'",
                code="unknown_model",
                data={"models": [f"echo:{name}" for name in PACES]},
            )

    def context_tokens(self, model: str) -> int | None:  # noqa: ARG002 - all take the same
        """How many words it takes."""
        return CONTEXT_TOKENS

    async def stream(self, request: ProviderRequest) -> AsyncGenerator[Delta, None]:
        """Say what was said, a word at a time."""
        await self.check(request.model)
        pace = PACES[request.model]
        used = TokenUsage(sum(len(message.text.split()) for message in request.messages))
        stop_reason = "end_turn"
        for delta in _said(request):
            if isinstance(delta, ToolCall):
                stop_reason = "tool_use"
            elif used.output_tokens == request.max_tokens:
                stop_reason = "max_tokens"
                break
            else:
                used = used._replace(output_tokens=used.output_tokens + 1)
                if pace:
                    await asyncio.sleep(pace)
            yield delta
        yield used
        yield Stop(stop_reason)

    async def close(self) -> None:
        """Nothing is held."""


def _said(request: ProviderRequest) -> Iterator[Text | ThinkingText | ToolCall]:
    """The answer: words, or a tool to be used."""
    results = _trailing(request.messages, "tool_result")
    if results:
        yield from _words("\n".join(_reported(result) for result in results))
        return
    last = next(
        (i for i in reversed(range(len(request.messages))) if _is_users(request.messages[i])), None
    )
    message = Message("user", "") if last is None else request.messages[last]
    command, _, rest = message.text.partition(" ")
    if command == "/tool":
        yield from _asked_for(rest, request)
        return
    said = message.text
    if command == "/think":
        said = rest
        for word in WORDS.findall(rest):
            yield ThinkingText(word)
    text = f"You said: {said}"
    attached = [] if last is None else _trailing(request.messages[:last], "attachment")
    if attached:
        names = ", ".join(str(each.meta.get("name", "a file")) for each in attached)
        text += f"\n\nAttached: {names}."
    if not any(each.kind in ("assistant", "summary") for each in request.messages):
        text += WELCOME
    yield from _words(text)


def _words(text: str) -> Iterator[Text]:
    return (Text(word) for word in WORDS.findall(text))


def _is_users(message: Message) -> bool:
    return message.kind == "user"


def _trailing(messages: Sequence[Message], kind: str) -> list[Message]:
    """The last messages, as far as they are of this kind."""
    start = len(messages)
    while start and messages[start - 1].kind == kind:
        start -= 1
    return list(messages[start:])


def _reported(result: Message) -> str:
    name = result.meta.get("tool_name", "The tool")
    verb = "failed" if result.meta.get("is_error") else "answered"
    return f"{name} {verb}: {result.text}"


def _asked_for(text: str, request: ProviderRequest) -> Iterator[Text | ToolCall]:
    """`/tool NAME {json}`: the use of that tool, or what is wrong with it."""
    name, _, given = text.strip().partition(" ")
    tool = next((each for each in request.tools if _plain(each.name) == _plain(name)), None)
    if tool is None:
        yield from _words(f"There is no tool {name!r}. {_there_are(request.tools)}")
        return
    try:
        arguments = wire.decode_value(given.encode(), LIMITS) if given.strip() else {}
    except (ValueError, TooBig) as error:
        arguments = None
        reason = str(error)
    else:
        reason = "it is something else"
    if not isinstance(arguments, dict):
        yield from _words(f"The input of {name} must be a JSON object: {reason}")
        return
    number = sum(each.kind == "tool_use" for each in request.messages) + 1
    yield ToolCall(f"echo_{number}", tool.name, arguments)


def _plain(name: str) -> str:
    return name.replace(".", "_")


def _there_are(tools: Sequence[Tool]) -> str:
    if not tools:
        return "This session has no tools."
    return f"There are: {', '.join(tool.name for tool in tools)}."
