"""Projects and calls for the tests of `analysis`: real files, real git, real worker processes."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

from hub_calls import register

from activations.analysis.activation import Analysis
from plexus import Activation, Event, Plexus
from plexus.events import Content, Data, ErrorEvent

__all__ = ("WAIT_S", "Analyst", "analyst", "commit", "git", "write")

#: Timeout of an analysis, sufficient on a busy machine.
WAIT_S = 60.0


def write(folder: Path, **files: str) -> None:
    """Write files; in a name, `__` is a slash and the last `_` a dot."""
    for name, content in files.items():
        stem, _, extension = name.replace("__", "/").rpartition("_")
        path = folder / f"{stem}.{extension}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def git(folder: Path, *arguments: str, when: str = "") -> str:
    """Run git in a folder, as a separate author, at a time if one is given."""
    identity = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org")
    dates = {"GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when} if when else {}
    done = subprocess.run(
        ["git", *identity, *arguments],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin:/usr/local/bin", "HOME": str(folder), **dates},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return done.stdout


def commit(folder: Path, message: str = "change", when: str = "") -> None:
    """Commit all files of a folder, which becomes a repository if it is none."""
    if not (folder / ".git").exists():
        git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", message, when=when)


class Analyst:
    """A hub with the activation, and calls of its methods."""

    def __init__(self, hub: Plexus) -> None:
        self.hub = hub

    async def events(self, method: str, **params: Any) -> list[Event]:
        """Return all events of a call."""
        made = self.hub.call(f"analysis.{method}", params)
        events: list[Event] = []
        async with asyncio.timeout(WAIT_S), aclosing(made.run.batches(0, owner=True)) as batches:
            async for batch in batches:
                events += batch.events
        return events

    async def report(self, method: str, **params: Any) -> Any:
        """Return the report of a call: a value, or the text of Markdown."""
        *_, report, end = await self.events(method, **params)
        assert end.type == "complete", end
        if isinstance(report, Content):
            return report.text
        assert isinstance(report, Data)
        return report.value

    async def complexity(self, folder: Path, toolchain: str = "auto", **params: Any) -> Any:
        """Return the report of the complexity of a folder."""
        return await self.report(
            "analyze_complexity", project_path=str(folder), toolchain=toolchain, **params
        )

    async def error(self, method: str, **params: Any) -> ErrorEvent:
        """Return the error of a call, which must be its only event."""
        [event] = await self.events(method, **params)
        assert isinstance(event, ErrorEvent), event
        return event


@asynccontextmanager
async def analyst(*others: Activation | type[Activation], **config: Any) -> AsyncIterator[Analyst]:
    """Open a hub with the activation for the duration of the block."""
    hub = Plexus()
    register(hub, Analysis(**config), *others)
    try:
        yield Analyst(hub)
    finally:
        await hub.close()
