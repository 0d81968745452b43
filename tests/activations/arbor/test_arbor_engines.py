"""Several stores on one database, in one process and in several."""

from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import arbor_process
import pytest
from arbor_databases import ENGINES, new_database

from activations.arbor.model import (
    DAY_S,
    NewNode,
    Node,
    Retention,
    Tree,
)
from activations.arbor.store import Store, open_store
from plexus.errors import Failed, NotFound, PlexusError

pytestmark = pytest.mark.anyio

ME = arbor_process.PRINCIPAL
WAIT_S = 20.0

Open = Callable[[], Awaitable[Store]]


@pytest.fixture(params=ENGINES)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return new_database(request.param, tmp_path)


@pytest.fixture
def clock() -> list[int]:
    """Return the clock of all stores of a test, in milliseconds."""
    return [1_000_000_000_000]


@pytest.fixture
async def open_one(database: str, clock: list[int]) -> AsyncIterator[Open]:
    """Open another store on the same database, as another process would."""
    opened: list[Store] = []

    async def open_it() -> Store:
        store = await open_store(
            database, Retention(7 * DAY_S, 30 * DAY_S), clock=lambda: clock[0], purge_every_s=None
        )
        opened.append(store)
        return store

    yield open_it
    async with asyncio.timeout(WAIT_S):
        for store in opened:
            await store.close()


@pytest.fixture
async def store(open_one: Open) -> Store:
    return await open_one()


@pytest.fixture
async def tree(store: Store) -> Tree:
    return await store.create_tree(ME, "owner", {"title": "a tree"})


async def everything(store: Store, tree: str, page: int = 1_000) -> list[Node]:
    found: list[Node] = []
    while batch := await store.walk(ME, tree, found[-1].n if found else None, page):
        found += batch
    return found


async def check_whole(store: Store, tree: str) -> list[Node]:
    """Check that every link of a tree is valid and every change has a number."""
    nodes = await everything(store, tree)
    ids = {node.id for node in nodes}
    assert len(ids) == len(nodes)
    assert [node for node in nodes if node.parent is None] == nodes[:1]
    assert all(node.parent in ids for node in nodes[1:])
    parents = {node.parent for node in nodes if node.content == "leaf"}
    branches = {node.id for node in nodes if node.content == "branch"}
    assert parents == branches  # the two nodes of an append are added together
    return nodes


async def refused(
    call: Awaitable[object], error: type[PlexusError], code: str | None = None
) -> None:
    with pytest.raises(error) as caught:
        await call
    if code is not None:
        assert caught.value.code == code


# --- trees ---------------------------------------------------------------------------------------


async def test_concurrent_claims_and_releases_have_exact_counts(
    store: Store, open_one: Open, tree: Tree
) -> None:
    stores = [store, await open_one()]

    async def client(number: int) -> None:
        choose = random.Random(number)
        owner = f"owner {number % 4}"
        for _ in range(5):
            count = choose.randint(1, 3)
            each = stores[number % 2]
            await each.claim(ME, tree.id, owner, count + 1)
            await each.release(ME, tree.id, owner, count)

    async with asyncio.timeout(2 * WAIT_S):
        await asyncio.gather(*map(client, range(32)))
    refs = (await store.get_tree(ME, tree.id)).refs
    assert refs.owners == {"owner": 1} | {f"owner {n}": 40 for n in range(4)}
    assert refs.total == 161


async def test_a_tree_goes_through_its_states(store: Store, tree: Tree, clock: list[int]) -> None:
    await store.release(ME, tree.id, "owner", 1)
    assert (await store.get_tree(ME, tree.id)).state == "scheduled_delete"
    await store.claim(ME, tree.id, "owner", 1)
    assert (await store.get_tree(ME, tree.id)).state == "active"
    await store.delete_tree(ME, tree.id)
    day = DAY_S * 1000
    clock[0] += 7 * day - 1
    assert (await store.purge()).archived == 0
    clock[0] += 1
    assert (await store.purge()).archived == 1
    await refused(store.claim(ME, tree.id, "owner", 1), Failed, "archived")
    await refused(store.append(ME, tree.id, None, [NewNode("x")]), Failed, "archived")
    assert len(await everything(store, tree.id)) == 1  # it can still be read
    clock[0] += 30 * day - 1
    await store.purge()
    assert (await store.get_tree(ME, tree.id)).state == "archived"
    clock[0] += 1
    await store.purge()
    await refused(store.get_tree(ME, tree.id), NotFound)
    assert (await store.counts())[:2] == (0, 0)


