"""How the tests call a hub and read its runs; every wait here is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

from plexus import Activation, Event, Plexus, Principal
from plexus.principal import LOCAL
from plexus.runtime.calls import Call
from plexus.runtime.log import Reader
from plexus.runtime.run import LocalRun, Run

#: No wait in these tests needs longer, on a busy machine either.
WAIT_S = 5.0

OTHER = Principal("somebody else")
#: The packages whose activations are checked by a test of their own.
BUILT_IN = ("activations", "plexus")


def local(run: Run) -> LocalRun:
    """The same run, which is one of this process."""
    assert isinstance(run, LocalRun)
    return run


def register(hub: Plexus, *activations: Activation | type[Activation]) -> None:
    """Register activations; built-in ones as checked, as the program does.

    Checking the schemas of arbor and chat took most of the time of their tests.
    """
    for each in activations:
        owner = each if isinstance(each, type) else type(each)
        hub.register(each, checked=owner.__module__.partition(".")[0] in BUILT_IN)


async def read(call: Call) -> list[Event]:
    """All that a call says, up to and with its terminal."""
    return await follow(call.run, call.after, owner=call.owned)


async def follow(run: Run, after: int = 0, *, owner: bool = False) -> list[Event]:
    """All that a run says after this item, up to and with its terminal."""
    events: list[Event] = []
    async with asyncio.timeout(WAIT_S), aclosing(run.batches(after, owner=owner)) as batches:
        async for batch in batches:
            events += batch.events
    return events


async def call(
    hub: Plexus, method: str, params: Any = None, principal: Principal = LOCAL
) -> list[Event]:
    """Call and read to the end."""
    return await read(hub.call(method, params, principal))


async def end_of(hub: Plexus, method: str, params: Any = None) -> Event:
    """Call, read to the end, and return the terminal, which must be the only one and the last."""
    events = await call(hub, method, params)
    assert [event for event in events if event.terminal] == events[-1:]
    return events[-1]


async def settled(run: Run) -> Event:
    """Wait for a run's terminal without reading its items."""
    await until(lambda: run.terminal is not None)
    assert run.terminal is not None
    return run.terminal


async def until(holds: Callable[[], bool], within_s: float = WAIT_S) -> None:
    """Let the loop go round until this holds."""
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110 - what is waited for has no event of its own
            await asyncio.sleep(0.001)


async def happened(event: asyncio.Event) -> None:
    """Wait for an event, but not for ever."""
    async with asyncio.timeout(WAIT_S):
        await event.wait()


async def quiet(rounds: int = 50) -> None:
    """Let everything that can go on go on: so many turns of the loop."""
    for _ in range(rounds):
        await asyncio.sleep(0)


def ignore(_: Reader) -> None:
    """A wake-up call that nobody listens to."""
