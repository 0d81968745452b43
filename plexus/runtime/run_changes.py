"""What a principal's runs do, told as it changes.

Whoever asked for the list again and again would fill it with the runs that asked. This is one run,
and looks by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from plexus.events import Event
from plexus.principal import Principal
from plexus.runtime.runs import Runs

__all__ = ("IN_EVENT", "RunsChanged", "changes")

#: How seldom and how often it may look, in seconds.
SELDOM_S, OFTEN_S = 60.0, 0.1
#: How many runs one event tells of.
IN_EVENT = 500


class RunsChanged(Event):
    """Runs that are new or have changed, as `plexus.runs` describes them, and the numbers of those
    that are no longer kept."""

    runs: list[dict[str, Any]]
    gone: list[int]

    def as_text(self) -> str:
        return "".join(f"{run['run']} {run['method']} {run['state']}\n" for run in self.runs)


async def changes(
    runs: Runs, principal: Principal, own: int, interval_s: float
) -> AsyncGenerator[RunsChanged, None]:
    """All runs of a principal save this one, then what changes, without an end."""
    known: dict[int, dict[str, Any]] = {}
    first = True
    while True:
        listed = {run.id: run.described() for run in runs.of(principal) if run.id != own}
        changed = [said for number, said in listed.items() if known.get(number) != said]
        gone = [number for number in known if number not in listed]
        known = listed
        if first or changed or gone:
            yield RunsChanged(changed[:IN_EVENT], gone)
        for start in range(IN_EVENT, len(changed), IN_EVENT):
            yield RunsChanged(changed[start : start + IN_EVENT], [])
        first = False
        await asyncio.sleep(min(max(interval_s, OFTEN_S), SELDOM_S))
