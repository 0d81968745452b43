"""Claims by many processes: each task has one holder, and none is lost when holders are killed.

TASK_PROCESSES=32 TASK_COUNT=1000 TASK_KILLS=12 runs the long form.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import task_worker
from arbor_databases import ENGINES, new_database
from hub_calls import until

from activations.tasks.model import Filter
from activations.tasks.queries.tasks import NewTask
from activations.tasks.store import Store, open_store

PROCESSES = int(os.environ.get("TASK_PROCESSES", "5"))
TASKS = int(os.environ.get("TASK_COUNT", "120"))
KILLS = int(os.environ.get("TASK_KILLS", "2"))
WAIT_S = 60 + TASKS / 2

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(WAIT_S + 60)]

ME = task_worker.CALLER
PROJECT = task_worker.PROJECT


@pytest.fixture(params=ENGINES)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return new_database(request.param, tmp_path)


@pytest.fixture
async def store(database: str) -> AsyncIterator[Store]:
    opened = await open_store(database)
    yield opened
    await opened.close()


def start(role: str, database: str, output: Path) -> subprocess.Popen[bytes]:
    with output.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, task_worker.__file__, role, database],
            stdout=file,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )


@pytest.fixture
def workers() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Collect worker processes, which are killed at the end."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for worker in started:
        worker.kill()
        worker.wait(10)


def said(output: Path) -> list[list[str]]:
    return [line.split() for line in output.read_text().splitlines() if line.count(" ") == 1]


async def done(store: Store, count: int) -> None:
    """Wait until this many tasks are done."""
    while (await store.counts(ME.principal))["done"] < count:  # noqa: ASYNC110 - workers are processes
        await asyncio.sleep(0.01)


async def test_every_task_is_done_once_although_workers_are_killed(
    database: str, store: Store, workers: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    names = {
        (await store.create(ME, PROJECT, NewTask(f"Work {number}")))["id"]
        for number in range(TASKS)
    }
    outputs = [tmp_path / f"worker {number}" for number in range(PROCESSES)]
    started = time.monotonic()
    workers += [start("work", database, output) for output in outputs]
    chosen = random.Random(7)
    async with asyncio.timeout(WAIT_S):
        for number in range(KILLS):
            # While they work: after a share of the tasks is done.
            await done(store, TASKS * (number + 1) // (KILLS + 2))
            victim = chosen.choice([each for each in workers if each.poll() is None])
            victim.send_signal(signal.SIGKILL)
        await done(store, TASKS)
    await until(lambda: all(worker.poll() is not None for worker in workers), 30)
    took = time.monotonic() - started
    assert sorted(worker.returncode for worker in workers) == [-9] * KILLS + [0] * (
        PROCESSES - KILLS
    )
    lines = [line for output in outputs for line in said(output)]
    closed = Counter(task for word, task in lines if word == "closed")
    assert set(closed.values()) <= {1}, "no task was closed by two workers"
    lost = 0
    for name in names:
        changes = [each["change"] for each in await store.history(ME.principal, name, 0, 100)]
        assert changes.count("closed") == 1, changes
        # A second claim follows only the loss of the first.
        assert changes.count("claimed") == changes.count("lost") + 1, changes
        lost += changes.count("lost")
    claimed = Counter(task for word, task in lines if word == "claimed")
    # A killed worker may have claimed a task, and not have printed it.
    assert TASKS - KILLS <= claimed.total() <= TASKS + lost
    assert lost <= KILLS
    print(f"{PROCESSES} processes, {TASKS} tasks: {took:.1f} s, {lost} lost and taken again")  # noqa: T201 - the figure, with -s


async def test_the_task_of_a_killed_process_is_free_at_once(
    database: str, store: Store, workers: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    name = (await store.create(ME, PROJECT, NewTask("Hold this")))["id"]
    output = tmp_path / "holder"
    workers.append(start("hold", database, output))
    await until(lambda: bool(said(output)), 30)
    held = await store.get(ME.principal, name)
    assert held["status"] == "in_progress"
    assert held["holder"] == f"worker {workers[0].pid}"
    assert await store.next_task(ME, Filter(PROJECT), claim=True) is None
    os.kill(workers[0].pid, signal.SIGSTOP)  # a stopped process is alive
    assert (await store.get(ME.principal, name))["status"] == "in_progress"
    workers[0].kill()
    workers[0].wait(10)
    freed = await store.get(ME.principal, name)
    assert freed["status"] == "pending"
    assert "holder" not in freed
    changes = await store.history(ME.principal, name, 0, 100)
    assert changes[-1]["change"] == "lost"
    assert f"process {workers[0].pid} has ended" in changes[-1]["details"]["why"]
    assert await store.next_task(ME, Filter(PROJECT), claim=True) is not None
