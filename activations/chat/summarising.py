"""Having a model summarise the oldest part of a conversation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import aclosing

from activations.chat.conversation import Message, storable
from activations.chat.fitting import BYTES_PER_TOKEN
from activations.chat.markdown import markdown_of
from activations.chat.providers.provider import Ask, Provider, Text, Used, Verdict
from plexus.errors import Failed

__all__ = ("summarised",)

#: What a model is asked for.
INSTRUCTION = (
    "Summarise this conversation, so that it can be gone on with from the summary alone. Keep"
    " names, numbers, decisions, open questions and what was asked for. Answer with the summary"
    " only."
)


async def summarised(
    provider: Provider, model: str, messages: Sequence[Message], limit: int
) -> tuple[str, Used]:
    """A summary of these messages, and what it cost.

    What does not fit at once is summarised bit by bit, each with the summary of what came before.
    """
    summary = ""
    spent = Used()
    for portion in _portions(messages, int(limit * BYTES_PER_TOKEN / 8)):
        before = f"What came before, summarised:\n\n{summary}\n\n" if summary else ""
        text = f"{INSTRUCTION}\n\n{before}{portion}"
        summary, used = await _answer(provider, model, text)
        spent = Used(
            spent.input_tokens + used.input_tokens, spent.output_tokens + used.output_tokens
        )
        if not summary.strip():
            raise Failed(f"{model} gave no summary; nothing was sent", code="no_summary")
    return summary, spent


def _portions(messages: Sequence[Message], size: int) -> Iterator[str]:
    """The conversation as text, some of it at a time.

    A character may be up to four bytes, so a portion is half of what fits even then.
    """
    text = "".join(markdown_of(message) for message in messages)
    for start in range(0, len(text), max(size, 1)):
        yield text[start : start + size]


async def _answer(provider: Provider, model: str, text: str) -> tuple[str, Used]:
    async def no_tools(*_: object) -> Verdict:
        return Verdict(False, "No tool is needed for this.")

    name = model.partition(":")[2]
    ask = Ask(name, [Message("user", text)], no_tools, ephemeral=True, max_turns=1)
    texts: list[str] = []
    used = Used()
    async with aclosing(provider.answer(ask)) as deltas:
        async for delta in deltas:
            if isinstance(delta, Text):
                texts.append(delta.text)
            elif isinstance(delta, Used):
                used = delta
    return storable("".join(texts)), used
