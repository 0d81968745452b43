"""The echo provider: a deterministic model that repeats the message, without key or network.

It is for trying out sessions, including tools and approvals: `/tool NAME {json}` makes it call a
tool, `/think TEXT` makes it reason first.
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

#: Delay between two words in seconds, by model.
WORD_DELAYS_S = {"echo": 0.0, "slow": 0.05}
CONTEXT_TOKENS = 100_000
LIMITS = Limits()
#: A word with the space after it; leading space belongs to the first word.
WORDS = re.compile(r"\s*\S+\s*|\s+")

WELCOME = (
    "\n\nThis is the built-in echo model, which repeats your messages. To use a real model, run"
    f" `{INSTALL}`, set ANTHROPIC_API_KEY and choose the model `anthropic:<model>`; or configure a"
    " local server as an endpoint, such as `ollama=http://127.0.0.1:11434/v1`, and choose"
    " `ollama:<model>`."
)


class EchoProvider:
    """The provider `echo`."""

    runs_tools = False

    async def check(self, model: str) -> None:
        """Raise `unknown_model` for any model except echo and slow."""
        if model not in WORD_DELAYS_S:
            raise Failed(
                f"echo has no model {model!r}; choose 'echo:echo' or 'echo:slow'",
                code="unknown_model",
                data={"models": [f"echo:{name}" for name in WORD_DELAYS_S]},
            )

    def context_tokens(self, model: str) -> int | None:  # noqa: ARG002 - the same for all models
        """Return the context window, in words."""
        return CONTEXT_TOKENS

    async def stream(self, request: ProviderRequest) -> AsyncGenerator[Delta, None]:
        """Repeat the message word by word."""
        await self.check(request.model)
        delay_s = WORD_DELAYS_S[request.model]
        usage = TokenUsage(sum(len(message.text.split()) for message in request.messages))
        stop_reason = "end_turn"
        for delta in _answer(request):
            if isinstance(delta, ToolCall):
                stop_reason = "tool_use"
            elif usage.output_tokens == request.max_tokens:
                stop_reason = "max_tokens"
                break
            else:
                usage = usage._replace(output_tokens=usage.output_tokens + 1)
                if delay_s:
                    await asyncio.sleep(delay_s)
            yield delta
        yield usage
        yield Stop(stop_reason)

    async def close(self) -> None:
        """Do nothing: there are no resources."""


def _answer(request: ProviderRequest) -> Iterator[Text | ThinkingText | ToolCall]:
    """Yield the answer: words, or a tool call."""
    results = _trailing(request.messages, "tool_result")
    if results:
        yield from _words("\n".join(_format_result(result) for result in results))
        return
    last = next(
        (i for i in reversed(range(len(request.messages))) if _is_users(request.messages[i])), None
    )
    message = Message("user", "") if last is None else request.messages[last]
    command, _, rest = message.text.partition(" ")
    if command == "/tool":
        yield from _tool_call(rest, request)
        return
    words = message.text
    if command == "/think":
        words = rest
        for word in WORDS.findall(rest):
            yield ThinkingText(word)
    text = f"You said: {words}"
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
    """Return the messages of this kind at the end of the list."""
    start = len(messages)
    while start and messages[start - 1].kind == kind:
        start -= 1
    return list(messages[start:])


def _format_result(result: Message) -> str:
    name = result.meta.get("tool_name", "The tool")
    verb = "failed" if result.meta.get("is_error") else "returned"
    return f"{name} {verb}: {result.text}"


def _tool_call(text: str, request: ProviderRequest) -> Iterator[Text | ToolCall]:
    """Yield the tool call of `/tool NAME {json}`, or the reason why it is invalid."""
    name, _, input_text = text.strip().partition(" ")
    tool = next((each for each in request.tools if _tool_name(each.name) == _tool_name(name)), None)
    if tool is None:
        yield from _words(f"Unknown tool {name!r}. {_list_tools(request.tools)}")
        return
    try:
        arguments = wire.decode_value(input_text.encode(), LIMITS) if input_text.strip() else {}
    except (ValueError, TooBig) as error:
        arguments = None
        reason = str(error)
    else:
        reason = "it is another type"
    if not isinstance(arguments, dict):
        yield from _words(f"The input of {name} must be a JSON object: {reason}")
        return
    number = sum(each.kind == "tool_use" for each in request.messages) + 1
    yield ToolCall(f"echo_{number}", tool.name, arguments)


def _tool_name(name: str) -> str:
    return name.replace(".", "_")


def _list_tools(tools: Sequence[Tool]) -> str:
    if not tools:
        return "This session has no tools."
    return f"Available tools: {', '.join(tool.name for tool in tools)}."
