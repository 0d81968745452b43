"""Making a conversation fit into what a model takes.

How many tokens a text has is only known by the model; here it is estimated, a little too high
for most texts. What is left out is left out of what is sent, never of what is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from activations.chat.conversation import Message
from activations.chat.providers.provider import Tool
from plexus.errors import TooBig
from plexus.rpc import wire

__all__ = ("Fit", "estimate", "fitted", "in_sight", "too_long")

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


def in_sight(messages: Sequence[Message]) -> list[Message]:
    """The messages without those that the latest summary stands for."""
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


def fitted(
    messages: Sequence[Message],
    system_prompt: str | None,
    tools: Sequence[Tool],
    limit: int | None,
    max_tokens: int | None,
) -> Fit:
    """As many of the newest turns as fit; all of them if nobody knows what the model takes.

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


def too_long(fit: Fit) -> TooBig:
    """What is said to whoever has not chosen what to do."""
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
