"""Changes of the runs of a principal, as a stream: what `plexus.watch` yields."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from typing import Any

from plexus.errors import PlexusError
from plexus.events import Event
from plexus.principal import Principal
from plexus.runtime.runs import Runs

__all__ = ("RUNS_PER_EVENT", "RunsChanged", "refresh_runs", "watch_runs")

logger = logging.getLogger("plexus.runtime.run_watch")

#: Maximum time to wait for the runs of other processes before those of this one are listed.
REFRESH_S = 2.0
#: Bounds of the interval of `plexus.watch`, in seconds.
MIN_INTERVAL_S, MAX_INTERVAL_S = 0.1, 60.0
#: Maximum number of runs in one event.
RUNS_PER_EVENT = 500


class RunsChanged(Event):
    """New or changed runs, as in `plexus.runs`, and the numbers of evicted runs."""

    runs: list[dict[str, Any]]
    gone: list[int]

    def as_text(self) -> str:
        return "".join(f"{run['run']} {run['method']} {run['state']}\n" for run in self.runs)


async def refresh_runs(runs: Runs) -> None:
    """Load the runs of other processes; if that fails, only those of this process are listed."""
    if runs.stored is None:
        return
    try:
        async with asyncio.timeout(REFRESH_S):
            await runs.stored.refresh()
    except TimeoutError:
        logger.warning("runs of other processes: no answer within %g s", REFRESH_S)
    except PlexusError as error:
        logger.warning("runs of other processes: %s", error.message)


async def watch_runs(
    runs: Runs, principal: Principal, own: int, interval_s: float, *, system: bool = False
) -> AsyncGenerator[RunsChanged, None]:
    """Yield all runs of a principal except this one, then every change, without an end.

    The list is compared when a run starts or ends, when the run store has changes, and, while runs
    of this process make progress, at every interval. Otherwise this only waits. Only runs that have
    changed are described: there may be thousands.
    """
    interval_s = min(max(interval_s, MIN_INTERVAL_S), MAX_INTERVAL_S)
    shown = ("work", "control") if system else ("work",)
    known: dict[int, tuple[object, ...]] = {}
    first = True
    woken = asyncio.Event()
    with ExitStack() as listeners:
        listeners.callback(runs.on_start(lambda *_: woken.set()))
        listeners.callback(runs.on_end(lambda _: woken.set()))
        if runs.stored is not None:
            listeners.enter_context(runs.stored.watch(woken.set))
            await refresh_runs(runs)
        while True:
            woken.clear()
            found = runs.list_for(principal, system=system)
            listed = {run.id: run.fingerprint() for run in found if run.id != own}
            changed = [
                run.describe()
                for run in found
                if run.id != own and known.get(run.id) != listed[run.id]
            ]
            gone = [number for number in known if number not in listed]
            known = listed
            if first or changed or gone:
                yield RunsChanged(changed[:RUNS_PER_EVENT], gone)
            for start in range(RUNS_PER_EVENT, len(changed), RUNS_PER_EVENT):
                yield RunsChanged(changed[start : start + RUNS_PER_EVENT], [])
            first = False
            await asyncio.sleep(interval_s)
            # A standing watch makes progress only when one of the others does.
            if not any(run.purpose in shown for run in runs.running()):
                await woken.wait()
