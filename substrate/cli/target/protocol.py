"""The protocol of a target that commands call methods on, and calls that return one value.

A running server and a hub in this process implement the same protocol, so that no command depends
on which one it calls.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

import click

from plexus.errors import PlexusError
from plexus.registry.plugins import BrokenPlugin
from substrate.cli.target.catalogue import Catalogue

__all__ = ("Item", "OpenCall", "Target", "call_method", "result_of", "text_of")

T = TypeVar("T")


class Item(Protocol):
    """Event of a run."""

    @property
    def event(self) -> Mapping[str, Any]:
        """Fields of the event as on the wire."""

    @property
    def time_ms(self) -> int | None:
        """Time of the event in milliseconds since the epoch, if the call requested times."""

    @property
    def text(self) -> str | None:
        """Readable form of the event; None if unknown."""


class OpenCall(Protocol):
    """Call that was accepted."""

    @property
    def run(self) -> int:
        """Number of the run."""

    def items(self) -> AsyncIterator[Item]:
        """Yield the events of the run, up to and including its terminal."""

    async def cancel(self, reason: str) -> None:
        """Cancel the run. Its terminal still arrives."""

    async def answer(self, request: str, answer: Any) -> None:
        """Answer a question of the run. Raises PlexusError if the answer is invalid."""


class Target(Protocol):
    """Server or hub that commands call methods on."""

    @property
    def name(self) -> str:
        """Name for messages, as in "the server on port 4444"."""

    @property
    def command(self) -> Sequence[str] | None:
        """The `substrate call` that reaches the same runs from another process, or None."""

    @property
    def broken(self) -> Sequence[BrokenPlugin]:
        """Plugins that were skipped."""

    @property
    def catalogue(self) -> Catalogue:
        """Namespaces and methods of the target."""

    def call(self, method: str, params: dict[str, Any]) -> AbstractAsyncContextManager[OpenCall]:
        """Start a call. Leaving the context cancels the run. Raises PlexusError if rejected."""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine that calls methods."""

    def close(self) -> None:
        """Release all resources."""


async def result_of(target: Target, method: str, params: dict[str, Any]) -> Any:
    """Call a method and return its result. Raises PlexusError if it fails or is cancelled."""
    _, terminal = await _collect(target, method, params)
    return terminal.get("result")


async def text_of(target: Target, method: str, params: dict[str, Any]) -> str:
    """Call a method and return all its text. Raises PlexusError if it fails or is cancelled."""
    text, _ = await _collect(target, method, params)
    return text


async def _collect(
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


def call_method(
    target: Target, method: str, params: dict[str, Any], advice: dict[str, str] | None = None
) -> Any:
    """Call a method for a command and return its result.

    Raises ClickException with the advice for the error's code.
    """
    try:
        return target.run(result_of(target, method, params))
    except PlexusError as error:
        next_step = (advice or {}).get(error.code, "")
        # Texts that models know begin with it, and the command line writes it in front of all.
        message = error.message.removeprefix("error: ").rstrip(".")
        text = f"{message}. {next_step}" if next_step else f"{message} ({error.code})"
        raise click.ClickException(text) from error
