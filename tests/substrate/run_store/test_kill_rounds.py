"""Killed processes: what others were shown is stored, and each orphaned run ends exactly once.

The long form runs by hand: `python test_kill_rounds.py ENGINE ROUNDS [other]`, where `other` makes
the killed process one of another machine.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import pytest
from arbor_databases import ENGINES, new_database
from store_hubs import StoreHub
from store_worker import Load
from worker_processes import Observed, Worker, stored_run, working

from plexus.storage.engine import Transaction
from substrate.run_store.schema import ENDED

pytestmark = pytest.mark.anyio

#: Seconds within which an orphaned run has ended: on one machine, and across machines.
SAME_S = 1.0
OTHER_S = 7.0


async def kill_round(database: str, observer: StoreHub, host: str = "") -> float:
    """Kill a worker at a random time. Returns the seconds until its runs had ended."""
    options = {"host": host} if host else {}
    async with working(database, **options) as victim:
        seen: dict[int, Observed] = {}
        until = time.monotonic() + random.uniform(0.02, 0.6)
        while time.monotonic() < until:
            for run in victim.streams:
                if run not in seen:
                    seen[run] = Observed(observer, run)
            await asyncio.sleep(0.01)
        killed_at = time.monotonic()
        await victim.kill()
    elapsed_s = await wait_for_end(observer, victim, killed_at, OTHER_S if host else SAME_S)
    await check_records(observer, victim, seen)
    return elapsed_s


def runs_of(tx: Transaction, process: int) -> list[tuple[int, str, int]]:
    """Return the number, the method and the state of each run of a process."""
    found = tx.all("SELECT id, method, state FROM runs WHERE process = ?", (process,))
    return [(run, method, state) for run, method, state in found]


async def wait_for_end(
    observer: StoreHub, victim: Worker, killed_at: float, within_s: float
) -> float:
    """Wait until all runs of a killed process have ended. Returns how long that took."""

    def has_ended(tx: Transaction) -> bool:
        return all(state >= ENDED for _, _, state in runs_of(tx, victim.number))

    while not await observer.store.engine.read(has_ended):
        assert time.monotonic() - killed_at < 30 + within_s, "an orphaned run has not ended"
        await asyncio.sleep(0.005)
    return time.monotonic() - killed_at


async def check_records(observer: StoreHub, victim: Worker, seen: dict[int, Observed]) -> None:
    """Check everything that is stored of a killed process."""
    recorded = await observer.store.engine.read(lambda tx: runs_of(tx, victim.number))
    numbers = {run for run, _, _ in recorded}
    # A stream may have been announced by its process and killed before its record.
    following = [each.task for run, each in seen.items() if run in numbers]
    if following:
        _, pending = await asyncio.wait(following, timeout=5.0)
        assert not pending, "a reader was not shown the end"
    for run, each in seen.items():
        if run not in numbers:
            assert not each.items
            each.task.cancel()
    assert set(victim.shorts) <= numbers, "an acknowledged record is lost"
    for run, method, _ in recorded:
        items, terminals, outcome = await stored_run(observer, run)
        assert len(terminals) == 1, f"run {run} has the terminals {terminals}"
        if run in seen:
            shown = seen[run].items
            assert not seen[run].gaps
            assert {seq: items.get(seq) for seq in shown} == shown
            assert len(shown) == len(items)
        if run in victim.shorts:
            assert (method, terminals, outcome) == ("load.short", ["complete"], "succeeded")
            assert len(items) == 1


async def rounds(
    database: str, count: int, host: str = "", survivor_host: str | None = ""
) -> list[float]:
    """Kill workers one after the other, while another one works."""
    observer = await StoreHub.open(database, Load)
    try:
        async with working(database, **({"host": survivor_host} if survivor_host else {})):
            return [await kill_round(database, observer, host) for _ in range(count)]
    finally:
        await observer.close()


@pytest.mark.parametrize("engine", ENGINES)
async def test_killed_processes_leave_complete_records_and_one_terminal_each(
    engine: str, tmp_path: Path
) -> None:
    took = await rounds(new_database(engine, tmp_path), 2)
    assert min(took) < 3 * SAME_S  # the better of both rounds, for a busy machine


async def test_the_runs_of_a_killed_process_of_another_machine_end_when_its_lease_expires(
    tmp_path: Path,
) -> None:
    [took] = await rounds(new_database("postgres", tmp_path), 1, "another machine")
    assert took < 3 * OTHER_S


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        address = new_database(sys.argv[1], Path(folder))
        other = "another machine" if "other" in sys.argv else ""
        measured = asyncio.run(rounds(address, int(sys.argv[2]), other))
    ordered = sorted(measured)
    print(  # noqa: T201 - the result
        f"{sys.argv[1]}, {len(ordered)} rounds{', another machine' if other else ''}:"
        f" median {statistics.median(ordered):.3f} s,"
        f" p99 {ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]:.3f} s,"
        f" max {ordered[-1]:.3f} s"
    )
