"""Storage for any component: a small component of two tables, alone and together with arbor."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
from arbor_databases import ENGINES, new_database, server
from arbor_old_file import TREE, make_old_file

from activations.arbor.schema import ARBOR
from activations.arbor.store import open_store
from plexus.errors import Failed
from plexus.registry.lazy import resolve
from plexus.storage import Component, Engine, Migration, Transaction, open_engine
from plexus.storage import engine as storage_engine
from plexus.storage.migrations import statements

pytestmark = pytest.mark.anyio

WAIT_S = 10.0

FIRST = Migration(
    both=(
        "CREATE TABLE boxes (n {key}, label {name} NOT NULL UNIQUE)",
        "CREATE TABLE parts (box BIGINT NOT NULL REFERENCES boxes (n), content {bytes} NOT NULL)",
    )
)
SECOND = Migration(
    both=("ALTER TABLE boxes ADD COLUMN weight BIGINT NOT NULL DEFAULT 0",),
    sqlite=("CREATE INDEX parts_of_box ON parts (box)",),
    postgres=("CREATE INDEX parts_of_box ON parts USING hash (box)",),
)
BOXES = Component("boxes", (FIRST, SECOND))
OLD_BOXES = Component("boxes", (FIRST,))


def put(n: int, label: str, *parts: bytes) -> Callable[[Transaction], int]:
    def work(tx: Transaction) -> int:
        tx.run("INSERT INTO boxes (n, label) VALUES (?, ?)", (n, label))
        tx.many("INSERT INTO parts (box, content) VALUES (?, ?)", [(n, part) for part in parts])
        return n

    return work


def contents(tx: Transaction) -> list[tuple[str, bytes]]:
    rows = tx.all(
        "SELECT label, content FROM boxes JOIN parts ON parts.box = boxes.n ORDER BY label, content"
    )
    return [(label, bytes(content)) for label, content in rows]


@pytest.fixture(params=ENGINES)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return new_database(request.param, tmp_path)


@pytest.fixture
async def boxes(database: str) -> AsyncIterator[Engine]:
    opened = await open_engine(database, BOXES)
    yield opened
    await opened.close()


@pytest.mark.parametrize("first", ["arbor", "boxes"])
async def test_two_components_share_one_database(database: str, first: str) -> None:
    if first == "arbor":
        store = await open_store(database, purge_every_s=None)
        boxes = await open_engine(database, BOXES)
    else:
        boxes = await open_engine(database, BOXES)
        store = await open_store(database, purge_every_s=None)
    tree = await store.create_tree("me", "owner", {"title": "Tea"})
    await boxes.write(put(1, "tea", b"leaves", b"\x00\xff"))
    await asyncio.gather(
        *(store.create_tree("me", "owner") for _ in range(20)),
        *(boxes.write(put(n, f"box {n}")) for n in range(2, 22)),
    )
    await store.close()
    await boxes.close()

    store = await open_store(database, purge_every_s=None)
    boxes = await open_engine(database, BOXES)
    assert (await store.get_tree("me", tree.id)).metadata == {"title": "Tea"}
    assert (await store.counts()).trees == 21
    assert await boxes.read(contents) == [("tea", b"\x00\xff"), ("tea", b"leaves")]
    assert await boxes.read(lambda tx: tx.one("SELECT count(*) FROM boxes")) == (21,)
    await store.close()
    await boxes.close()


async def test_a_component_migrates_independently_and_keeps_its_rows(database: str) -> None:
    store = await open_store(database, purge_every_s=None)
    old = await open_engine(database, OLD_BOXES)
    await old.write(put(1, "old", b"part"))
    await old.close()
    new = await open_engine(database, BOXES)
    assert await new.read(contents) == [("old", b"part")]
    assert await new.read(lambda tx: tx.one("SELECT weight FROM boxes")) == (0,)
    assert await new.read(
        lambda tx: tx.all("SELECT component, version FROM component_versions")
    ) == [("boxes", 2)]
    await new.close()
    await store.close()


async def test_a_later_version_of_one_component_is_refused_and_the_other_opens(
    database: str,
) -> None:
    await (await open_engine(database, BOXES)).close()
    with pytest.raises(Failed) as caught:
        await open_engine(database, OLD_BOXES)
    assert caught.value.code == "storage_newer"
    assert caught.value.data == {"found": 2, "known": 1}
    await (await open_store(database, purge_every_s=None)).close()


async def test_a_migration_that_fails_leaves_nothing_behind(database: str) -> None:
    broken = Component("boxes", (FIRST, Migration(both=("SELECT no_such_function()",))))
    with pytest.raises(Failed):
        await open_engine(database, broken)
    boxes = await open_engine(database, BOXES)  # from the first migration
    await boxes.write(put(1, "whole", b"part"))
    assert await boxes.read(contents) == [("whole", b"part")]
    await boxes.close()


async def test_engines_that_migrate_concurrently_migrate_each_component_once(database: str) -> None:
    opened = await asyncio.gather(
        *(open_engine(database, component) for component in (BOXES, ARBOR) * 3)
    )
    for number, engine in enumerate(opened[::2]):
        await engine.write(put(number, f"box {number}"))
    assert await opened[0].read(lambda tx: tx.one("SELECT count(*) FROM boxes")) == (3,)
    for engine in opened:
        await engine.close()


async def test_a_file_that_another_engine_is_creating_is_not_one_of_another_program(
    tmp_path: Path,
) -> None:
    # One round in ten failed while the owner of the file was read in several steps.
    for number in range(60):
        database = str(tmp_path / f"{number}.db")
        opened = await asyncio.gather(
            *(open_engine(database, component) for component in (BOXES, ARBOR) * 6)
        )
        for engine in opened:
            await engine.close()


async def test_a_commit_notifies_subscribers_of_every_engine_of_the_component(
    boxes: Engine, database: str
) -> None:
    other = await open_engine(database, BOXES)
    here, there = asyncio.Event(), asyncio.Event()
    boxes.subscribe(here.set)
    unsubscribe = other.subscribe(there.set)
    await asyncio.sleep(0.3)  # both have been notified of earlier commits
    here.clear()
    there.clear()
    await boxes.write(put(1, "new"))
    async with asyncio.timeout(WAIT_S):
        await here.wait()
        await there.wait()
    unsubscribe()
    await asyncio.sleep(0.1)
    there.clear()
    await boxes.write(put(2, "newer"))
    await asyncio.sleep(0.2)
    assert not there.is_set()
    await other.close()


async def test_work_that_fails_is_rolled_back_alone(boxes: Engine) -> None:
    def fail(tx: Transaction) -> None:
        put(1, "bad")(tx)
        raise Failed("no", code="no")

    results: tuple[Any, ...] = await asyncio.gather(
        boxes.write(put(2, "good")), boxes.write(fail), boxes.write(put(3, "fine")),
        return_exceptions=True,
    )  # fmt: skip
    assert [result if isinstance(result, int) else result.code for result in results] == [
        2,
        "no",
        3,
    ]
    labels = await boxes.read(lambda tx: tx.all("SELECT label FROM boxes ORDER BY label"))
    assert labels == [("fine",), ("good",)]


async def test_a_backup_has_every_component(tmp_path: Path) -> None:
    path, copy = tmp_path / "shared.db", tmp_path / "copy.db"
    store = await open_store(str(path), purge_every_s=None)
    boxes = await open_engine(f"sqlite:///{path}", BOXES)
    tree = await store.create_tree("me", "owner")
    await boxes.write(put(1, "tea", b"leaves"))
    await boxes.backup(copy)
    await store.close()
    await boxes.close()
    store = await open_store(str(copy), purge_every_s=None)
    boxes = await open_engine(str(copy), BOXES)
    assert (await store.get_tree("me", tree.id)).id == tree.id
    assert await boxes.read(contents) == [("tea", b"leaves")]
    await store.close()
    await boxes.close()


async def test_a_driver_is_imported_outside_of_the_event_loop(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    def resolve_here(reference: str) -> Any:
        threads.append(threading.get_ident())
        return resolve(reference)

    monkeypatch.setattr(storage_engine, "resolve", resolve_here)
    await (await open_engine(database, BOXES)).close()
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


@pytest.mark.parametrize("name", ["", "Boxes", "my boxes", "1", "boxes;", "b" * 40])
def test_a_component_name_must_be_valid_in_sql(name: str) -> None:
    with pytest.raises(ValueError, match="component"):
        Component(name, ())


# --- databases that predate versions per component -----------------------------------------------


def header_of(path: Path) -> tuple[object, object, set[object]]:
    """Return the application id and version of a file, and the names of its tables."""
    connection = apsw.Connection(str(path))
    tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
    found = (
        connection.pragma("application_id"),
        connection.pragma("user_version"),
        {name for (name,) in tables},
    )
    connection.close()
    return found


async def test_a_file_of_the_released_layout_opens_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "arbor.db"
    ids = make_old_file(path, 3)
    before = header_of(path)
    assert before[:2] == (0x61726272, 3)
    store = await open_store(str(path), purge_every_s=None)
    assert [node.id for node in await store.path("me", TREE, ids[-1])] == ids
    await store.close()
    assert header_of(path) == before


async def test_a_component_is_added_to_a_file_of_the_released_layout(tmp_path: Path) -> None:
    path = tmp_path / "arbor.db"
    ids = make_old_file(path, 3)
    boxes = await open_engine(str(path), BOXES)  # before arbor has opened it
    await boxes.write(put(1, "new", b"part"))
    await boxes.close()
    assert header_of(path)[:2] == (0x61726272, 3)
    store = await open_store(str(path), purge_every_s=None)
    assert (await store.get_node("me", TREE, ids[9])).content == "old text 11"
    await store.close()


async def test_a_server_database_of_the_released_layout_opens_unchanged() -> None:
    running = server()
    url = running.url(running.new_database())
    psycopg = pytest.importorskip("psycopg")
    with psycopg.connect(url) as connection:
        for sql in statements(ARBOR, "postgres", 0):
            connection.execute(sql)
        connection.execute("CREATE TABLE schema_version (version BIGINT NOT NULL)")
        connection.execute("INSERT INTO schema_version VALUES (3)")
        connection.execute(
            "CREATE TABLE writers"
            " (name text PRIMARY KEY, last bigint NOT NULL, at_ms bigint NOT NULL)"
        )
        connection.execute("INSERT INTO writers VALUES ('old', 7, 0)")
    store = await open_store(url, purge_every_s=None)
    await store.create_tree("me", "owner")
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT version FROM schema_version").fetchall() == [(3,)]
        assert connection.execute(
            "SELECT to_regclass('component_versions') IS NULL"
        ).fetchall() == [(True,)]
    boxes = await open_engine(url, BOXES)
    await boxes.write(put(1, "new", b"part"))
    assert await boxes.read(contents) == [("new", b"part")]
    assert len(await store.list_trees("me", None, None, 10)) == 1
    await boxes.close()
    await store.close()
