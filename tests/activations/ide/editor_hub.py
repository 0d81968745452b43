"""An editor in a hub, over a real folder."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

from hub_calls import Namespace, call, register

from activations.approvals import Approvals
from activations.ide import Ide
from plexus import Activation, Event, Plexus, Principal
from plexus.errors import PlexusError
from plexus.events import ErrorEvent
from plexus.principal import LOCAL
from plexus.runtime.builtin import PlexusActivation
from plexus.runtime.calls import Call

__all__ = ("EVENT_S", "Editor", "Watch", "install", "open_editor", "watching")

#: Timeout of what a program has to do first.
EVENT_S = 30.0


class Editor(Namespace):
    """A hub with `ide`, and its workspace."""

    def __init__(self, hub: Plexus, ide: Ide) -> None:
        super().__init__(hub, "ide")
        self.ide = ide
        self.folder = ide.workspace.folder

    async def error(
        self, method: str, _as: Principal = LOCAL, **params: Any
    ) -> ErrorEvent | PlexusError:
        """Return the error of a call: it is refused, or the error is its only event."""
        try:
            [event] = await call(self.hub, f"ide.{method}", params, _as)
        except PlexusError as error:
            return error
        assert isinstance(event, ErrorEvent), event
        return event

    def start(self, method: str, _as: Principal = LOCAL, **params: Any) -> Call:
        """Start a call that waits for something."""
        return self.hub.call(f"ide.{method}", params, _as)

    async def ask(self, path: str, new: str, _as: Principal = LOCAL, **more: Any) -> Call:
        """Propose a change, and return its run once it waits for an answer."""
        started = self.start("open_diff", _as, old_file_path=path, new_file_contents=new, **more)
        async with asyncio.timeout(EVENT_S):
            while not any(
                each.run == started.run.id and each.request
                for each in self.ide.state.diffs.values()
            ):
                assert started.run.terminal is None, started.run.terminal
                await asyncio.sleep(0.001)
        return started


class Watch:
    """What `ide.watch` streams."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches
        self._events: list[Event] = []

    async def next(self, type_: str, **fields: Any) -> Any:
        """Return the next event of a type with these fields; those before it are dropped."""
        async with asyncio.timeout(EVENT_S):
            while True:
                while self._events:
                    event = self._events.pop(0)
                    if event.type == type_ and all(
                        getattr(event, name) == value for name, value in fields.items()
                    ):
                        return event
                self._events += (await anext(self._batches)).events


@asynccontextmanager
async def open_editor(folder: Path, *others: Activation, **options: Any) -> AsyncIterator[Editor]:
    """Open a hub with the editor of a folder."""
    hub = Plexus()
    ide = Ide("off", str(folder), **options)
    register(hub, PlexusActivation(hub), Approvals(), ide, *others)
    try:
        yield Editor(hub, ide)
    finally:
        await hub.close()


@asynccontextmanager
async def watching(editor: Editor, principal: Principal = LOCAL) -> AsyncIterator[Watch]:
    """Watch the editor for the duration of the block."""
    started = editor.start("watch", principal)
    async with aclosing(started.run.batches(started.after, owner=True)) as batches:
        yield Watch(batches)
    started.run.cancel("the test has ended")


def install(folder: Path, *programs: str) -> None:
    """Put programs of the tests' environment into a project, which therefore uses them."""
    place = folder / ".venv" / "bin"
    place.mkdir(parents=True, exist_ok=True)
    for name in programs:
        found = shutil.which(name, path=str(Path(sys.executable).parent))
        assert found is not None, name
        (place / name).symlink_to(found)
