"""Several processes on one file: nothing is lost, and all are notified of all changes."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from arbor_checker import faults_in, ids_in
from arbor_old_file import make_old_file
from arbor_workers import start, tell

from activations.arbor.model import NewNode, Tree
from activations.arbor.store import open_store

ME = "me"
PROCESSES = 4
NODES = 60


async def _new_tree(path: Path) -> Tree:
    store = await open_store(str(path))
    tree = await store.create_tree(ME, "owner")
    await store.close()
    return tree


def test_four_processes_write_and_watch_and_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "arbor.db"
    tree = asyncio.run(_new_tree(path))
    total = PROCESSES * NODES + 1
    workers = [start("watch", path, tree.id, str(NODES), str(total)) for _ in range(PROCESSES)]
    output = tell(workers)
    written = {line.split()[1] for lines in output for line in lines if line.startswith("wrote")}
    assert len(written) == PROCESSES * NODES
    assert written <= ids_in(path)
    orders = []
    for lines in output:
        seen = [line.split()[1] for line in lines if line.startswith("saw")]
        assert set(seen) == written | {tree.root}
        assert len(seen) == total
        orders.append(seen)
        [delays] = [line for line in lines if line.startswith("delays")]
        _, median, _longest = delays.split()
        assert float(median) < 10_000
    assert all(order == orders[0] for order in orders)
    assert faults_in(path) == []


@pytest.mark.parametrize("kind", ["new", "old"])
def test_processes_that_start_at_the_same_instant_migrate_once(tmp_path: Path, kind: str) -> None:
    template = tmp_path / "old.db"
    nodes = make_old_file(template)
    for round_ in range(3):
        path = tmp_path / f"{round_}.db"
        if kind == "old":
            shutil.copy(template, path)
        output = tell([start("open", path) for _ in range(3)])
        opened = {line for lines in output for line in lines if line.startswith("opened")}
        assert len(opened) == 3
        assert faults_in(path) == []
        if kind == "old":
            assert set(nodes) <= ids_in(path)


async def _measure_notification(path: Path) -> float:
    """Return how long it takes until a store is notified of a write by another store."""
    loop = asyncio.get_running_loop()
    one, other = await open_store(str(path)), await open_store(str(path))
    tree = await one.create_tree(ME, "owner")
    notified = asyncio.Event()
    end = other.subscribe(notified.set)
    await asyncio.sleep(0.1)
    notified.clear()
    began = loop.time()
    await one.append(ME, tree.id, None, [NewNode("hello")])
    async with asyncio.timeout(30):
        await notified.wait()
    took = loop.time() - began
    end()
    await one.close()
    await other.close()
    return took


def test_a_store_is_notified_of_writes_by_another_store(tmp_path: Path) -> None:
    assert asyncio.run(_measure_notification(tmp_path / "arbor.db")) < 30
