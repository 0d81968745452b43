"""One answer from a target: for commands that want a value, and not the events on the way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from plexus.errors import PlexusError
from substrate.cli.target.target import Target

__all__ = ("ask", "result_of", "text_of")


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
