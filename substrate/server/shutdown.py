"""Shutdown of a server by signals.

The first SIGTERM or SIGINT stops accepting calls and waits for running ones up to a limit. The
second cancels them immediately. The third has the default action: it kills the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import Counter
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
    """Signal handlers that record which kind of stop was requested."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        #: Set by the first signal, and by the second one.
        self.stop_requested = asyncio.Event()
        self.stop_now = asyncio.Event()
        for number in SIGNALS:
            self._loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        if not self.stop_requested.is_set():
            self.stop_requested.set()
            return
        self.stop_now.set()
        for number in SIGNALS:
            self._loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)


class OpenStreams:
    """Streams and sockets of one server that stay open until the shutdown ends them."""

    def __init__(self) -> None:
        #: The number of writers of each connection: a client that reconnects gets a new one, and
        #: the former ends later.
        self._connections: Counter[Connection] = Counter()
        self._all_ended: asyncio.Event | None = None

    def add(self, connection: Connection) -> None:
        """Register the writer of an open connection."""
        self._connections[connection] += 1

    def discard(self, connection: Connection) -> None:
        """Unregister a writer of a connection."""
        self._connections[connection] -= 1
        if not self._connections[connection]:
            del self._connections[connection]
        if self._all_ended is not None and not self._connections:
            self._all_ended.set()

    async def finish(self, within_s: float) -> None:
        """End all connections after their pending output, and wait up to `within_s`."""
        if not self._connections:
            return
        self._all_ended = asyncio.Event()
        for connection in list(self._connections):
            connection.finish()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._all_ended.wait(), within_s)


async def drain(hub: Plexus, stop_now: asyncio.Event) -> None:
    """Wait for running calls until `drain_s` has passed or `stop_now` is set."""
    limit_s = ServerLimits.of(hub.limits).drain_s
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait_for_first, partial(hub.drain, limit_s), stop_now.wait)
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()  # `hub.drain` has cancelled the runs it does not wait for
        remaining = sum(run.cancel_reason is None for run in hub.runs.running())
        if remaining:
            calls = "1 call" if remaining == 1 else f"{remaining} calls"
            text = f"Waiting up to {limit_s:g} s for {calls} to finish. Press Ctrl-C to cancel now."
            click.echo(text, err=True)


async def wait_for_first(*waits: Callable[[], Awaitable[object]]) -> None:
    """Wait until one of the functions returns, then cancel the others."""
    async with anyio.create_task_group() as tasks:

        async def end_with(wait: Callable[[], Awaitable[object]]) -> None:
            await wait()
            tasks.cancel_scope.cancel()

        for wait in waits:
            tasks.start_soon(end_with, wait)
