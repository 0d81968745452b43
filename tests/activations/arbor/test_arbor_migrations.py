"""Files of other versions, and files of other programs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import apsw
import pytest
from arbor_checker import faults_in
from arbor_old_file import TREE, make_old_file

from activations.arbor.model import NewNode
from activations.arbor.schema import ARBOR
from activations.arbor.store import open_store
from plexus.errors import Failed
from plexus.storage import migrations

pytestmark = pytest.mark.anyio

VERSION = ARBOR.version


@pytest.mark.parametrize("version", range(1, VERSION))
async def test_a_file_of_an_older_version_opens_migrates_and_reads_back(
    tmp_path: Path, version: int
) -> None:
    path = tmp_path / "arbor.db"
    ids = make_old_file(path, version)
    store = await open_store(str(path), purge_every_s=None)
    assert [node.id for node in await store.path("me", TREE, ids[-1])] == ids
    hits = await store.search("me", "old text 77", None, None, 10)
    assert [hit.node.id for hit in hits] == [ids[75]]
    [node] = await store.append("me", TREE, ids[-1], [NewNode("new text")])
    assert len(await store.changes("me", TREE, 0, 1000)) == len(ids) + 2
    await store.delete_node("me", TREE, ids[5])
    head = await store.create_head("me", "chat", "new")
    assert await store.list_heads("me", "chat", None, 10) == [head]
    assert await store.list_heads("me", "chat", None, 10, TREE) == []
    await store.close()
    assert node.id not in ids
    assert faults_in(path) == []


async def test_migrating_twice_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "arbor.db"
    for _ in range(3):
        await (await open_store(str(path))).close()
    connection = apsw.Connection(str(path))
    assert connection.pragma("user_version") == VERSION
    assert connection.pragma("journal_mode") == "wal"
    connection.close()


async def test_an_interrupted_migration_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "arbor.db"
    ids = make_old_file(path)
    real = migrations.statements(ARBOR, "sqlite", 1)
    monkeypatch.setattr(migrations, "statements", lambda *_: [*real, "SELECT no_such_function()"])
    with pytest.raises(Failed) as caught:
        await open_store(str(path))
    assert caught.value.code == "storage"
    connection = apsw.Connection(str(path))
    assert connection.pragma("user_version") == 1
    assert not connection.execute(
        "SELECT 1 FROM sqlite_schema WHERE name LIKE 'search%'"
    ).fetchall()
    connection.close()
    monkeypatch.undo()
    store = await open_store(str(path))
    assert (await store.get_node("me", TREE, ids[9])).content == "old text 11"
    await store.close()


async def test_a_file_of_a_newer_version_is_refused_and_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "arbor.db"
    await (await open_store(str(path))).close()
    connection = apsw.Connection(str(path))
    connection.pragma("user_version", VERSION + 1)
    connection.pragma("journal_mode", "delete")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(Failed) as caught:
        await open_store(str(path))
    assert caught.value.code == "storage_newer"
    assert caught.value.data == {"found": VERSION + 1, "known": VERSION}
    assert path.read_bytes() == before


async def test_a_database_of_another_program_is_refused_and_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(Failed) as caught:
        await open_store(str(path))
    assert caught.value.code == "storage_corrupt"
    assert path.read_bytes() == before


async def test_a_file_that_is_not_a_database_is_refused_and_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear reader, this is no database at all. " * 50)
    before = path.read_bytes()
    with pytest.raises(Failed) as caught:
        await open_store(str(path))
    assert caught.value.code == "storage_corrupt"
    assert path.read_bytes() == before


async def test_stores_that_open_a_new_file_concurrently_migrate_it_once(tmp_path: Path) -> None:
    path = tmp_path / "arbor.db"
    stores = await asyncio.gather(*(open_store(str(path)) for _ in range(8)))
    trees = [await store.create_tree("me", "owner") for store in stores]
    assert len(await stores[0].list_trees("me", None, None, 100)) == len(trees)
    for store in stores:
        await store.close()
    assert faults_in(path) == []
