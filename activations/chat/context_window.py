"""The context window: which messages are sent to a model that does not take all of them.

Only the model knows how many tokens a text has; here they are estimated, a little too high for
most texts. What is left out is left out of what is sent, never of what is stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import aclosing
from typing import Literal, NamedTuple, TypeAlias

from activations.chat.message import Message, storable, to_markdown
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
    "estimate",
    "fit_messages",
    "summarise",
    "visible_messages",
)

#: What happens to a conversation that is longer than the model takes: it is refused, or the
#: oldest turns are left out, or summarised.
Overflow: TypeAlias = Literal["refuse", "drop", "summarise"]

#: Bytes of text for one token, and what each message costs beside its text.
BYTES_PER_TOKEN = 3.5
MESSAGE_TOKENS = 6
#: What a picture costs, whatever its size; and bytes of any other file for one token.
PICTURE_TOKENS = 1600
FILE_BYTES_PER_TOKEN = 20
#: What is left free for the answer if the session does not say how long that may be; at most a
#: quarter of what the model takes.
ANSWER_TOKENS = 4096


class Fit(NamedTuple):
    """What is sent, and what of the beginning is not."""

    messages: list[Message]
    left_out: list[Message]
    #: Estimated tokens of everything there was, and what the model takes.
    tokens: int
    limit: int | None


def visible_messages(messages: Sequence[Message]) -> list[Message]:
    """Return the messages without those that the latest summary replaces."""
    last = max((i for i, each in enumerate(messages) if each.kind == "summary"), default=None)
    if last is None:
        return list(messages)
    summary = messages[last]
    through = summary.meta.get("through")
    start = next((i + 1 for i, each in enumerate(messages) if each.node == through), last)
    return [summary, *(each for each in messages[start:] if each.kind != "summary")]


def estimate(message: Message) -> int:
    """About how many tokens a message has."""
    if message.meta.get("encoding") == "base64":
        if str(message.meta.get("mime_type", "")).startswith("image/"):
            return PICTURE_TOKENS
        return PICTURE_TOKENS + len(message.text) // FILE_BYTES_PER_TOKEN
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
    """Return as many of the newest turns as fit; all of them if the limit is not known.

    A turn begins with the user's message and what is attached to it. Where not even the newest
    fits, `messages` is empty.
    """
    costs = [estimate(each) for each in messages]
    if limit is None:
        return Fit(list(messages), [], sum(costs), None)
    fixed = _tokens(system_prompt or "")
    fixed += sum(_tokens(each.description) + _tokens(wire.encode(each.schema).decode())
                 for each in tools)  # fmt: skip
    fixed += min(max_tokens or ANSWER_TOKENS, limit // 4)
    total = sum(costs) + fixed
    if total <= limit:
        return Fit(list(messages), [], total, limit)
    left, done = total, 0
    for start in _turn_starts(messages):
        left -= sum(costs[done:start])
        done = start
        if left <= limit:
            return Fit(list(messages[start:]), list(messages[:start]), total, limit)
    return Fit([], list(messages), total, limit)


def _turn_starts(messages: Sequence[Message]) -> list[int]:
    """Where turns begin, but for the first."""
    starts = []
    for index, each in enumerate(messages):
        begins = each.kind == "attachment" or each.kind == "user"
        if index and begins and messages[index - 1].kind != "attachment":
            starts.append(index)
    return starts


def context_too_long(fit: Fit) -> TooBig:
    """Return the error for a conversation that is too long, with the choices that there are."""
    advice = (
        'send with overflow "drop" to leave the oldest turns out, or "summarise" to have the model'
        " summarise them; nothing was sent or stored"
        if fit.messages
        else "the newest message alone is too long"
    )
    return TooBig(
        f"the conversation has about {fit.tokens} tokens and the model takes {fit.limit}: {advice}",
        code="context_too_long",
        data={
            "tokens": fit.tokens,
            "limit": fit.limit,
            "choices": ["drop", "summarise"] if fit.messages else [],
        },
    )


# --- summaries -----------------------------------------------------------------------------------

#: What a model is asked for.
INSTRUCTION = (
    "Summarise this conversation, so that it can be gone on with from the summary alone. Keep"
    " names, numbers, decisions, open questions and what was asked for. Answer with the summary"
    " only."
)


async def summarise(
    provider: Provider, model: str, messages: Sequence[Message], limit: int
) -> tuple[str, TokenUsage]:
    """Return a summary of these messages by the model, and what it cost.

    What does not fit at once is summarised in portions, each with the summary of those before it.
    """
    summary = ""
    spent = TokenUsage()
    for portion in _portions(messages, int(limit * BYTES_PER_TOKEN / 8)):
        before = f"What came before, summarised:\n\n{summary}\n\n" if summary else ""
        text = f"{INSTRUCTION}\n\n{before}{portion}"
        summary, used = await _answer(provider, model, text)
        spent = TokenUsage(
            spent.input_tokens + used.input_tokens, spent.output_tokens + used.output_tokens
        )
        if not summary.strip():
            raise Failed(f"{model} gave no summary; nothing was sent", code="no_summary")
    return summary, spent


def _portions(messages: Sequence[Message], size: int) -> Iterator[str]:
    """The conversation as text, some of it at a time.

    A character may be up to four bytes, so a portion is half of what fits even then.
    """
    text = "".join(to_markdown(message) for message in messages)
    for start in range(0, len(text), max(size, 1)):
        yield text[start : start + size]


async def _answer(provider: Provider, model: str, text: str) -> tuple[str, TokenUsage]:
    async def no_tools(*_: object) -> Verdict:
        return Verdict(False, "No tool is needed for this.")

    name = model.partition(":")[2]
    request = ProviderRequest(name, [Message("user", text)], no_tools, ephemeral=True, max_turns=1)
    texts: list[str] = []
    used = TokenUsage()
    async with aclosing(provider.stream(request)) as deltas:
        async for delta in deltas:
            if isinstance(delta, Text):
                texts.append(delta.text)
            elif isinstance(delta, TokenUsage):
                used = delta
    return storable("".join(texts)), used