async def test_concurrent_purges_process_everything_once(
    store: Store, open_one: Open, clock: list[int]
) -> None:
    other = await open_one()
    for _ in range(10):
        each = await store.create_tree(ME, "o", None)
        await store.append(ME, each.id, None, [NewNode("x")] * 50)
        await store.delete_tree(ME, each.id)
    clock[0] += 7 * DAY_S * 1000
    done = await asyncio.gather(store.purge(), other.purge())
    assert sum(each.archived for each in done) == 10
    clock[0] += 30 * DAY_S * 1000
    done = await asyncio.gather(store.purge(), other.purge())
    assert sum(each.removed for each in done) == 10
    assert sum(each.nodes for each in done) == 510
    assert (await store.counts())[:2] == (0, 0)


# --- nodes ---------------------------------------------------------------------------------------


async def test_a_deep_path_and_a_long_walk(store: Store, tree: Tree) -> None:
    depth = 3_000
    items = [NewNode("n", parent=index - 1 if index else None) for index in range(depth)]
    made = await store.append(ME, tree.id, None, items)
    path = await store.path(ME, tree.id, made[-1].id)
    assert [node.id for node in path[1:]] == [node.id for node in made]
    assert [node.n for node in await everything(store, tree.id, 999)] == [n.n for n in path]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("hello", [0, 2]),
        ("HELLO world", [0]),
        ("wörld", [1]),
        ("WÖRLD", [1]),
        ("foo-bar", [1]),
        ("foo bar", [1]),
        ("'); DROP TABLE nodes --", []),
        ("50%", [2]),
        ("hello AND NOT world", []),
        ('"hello" & !world | (', [0]),
        ("漢字", [2]),
        ("hel", []),
        ("привет", [3]),
        ("user@example.org", [3]),
        ("https://example.org/a/b?c=d", [3]),
    ],
)
async def test_search_finds_the_same_words_on_every_engine(
    store: Store, tree: Tree, query: str, found: list[int]
) -> None:
    texts = [
        "Hello, world!",
        "the wörld of (foo-bar)",
        "hello 50% 漢字",
        "ПРИВЕТ user@example.org https://example.org/a/b?c=d",
    ]
    made = await store.append(ME, tree.id, None, [NewNode(text) for text in texts])
    hits = await store.search(ME, query, None, None, 10)
    assert sorted(made.index(hit.node) for hit in hits) == found
    assert await store.search("somebody else", query, None, None, 10) == []


async def test_deleted_nodes_are_no_longer_found(store: Store, tree: Tree) -> None:
    made = await store.append(ME, tree.id, None, [NewNode(f"word number{n}") for n in range(30)])
    seen: list[int] = []
    while page := await store.search(ME, "word", tree.id, seen[-1] if seen else None, 7):
        seen += [hit.node.n for hit in page]
    assert seen == [node.n for node in reversed(made)]
    await store.delete_node(ME, tree.id, made[3].id)
    assert await store.search(ME, "number3", None, None, 10) == []


# --- changes -------------------------------------------------------------------------------------


async def test_changes_are_read_from_any_number(store: Store, tree: Tree) -> None:
    made = await store.append(ME, tree.id, None, [NewNode("a"), NewNode("b")])
    await store.delete_node(ME, tree.id, made[0].id)
    rows = await store.changes(ME, tree.id, 0, 100)
    numbers = [row.seq for row in rows]
    assert numbers == sorted(set(numbers))
    assert (await store.get_tree(ME, tree.id)).seq == numbers[-1]
    assert rows[-1].kind == "node_deleted"
    for after in numbers:
        rest = await store.changes(ME, tree.id, after, 100)
        assert [row.seq for row in rest] == [n for n in numbers if n > after]


