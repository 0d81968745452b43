"""A provider that is asked over HTTP: Anthropic, OpenAI, Google, and what speaks as OpenAI does.

This module owns what is the same for all of them: that everything is there before anything is
sent, and when a request is tried again. The adapter that speaks to them is heavy; it is imported
in a thread when the first request is made (see `rounds`).
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from activations.chat.providers.keys import Keys
from activations.chat.providers.models import context_tokens
from activations.chat.providers.provider import Ask, Delta, Used, Waiting
from activations.chat.providers.servers import Server
from plexus.errors import Failed

if TYPE_CHECKING:  # it imports the adapter
    from activations.chat.providers.rounds import Rounds

__all__ = ("Api",)

ROUNDS = "activations.chat.providers.rounds"

#: What may be over soon. Nothing has been said yet, so that asking again repeats nothing.
PASSING = frozenset({"rate_limited", "provider_down"})
#: Seconds before the second and the third attempt, where the server does not say how long.
PAUSES = (0.5, 1.0)
#: A server that wants to be left alone for longer is not waited for: that is for a person.
LONGEST_WAIT_S = 30.0


class Api:
    """The models of one server."""

    runs_tools = False

    def __init__(self, server: Server, keys: Keys, silent_s: float = 120.0) -> None:
        self._server = server
        self._keys = keys
        self._silent_s = silent_s
        self._rounds: Rounds | None = None
        self._opening = asyncio.Lock()

    async def check(self, model: str) -> None:
        """Raise if a package or a key is missing, or this cannot be a model's name."""
        await self._key(model)

    def context_tokens(self, model: str) -> int | None:
        """How many tokens the model takes, as far as that is known."""
        return context_tokens(self._server.name, model)

    async def answer(self, ask: Ask) -> AsyncGenerator[Delta, None]:
        """Ask the model; what passes before its first word is waited for, twice at most."""
        key = await self._key(ask.model)
        rounds = await self._opened()
        for pause in (*PAUSES, None):
            said = False
            try:
                async with aclosing(rounds.answer(ask, key)) as deltas:
                    async for delta in deltas:
                        said = said or not isinstance(delta, Used)
                        yield delta
            except Failed as failed:
                seconds = _wait_after(failed, pause)
                if said or seconds is None:
                    raise
                reason = failed.message
            else:
                return
            yield Waiting(seconds, reason)
            await asyncio.sleep(seconds)

    async def close(self) -> None:
        """Close the connections."""
        async with self._opening:
            rounds, self._rounds = self._rounds, None
            if rounds is not None:
                await rounds.close()

    async def _key(self, model: str) -> str | None:
        """The key, if there is everything else too."""
        self._server.check_model(model)
        self._server.check_installed()
        return await self._keys.find(self._server)

    async def _opened(self) -> Rounds:
        """What asks the server; whoever comes first loads it, and the others wait."""
        async with self._opening:
            if self._rounds is None:
                self._rounds = await asyncio.to_thread(_loaded, self._server, self._silent_s)
            return self._rounds


def _loaded(server: Server, silent_s: float) -> Rounds:
    rounds: Rounds = importlib.import_module(ROUNDS).Rounds(server, silent_s)
    return rounds


def _wait_after(failed: Failed, pause: float | None) -> float | None:
    """How long to wait before the next attempt; None if there is none."""
    if pause is None or failed.code not in PASSING:
        return None
    data: dict[str, Any] = failed.data or {}
    seconds: float = data.get("retry_after_s", pause)
    return seconds if seconds <= LONGEST_WAIT_S else None
