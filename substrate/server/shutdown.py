"""The end of a server, as its signals ask for it.

The first SIGTERM or SIGINT lets the calls under way finish for a while; the second stops them at
once; the third ends the process as the system does it.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable
from functools import partial

import anyio
import anyio.lowlevel
import click

from plexus.runtime.hub import Plexus
from substrate.driver import Connection
from substrate.server.limits import ServerLimits

__all__ = ("OpenStreams", "StopSignals", "drain", "wait_for_first")

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


class OpenStreams:
    """Streams and sockets of one server that would stay open for ever, and are told to end."""

    def __init__(self) -> None:
        self._connections: set[Connection] = set()
        self._all_ended: asyncio.Event | None = None

    def add(self, connection: Connection) -> None:
        """This one is open from now on."""
        self._connections.add(connection)

    def discard(self, connection: Connection) -> None:
        """This one is not open any more."""
        self._connections.discard(connection)
        if self._all_ended is not None and not self._connections:
            self._all_ended.set()

    async def finish(self, within_s: float) -> None:
        """Tell all of them to say what is left and to end, and wait for it for a while."""
        if not self._connections:
            return
        self._all_ended = asyncio.Event()
        for connection in list(self._connections):
            connection.finish()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._all_ended.wait(), within_s)


async def drain(hub: Plexus, hurried: asyncio.Event) -> None:
    """Let the runs under way end, for as long as the limit says and nobody is in a hurry."""
    limit_s = ServerLimits.of(hub.limits).drain_s
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait_for_first, partial(hub.drain, limit_s), hurried.wait)
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()  # runs that need no waiting for are stopped by then
        waited_for = sum(run.cancel_reason is None for run in hub.runs.running())
        if waited_for:
            calls = "1 call" if waited_for == 1 else f"{waited_for} calls"
            text = f"Waiting up to {limit_s:g} s for {calls} to end; Ctrl-C stops them now."
            click.echo(text, err=True)


async def wait_for_first(*waits: Callable[[], Awaitable[object]]) -> None:
    """Return when one of these has returned; the others are cancelled."""
    async with anyio.create_task_group() as tasks:

        async def end_with(wait: Callable[[], Awaitable[object]]) -> None:
            await wait()
            tasks.cancel_scope.cancel()

        for wait in waits:
            tasks.start_soon(end_with, wait)
