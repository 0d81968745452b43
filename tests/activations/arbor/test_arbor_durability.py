"""Acknowledged changes are durable: after kill -9, on full and on read-only disks.

ARBOR_KILL_ROUNDS sets how often two processes under load are killed; 200 is the long form.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from arbor_checker import faults_in, ids_in
from arbor_workers import start
from disks import small_disk

from activations.arbor.model import NewNode, Tree
from activations.arbor.store import Store, open_store
from plexus.errors import Failed, PlexusError

ME = "me"
ROUNDS = int(os.environ.get("ARBOR_KILL_ROUNDS", "10"))
ROUNDS_PER_FILE = 20


# --- kill -9 -------------------------------------------------------------------------------------


async def _new_tree(path: Path) -> Tree:
    store = await open_store(str(path))
    tree = await store.create_tree(ME, "owner")
    await store.close()
    return tree


def _run_and_kill(path: Path, tree: Tree, seconds: float) -> dict[int, list[str]]:
    """Run two processes until each has written output and this many seconds more, then kill them.

    Returns the output of each process by its pid.
    """
    files = [path.with_name(f"output {number}") for number in range(2)]
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(file.open("w")) for file in files]
        workers = [start("churn", path, tree.id, output=file) for file in opened]
    deadline = time.monotonic() + 30
    while not all(file.stat().st_size for file in files):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    time.sleep(seconds)
    for worker in workers:
        worker.send_signal(signal.SIGKILL)
    for worker in workers:
        worker.communicate(timeout=30)
        assert worker.returncode == -signal.SIGKILL
    return {
        worker.pid: file.read_text().split("\n")[:-1]  # without an incomplete line
        for worker, file in zip(workers, files, strict=True)
    }


def _claims_of(path: Path, owner: str) -> int:
    connection = apsw.Connection(str(path))
    try:
        found = connection.execute(
            "SELECT count FROM tree_refs WHERE owner = ?", (owner,)
        ).fetchall()
        return sum(int(str(count)) for (count,) in found)
    finally:
        connection.close()


@pytest.mark.timeout(60 + 5 * ROUNDS)
def test_nothing_acknowledged_is_lost_when_processes_are_killed(tmp_path: Path) -> None:
    for first in range(0, ROUNDS, ROUNDS_PER_FILE):  # checking a whole file takes time
        path = tmp_path / f"{first}.db"
        tree = asyncio.run(_new_tree(path))
        acknowledged = {tree.root}
        rounds = range(first, min(ROUNDS, first + ROUNDS_PER_FILE))
        for round_ in rounds:
            acknowledged |= _kill_and_check(path, tree, acknowledged, f"in round {round_}")
        assert len(acknowledged) > 10 * len(rounds)


def _kill_and_check(path: Path, tree: Tree, before: set[str], when: str) -> set[str]:
    """Run one round. Returns the nodes that were acknowledged in it."""
    output = _run_and_kill(path, tree, random.uniform(0.02, 0.4))
    lines = [line.split() for own in output.values() for line in own]
    acknowledged = {what for kind, what in lines if kind == "node"}
    assert (before | acknowledged) - ids_in(path) == set(), when
    assert faults_in(path) == [], when
    for pid, own in output.items():
        claimed = sum(int(line.split()[1]) for line in own if line.startswith("claimed"))
        assert claimed - 1 <= _claims_of(path, f"worker {pid}") <= claimed + 2, when
    return acknowledged


def test_a_commit_is_on_the_disk_before_it_is_acknowledged(tmp_path: Path) -> None:
    """Check the log at the time of the acknowledgement, without later writes."""

    async def go() -> None:
        store = await open_store(str(tmp_path / "arbor.db"))
        tree = await store.create_tree(ME, "owner")
        for number in range(5):
            [node] = await store.append(ME, tree.id, None, [NewNode(f"text {number}")])
            copy = tmp_path / str(number)
            copy.mkdir()
            for name in ("arbor.db", "arbor.db-wal"):
                (copy / name).write_bytes((tmp_path / name).read_bytes())
            assert node.id in ids_in(copy / "arbor.db")
            assert faults_in(copy / "arbor.db") == []
        await store.close()

    asyncio.run(go())


def test_a_log_truncated_anywhere_leaves_an_earlier_state(tmp_path: Path) -> None:
    async def go() -> list[str]:
        store = await open_store(str(tmp_path / "arbor.db"))
        tree = await store.create_tree(ME, "owner")
        made = []
        for number in range(3):
            [node] = await store.append(ME, tree.id, None, [NewNode(f"text {number}")])
            made.append(node.id)
        data = (tmp_path / "arbor.db").read_bytes()
        log = (tmp_path / "arbor.db-wal").read_bytes()
        await store.close()
        cut = tmp_path / "cut.db"
        # From the middle, at arbitrary positions and at page boundaries.
        for length in range(len(log) // 2, len(log), 1999):
            cut.write_bytes(data)
            cut.with_name("cut.db-wal").write_bytes(log[:length])
            connection = apsw.Connection(str(cut))
            version = connection.pragma("user_version")
            connection.close()
            if version:  # else the log ends before the file was created
                assert faults_in(cut) == [], length
                found = ids_in(cut)
                there = [node in found for node in made]
                assert there == sorted(there, reverse=True), length
        return made

    assert len(asyncio.run(go())) == 3


# --- disks ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def _small_files(size: int) -> Iterator[None]:
    """Limit the size of files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def _fill(store: Store, tree: Tree) -> tuple[set[str], PlexusError]:
    """Write until a write fails. Returns the acknowledged nodes and the error."""
    made: set[str] = set()
    for _ in range(1000):
        try:
            for node in await store.append(ME, tree.id, None, [NewNode("x" * 20_000)] * 5):
                made.add(node.id)
        except Failed as error:
            return made, error
    raise AssertionError("the disk never became full")


