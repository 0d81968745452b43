"""The end of a server, as its signals ask for it.

The first SIGTERM or SIGINT lets the calls under way finish for a while; the second stops them at
once; the third ends the process as the system does it.
"""

from __future__ import annotations

import asyncio
import signal

import click

from plexus.runtime.hub import Plexus
from substrate.server.limits import ServerLimits

__all__ = ("StopSignals", "drain")

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """What this process was told by signals so far."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        #: Set by the first signal, and by the second.
        self.told = asyncio.Event()
        self.hurried = asyncio.Event()
        for number in SIGNALS:
            self._loop.add_signal_handler(number, self._came)

    def _came(self) -> None:
        if not self.told.is_set():
            self.told.set()
            return
        self.hurried.set()
        for number in SIGNALS:
            self._loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)


async def drain(hub: Plexus, hurried: asyncio.Event) -> None:
    """Let the runs under way end, for as long as the limit says and nobody is in a hurry."""
    limit_s = ServerLimits.of(hub.limits).drain_s
    draining = asyncio.create_task(hub.drain(limit_s))
    hurry = asyncio.create_task(hurried.wait())
    await asyncio.sleep(0)  # what nobody needs to wait for is stopped by then
    waited_for = sum(run.cancel_reason is None for run in hub.runs.running())
    if waited_for:
        calls = "1 call" if waited_for == 1 else f"{waited_for} calls"
        limit = f"{limit_s:g} s"
        click.echo(f"Waiting up to {limit} for {calls} to end; Ctrl-C stops them now.", err=True)
    tasks: list[asyncio.Task[bool]] = [draining, hurry]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