async def test_watching_from_a_purged_number_is_refused(
    store: Store, tree: Tree, clock: list[int]
) -> None:
    clock[0] += 31 * DAY_S * 1000
    await store.append(ME, tree.id, None, [NewNode("a")])
    await store.purge()
    await refused(store.changes(ME, tree.id, 0, 100), Failed, "expired")
    oldest = await store.oldest_change(ME, tree.id)
    assert [row.kind for row in await store.changes(ME, tree.id, oldest, 9)] == ["node_created"]


async def test_a_follower_in_another_process_misses_nothing(
    store: Store, open_one: Open, tree: Tree
) -> None:
    other = await open_one()
    notified = asyncio.Event()
    unsubscribe = other.subscribe(notified.set)
    seen: list[int] = []

    async def follow() -> None:
        while len(seen) < 200:
            notified.clear()
            rows = await other.changes(ME, tree.id, seen[-1] if seen else tree.seq, 50)
            seen.extend(row.seq for row in rows)
            if not rows:
                await notified.wait()

    async with asyncio.timeout(WAIT_S):
        following = asyncio.ensure_future(follow())
        await asyncio.gather(
            *(store.append(ME, tree.id, None, [NewNode("x"), NewNode("y")]) for _ in range(100))
        )
        await following
    unsubscribe()
    assert seen == sorted(set(seen))


# --- processes -----------------------------------------------------------------------------------


@contextlib.contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, arbor_process.__file__, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        try:
            yield started
        finally:
            started.kill()


def line_of(started: subprocess.Popen[str]) -> str:
    assert started.stdout is not None
    return started.stdout.readline().strip()


async def test_processes_that_write_and_watch_concurrently_lose_nothing(
    database: str, store: Store, tree: Tree
) -> None:
    count = 25

    def follow() -> tuple[list[str], set[str]]:
        with contextlib.ExitStack() as stack:
            watchers = [stack.enter_context(process("watch", database, tree.id)) for _ in range(2)]
            assert [line_of(watcher) for watcher in watchers] == ["ready", "ready"]
            writers = [
                stack.enter_context(process("write", database, tree.id, str(count)))
                for _ in range(2)
            ]
            wanted = 2 * count * len(writers)
            watched = [[line_of(watcher) for _ in range(wanted)] for watcher in watchers]
            written = {line_of(writer) for writer in writers for _ in range(2 * count)}
            assert watched[0] == watched[1]
            return watched[0], written

    async with asyncio.timeout(2 * WAIT_S):
        watched, written = await asyncio.to_thread(follow)
    assert set(watched) == written
    assert len(watched) == len(written)
    nodes = await check_whole(store, tree.id)
    assert {node.id for node in nodes[1:]} == written


async def test_a_killed_process_loses_no_acknowledged_change(
    database: str, store: Store, tree: Tree
) -> None:
    def write_and_die(after: int) -> set[str]:
        with (
            process("write", database, tree.id) as victim,
            process("write", database, tree.id, "10") as other,
        ):
            output = [line_of(victim) for _ in range(after)]
            victim.kill()
            assert victim.stdout is not None
            rest = victim.stdout.read().split("\n")[:-1]  # without an incomplete line
            return {*output, *rest, *(line_of(other) for _ in range(20))}

    acknowledged: set[str] = set()
    for after in (1, 7, 20):
        async with asyncio.timeout(2 * WAIT_S):
            acknowledged |= await asyncio.to_thread(write_and_die, after)
    nodes = await check_whole(store, tree.id)
    assert acknowledged <= {node.id for node in nodes}
    await store.append(ME, tree.id, None, [NewNode("branch"), NewNode("leaf", parent=0)])


async def test_previews_are_cut_and_have_the_full_length(store: Store, tree: Tree) -> None:
    long, short = await store.append(ME, tree.id, None, [NewNode("ä" * 500), NewNode("b")])
    found = await store.previews(ME, tree.id, [long.id, short.id, "unknown"], 3)
    assert {node.content: length for node, length in found} == {"äää": 500, "b": 1}
