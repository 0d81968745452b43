"""The context window: which messages are sent if the conversation exceeds the model's limit.

Token counts are estimates, slightly too high for most texts; only the model's tokenizer is exact.
Omitted messages are not sent, but remain stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import aclosing
from typing import Literal, NamedTuple, TypeAlias

from activations.chat.message import Message, replace_unstorable, to_markdown
from activations.chat.providers.provider import (
    Provider,
    ProviderRequest,
    Text,
    TokenUsage,
    Tool,
    Verdict,
)
from plexus.errors import Failed, TooBig
from plexus.rpc import wire

__all__ = (
    "Fit",
    "Overflow",
    "context_too_long",
    "estimate_tokens",
    "fit_messages",
    "summarise",
    "visible_messages",
)

#: What happens if a conversation exceeds the context window: refuse to send it, drop the oldest
#: turns, or summarise them.
Overflow: TypeAlias = Literal["refuse", "drop", "summarise"]

#: Bytes of text per token, and the overhead of each message.
BYTES_PER_TOKEN = 3.5
MESSAGE_TOKENS = 6
#: Tokens of an image, whatever its size, and bytes per token of any other file.
IMAGE_TOKENS = 1600
FILE_BYTES_PER_TOKEN = 20
#: Tokens reserved for the answer if the session has no `max_tokens`; at most a quarter of the
#: context window.
ANSWER_TOKENS = 4096


class Fit(NamedTuple):
    """The messages to send, and the oldest messages, which are omitted."""

    messages: list[Message]
    omitted: list[Message]
    #: Estimated tokens of the whole conversation, and the size of the context window.
    tokens: int
    limit: int | None


def visible_messages(messages: Sequence[Message]) -> list[Message]:
    """Return the latest summary and the messages that it does not replace."""
    last = max((i for i, each in enumerate(messages) if each.kind == "summary"), default=None)
    if last is None:
        return list(messages)
    summary = messages[last]
    through = summary.meta.get("through")
    start = next((i + 1 for i, each in enumerate(messages) if each.node == through), last)
    return [summary, *(each for each in messages[start:] if each.kind != "summary")]


def estimate_tokens(message: Message) -> int:
    """Return the estimated number of tokens of a message."""
    if message.meta.get("encoding") == "base64":
        if str(message.meta.get("mime_type", "")).startswith("image/"):
            return IMAGE_TOKENS
        return IMAGE_TOKENS + len(message.text) // FILE_BYTES_PER_TOKEN
    return _tokens(message.text) + MESSAGE_TOKENS


def _tokens(text: str) -> int:
    size = len(text) if text.isascii() else len(text.encode())
    return int(size / BYTES_PER_TOKEN) + 1


def fit_messages(
    messages: Sequence[Message],
    system_prompt: str | None,
    tools: Sequence[Tool],
    limit: int | None,
    max_tokens: int | None,
) -> Fit:
    """Select as many of the newest turns as fit; all of them if the limit is unknown.

    A turn starts with the user message and its attachments. If not even the newest turn fits,
    `messages` is empty.
    """
    costs = [estimate_tokens(each) for each in messages]
    if limit is None:
        return Fit(list(messages), [], sum(costs), None)
    fixed = _tokens(system_prompt or "")
    fixed += sum(_tokens(each.description) + _tokens(wire.encode(each.schema).decode())
                 for each in tools)  # fmt: skip
    fixed += min(max_tokens or ANSWER_TOKENS, limit // 4)
    total = sum(costs) + fixed
    if total <= limit:
        return Fit(list(messages), [], total, limit)
    remaining, done = total, 0
    for start in _turn_starts(messages):
        remaining -= sum(costs[done:start])
        done = start
        if remaining <= limit:
            return Fit(list(messages[start:]), list(messages[:start]), total, limit)
    return Fit([], list(messages), total, limit)


def _turn_starts(messages: Sequence[Message]) -> list[int]:
    """Return the indexes at which turns start, except the first."""
    starts = []
    for index, each in enumerate(messages):
        is_start = each.kind in ("attachment", "user")
        if index and is_start and messages[index - 1].kind != "attachment":
            starts.append(index)
    return starts


def context_too_long(fit: Fit) -> TooBig:
    """Return the error for a conversation that exceeds the context window."""
    advice = (
        'set overflow to "drop" to omit the oldest turns, or to "summarise" to have the model'
        " summarise them; nothing was sent or stored"
        if fit.messages
        else "the newest message alone exceeds it; shorten the message"
    )
    return TooBig(
        f"the conversation has about {fit.tokens} tokens, and the limit of the model is"
        f" {fit.limit}: {advice}",
        code="context_too_long",
        data={
            "tokens": fit.tokens,
            "limit": fit.limit,
            "choices": ["drop", "summarise"] if fit.messages else [],
        },
    )


# --- summaries -----------------------------------------------------------------------------------

#: The request for a summary.
INSTRUCTION = (
    "Summarise this conversation so that it can be continued from the summary alone. Keep names,"
    " numbers, decisions, open questions and requests. Answer with the summary only."
)


async def summarise(
    provider: Provider, model: str, messages: Sequence[Message], limit: int
) -> tuple[str, TokenUsage]:
    """Have the model summarise messages; return the summary and its token usage.

    A conversation that exceeds the limit is summarised in portions, each together with the summary
    of the previous portions. Raises Failed if the summary is empty.
    """
    summary = ""
    total = TokenUsage()
    for portion in _portions(messages, int(limit * BYTES_PER_TOKEN / 8)):
        before = f"Summary of the earlier conversation:\n\n{summary}\n\n" if summary else ""
        text = f"{INSTRUCTION}\n\n{before}{portion}"
        summary, usage = await _answer(provider, model, text)
        total = TokenUsage(
            total.input_tokens + usage.input_tokens, total.output_tokens + usage.output_tokens
        )
        if not summary.strip():
            raise Failed(
                f"{model} returned an empty summary; the message was not sent", code="no_summary"
            )
    return summary, total


def _portions(messages: Sequence[Message], size: int) -> Iterator[str]:
    """Yield the conversation as text, in portions of this many characters.

    A character has up to four bytes, so a portion uses at most half of the limit.
    """
    text = "".join(to_markdown(message) for message in messages)
    for start in range(0, len(text), max(size, 1)):
        yield text[start : start + size]


async def _answer(provider: Provider, model: str, text: str) -> tuple[str, TokenUsage]:
    async def no_tools(*_: object) -> Verdict:
        return Verdict(False, "No tool is needed to write a summary.")

    name = model.partition(":")[2]
    request = ProviderRequest(name, [Message("user", text)], no_tools, ephemeral=True, max_turns=1)
    texts: list[str] = []
    usage = TokenUsage()
    async with aclosing(provider.stream(request)) as deltas:
        async for delta in deltas:
            if isinstance(delta, Text):
                texts.append(delta.text)
            elif isinstance(delta, TokenUsage):
                usage = delta
    return replace_unstorable("".join(texts)), usage
