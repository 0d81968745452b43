"""Requests to providers in tests: one round, its deltas and its end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import aclosing
from typing import Any

from activations.chat.message import Message
from activations.chat.providers.provider import (
    Delta,
    Provider,
    ProviderRequest,
    Stop,
    Text,
    ThinkingText,
    ToolCall,
    Verdict,
)
from activations.chat.providers.registry import Providers
from plexus import Failed

__all__ = (
    "WAIT_S",
    "asked",
    "asking",
    "calls",
    "failed",
    "found",
    "stopped",
    "text_of",
    "thought",
)

#: Timeout of a round, sufficient on a busy machine.
WAIT_S = 30.0


async def _allow(tool: str, use: str, given: dict[str, Any]) -> Verdict:  # noqa: ARG001
    return Verdict(True)


def found(providers: Providers, name: str) -> Provider:
    return providers.find(name)[0]


def asking(model: str, *messages: Message | str, **more: Any) -> ProviderRequest:
    """Return a request to a model; a plain text is a message of the user."""
    given = [Message("user", each) if isinstance(each, str) else each for each in messages]
    return ProviderRequest(model, given, _allow, **more)


async def asked(
    providers: Providers, name: str, *messages: Message | str, **more: Any
) -> list[Delta]:
    """Return all deltas of a round."""
    provider, model = providers.find(name)
    async with (
        asyncio.timeout(WAIT_S),
        aclosing(provider.stream(asking(model, *messages, **more))) as answer,
    ):
        return [delta async for delta in answer]


async def failed(
    providers: Providers, name: str, *messages: Message | str, **more: Any
) -> tuple[list[Delta], Failed]:
    """Return the deltas of a round before it fails, and the error."""
    provider, model = providers.find(name)
    deltas: list[Delta] = []
    try:
        async with (
            asyncio.timeout(WAIT_S),
            aclosing(provider.stream(asking(model, *(messages or ("Hi.",)), **more))) as answer,
        ):
            async for delta in answer:
                deltas.append(delta)  # noqa: PERF401 - keeps the deltas before the error
    except Failed as error:
        return deltas, error
    raise AssertionError(f"the round did not fail: {deltas}")


def text_of(deltas: Iterable[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, Text))


def thought(deltas: Iterable[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, ThinkingText))


def calls(deltas: Iterable[Delta]) -> list[ToolCall]:
    return [delta for delta in deltas if isinstance(delta, ToolCall)]


def stopped(deltas: Iterable[Delta]) -> str:
    """Return the reason of the Stop, which must be the last delta."""
    *rest, last = deltas
    assert isinstance(last, Stop)
    assert not any(isinstance(delta, Stop) for delta in rest)
    return last.stop_reason
