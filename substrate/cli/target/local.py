"""A hub in this process, as a target of commands."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import aclosing, asynccontextmanager, redirect_stdout
from pathlib import Path
from typing import Any, TypeVar

from plexus.events import Event
from plexus.registry.plugins import BrokenPlugin
from plexus.rpc import wire
from plexus.runtime.calls import Call
from plexus.runtime.hub import Plexus
from substrate.build_hub import NO_FILES, build_hub, close_runner
from substrate.cli.target.catalogue import HubCatalogue
from substrate.settings import ProjectFiles, Settings

__all__ = ("LocalTarget",)

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class LocalItem:
    """An event that is still the object the method made."""

    own: Event

    @property
    def event(self) -> Mapping[str, Any]:
        """The event as it would be on the wire."""
        fields: Mapping[str, Any] = wire.decode_plain(self.own)
        return fields

    @property
    def time_ms(self) -> int | None:
        """Nothing: a run of this process is shown while it is made."""
        return None

    @property
    def text(self) -> str | None:
        """What the event says of itself."""
        return self.own.as_text() or self.own.as_line()


class LocalCall:
    """A run of the hub in this process."""

    def __init__(self, call: Call) -> None:
        self._call = call

    @property
    def run(self) -> int:
        """The run's number."""
        return self._call.run.id

    async def items(self) -> AsyncIterator[LocalItem]:
        """What the run says, up to and with its terminal."""
        batches = self._call.run.batches(self._call.after, owner=self._call.owned)
        async with aclosing(batches):
            async for batch in batches:
                for event in batch.events:
                    yield LocalItem(event)

    async def cancel(self, reason: str) -> None:
        """Stop the run; its terminal still comes."""
        self._call.run.cancel(reason)

    async def answer(self, request: str, answer: Any) -> None:
        """Answer what the run asks."""
        self._call.run.answer(request, answer)


class LocalTarget:
    """A hub of our own, for as long as the command lives."""

    name = "this project"
    #: Nobody else can reach a run of this process.
    command = None

    def __init__(self, settings: Settings, project: Path, files: ProjectFiles = NO_FILES) -> None:
        self._runner = asyncio.Runner()
        with _without_stdout():
            # Plugins are made where they will run: on the loop.
            self._hub, self.broken = self._runner.run(_build(settings, project, files))
        self.catalogue = HubCatalogue(self._hub)

    @asynccontextmanager
    async def call(self, method: str, params: dict[str, Any]) -> AsyncIterator[LocalCall]:
        """Begin a call; leaving it stops the run. Raises PlexusError if it is refused."""
        call = self._hub.call(method, params)
        try:
            yield LocalCall(call)
        finally:
            if call.owned:
                call.run.cancel("its caller left")

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine that calls; what methods print goes to stderr meanwhile."""
        with _without_stdout():
            return self._runner.run(work)

    def close(self) -> None:
        """End what still runs, and let the activations clean up."""
        self._runner.run(self._hub.close())
        close_runner(self._runner, self._hub)


async def _build(
    settings: Settings, project: Path, files: ProjectFiles
) -> tuple[Plexus, list[BrokenPlugin]]:
    return build_hub(settings, project, files)


def _without_stdout() -> redirect_stdout[Any]:
    """Stdout carries the command's answer: what somebody's plugin prints is beside it."""
    return redirect_stdout(sys.stderr)
