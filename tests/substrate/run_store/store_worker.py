"""A process with recorded runs: `store_worker.py DATABASE [NAME=VALUE ...]`.

It prints a line for its process, for every stream that it starts, and for every short run whose
record is written. Options: `host` (the machine it claims to run on), `clock` (seconds by which its
wall clock is wrong), `load` (`full`, or `idle` for one run that produces nothing).
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable

from plexus import Activation, method, process_identity
from plexus.events import Content
from plexus.principal import LOCAL

STREAMS = 3


class Load(Activation):
    """Methods that produce items."""

    namespace = "load"
    version = "1.0.0"

    @method(deadline_s=None)
    async def stream(self, to: int) -> AsyncIterator[Content]:
        """Yield items in bursts."""
        for number in range(to):
            yield Content(text=f"{number} {'x' * (number % 97)}")
            if number % 10 == 9:
                await asyncio.sleep(0.005)

    @method(deadline_s=None)
    async def idle(self) -> AsyncIterator[Content]:
        """Yield one item and wait until cancelled."""
        yield Content(text="waiting")
        await asyncio.Event().wait()

    @method
    async def short(self, text: str) -> str:
        """Return a text."""
        return text


def report(text: str) -> None:
    """Print a line in one write, so that it is complete even if the process is killed."""
    os.write(1, f"{text}\n".encode())


def shifted(clock: Callable[[], float], by: float) -> Callable[[], float]:
    """Return a clock that is wrong."""
    return lambda: clock() + by


def pretend(host: str = "", clock: str = "0") -> None:
    """Replace the host and the wall clock, before the store is imported."""
    if host:
        process_identity.host_id = lambda: host  # type: ignore[assignment]  # without its cache
    if float(clock):
        nanoseconds, wrong = time.time_ns, float(clock)
        time.time = shifted(time.time, wrong)
        time.time_ns = lambda: nanoseconds() + round(wrong * 1e9)


async def main(database: str, load: str) -> None:
    from store_hubs import StoreHub  # after the host and the clock are replaced

    opened = await StoreHub.open(database, Load)
    hub, store = opened.hub, opened.store
    report(f"process {store.process}")

    async def consume(name: str, params: dict[str, object] | None) -> int:
        call = hub.call(name, params, LOCAL)
        if name != "load.short":
            report(f"stream {call.run.id}")
        async for _ in call.run.batches(owner=True):
            pass
        terminal = call.run.terminal
        if name != "load.short":
            report(f"ended {call.run.id} {'' if terminal is None else terminal.type}")
        return call.run.id

    async def streams() -> None:
        while True:
            await consume("load.stream", {"to": 4000})

    async def shorts() -> None:
        number = 0
        while True:
            done = [await consume("load.short", {"text": f"short {number}"}) for _ in range(5)]
            number += 1
            await store.flushed()
            report("short " + " ".join(map(str, done)))
            await asyncio.sleep(0.005)

    if load == "idle":
        await consume("load.idle", None)
        await asyncio.Event().wait()
    await asyncio.gather(shorts(), *(streams() for _ in range(STREAMS)))


if __name__ == "__main__":
    options = dict(each.split("=", 1) for each in sys.argv[2:])
    chosen = options.pop("load", "full")
    pretend(**options)
    asyncio.run(main(sys.argv[1], chosen))
