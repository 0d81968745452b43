"""The purge removes what is due and nothing else, and can run concurrently."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from arbor_databases import ENGINES, new_database

from activations.arbor.model import NewNode, PurgeResult, Retention
from activations.arbor.purge import PurgeTask
from activations.arbor.store import Store, open_store
from plexus.errors import Failed, NotFound

pytestmark = pytest.mark.anyio

ME = "me"
WINDOWS = Retention(scheduled_s=10, archived_s=20, changes_s=1000)


class Clock:
    """A clock that a test sets, in milliseconds."""

    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now


OpenStore = Callable[[], Awaitable[Store]]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=ENGINES)
async def open_one(
    request: pytest.FixtureRequest, tmp_path: Path, clock: Clock
) -> AsyncIterator[OpenStore]:
    database = new_database(request.param, tmp_path)
    opened: list[Store] = []

    async def open_again() -> Store:
        store = await open_store(database, WINDOWS, clock=clock, purge_every_s=None)
        opened.append(store)
        return store

    yield open_again
    for store in opened:
        await store.close()


@pytest.fixture
async def store(open_one: OpenStore) -> Store:
    return await open_one()


async def test_a_tree_changes_state_at_the_end_of_each_retention_period(
    store: Store, clock: Clock
) -> None:
    tree = await store.create_tree(ME, "owner", {"a": 1})
    [node] = await store.append(ME, tree.id, None, [NewNode("a word")])
    clock.now += 10**9
    assert await store.purge() == PurgeResult(changes=3)  # an active tree stays, however old
    await store.release(ME, tree.id, "owner")
    clock.now += 9_999
    assert await store.purge() == PurgeResult()
    clock.now += 1
    assert await store.purge() == PurgeResult(archived=1)
    archived = await store.get_tree(ME, tree.id)
    assert (archived.state, archived.archived_ms) == ("archived", clock.now)
    assert await store.list_trees(ME, None, None, 9) == []
    assert await store.list_trees(ME, "archived", None, 9) == [archived]
    assert (await store.get_node(ME, tree.id, node.id)).content == "a word"
    assert len(await store.search(ME, "word", None, None, 9)) == 1
    clock.now += 19_999
    assert await store.purge() == PurgeResult()
    clock.now += 1
    assert await store.purge() == PurgeResult(removed=1, nodes=2)
    with pytest.raises(NotFound):
        await store.get_tree(ME, tree.id)
    assert await store.search(ME, "word", None, None, 9) == []
    counts = await store.counts()
    assert (counts.trees, counts.nodes) == (0, 0)
    assert await store.purge() == PurgeResult()


async def test_an_archived_tree_is_read_only(store: Store, clock: Clock) -> None:
    tree = await store.create_tree(ME, "owner")
    [node] = await store.append(ME, tree.id, None, [NewNode("a")])
    await store.delete_tree(ME, tree.id)
    clock.now += 10_000
    await store.purge()
    attempts = [
        store.append(ME, tree.id, None, [NewNode("b")]),
        store.edit(ME, tree.id, node.id, "b"),
        store.move(ME, tree.id, node.id, tree.root),
        store.delete_node(ME, tree.id, node.id),
        store.update_metadata(ME, tree.id, {}),
        store.claim(ME, tree.id, "owner"),
        store.release(ME, tree.id, "owner"),
        store.delete_tree(ME, tree.id),
    ]
    for attempt in attempts:
        with pytest.raises(Failed) as caught:
            await attempt
        assert caught.value.code == "archived"
    kinds = [change.kind for change in await store.changes(ME, tree.id, node.n, 9)]
    assert kinds == ["tree_scheduled", "tree_archived"]


async def test_a_tree_that_was_claimed_again_is_kept(store: Store, clock: Clock) -> None:
    tree = await store.create_tree(ME, "owner")
    await store.release(ME, tree.id, "owner")
    clock.now += 9_000
    await store.claim(ME, tree.id, "other")
    clock.now += 9_000
    assert await store.purge() == PurgeResult()
    await store.release(ME, tree.id, "other")
    clock.now += 9_000
    assert await store.purge() == PurgeResult()


async def test_a_deleted_node_is_removed_after_its_retention_period(
    store: Store, clock: Clock
) -> None:
    tree = await store.create_tree(ME, "owner")
    made = await store.append(ME, tree.id, None, [NewNode(f"word {n}") for n in range(1200)])
    await store.append(ME, tree.id, made[0].id, [NewNode("below")] * 3)
    assert len(await store.search(ME, "word", None, None, 10)) == 10
    for node in made[:600]:
        await store.delete_node(ME, tree.id, node.id)
    clock.now += 9_999
    assert await store.purge() == PurgeResult()
    clock.now += 1
    assert await store.purge() == PurgeResult(nodes=603)
    assert (await store.counts()).nodes == 601
    seen = [node.id for node in await store.walk(ME, tree.id, None, 1000)]
    assert seen == [tree.root, *(node.id for node in made[600:])]


async def test_old_changes_are_purged_and_watching_from_them_has_expired(
    store: Store, clock: Clock
) -> None:
    old = await store.create_tree(ME, "owner")
    idle = await store.create_tree(ME, "owner")
    made = await store.append(ME, old.id, None, [NewNode(str(n)) for n in range(700)])
    clock.now += 500_000
    [late] = await store.append(ME, old.id, None, [NewNode("late")])
    clock.now += 500_001
    assert await store.purge() == PurgeResult(changes=704)
    with pytest.raises(Failed) as caught:
        await store.changes(ME, old.id, made[-2].n, 10)
    assert (caught.value.code, caught.value.data) == ("expired", {"oldest": made[-1].n})
    assert await store.oldest_change(ME, old.id) == made[-1].n
    assert [c.node for c in await store.changes(ME, old.id, made[-1].n, 10)] == [late.id]
    # A watcher that had seen all changes of a tree has missed nothing.
    assert await store.changes(ME, idle.id, idle.seq, 10) == []
    fresh = await store.create_tree(ME, "owner")
    assert len(await store.changes(ME, fresh.id, 0, 10)) == 2


async def test_concurrent_purges_process_everything_once(open_one: OpenStore, clock: Clock) -> None:
    one, other = await open_one(), await open_one()
    trees = [await one.create_tree(ME, "owner") for _ in range(30)]
    for tree in trees[:20]:
        await one.append(ME, tree.id, None, [NewNode("x")] * 150)
        await one.delete_tree(ME, tree.id)
    clock.now += 10_000
    first, second = await asyncio.gather(one.purge(), other.purge())
    assert first.archived + second.archived == 20
    clock.now += 20_000
    done = await asyncio.gather(one.purge(), other.purge(), one.purge())
    assert sum(each.removed for each in done) == 20
    assert sum(each.nodes for each in done) == 20 * 151
    counts = await other.counts()
    assert (counts.trees, counts.nodes) == (10, 10)
    left = await other.list_trees(ME, None, None, 100)
    assert {tree.id for tree in left} == {tree.id for tree in trees[20:]}


async def test_a_large_tree_disappears_immediately_and_is_removed_while_others_write(
    store: Store, clock: Clock
) -> None:
    tree = await store.create_tree(ME, "owner")
    await store.append(ME, tree.id, None, [NewNode("x")] * 5000)
    other = await store.create_tree(ME, "owner")
    await store.delete_tree(ME, tree.id)
    clock.now += 10_000
    await store.purge()
    clock.now += 20_000
    purging = asyncio.create_task(store.purge())
    written = 0
    while not purging.done():
        await store.append(ME, other.id, None, [NewNode("y")])
        written += 1
    assert (await purging).nodes == 5001
    assert written > 5
    assert len(await store.walk(ME, other.id, None, 1000)) == min(written + 1, 1000)


async def test_a_new_store_purges_immediately_and_periodically(
    tmp_path: Path, clock: Clock
) -> None:
    path = str(tmp_path / "arbor.db")
    first = await open_store(path, WINDOWS, clock=clock, purge_every_s=None)
    tree = await first.create_tree(ME, "owner")
    await first.delete_tree(ME, tree.id)
    clock.now += 10_000
    heard = asyncio.Event()
    first.subscribe(heard.set)
    await heard.wait()  # the first purge has nothing to do
    heard.clear()
    second = await open_store(path, WINDOWS, clock=clock, purge_every_s=0.02)
    async with asyncio.timeout(20):
        await heard.wait()
        assert (await first.get_tree(ME, tree.id)).state == "archived"
        clock.now += 20_000
        while (await first.counts()).trees:
            heard.clear()
            await heard.wait()
    await second.close()
    await first.close()


async def test_a_failed_purge_is_retried(caplog: pytest.LogCaptureFixture) -> None:
    tries = 0
    done = asyncio.Event()

    async def purge() -> PurgeResult:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise Failed("the disk is full", code="storage_full")
        done.set()
        return PurgeResult(archived=1)

    with caplog.at_level(logging.INFO, "arbor.purge"):
        task = PurgeTask(purge, 0.01)
        async with asyncio.timeout(10):
            await done.wait()
            await asyncio.sleep(0.05)
        await task.stop()
    assert "the disk is full" in caplog.text
    assert "archived=1" in caplog.text