async def _seen(store: Store, tree: Tree) -> set[str]:
    found: list[str] = []
    after = None
    while page := await store.walk(ME, tree.id, after, 100):
        found += [node.id for node in page]
        after = page[-1].n
    return set(found)


def test_a_full_disk_is_reported_and_loses_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    path = folder / "arbor.db"

    async def go(room: contextlib.AbstractContextManager[None], codes: set[str]) -> None:
        store = await open_store(str(path), purge_every_s=None)
        tree = await store.create_tree(ME, "owner")
        with room:
            made, error = await _fill(store, tree)
            assert error.code in codes
            assert await _seen(store, tree) == made | {tree.root}
            for _ in range(3):
                results = await asyncio.gather(
                    *(store.append(ME, tree.id, None, [NewNode("y" * 300_000)]) for _ in range(8)),
                    return_exceptions=True,
                )
                made |= {node.id for done in results if isinstance(done, list) for node in done}
                failed = {r.code for r in results if isinstance(r, PlexusError)}
                assert failed
                assert failed <= codes
            assert await _seen(store, tree) == made | {tree.root}
        [last] = await store.append(ME, tree.id, None, [NewNode("there is room")])
        assert await _seen(store, tree) == made | {tree.root, last.id}
        await store.close()
        assert faults_in(path) == []

    @contextlib.contextmanager
    def filler() -> Iterator[None]:
        yield
        (folder / "filler").unlink()

    with small_disk(folder, 16) as mounted:
        if mounted:
            (folder / "filler").write_bytes(b"x" * (10 << 20))
            asyncio.run(go(filler(), {"storage_full"}))
        else:
            asyncio.run(go(_small_files(4 << 20), {"storage_full", "storage"}))


async def _refusal(path: Path) -> str:
    with pytest.raises(Failed) as caught:
        await open_store(str(path))
    return caught.value.code


def test_a_read_only_store_is_reported_and_recovers(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    path = folder / "arbor.db"
    with small_disk(folder, 4) as mounted:
        tree = asyncio.run(_new_tree(path))

        def allow(writing: bool) -> None:
            if mounted:
                mode = f"remount,{'rw' if writing else 'ro'}"
                subprocess.run(["mount", "-o", mode, str(folder)], check=True)
            else:
                path.chmod(0o600 if writing else 0o400)
                folder.chmod(0o700 if writing else 0o500)

        allow(False)
        assert asyncio.run(_refusal(path)) == "storage_read_only"
        assert asyncio.run(_refusal(folder / "new" / "arbor.db")) == "storage_read_only"
        allow(True)

        async def again() -> None:
            store = await open_store(str(path))
            assert (await store.get_tree(ME, tree.id)).id == tree.id
            await store.close()

        asyncio.run(again())


def test_a_folder_at_the_path_of_the_file_is_reported(tmp_path: Path) -> None:
    assert asyncio.run(_refusal(tmp_path)) == "storage"


def test_a_file_at_the_path_of_the_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert asyncio.run(_refusal(tmp_path / "file" / "arbor.db")) == "storage"
