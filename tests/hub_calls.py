"""Calls of a hub and reads of its runs for tests. Every wait has a timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

from plexus import Activation, Event, Plexus, Principal
from plexus.events import ErrorEvent, Result
from plexus.principal import LOCAL
from plexus.rpc import wire
from plexus.runtime.calls import Call
from plexus.runtime.log import Reader
from plexus.runtime.run import LocalRun, Run

#: Timeout of every wait, sufficient on a busy machine.
WAIT_S = 30.0

OTHER = Principal("another principal")
#: The packages whose activations are checked by a separate test.
BUILT_IN = ("activations", "plexus")


def local(run: Run) -> LocalRun:
    """Return the run as one of this process."""
    assert isinstance(run, LocalRun)
    return run


def register(hub: Plexus, *activations: Activation | type[Activation]) -> None:
    """Register activations, the built-in ones without a schema check, like the program.

    Checking the schemas of arbor and chat took most of the time of their tests.
    """
    for each in activations:
        owner = each if isinstance(each, type) else type(each)
        hub.register(each, checked=owner.__module__.partition(".")[0] in BUILT_IN)


async def read(call: Call) -> list[Event]:
    """Return all events of a call, including its terminal."""
    return await follow(call.run, call.after, owner=call.owned)


async def follow(run: Run, after: int = 0, *, owner: bool = False) -> list[Event]:
    """Return all events of a run after an item, including its terminal."""
    events: list[Event] = []
    async with asyncio.timeout(WAIT_S), aclosing(run.batches(after, owner=owner)) as batches:
        async for batch in batches:
            events += batch.events
    return events


async def call(
    hub: Plexus, method: str, params: Any = None, principal: Principal = LOCAL
) -> list[Event]:
    """Call a method and return all its events."""
    return await read(hub.call(method, params, principal))


async def end_of(hub: Plexus, method: str, params: Any = None) -> Event:
    """Call a method and return its terminal, which must be the only one and the last event."""
    events = await call(hub, method, params)
    assert [event for event in events if event.terminal] == events[-1:]
    return events[-1]


class Namespace:
    """The methods of one namespace of a hub, called in the form of the wire."""

    def __init__(self, hub: Plexus, namespace: str) -> None:
        self.hub = hub
        self._namespace = namespace

    async def events(self, method: str, _as: Principal = LOCAL, **params: Any) -> list[Any]:
        """Return all events of a call; a method with a dot is one of another namespace."""
        events: list[Any] = wire.decode_plain(await self._call(method, params, _as))
        return events

    async def value(self, method: str, _as: Principal = LOCAL, **params: Any) -> Any:
        """Return the result of a call, or its terminal if that has fields."""
        end = (await self._call(method, params, _as))[-1]
        assert not isinstance(end, ErrorEvent), end
        return wire.decode_plain(end.result if isinstance(end, Result) else end)

    async def _call(self, method: str, params: Any, principal: Principal) -> list[Event]:
        name = method if "." in method else f"{self._namespace}.{method}"
        return await call(self.hub, name, params, principal)


async def settled(run: Run) -> Event:
    """Wait for a run's terminal without reading its items."""
    await until(lambda: run.terminal is not None)
    assert run.terminal is not None
    return run.terminal


async def until(holds: Callable[[], bool], within_s: float = WAIT_S) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110 - the condition has no event
            await asyncio.sleep(0.001)


async def happened(event: asyncio.Event) -> None:
    """Wait for an event, with a timeout."""
    async with asyncio.timeout(WAIT_S):
        await event.wait()


async def quiet(rounds: int = 50) -> None:
    """Let pending callbacks and tasks run for this many iterations of the loop."""
    for _ in range(rounds):
        await asyncio.sleep(0)


def ignore(_: Reader) -> None:
    """Wake-up callback that does nothing."""
