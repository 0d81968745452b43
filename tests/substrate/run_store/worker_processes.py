"""Worker processes with recorded runs, and what a test has seen of their runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

from child_processes import clean_environment
from store_hubs import StoreHub, wait_for, wait_until

from plexus.events import Event, Gap
from plexus.principal import LOCAL
from plexus.storage.engine import Transaction
from substrate.run_store.queries import read_items

__all__ = ("Observed", "Worker", "stored_run", "working")

HERE = Path(__file__).parent
WORKER = HERE / "store_worker.py"
#: Folders of helpers, as for the tests.
PATHS = (
    HERE.parents[2],
    HERE,
    *(HERE.parents[1] / name for name in ("", "substrate", "activations/arbor")),
)
START_S = 30.0


class Worker:
    """A running `store_worker.py`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid
        #: The number of the process in the store.
        self.number = 0
        #: Runs by kind: streams that it has started, streams that it saw ending, recorded shorts.
        self.streams: list[int] = []
        self.ended: dict[int, str] = {}
        self.shorts: list[int] = []
        self.lines = 0
        self._reading = asyncio.ensure_future(self._read())

    @classmethod
    async def start(cls, database: str, **options: str) -> Worker:
        """Start a worker and wait until it has a stream."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(WORKER),
            database,
            *(f"{name}={value}" for name, value in options.items()),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            env=clean_environment(PYTHONPATH=os.pathsep.join(map(str, PATHS))),
        )
        worker = cls(process)
        await wait_until(lambda: worker.streams or worker._reading.done(), START_S)
        assert worker.streams, "the worker has ended"
        return worker

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            kind, *values = line.split()
            self.lines += 1
            match kind:
                case b"process":
                    self.number = int(values[0])
                case b"stream":
                    self.streams.append(int(values[0]))
                case b"ended":
                    self.ended[int(values[0])] = values[1].decode()
                case b"short":
                    self.shorts += map(int, values)

    def send(self, number: int) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    async def kill(self) -> None:
        """Kill the process and wait for its end."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        await self._reading


@contextlib.asynccontextmanager
async def working(database: str, **options: str) -> AsyncIterator[Worker]:
    """Run a worker, and kill it at the end."""
    worker = await Worker.start(database, **options)
    try:
        yield worker
    finally:
        await worker.kill()


class Observed:
    """The items of one run that a hub has shown."""

    def __init__(self, hub: StoreHub, run: int) -> None:
        self.run = run
        self.items: dict[int, bytes] = {}
        self.events: list[Event] = []
        self.task = asyncio.ensure_future(self._follow(hub))

    async def _follow(self, hub: StoreHub) -> None:
        load = partial(hub.store.loaded.load, self.run)
        await wait_for(load, START_S, 0.005)  # it may not be recorded yet
        found = await load()
        assert found is not None
        assert found.principal == LOCAL
        async with contextlib.aclosing(found.batches()) as batches:
            async for batch in batches:
                self.events += batch.events
                self.items |= dict(enumerate(batch.payloads, batch.first))

    @property
    def gaps(self) -> list[Event]:
        """The gaps that were shown."""
        return [event for event in self.events if isinstance(event, Gap)]


async def stored_run(hub: StoreHub, run: int) -> tuple[dict[int, bytes], list[str], str]:
    """Return what is stored of a run: its items, the types of its terminals, and its outcome.

    The numbers of the items must have no holes.
    """

    def work(tx: Transaction) -> tuple[dict[int, bytes], list[str], str]:
        row = tx.one("SELECT last_seq, outcome FROM runs WHERE id = ?", (run,))
        assert row is not None, f"run {run} is not recorded"
        items: dict[int, bytes] = {}
        terminals: list[str] = []
        for first, payloads, events in _parts(tx, run):
            assert first == len(items) + 1, f"run {run} has a hole before item {first}"
            items |= dict(enumerate(payloads, first))
            terminals += [event.type for event in events if event.terminal]
        assert len(items) == row[0], f"run {run} has {len(items)} of {row[0]} items"
        return items, terminals, row[1] or ""

    return await hub.store.engine.read(work)


def _parts(tx: Transaction, run: int) -> Iterator[tuple[int, list[bytes], list[Event]]]:
    after = 0
    while (part := read_items(tx, run, after, 2**62)).payloads:
        yield part.first, part.payloads, part.events
        after = part.first + len(part.payloads) - 1
