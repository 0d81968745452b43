"""Storage of activations: durable, and separate for every activation and principal."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from arbor_databases import ENGINES, new_database

from plexus.errors import InvalidEvent, InvalidParams, PlexusError, TooBig
from plexus.principal import LOCAL, Principal
from plexus.storage import Transaction
from plexus.storage.activation_storage import (
    KEY_CHARS,
    OPEN_DATABASES,
    VALUE_BYTES,
    ActivationStores,
)

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


@pytest.fixture(params=ENGINES)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return new_database(request.param, tmp_path)


@pytest.fixture
async def stores(database: str, tmp_path: Path) -> AsyncIterator[ActivationStores]:
    stores = ActivationStores(database, tmp_path / "own")
    yield stores
    await stores.close()


async def test_a_value_is_read_back_by_its_key(stores: ActivationStores) -> None:
    storage = stores.of("count", LOCAL)
    assert await storage.get("n") is None
    assert await storage.get("n", 7) == 7
    await storage.set("n", {"a": [1, None, "ä"]})
    await storage.set("n", {"a": [2, None, "ä"]})
    assert await storage.get("n") == {"a": [2, None, "ä"]}
    assert await storage.delete("n") is True
    assert await storage.delete("n") is False


async def test_activations_and_principals_do_not_see_each_other(stores: ActivationStores) -> None:
    own = stores.of("count", LOCAL)
    others = [stores.of("other", LOCAL), stores.of("count", Principal("eve"))]
    await own.set("n", 1)
    await own.write(_create)
    for other in others:
        assert await other.get("n") is None
        assert await other.keys() == []
        with pytest.raises(PlexusError):
            await other.read(_rows)
    assert await own.read(_rows) == [(1,)]


async def test_what_was_written_is_there_after_a_restart(database: str, tmp_path: Path) -> None:
    for expected in ([], [(1,)]):
        stores = ActivationStores(database, tmp_path / "own")
        storage = stores.of("count", LOCAL)
        assert await storage.get("n") == (1 if expected else None)
        if expected:
            assert await storage.read(_rows) == expected
        await storage.set("n", 1)
        if not expected:
            await storage.write(_create)
        await stores.close()


async def test_keys_are_listed_in_order_by_prefix_and_in_pages(stores: ActivationStores) -> None:
    storage = stores.of("count", LOCAL)
    for key in ("b", "a/2", "a/1", "A/3", "a%"):
        await storage.set(key, 0)
    assert await storage.keys("a/") == ["a/1", "a/2"]
    assert await storage.keys("a/", after="a/1") == ["a/2"]
    assert await storage.keys(limit=2) == sorted(["b", "a/2", "a/1", "A/3", "a%"])[:2]
    assert await storage.keys(limit=-1) == []


@pytest.mark.parametrize("key", ["", "x" * (KEY_CHARS + 1), "a\0b"])
async def test_a_wrong_key_is_refused(stores: ActivationStores, key: str) -> None:
    storage = stores.of("count", LOCAL)
    for attempt in (storage.get(key), storage.set(key, 1), storage.delete(key)):
        with pytest.raises(InvalidParams, match="a key is a text"):
            await attempt


async def test_a_value_without_a_json_form_or_too_large_is_refused(
    stores: ActivationStores,
) -> None:
    storage = stores.of("count", LOCAL)
    await storage.set("n", 1)
    with pytest.raises(InvalidEvent):
        await storage.set("n", float("nan"))
    with pytest.raises(TooBig):
        await storage.set("n", "x" * (VALUE_BYTES + 1))
    assert await storage.get("n") == 1


async def test_a_work_that_fails_leaves_nothing_and_the_next_one_finds_its_tables(
    stores: ActivationStores,
) -> None:
    storage = stores.of("count", LOCAL)
    await storage.write(_create)

    def fail(tx: Transaction) -> None:
        tx.run("INSERT INTO numbers (n) VALUES (2)")
        raise InvalidParams("no")

    with pytest.raises(InvalidParams):
        await storage.write(fail)
    assert await storage.read(_rows) == [(1,)]
    await storage.set("n", 1)  # the shared table is found too
    assert await storage.get("n") == 1


async def test_more_activations_than_open_files_all_keep_their_tables(
    stores: ActivationStores,
) -> None:
    names = [f"count_{number}" for number in range(OPEN_DATABASES + 2)]
    for name in names:
        await stores.of(name, LOCAL).write(_create)
    for name in names[:3]:
        assert await stores.of(name, LOCAL).read(_rows) == [(1,)]


def _create(tx: Transaction) -> int:
    tx.run("CREATE TABLE numbers (n BIGINT)")
    return tx.run("INSERT INTO numbers (n) VALUES (1)")


def _rows(tx: Transaction) -> list[tuple[int]]:
    return [(row[0],) for row in tx.all("SELECT n FROM numbers")]
