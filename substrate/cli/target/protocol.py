"""What commands call methods on: the protocol of a target, and calls that return one value.

A running server and a hub in this process implement the same protocol, so that no command depends
on which of them it calls.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

import click

from plexus.errors import PlexusError
from plexus.registry.plugins import BrokenPlugin
from substrate.cli.target.catalogue import Catalogue

__all__ = ("Item", "OpenCall", "Target", "ask", "result_of", "text_of")

T = TypeVar("T")


class Item(Protocol):
    """One event of a run."""

    @property
    def event(self) -> Mapping[str, Any]:
        """The event as it is on the wire."""

    @property
    def time_ms(self) -> int | None:
        """When it was written, in milliseconds since the epoch, if the call asked for that."""

    @property
    def text(self) -> str | None:
        """How the event itself says that a person would read it; None if that is not known."""


class OpenCall(Protocol):
    """A call that was accepted."""

    @property
    def run(self) -> int:
        """The run's number."""

    def items(self) -> AsyncIterator[Item]:
        """What the run says, up to and with its terminal."""

    async def cancel(self, reason: str) -> None:
        """Stop the run; its terminal still comes."""

    async def answer(self, request: str, answer: Any) -> None:
        """Answer what the run asks; raises PlexusError if the answer does not fit."""


class Target(Protocol):
    """Somewhere to call methods."""

    @property
    def name(self) -> str:
        """How to speak of it, as in "the server on port 4444"."""

    @property
    def command(self) -> Sequence[str] | None:
        """The `substrate call` that reaches the same runs from elsewhere; None if none can."""

    @property
    def broken(self) -> Sequence[BrokenPlugin]:
        """Plugins that were skipped."""

    @property
    def catalogue(self) -> Catalogue:
        """What there is to call."""

    def call(self, method: str, params: dict[str, Any]) -> AbstractAsyncContextManager[OpenCall]:
        """Begin a call; leaving it stops the run. Entering raises PlexusError if it is refused."""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine that calls."""

    def close(self) -> None:
        """Give everything back."""


async def result_of(target: Target, method: str, params: dict[str, Any]) -> Any:
    """What a method gives; raises PlexusError if it fails or is stopped."""
    _, terminal = await _played(target, method, params)
    return terminal.get("result")


async def text_of(target: Target, method: str, params: dict[str, Any]) -> str:
    """All the text that a method yields; raises PlexusError if it fails or is stopped."""
    text, _ = await _played(target, method, params)
    return text


async def _played(
    target: Target, method: str, params: dict[str, Any]
) -> tuple[str, Mapping[str, Any]]:
    texts: list[str] = []
    async with target.call(method, params) as call:
        async for item in call.items():
            event = item.event
            if event["type"] == "content":
                texts.append(event["text"])
            elif event["type"] == "complete":
                return "".join(texts), event
            elif event["type"] == "error":
                raise PlexusError(event["message"], code=event["code"], data=event.get("data"))
    raise PlexusError(f"{method} was cancelled", code="cancelled")


def ask(
    target: Target, method: str, params: dict[str, Any], advice: dict[str, str] | None = None
) -> Any:
    """The same for a command: raises ClickException with the advice for this code of an error."""
    try:
        return target.run(result_of(target, method, params))
    except PlexusError as error:
        next_step = (advice or {}).get(error.code, "")
        message = error.message.rstrip(".")
        said = f"{message}. {next_step}" if next_step else f"{message} ({error.code})"
        raise click.ClickException(said) from error
