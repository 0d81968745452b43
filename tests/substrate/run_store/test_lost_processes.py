"""Processes that stop, continue, or have a wrong clock: only the runs of dead ones are ended."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from arbor_databases import ENGINES, new_database
from store_hubs import StoreHub, wait_until
from store_worker import Load
from worker_processes import Observed, stored_run, working

from plexus.events import ErrorEvent
from plexus.storage.engine import Transaction
from substrate.run_store.leases import LEASE_S, RENEW_S

pytestmark = pytest.mark.anyio

#: Seconds within which a lease has certainly expired and was noticed, and longer than a lease.
LOST_S = 4 * LEASE_S
STOPPED_S = LEASE_S + 2 * RENEW_S


@contextlib.asynccontextmanager
async def observing(database: str) -> AsyncIterator[StoreHub]:
    observer = await StoreHub.open(database, Load)
    try:
        yield observer
    finally:
        await observer.close()


async def states(observer: StoreHub, process: int) -> list[int]:
    """Return the states of the streams of a process."""

    def work(tx: Transaction) -> list[int]:
        sql = "SELECT state FROM runs WHERE process = ? AND method <> 'load.short'"
        return [row[0] for row in tx.all(sql, (process,))]

    return await observer.store.engine.read(work)


@pytest.mark.parametrize("engine", ENGINES)
async def test_the_runs_of_a_stopped_process_are_not_ended(engine: str, tmp_path: Path) -> None:
    database = new_database(engine, tmp_path)
    async with observing(database) as observer, working(database) as worker:
        seen = Observed(observer, worker.streams[0])
        await wait_until(lambda: len(seen.items) > 20)
        worker.send(signal.SIGSTOP)
        # Longer than its lease: on one machine the process decides, not the lease.
        await asyncio.sleep(STOPPED_S)
        assert set(await states(observer, worker.number)) == {0}
        assert not seen.task.done()
        shown = len(seen.items)
        worker.send(signal.SIGCONT)
        await wait_until(lambda: len(seen.items) > shown + 100)
        assert not seen.gaps
        seen.task.cancel()


async def test_a_process_of_another_machine_that_stopped_loses_its_runs_and_ends_them(
    tmp_path: Path,
) -> None:
    database = new_database("postgres", tmp_path)
    async with (
        observing(database) as observer,
        working(database, host="another machine", load="idle") as idle,
        working(database, host="another machine") as busy,
    ):
        seen = [Observed(observer, worker.streams[0]) for worker in (idle, busy)]
        await wait_until(lambda: all(each.items for each in seen))
        for worker in (idle, busy):
            worker.send(signal.SIGSTOP)
        await asyncio.wait([each.task for each in seen], timeout=LOST_S)
        for each in seen:
            assert isinstance(each.events[-1], ErrorEvent)
            assert each.events[-1].code == "owner_lost"
        for worker in (idle, busy):
            worker.send(signal.SIGCONT)
        # Also the run that produces nothing: the process notices that its lease was lost.
        for worker, each in zip((idle, busy), seen, strict=True):
            await wait_until(lambda w=worker, run=each.run: run in w.ended, LOST_S)  # type: ignore[misc]
            assert worker.ended[each.run] == "cancelled"
            items, terminals, _ = await stored_run(observer, each.run)
            assert terminals == ["error"]
            assert items == each.items
        # It records new runs.
        before = len(busy.shorts)
        await wait_until(lambda: len(busy.shorts) > before, LOST_S)


@pytest.mark.parametrize("clock", ["3600", "-3600"])
async def test_a_wrong_clock_of_one_machine_ends_no_run(tmp_path: Path, clock: str) -> None:
    database = new_database("postgres", tmp_path)
    async with (
        observing(database) as observer,
        working(database, host="a machine with a wrong clock", clock=clock) as wrong,
        working(database, host="a third machine", load="idle") as right,
    ):
        seen = Observed(observer, right.streams[0])
        await wait_until(lambda: seen.items)
        await asyncio.sleep(STOPPED_S)
        assert set(await states(observer, right.number)) == {0}
        assert wrong.ended.keys() <= set(wrong.streams)
        assert set(wrong.ended.values()) <= {"complete"}
        seen.task.cancel()
