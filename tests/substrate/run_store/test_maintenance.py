"""The background work of the store: the search index is filled, and what has expired is deleted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from activations_for_tests import Demo
from arbor_databases import ENGINES, new_database
from hub_calls import read
from store_hubs import StoreHub, wait_for, wait_until

from plexus.principal import LOCAL
from plexus.runtime.run_record import RunQuery
from plexus.storage.engine import Transaction
from substrate.run_store import maintenance, store
from substrate.run_store.maintenance import Maintenance, search_database
from substrate.settings import Settings

pytestmark = pytest.mark.anyio

OpenStore = Callable[..., Awaitable[StoreHub]]
#: Markers that occur nowhere else: as an argument and as output.
MARKER = "zqxjkvbpywmarker"
DAY_MS = 24 * 3600 * 1000


@pytest.fixture(params=ENGINES)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return new_database(request.param, tmp_path)


@pytest.fixture
async def opened(database: str) -> AsyncIterator[OpenStore]:
    """Open hubs on one database, and close them at the end."""
    hubs: list[StoreHub] = []

    async def make(settings: Settings | None = None) -> StoreHub:
        hub = await StoreHub.open(database, Demo, settings=settings)
        hubs.append(hub)
        return hub

    yield make
    for each in hubs:
        await each.close()


def maintenance_of(hub: StoreHub) -> Maintenance:
    return hub.store.maintenance


async def echoed(hub: StoreHub, text: str) -> int:
    call = hub.hub.call("demo.echo", {"text": text}, LOCAL)
    await read(call)
    await hub.store.flushed()
    return call.run.id


async def count(hub: StoreHub, sql: str) -> int:
    def work(tx: Transaction) -> int:
        row = tx.one(sql)
        assert row is not None
        return int(row[0])

    return await hub.store.engine.read(work)


async def age(hub: StoreHub, run: int, days: float) -> None:
    """Move the end of a run and its retention into the past."""
    by_ms = round(days * DAY_MS)
    sql = "UPDATE runs SET ended_ms = ended_ms - ?, kept_until = kept_until - ? WHERE id = ?"
    await hub.store.engine.write(lambda tx: tx.run(sql, (by_ms, by_ms, run)))


async def found(hub: StoreHub, text: str = MARKER) -> list[int]:
    entries = await hub.store.history.query(LOCAL, RunQuery(text=text))
    return [entry["run"] for entry in entries]


def files_with(folder: Path, marker: str) -> list[str]:
    """Return the files below a folder that have these bytes, in any case."""
    wanted = marker.encode().lower()
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path.name for path in files if wanted in path.read_bytes().lower()]


async def test_ended_runs_are_indexed_in_the_background(
    opened: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "MAINTENANCE_S", 0.05)
    monkeypatch.setattr(maintenance, "ENDED_S", 0.05)
    hub = await opened()
    runs = [await echoed(hub, f"{MARKER} {number}") for number in range(3)]
    waiting = hub.hub.call("demo.wait", None, LOCAL)
    await hub.store.flushed()
    index = await maintenance_of(hub).search_index()
    sizes: list[int] = []

    async def look() -> None:
        sizes.append((await index.size()).runs)

    while not sizes or sizes[-1] < len(runs):
        await look()
        assert len(sizes) < 10_000, "the runs are indexed in time"
    # The runs are marked after the index has them.
    unmarked = len(runs) + 1
    for _ in range(10_000):
        unmarked = await count(hub, "SELECT COUNT(*) FROM runs WHERE indexed = 0")
        if unmarked == 1:
            break
    assert unmarked == 1
    assert sorted(await found(hub)) == sorted(runs)
    waiting.run.cancel("enough")
    await read(waiting)


async def test_a_long_run_is_indexed_in_parts(
    opened: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "INDEX_CHARACTERS", 100)
    hub = await opened()
    call = hub.hub.call("demo.count", {"to": 3000}, LOCAL)
    await read(call)
    await hub.store.flushed()
    await maintenance_of(hub).index_runs()
    assert await count(hub, "SELECT COUNT(*) FROM runs WHERE indexed = 0") == 0
    assert await found(hub, "1 1500 3000") == [call.run.id]


# On PostgreSQL the index is in the database of the runs.
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_a_new_index_is_filled_with_all_runs_again(opened: OpenStore, database: str) -> None:
    hub = await opened()
    run = await echoed(hub, MARKER)
    await maintenance_of(hub).index_runs()
    await hub.close()
    for path in Path(search_database(database)).parent.glob("search.db*"):
        path.unlink()
    again = await opened()
    newer = await echoed(again, "another run")
    await maintenance_of(again).index_runs()
    assert await found(again) == [run]
    assert await found(again, "another") == [newer]
    assert await count(again, "SELECT COUNT(*) FROM runs WHERE indexed = 0") == 0


async def test_one_process_at_a_time_maintains_the_store(opened: OpenStore) -> None:
    one, two = maintenance_of(await opened()), maintenance_of(await opened())
    assert await one.claim()
    assert not await two.claim()
    assert await one.claim()


async def test_expired_runs_are_deleted_and_pinned_ones_stay(opened: OpenStore) -> None:
    hub = await opened()
    expired, pinned, recent = [await echoed(hub, f"{MARKER} {n}") for n in range(3)]
    await maintenance_of(hub).index_runs()
    await age(hub, expired, 8)
    await age(hub, pinned, 8)
    await hub.store.history.pin(pinned, pinned=True)
    assert await hub.store.history.prune() == 1
    assert sorted(await found(hub)) == sorted([pinned, recent])
    assert [run.id for run in hub.hub.runs.list_for(LOCAL) if run.id == expired] == []
    await hub.store.history.pin(pinned, pinned=False)
    assert await hub.store.history.prune() == 1
    assert await found(hub) == [recent]
    assert await count(hub, "SELECT COUNT(*) FROM run_deletions") == 0


async def test_the_oldest_runs_beyond_the_maximum_size_are_deleted(opened: OpenStore) -> None:
    hub = await opened(Settings(history_bytes=1024 * 1024))
    runs = [await echoed(hub, "x" * 400_000) for _ in range(4)]
    for index, run in enumerate(runs):
        await age(hub, run, 0.01 * (4 - index))
    assert await hub.store.history.prune() == 2
    kept = await hub.store.history.query(LOCAL, RunQuery())
    assert {entry["run"] for entry in kept} == set(runs[2:])


async def test_an_interrupted_deletion_is_finished_later(
    opened: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = await opened()
    run = await echoed(hub, MARKER)
    work = maintenance_of(hub)
    await work.index_runs()

    async def interrupted() -> None:
        raise ConnectionError("the process ended")

    with monkeypatch.context() as patched:
        patched.setattr(work, "finish_deletions", interrupted)
        with pytest.raises(ConnectionError):
            await hub.store.history.delete([run])
    index = await work.search_index()
    assert (await index.size()).runs == 1
    await hub.close()
    monkeypatch.setattr(store, "MAINTENANCE_S", 0.0)
    again = await opened()

    async def is_finished() -> bool:
        return not await count(again, "SELECT COUNT(*) FROM run_deletions")

    await wait_for(is_finished)  # with pauses, because readers prevent that bytes are erased
    assert (await (await maintenance_of(again).search_index()).size()).runs == 0


# A PostgreSQL server decides itself when it overwrites what was deleted.
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize("long", [False, True], ids=["short", "long"])
async def test_no_file_has_the_bytes_of_a_deleted_run(
    opened: OpenStore, database: str, *, long: bool
) -> None:
    hub = await opened()
    kept = await echoed(hub, "unrelated")
    # Long output is stored in chunks, of which small ones are not compressed.
    repeated = 400 if long else 1
    call = hub.hub.call("demo.echo", {"text": MARKER, "times": repeated}, LOCAL)
    await read(call)
    other = hub.hub.call("demo.fail", {"code": "c", "message": f"{MARKER} failed"}, LOCAL)
    await read(other)
    await hub.store.flushed()
    await maintenance_of(hub).index_runs()
    folder = Path(search_database(database)).parent
    assert files_with(folder, MARKER)
    assert await hub.store.history.delete([call.run.id, other.run.id]) == 2
    assert files_with(folder, MARKER) == []
    assert await found(hub) == []
    assert [entry["run"] for entry in await hub.store.history.query(LOCAL, RunQuery())] == [kept]
    await hub.close()
    assert files_with(folder, MARKER) == []


async def test_closing_does_not_wait_for_the_background_work(
    opened: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "MAINTENANCE_S", 0.0)
    monkeypatch.setattr(maintenance, "PAUSE", 1e6)
    hub = await opened()
    for number in range(60):
        await echoed(hub, f"run {number}")
    work = maintenance_of(hub)
    await wait_until(lambda: work.is_busy)
    await hub.close()
    assert not work.is_busy
