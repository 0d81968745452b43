"""Target that runs methods on a hub in this process, which sees all recorded runs."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import aclosing, asynccontextmanager, redirect_stdout
from pathlib import Path
from typing import Any, TypeVar

from plexus.events import Event
from plexus.principal import LOCAL
from plexus.registry.plugins import BrokenPlugin
from plexus.rpc import wire
from plexus.runtime.calls import TIMES, Call
from plexus.runtime.hub import Plexus
from plexus.runtime.runs import NotLoaded
from substrate.build_hub import NO_FILES, build_hub, close_runner, open_hub
from substrate.cli.event_loop import open_runner, run_on
from substrate.cli.target.catalogue import HubCatalogue
from substrate.run_store.lazy_store import LazyRunStore
from substrate.settings import ProjectFiles, Settings

__all__ = ("LocalTarget",)

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class LocalItem:
    """Event as the object that the method created."""

    own: Event
    #: Time of the event in milliseconds since the epoch, if the call requested times.
    time_ms: int | None = None

    @property
    def event(self) -> Mapping[str, Any]:
        """Fields of the event as on the wire."""
        fields: Mapping[str, Any] = wire.decode_plain(self.own)
        return fields

    @property
    def text(self) -> str | None:
        """Readable form of the event."""
        return self.own.as_text() or self.own.as_line()


class LocalCall:
    """Call of a method of the hub in this process."""

    def __init__(self, call: Call, client: str | None, *, timed: bool) -> None:
        self._call = call
        self._client = client
        #: Whether the caller needs the times of the events.
        self._timed = timed

    @property
    def run(self) -> int:
        """The run's number."""
        return self._call.run.id

    async def items(self) -> AsyncIterator[LocalItem]:
        """Yield the events of the run, up to and including its terminal."""
        batches = self._call.run.batches(self._call.after, owner=self._call.owned)
        async with aclosing(batches):
            async for batch in batches:
                if not self._timed:
                    for event in batch.events:
                        yield LocalItem(event)
                    continue
                for event, time_ms in zip(batch.events, batch.times_ms(), strict=True):
                    yield LocalItem(event, time_ms)

    async def cancel(self, reason: str) -> None:
        """Cancel the run. Its terminal still arrives."""
        self._call.run.cancel(reason)

    async def answer(self, request: str, answer: Any) -> None:
        """Answer a question of the run."""
        self._call.run.answer(request, answer, self._client)


class LocalTarget:
    """Hub that lives as long as the command."""

    name = "this project"
    #: No other process can reach a run of this process.
    command = None

    def __init__(
        self,
        settings: Settings,
        project: Path,
        files: ProjectFiles = NO_FILES,
        client: str | None = None,
    ) -> None:
        """Build the hub. `client` is the name of this program, which is recorded with its runs."""
        self._client = client
        self._runner = open_runner()
        with _without_stdout():
            # Plugins are created on the event loop that will run them.
            self._hub, self.broken = run_on(self._runner, _build(settings, project, files))
        self.catalogue = HubCatalogue(self._hub)

    @asynccontextmanager
    async def call(self, method: str, params: dict[str, Any]) -> AsyncIterator[LocalCall]:
        """Start a call. Leaving the context cancels the run. Raises PlexusError if rejected."""
        try:
            call = self._hub.call(method, params, client=self._client)
        except NotLoaded as missing:  # it follows a run of another process, or of the past
            await self._hub.runs.load(missing.run_id, LOCAL)
            call = self._hub.call(method, params, client=self._client)
        try:
            yield LocalCall(call, self._client, timed=bool(params.get(TIMES)))
        finally:
            if call.owned:
                call.run.cancel("its caller left")

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine that calls methods. What methods print goes to stderr."""
        with _without_stdout():
            return run_on(self._runner, work)

    def close(self) -> None:
        """Cancel active runs and close the activations."""
        self._runner.run(self._hub.close())
        close_runner(self._runner, self._hub)


async def _build(
    settings: Settings, project: Path, files: ProjectFiles
) -> tuple[Plexus, list[BrokenPlugin]]:
    hub, broken = build_hub(settings, project, files)
    hub.runs.shows_defects = True
    hub.serves = False
    LazyRunStore(hub, settings, project)
    return hub, broken + await open_hub(hub)


def _without_stdout() -> redirect_stdout[Any]:
    """Redirect stdout to stderr, because stdout carries only the command's output."""
    return redirect_stdout(sys.stderr)
