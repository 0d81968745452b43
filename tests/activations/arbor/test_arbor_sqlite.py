"""The SQLite engine: group commit, concurrent readers, locks, backups, and the file."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from arbor_checker import faults_in, ids_in

from activations.arbor.methods.base import default_path
from activations.arbor.model import NewNode, Retention
from activations.arbor.queries import reads
from activations.arbor.schema import ARBOR
from activations.arbor.store import Store, open_store
from plexus.errors import Busy, Failed, NotFound
from plexus.storage import Transaction
from plexus.storage.sqlite import file, workers, writer
from plexus.storage.sqlite.engine import SqliteEngine, open_engine

pytestmark = pytest.mark.anyio

ME = "me"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "arbor.db"


@pytest.fixture
async def engine(path: Path) -> AsyncIterator[SqliteEngine]:
    opened = await open_engine(str(path), ARBOR)
    yield opened
    await opened.close()


@pytest.fixture
async def store(path: Path) -> AsyncIterator[Store]:
    opened = await open_store(str(path), purge_every_s=None)
    yield opened
    await opened.close()
    assert faults_in(path) == []


def put(value: int) -> Any:
    """Return a unit of work that stores a number."""

    def work(tx: Transaction) -> int:
        tx.run("INSERT INTO changes VALUES (?, 0, 'test', NULL, 0)", (value,))
        return value

    return work


async def stored(engine: SqliteEngine) -> list[int]:
    rows = await engine.read(lambda tx: tx.all("SELECT seq FROM changes ORDER BY seq"))
    return [row[0] for row in rows]


# --- groups --------------------------------------------------------------------------------------


async def test_64_writers_share_commits(engine: SqliteEngine) -> None:
    assert await asyncio.gather(*(engine.write(put(n)) for n in range(64))) == list(range(64))
    assert await stored(engine) == list(range(64))


async def test_work_that_fails_is_rolled_back_alone(engine: SqliteEngine) -> None:
    def failing(value: int, error: BaseException) -> Any:
        def work(tx: Transaction) -> None:
            put(value)(tx)
            raise error

        return work

    def refusing(_: Transaction) -> None:
        raise NotFound("it is not there")

    works: list[Any] = []
    for n in range(0, 64, 4):
        works += [put(n), failing(n + 1, Failed("no", code="mine")), put(n + 2), refusing]
    works += [failing(1000, KeyError("a defect")), put(0)]
    done = await asyncio.gather(*map(engine.write, works), return_exceptions=True)
    for n in range(0, 64, 4):
        good, failed, also_good, refused = done[n : n + 4]
        assert (good, also_good) == (n, n + 2)
        assert isinstance(failed, Failed)
        assert failed.code == "mine"
        assert isinstance(refused, NotFound)
    assert isinstance(done[-2], KeyError)
    assert isinstance(done[-1], Failed)  # a duplicate number: a database error
    assert await stored(engine) == list(range(0, 64, 2))


async def test_a_cancelled_caller_does_not_affect_others(engine: SqliteEngine) -> None:
    tasks = [asyncio.create_task(engine.write(put(n))) for n in range(20)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert done[1::2] == list(range(1, 20, 2))
    assert set(range(1, 20, 2)) <= set(await stored(engine))


async def test_the_queue_has_a_limit(engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "MAX_QUEUED", 3)
    let_go = threading.Event()
    held = asyncio.create_task(engine.write(lambda _: let_go.wait(10)))
    waiting = [asyncio.create_task(engine.write(put(n))) for n in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(Busy) as caught:
        await engine.write(put(3))
    assert caught.value.data == {"limit": 3}
    let_go.set()
    await asyncio.gather(held, *waiting)
    assert await engine.write(put(3)) == 3


async def test_queued_work_is_finished_when_the_store_is_closed(path: Path) -> None:
    engine = await open_engine(str(path), ARBOR)
    tasks = [asyncio.create_task(engine.write(put(n))) for n in range(300)]
    await asyncio.sleep(0)
    await engine.close()
    assert await asyncio.gather(*tasks) == list(range(300))
    assert not path.with_name("arbor.db-wal").exists()


# --- readers -------------------------------------------------------------------------------------


async def test_a_reader_sees_a_snapshot_and_does_not_block_writers(
    engine: SqliteEngine,
) -> None:
    await engine.write(put(1))
    begun, go_on = threading.Event(), threading.Event()

    def slow(tx: Transaction) -> tuple[Any, Any]:
        count = "SELECT count(*) FROM changes"
        before = tx.one(count)
        begun.set()
        go_on.wait(10)
        return before, tx.one(count)

    reading = asyncio.create_task(engine.read(slow))
    await asyncio.to_thread(begun.wait, 10)
    async with asyncio.timeout(10):
        await engine.write(put(2))
        assert await stored(engine) == [1, 2]
    go_on.set()
    assert await reading == ((1,), (1,))


async def test_a_reader_cannot_write(engine: SqliteEngine) -> None:
    with pytest.raises(Failed) as caught:
        await engine.read(put(1))
    assert caught.value.code == "storage_read_only"


async def test_a_walk_uses_constant_memory(store: Store) -> None:
    tree = await store.create_tree(ME, "owner")
    for _ in range(10):
        await store.append(ME, tree.id, None, [NewNode(f"text {n}") for n in range(10_000)])
    await store.walk(ME, tree.id, None, 1000)
    tracemalloc.start()
    peaks = []
    seen = 0
    after = None
    while page := await store.walk(ME, tree.id, after, 1000):
        after = page[-1].n
        seen += len(page)
        peaks.append(tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()
    assert seen == 100_001
    assert peaks[-1] < 1.5 * peaks[4]


async def test_a_path_of_any_depth_is_one_query(store: Store, path: Path) -> None:
    tree = await store.create_tree(ME, "owner")
    chain = [NewNode(str(n), parent=n - 1 if n else None) for n in range(10_000)]
    made = await store.append(ME, tree.id, None, chain)
    engine = await open_engine(str(path), ARBOR)
    asked: list[str] = []

    def work(tx: Any) -> int:
        plain = tx._execute  # noqa: SLF001 - counts the statements that reach the database

        def counted(sql: str, params: Any = ()) -> Any:
            asked.append(sql)
            return plain(sql, params)

        tx._execute = counted  # noqa: SLF001
        return len(reads.path(tx, ME, tree.id, made[-1].id))

    assert await engine.read(work) == 10_001
    assert len(asked) == 3  # the tree, the node, and the path
    await engine.close()


async def test_no_operation_reads_a_whole_table(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: dict[str, list[str]] = {}
    make = file.SqliteTransaction.__init__

    def explained(self: Any, connection: apsw.Connection) -> None:
        make(self, connection)

        def execute(sql: str, params: Any = ()) -> Any:
            if sql not in plans and not sql.startswith("PRAGMA"):
                rows = connection.execute(f"EXPLAIN QUERY PLAN {sql}", params)
                plans[sql] = [row[3] for row in rows]
            return connection.execute(sql, params)

        self._execute = execute

    monkeypatch.setattr(file.SqliteTransaction, "__init__", explained)
    store = await open_store(str(path), Retention(0, 0, 0), clock=lambda: 5, purge_every_s=None)
    tree = (await store.create_tree(ME, "owner")).id
    a, b = await store.append(ME, tree, None, [NewNode("a"), NewNode("b", parent=0)])
    c = await store.edit(ME, tree, b.id, "c")
    operations = [
        store.move(ME, tree, b.id, a.id, 0),
        store.list_trees(ME, None, None, 5),
        store.list_trees(ME, "archived", tree, 5),
        store.children(ME, tree, a.id, None, 5),
        store.children(ME, tree, a.id, c.n, 5),
        store.parent(ME, tree, c.id),
        store.path(ME, tree, c.id),
        store.path_stubs(ME, tree, c.id),
        store.leaves(ME, tree, None, 5),
        store.walk(ME, tree, None, 5),
        store.structure(ME, tree, None, 5),
        store.search(ME, "a", None, None, 5),
        store.search(ME, "a", tree, 9, 5),
        store.changes(ME, tree, 0, 5),
        store.all_changes(0, 5),
        store.update_metadata(ME, tree, 1),
        store.claim(ME, tree, "other"),
        store.release(ME, tree, "other"),
        store.delete_node(ME, tree, c.id),
        store.delete_tree(ME, tree),
        store.purge(6),
        store.purge(7),
    ]
    for operation in operations:
        await operation
    assert (await store.counts()).nodes == 0
    await store.close()
    scans = {
        (step.split()[1], sql)
        for sql, steps in plans.items()
        for step in steps
        if step.startswith("SCAN") and "count(*)" not in sql and "ORDER BY seq LIMIT" not in sql
    }
    allowed = {"numbers", "up", "down", "search", "CONSTANT", "missing", "(subquery-2)"}
    assert {each for each in scans if each[0] not in allowed} == set()


async def test_the_log_stays_short_under_continuous_reads(store: Store, path: Path) -> None:
    tree = await store.create_tree(ME, "owner")
    over = False

    async def read() -> None:
        while not over:
            await store.walk(ME, tree.id, None, 50)

    readers = [asyncio.create_task(read()) for _ in range(8)]
    for _ in range(100):
        await store.append(ME, tree.id, None, [NewNode("x" * 100_000)] * 10)
    over = True
    await asyncio.gather(*readers)
    # A hundred million characters were written; the log was restarted at least once.
    assert path.with_name("arbor.db-wal").stat().st_size < 90 << 20


# --- other processes -----------------------------------------------------------------------------


async def test_a_lock_that_is_held_too_long_is_reported_and_recovers(
    engine: SqliteEngine, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "BUSY_S", 0.2)
    await engine.write(put(1))
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    done = await asyncio.gather(
        *(engine.write(put(n)) for n in range(2, 20)), return_exceptions=True
    )
    assert {type(each) for each in done} == {Busy}
    # With the timeout of the program they would take minutes.
    assert time.monotonic() - began < 30
    assert await stored(engine) == [1]
    other.execute("ROLLBACK")
    other.close()
    assert await engine.write(put(2)) == 2


# --- backups and the file ------------------------------------------------------------------------


async def test_a_backup_is_consistent_while_others_write(store: Store, tmp_path: Path) -> None:
    tree = await store.create_tree(ME, "owner")
    await store.append(ME, tree.id, None, [NewNode("x" * 1000)] * 5000)
    written: list[str] = []
    over = False

    async def write() -> None:
        while not over:
            written.extend(n.id for n in await store.append(ME, tree.id, None, [NewNode("y")] * 3))

    writer = asyncio.create_task(write())
    target = tmp_path / "backup.db"
    for _ in range(5):
        before = list(written)
        await store.backup(target)
        assert set(before) <= ids_in(target)
        assert faults_in(target) == []
        assert stat.S_IMODE(target.stat().st_mode) == 0o600
    over = True
    await writer
    copy = await open_store(str(target), purge_every_s=None)
    assert (await copy.get_tree(ME, tree.id)).root == tree.root
    assert len(await copy.search(ME, "y", None, None, 10)) == 10
    await copy.close()
    assert {name for name in os.listdir(tmp_path) if "part" in name} == set()  # noqa: PTH208


async def test_a_backup_cannot_overwrite_the_store(store: Store, path: Path) -> None:
    tree = await store.create_tree(ME, "owner")
    with pytest.raises(Failed) as caught:
        await store.backup(path)
    assert caught.value.code == "same_file"
    with pytest.raises(Failed) as caught:
        await store.backup(path / "no" / "folder")
    assert caught.value.code == "storage"
    assert (await store.get_tree(ME, tree.id)).id == tree.id


async def test_only_the_owner_can_access_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "arbor.db"
    store = await open_store(f"sqlite:///{path}")
    await store.create_tree(ME, "owner")
    for each in path.parent.iterdir():
        assert stat.S_IMODE(each.stat().st_mode) == 0o600, each
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    await store.close()


def test_the_default_file_is_in_the_users_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_path() == tmp_path / "substrate" / "arbor.db"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_path() == tmp_path / ".local" / "share" / "substrate" / "arbor.db"


@pytest.mark.parametrize("database", ["mysql://x/y", "http://x", ":memory:", "sqlite://x"])
async def test_another_kind_of_database_is_refused(database: str) -> None:
    with pytest.raises(Failed) as caught:
        await open_store(database)
    assert caught.value.code == "storage_unknown"


async def test_commits_are_durable_and_constraints_are_enforced(engine: SqliteEngine) -> None:
    def settings(tx: Transaction) -> list[Any]:
        return [
            tx.one(f"PRAGMA {name}") for name in ("synchronous", "foreign_keys", "journal_mode")
        ]

    assert await engine.write(settings) == [(2,), (1,), ("wal",)]
