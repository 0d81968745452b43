"""Hubs with mounts, for tests: real processes, and catalogues in a folder of the test."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from activations.gateway.activation import Mounts
from activations.gateway.catalogue_store import CatalogueStore
from activations.gateway.gateway import Gateway
from activations.gateway.mount_config import parse_mount
from activations.gateway.mount_file import LoadedMounts
from plexus.events import ContentResult, Terminal
from plexus.principal import LOCAL, Principal
from plexus.registry.activation_tree import read_activation
from plexus.runtime.builtin import PlexusActivation
from plexus.runtime.hub import Plexus
from plexus.testing import Answers, Local

UPSTREAM = Path(__file__).with_name("upstream.py")


class MountedHub:
    """A hub with mounts, and a caller of its methods."""

    def __init__(self, hub: Plexus, gateway: Gateway) -> None:
        self.hub = hub
        self.gateway = gateway

    def caller(self, answers: Iterable[Any] = (), principal: Principal = LOCAL) -> Local:
        return Local(self.hub, Answers(answers), principal, 30.0)

    async def end_of(
        self, method: str, *, answers: Iterable[Any] = (), **arguments: Any
    ) -> Terminal:
        """Call a method and return the terminal of its run."""
        events = await self.caller(answers).events(method, **arguments)
        last = events[-1]
        assert isinstance(last, Terminal)
        return last

    async def text_of(self, method: str, **arguments: Any) -> str:
        """Call a tool and return the text of its result."""
        terminal = await self.end_of(method, **arguments)
        assert isinstance(terminal, ContentResult), terminal
        return terminal.as_text()

    def names(self) -> set[str]:
        return {spec.name for spec in self.hub.methods()}


def entry(*flags: str, **options: Any) -> dict[str, Any]:
    """Return the table of a mount of the test server."""
    return {"command": sys.executable, "args": [str(UPSTREAM), *flags], **options}


@asynccontextmanager
async def mounted(
    folder: Path, tables: dict[str, Any], *, listed: bool = True, settle_s: float = 0.05
) -> AsyncIterator[MountedHub]:
    """Run a hub with these mounts; by default their servers are listed first."""
    hub = Plexus()
    hub.register(PlexusActivation(hub))
    configs = {name: parse_mount(name, table) for name, table in tables.items()}
    store = CatalogueStore(folder / "mounts")
    gateway = Gateway(
        hub, lambda: LoadedMounts(configs, {}), folder=folder, store=store, settle_s=settle_s
    )
    hub.register(read_activation(Mounts(gateway)), checked=True)
    gateway.register_all()
    assert await hub.open() == []
    try:
        here = MountedHub(hub, gateway)
        if listed:
            await until(lambda: all(each.catalogue for each in gateway.mounts.values()))
        yield here
    finally:
        await hub.close()


async def until(condition: Callable[[], Any], seconds: float = 20.0) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not become true in time"
        await asyncio.sleep(0.01)


def is_running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")
