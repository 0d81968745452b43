"""Heads, named pointers to nodes: names, leases, and the pieces of nodes in progress."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from arbor_checker import faults_in
from arbor_databases import ENGINES, new_database

from activations.arbor.model import (
    CONTENT_BYTES,
    METADATA_BYTES,
    NAME_BYTES,
    PAGE_ITEMS,
    Head,
    NewNode,
    Node,
    Position,
    Retention,
)
from activations.arbor.store import Store, open_store
from plexus.errors import Busy, Failed, InvalidParams, NotFound, PlexusError, TooBig

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

ME = "me"
CHAT = "chat"
NOWHERE = "00000000-0000-4000-8000-000000000000"


class Clock:
    """A clock that a test sets, in milliseconds."""

    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        self.now += 1  # no two calls have the same time
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=ENGINES)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return new_database(request.param, tmp_path)


@pytest.fixture
async def store(database: str, clock: Clock) -> AsyncIterator[Store]:
    retention = Retention(scheduled_s=10, archived_s=20)
    opened = await open_store(database, retention, clock=clock, purge_every_s=None)
    yield opened
    await opened.close()
    if "://" not in database:
        # A change may be retained longer than its node.
        faults = [
            each for each in faults_in(Path(database)) if "a change of a missing node" not in each
        ]
        assert faults == []


@pytest.fixture
async def head(store: Store) -> Head:
    """Create a head `tea` without a holder."""
    return await store.create_head(ME, CHAT, "tea", {"model": "echo"}, {"kind": "session"})


async def refusal(awaitable: Any) -> PlexusError:
    with pytest.raises(PlexusError) as caught:
        await awaitable
    return caught.value


async def grown(store: Store, head: Head, *texts: str) -> list[Node]:
    """Add a chain of nodes, with the head at its end and without a holder."""
    await store.acquire_head(ME, CHAT, head.name, "grower")
    _, nodes = await store.advance(ME, head.id, "grower", [NewNode(text) for text in texts])
    await store.release_head(ME, head.id, "grower")
    return nodes


async def texts_to(store: Store, position: Position) -> list[str | None]:
    return [node.content for node in await store.path(ME, *position)]


async def kinds(store: Store, tree: str, after: int = 0) -> list[tuple[str, str | None]]:
    return [(row.kind, row.node) for row in await store.changes(ME, tree, after, PAGE_ITEMS)]


# --- creating and finding ------------------------------------------------------------------------


async def test_a_new_head_points_to_the_root_of_its_new_tree(
    store: Store, head: Head, clock: Clock
) -> None:
    tree = await store.get_tree(ME, head.position.tree)
    assert head.position == (tree.id, tree.root)
    assert (tree.metadata, tree.refs.owners) == ({"kind": "session"}, {f"chat:{head.id}": 1})
    assert (await store.get_node(ME, *head.position)).content == ""
    assert (head.space, head.name, head.data) == (CHAT, "tea", {"model": "echo"})
    assert (head.created_ms, head.updated_ms) == (clock.now, clock.now)
    assert (head.holder, head.held_ms) == (None, None)
    assert await store.get_head(ME, CHAT, "tea") == head
    assert await kinds(store, tree.id) == [
        ("tree_created", None),
        ("node_created", tree.root),
        ("head_created", tree.root),
    ]
    assert tree.seq == (await store.changes(ME, tree.id, 0, 10))[-1].seq


async def test_heads_of_another_principal_or_space_are_not_found(store: Store, head: Head) -> None:
    await store.acquire_head(ME, CHAT, "tea", "holder")
    for principal, space in (("you", CHAT), (ME, "other")):
        attempts = [
            store.get_head(principal, space, "tea"),
            store.fork_head(principal, space, "tea", "mine"),
            store.rename_head(principal, space, "tea", "mine"),
            store.update_head(principal, space, "tea", {}),
            store.delete_head(principal, space, "tea"),
            store.move_head(principal, space, "tea", head.position.node),
            store.acquire_head(principal, space, "tea", "holder"),
        ]
        for attempt in attempts:
            error = await refusal(attempt)
            assert (type(error), error.data) == (NotFound, {"name": "tea"})
        assert await store.list_heads(principal, space, None, 10) == []
    by_id: list[Any] = [
        store.renew_head("you", head.id, "holder", "piece"),
        store.advance("you", head.id, "holder", [NewNode("x")]),
        store.pieces("you", head.id),
        store.list_heads("you", CHAT, None, 10, head.position.tree),
        store.path_tail("you", *head.position, 10),
    ]
    for each in by_id:
        assert isinstance(await refusal(each), NotFound)
    await store.release_head("you", head.id, "holder")
    assert (await store.get_head(ME, CHAT, "tea")).holder == "holder"
    assert await store.pieces(ME, head.id) == []
    assert (await store.create_head("you", CHAT, "tea")).name == "tea"
    assert (await store.create_head(ME, "other", "tea")).name == "tea"


@pytest.mark.parametrize("id_", ["", NOWHERE, "no id", "\0" * 36, "x" * 100_000])
async def test_an_unknown_id_is_not_found(store: Store, head: Head, id_: str) -> None:
    assert isinstance(await refusal(store.pieces(ME, id_)), NotFound)
    assert isinstance(await refusal(store.renew_head(ME, id_, "holder", "x")), NotFound)
    assert isinstance(await refusal(store.advance(ME, id_, "holder", [])), NotFound)
    await store.release_head(ME, id_, "holder")
    assert isinstance(await refusal(store.move_head(ME, CHAT, "tea", id_)), NotFound)
    assert isinstance(await refusal(store.fork_head(ME, CHAT, "tea", "x", id_)), NotFound)
    assert isinstance(await refusal(store.path_tail(ME, head.position.tree, id_, 5)), NotFound)


async def test_a_name_is_unique(store: Store, head: Head) -> None:
    other = await store.create_head(ME, CHAT, "coffee")
    counts = await store.counts()
    for attempt in (
        store.create_head(ME, CHAT, "tea"),
        store.fork_head(ME, CHAT, "coffee", "tea"),
        store.fork_head(ME, CHAT, "tea", "tea"),
        store.rename_head(ME, CHAT, "coffee", "tea"),
    ):
        error = await refusal(attempt)
        assert isinstance(error, Failed)
        assert (error.code, error.data) == ("name_taken", {"name": "tea"})
        assert "'tea' already" in error.message
    assert await store.counts() == counts  # refused calls left nothing
    assert await store.list_heads(ME, CHAT, None, 10) == [other, head]


async def test_concurrent_stores_cannot_create_the_same_name_twice(
    store: Store, database: str
) -> None:
    other = await open_store(database, purge_every_s=None)
    try:
        for number in range(10):
            made = await asyncio.gather(
                *(each.create_head(ME, CHAT, f"{number}") for each in (store, other) * 3),
                return_exceptions=True,
            )
            errors = [error for error in made if isinstance(error, PlexusError)]
            assert [error.code for error in errors] == ["name_taken"] * 5
            [winner] = [each for each in made if isinstance(each, Head)]
            assert await other.get_head(ME, CHAT, f"{number}") == winner
        assert (await store.counts()).trees == 10
    finally:
        await other.close()


@pytest.mark.parametrize("name", ["", " ", "\n\t", "a\0b", "\ud800", "x" * (NAME_BYTES + 1)])
async def test_an_invalid_name_is_refused(store: Store, head: Head, name: str) -> None:
    for attempt in (
        store.create_head(ME, CHAT, name),
        store.create_head(ME, name, "name"),
        store.fork_head(ME, CHAT, "tea", name),
        store.rename_head(ME, CHAT, "tea", name),
        store.get_head(ME, CHAT, name),
    ):
        assert isinstance(await refusal(attempt), InvalidParams | TooBig)
    assert await store.list_heads(ME, CHAT, None, 10) == [head]


@pytest.mark.parametrize("name", ["x" * NAME_BYTES, "Ä" * (NAME_BYTES // 2), " a/b:c%?'\" 🫖 "])
async def test_every_valid_name_round_trips(store: Store, name: str) -> None:
    made = await store.create_head(ME, CHAT, name)
    assert (await store.get_head(ME, CHAT, name)) == made
    assert made.name == name


async def test_data_is_any_json_up_to_a_limit(store: Store, head: Head, clock: Clock) -> None:
    values: list[Any] = [{"deep": [1, {"x": None}]}, [], "text", 0, None]
    for data in values:
        changed = await store.update_head(ME, CHAT, "tea", data)
        assert changed == head._replace(data=data, updated_ms=clock.now)
        assert await store.get_head(ME, CHAT, "tea") == changed
    large = "x" * METADATA_BYTES
    await store.acquire_head(ME, CHAT, "tea", "holder")
    for attempt in (
        store.update_head(ME, CHAT, "tea", large),
        store.create_head(ME, CHAT, "other", large),
        store.create_head(ME, CHAT, "other", None, large),
        store.fork_head(ME, CHAT, "tea", "other", data=large),
        store.advance(ME, head.id, "holder", [NewNode("x")], data=large),
    ):
        assert isinstance(await refusal(attempt), TooBig)
    assert isinstance(await refusal(store.update_head(ME, CHAT, "tea", object())), InvalidParams)
    assert (await store.counts()).nodes == 1


async def test_heads_are_listed_by_name_page_by_page_and_by_tree(store: Store) -> None:
    names = ["b", "ä", "a", "Z", "10", "9", "aa"]
    for name in names:
        await store.create_head(ME, CHAT, name)
    await store.create_head(ME, "other", "c")
    await store.create_head("you", CHAT, "c")
    listed: list[str] = []
    while page := await store.list_heads(ME, CHAT, listed[-1] if listed else None, 2):
        listed += [found.name for found in page]
    assert listed == sorted(names, key=str.encode)

    tree = (await store.get_head(ME, CHAT, "a")).position.tree
    forks = [await store.fork_head(ME, CHAT, "a", name) for name in ("f2", "f1")]
    of_tree = await store.list_heads(ME, CHAT, "a", 10, tree)
    assert of_tree == [forks[1], forks[0]]
    assert await store.list_heads(ME, "other", None, 10, tree) == []
    assert isinstance(await refusal(store.list_heads(ME, CHAT, None, 10, NOWHERE)), NotFound)
    for limit in (0, PAGE_ITEMS + 1):
        assert isinstance(await refusal(store.list_heads(ME, CHAT, None, limit)), InvalidParams)


# --- renaming, moving, forking, deleting ---------------------------------------------------------


async def test_a_renamed_head_is_the_same_one(store: Store, head: Head, clock: Clock) -> None:
    await store.acquire_head(ME, CHAT, "tea", "holder")
    renamed = await store.rename_head(ME, CHAT, "tea", "green tea")
    at = clock.now
    assert renamed.id == head.id
    assert (renamed.name, renamed.updated_ms, renamed.holder) == ("green tea", at, "holder")
    assert isinstance(await refusal(store.get_head(ME, CHAT, "tea")), NotFound)
    await store.renew_head(ME, head.id, "holder", "a piece")  # the id is the same
    assert (await store.rename_head(ME, CHAT, "green tea", "green tea")).updated_ms == at
    changes = await kinds(store, head.position.tree)
    assert changes[3:] == [("head_renamed", head.position.node)]


async def test_a_head_moves_within_its_tree_only(store: Store, head: Head, clock: Clock) -> None:
    a, b = await grown(store, head, "a", "b")
    elsewhere = await store.create_head(ME, CHAT, "coffee")
    seq = (await store.get_tree(ME, head.position.tree)).seq
    moved = await store.move_head(ME, CHAT, "tea", a.id)
    assert (moved.position, moved.updated_ms) == ((a.tree, a.id), clock.now)
    assert await store.get_head(ME, CHAT, "tea") == moved
    assert await store.move_head(ME, CHAT, "tea", a.id) == moved  # where it is already
    for node in (NOWHERE, elsewhere.position.node):
        assert isinstance(await refusal(store.move_head(ME, CHAT, "tea", node)), NotFound)
    await store.acquire_head(ME, CHAT, "tea", "holder")
    for holder in (None, "somebody else"):
        error = await refusal(store.move_head(ME, CHAT, "tea", b.id, holder))
        assert (type(error), error.code) == (Busy, "held")
    assert (await store.move_head(ME, CHAT, "tea", b.id, "holder")).position.node == b.id
    assert await kinds(store, a.tree, seq) == [("head_moved", a.id), ("head_moved", b.id)]


async def test_a_fork_shares_the_tree_and_keeps_it_when_the_first_is_deleted(
    store: Store, head: Head
) -> None:
    a, b = await grown(store, head, "a", "b")
    await store.acquire_head(ME, CHAT, "tea", "holder")
    await store.renew_head(ME, head.id, "holder", "a piece")
    seq = (await store.get_tree(ME, a.tree)).seq
    here = await store.fork_head(ME, CHAT, "tea", "here")
    there = await store.fork_head(ME, CHAT, "tea", "there", a.id, None)
    assert (here.position, here.data) == ((a.tree, b.id), {"model": "echo"})
    assert (there.position, there.data) == ((a.tree, a.id), None)
    assert (here.holder, await store.pieces(ME, here.id)) == (None, [])
    assert await kinds(store, a.tree, seq) == [
        ("tree_claimed", None),
        ("head_created", b.id),
        ("tree_claimed", None),
        ("head_created", a.id),
    ]
    owners = (await store.get_tree(ME, a.tree)).refs.owners
    assert owners == {f"chat:{each.id}": 1 for each in (head, here, there)}

    await store.release_head(ME, head.id, "holder")
    await store.delete_head(ME, CHAT, "tea")
    tree = await store.get_tree(ME, a.tree)
    assert (tree.state, tree.refs.total) == ("active", 2)
    await store.acquire_head(ME, CHAT, "there", "holder")
    moved, [c] = await store.advance(ME, there.id, "holder", [NewNode("c")])
    assert await texts_to(store, moved.position) == ["", "a", "c"]
    assert await texts_to(store, here.position) == ["", "a", "b"]
    assert c.parent == a.id


async def test_a_deleted_head_releases_its_tree_and_its_name(store: Store, head: Head) -> None:
    [a] = await grown(store, head, "a")
    seq = (await store.get_tree(ME, a.tree)).seq
    before = await store.get_head(ME, CHAT, "tea")
    assert await store.delete_head(ME, CHAT, "tea") == before
    tree = await store.get_tree(ME, a.tree)
    assert (tree.state, tree.refs.total) == ("scheduled_delete", 0)
    assert await kinds(store, a.tree, seq) == [
        ("head_deleted", a.id),
        ("tree_released", None),
        ("tree_scheduled", None),
    ]
    assert isinstance(await refusal(store.delete_head(ME, CHAT, "tea")), NotFound)
    again = await store.create_head(ME, CHAT, "tea")
    assert again.position.tree != a.tree


async def test_a_head_whose_tree_was_deleted_can_be_read_forked_and_deleted(
    store: Store, head: Head, clock: Clock
) -> None:
    [a] = await grown(store, head, "a")
    await store.delete_tree(ME, a.tree)
    assert (await store.get_head(ME, CHAT, "tea")).position.node == a.id
    fork = await store.fork_head(ME, CHAT, "tea", "saved")
    assert (await store.get_tree(ME, a.tree)).state == "active"
    await store.delete_head(ME, CHAT, "saved")
    clock.now += 10_000
    await store.purge()
    assert (await store.get_tree(ME, a.tree)).state == "archived"
    await store.acquire_head(ME, CHAT, "tea", "holder")
    for attempt in (
        store.advance(ME, head.id, "holder", [NewNode("late")]),
        store.advance(ME, head.id, "holder", [], fork.position.node),
        store.move_head(ME, CHAT, "tea", a.id, "holder"),
        store.fork_head(ME, CHAT, "tea", "saved"),
    ):
        assert (await refusal(attempt)).code == "archived"
    await store.release_head(ME, head.id, "holder")
    assert [node.content for node in await store.path_tail(ME, a.tree, a.id, 9)] == ["", "a"]
    assert (await store.delete_head(ME, CHAT, "tea")).id == head.id


# --- leases --------------------------------------------------------------------------------------


async def test_a_head_has_one_holder_at_a_time(store: Store, head: Head, clock: Clock) -> None:
    held = await store.acquire_head(ME, CHAT, "tea", "one")
    assert held == head._replace(holder="one", held_ms=clock.now)
    assert await store.get_head(ME, CHAT, "tea") == held
    for instead_of in (None, "three"):
        error = await refusal(store.acquire_head(ME, CHAT, "tea", "two", instead_of))
        assert (type(error), error.code) == (Busy, "held")
        assert error.data == {"holder": "one", "held_ms": held.held_ms}
    assert (await refusal(store.delete_head(ME, CHAT, "tea"))).code == "held"
    again = await store.acquire_head(ME, CHAT, "tea", "one")
    assert again.held_ms == clock.now
    await store.release_head(ME, head.id, "two")  # does nothing for another holder
    assert (await store.get_head(ME, CHAT, "tea")).holder == "one"
    await store.release_head(ME, head.id, "one")
    await store.release_head(ME, head.id, "one")
    assert await store.get_head(ME, CHAT, "tea") == head
    assert (await store.acquire_head(ME, CHAT, "tea", "two", "one")).holder == "two"
    for holder in ("", " ", "a\0"):
        assert isinstance(await refusal(store.acquire_head(ME, CHAT, "tea", holder)), InvalidParams)


async def test_the_next_holder_gets_the_pieces_and_the_previous_one_loses_the_lease(
    store: Store, head: Head
) -> None:
    await store.acquire_head(ME, CHAT, "tea", "dead")
    await store.renew_head(ME, head.id, "dead", "half an ")
    taken = await store.acquire_head(ME, CHAT, "tea", "new", "dead")
    assert taken.holder == "new"
    assert (await refusal(store.acquire_head(ME, CHAT, "tea", "late", "dead"))).code == "held"
    for attempt in (
        store.renew_head(ME, head.id, "dead"),
        store.renew_head(ME, head.id, "dead", "answer"),
        store.advance(ME, head.id, "dead", [NewNode("answer")]),
    ):
        error = await refusal(attempt)
        assert (type(error), error.code, error.data) == (Failed, "lost_hold", {"holder": "new"})
    await store.release_head(ME, head.id, "dead")
    assert await store.pieces(ME, head.id) == ["half an "]
    await store.renew_head(ME, head.id, "new", "answer")
    assert await store.pieces(ME, head.id) == ["half an ", "answer"]
    await store.release_head(ME, head.id, "new")
    assert await store.pieces(ME, head.id) == []
    assert (await refusal(store.renew_head(ME, head.id, "new"))).data == {"holder": None}
    assert (await store.counts()).nodes == 1


async def test_one_of_many_concurrent_holders_acquires_a_head(store: Store, head: Head) -> None:
    held = await asyncio.gather(
        *(store.acquire_head(ME, CHAT, "tea", f"{number}") for number in range(20)),
        return_exceptions=True,
    )
    assert [each.code for each in held if isinstance(each, PlexusError)] == ["held"] * 19
    [winner] = [each for each in held if isinstance(each, Head)]
    assert await store.get_head(ME, CHAT, "tea") == winner
    assert winner.id == head.id


async def test_pieces_are_kept_in_order_and_are_not_changes(
    store: Store, head: Head, clock: Clock
) -> None:
    other = await store.create_head(ME, CHAT, "coffee")
    for name in ("tea", "coffee"):
        await store.acquire_head(ME, CHAT, name, "holder")
    trees = [await store.get_tree(ME, each.position.tree) for each in (head, other)]
    last = await store.last_change()
    texts = [f"piece {number}" for number in range(30)] + ["", "🫖\n"]
    for text in texts:
        await store.renew_head(ME, head.id, "holder", text)
        await store.renew_head(ME, other.id, "holder", f"other {text}")
    await store.renew_head(ME, head.id, "holder")
    kept = await store.get_head(ME, CHAT, "tea")
    assert kept == head._replace(holder="holder", held_ms=clock.now)
    assert await store.pieces(ME, head.id) == texts
    assert await store.pieces(ME, other.id) == [f"other {text}" for text in texts]
    assert await store.last_change() == last
    assert [await store.get_tree(ME, tree.id) for tree in trees] == trees

    large = "x" * CONTENT_BYTES
    await store.renew_head(ME, head.id, "holder", large)
    assert (await store.pieces(ME, head.id))[-1] == large
    too_large = await refusal(store.renew_head(ME, head.id, "holder", large + "x"))
    assert isinstance(too_large, TooBig)
    assert (await refusal(store.renew_head(ME, head.id, "holder", "\0"))).code == "bad_text"


async def test_an_advance_adds_a_chain_and_moves_the_head_to_its_end(
    store: Store, head: Head, clock: Clock
) -> None:
    await store.acquire_head(ME, CHAT, "tea", "holder")
    await store.renew_head(ME, head.id, "holder", "a piece")
    seq = (await store.get_tree(ME, head.position.tree)).seq
    items = [
        NewNode("question", metadata={"kind": "user"}, parent=NOWHERE),
        NewNode("thought"),
        NewNode("answer", metadata={"kind": "assistant"}),
    ]
    moved, made = await store.advance(ME, head.id, "holder", items)
    assert [node.content for node in made] == ["question", "thought", "answer"]
    assert [node.parent for node in made] == [head.position.node, made[0].id, made[1].id]
    assert await store.path(ME, *moved.position) == [
        await store.get_node(ME, *head.position),
        *made,
    ]
    assert moved.position == (head.position.tree, made[2].id)
    assert (moved.updated_ms, moved.held_ms, moved.holder) == (clock.now, clock.now, "holder")
    assert moved.data == head.data
    assert await store.get_head(ME, CHAT, "tea") == moved
    assert await store.pieces(ME, head.id) == []
    assert await kinds(store, head.position.tree, seq) == [
        *(("node_created", node.id) for node in made),
        ("head_moved", made[2].id),
    ]
    await store.renew_head(ME, head.id, "holder", "of the next")
    assert await store.pieces(ME, head.id) == ["of the next"]


async def test_an_advance_may_have_another_parent_and_new_data(store: Store, head: Head) -> None:
    a, b = await grown(store, head, "a", "b")
    await store.acquire_head(ME, CHAT, "tea", "holder")
    moved, [c] = await store.advance(ME, head.id, "holder", [NewNode("c")], a.id, {"turn": 2})
    assert (c.parent, moved.position.node, moved.data) == (a.id, c.id, {"turn": 2})
    assert await store.get_head(ME, CHAT, "tea") == moved
    assert [node.id for node in await store.children(ME, a.tree, a.id, None, 9)] == [b.id, c.id]
    assert (await store.advance(ME, head.id, "holder", [], data=None))[0].data is None


async def test_an_advance_without_items_moves_or_only_drops_the_pieces(
    store: Store, head: Head
) -> None:
    a, b = await grown(store, head, "a", "b")
    await store.acquire_head(ME, CHAT, "tea", "holder")
    seq = (await store.get_tree(ME, a.tree)).seq
    await store.renew_head(ME, head.id, "holder", "a piece")
    stays, made = await store.advance(ME, head.id, "holder", [])
    assert (stays.position.node, made) == (b.id, [])
    assert await store.pieces(ME, head.id) == []
    assert await kinds(store, a.tree, seq) == []
    moved, made = await store.advance(ME, head.id, "holder", [], a.id)
    assert (moved.position.node, made) == (a.id, [])
    assert await store.get_head(ME, CHAT, "tea") == moved
    assert await kinds(store, a.tree, seq) == [("head_moved", a.id)]


async def test_an_advance_that_fails_leaves_everything_as_it_was(store: Store, head: Head) -> None:
    [a] = await grown(store, head, "a")
    elsewhere = await store.create_head(ME, CHAT, "coffee")
    await store.acquire_head(ME, CHAT, "tea", "holder")
    await store.renew_head(ME, head.id, "holder", "a piece")
    before = await store.get_head(ME, CHAT, "tea"), await store.get_tree(ME, a.tree)
    fine, wrong = NewNode("x"), NewNode("x" * (CONTENT_BYTES + 1))
    for attempt in (
        store.advance(ME, head.id, "holder", [fine, wrong]),
        store.advance(ME, head.id, "holder", [fine], NOWHERE),
        store.advance(ME, head.id, "holder", [fine], elsewhere.position.node),
        store.advance(ME, head.id, "holder", [], elsewhere.position.node),
        store.advance(ME, head.id, "holder", [NewNode()]),
    ):
        assert isinstance(await refusal(attempt), NotFound | TooBig | InvalidParams)
    assert (await store.get_head(ME, CHAT, "tea"), await store.get_tree(ME, a.tree)) == before
    assert await store.pieces(ME, head.id) == ["a piece"]


# --- changes of the tree -------------------------------------------------------------------------


async def test_heads_on_deleted_nodes_move_to_the_node_above(
    store: Store, head: Head, clock: Clock
) -> None:
    a, b, c, d = await grown(store, head, "a", "b", "c", "d")
    [aside] = await store.append(ME, a.tree, a.id, [NewNode("aside")])
    places = {"on a": a, "on b": b, "on c": c, "aside": aside}
    heads = {
        name: await store.fork_head(ME, CHAT, "tea", name, node.id) for name, node in places.items()
    }
    seq = (await store.get_tree(ME, a.tree)).seq
    assert await store.delete_node(ME, a.tree, b.id) == 3
    deleted_at = clock.now
    for name in ("tea", "on b", "on c"):
        found = await store.get_head(ME, CHAT, name)
        assert (found.position.node, found.updated_ms) == (a.id, deleted_at)
    for name in ("on a", "aside"):
        assert await store.get_head(ME, CHAT, name) == heads[name]
    changes = await kinds(store, a.tree, seq)
    assert changes == [("node_deleted", b.id)] + [("head_moved", a.id)] * 3
    await store.delete_node(ME, a.tree, aside.id)
    await store.delete_node(ME, a.tree, a.id)
    clock.now += 10_000
    assert (await store.purge()).nodes == 5
    root = (await store.get_tree(ME, a.tree)).root
    for name in ("tea", *places):
        assert (await store.get_head(ME, CHAT, name)).position.node == root
    assert d.id not in {node.id for node in await store.walk(ME, a.tree, None, 10)}


async def test_a_holder_whose_node_was_deleted_continues_below_the_parent(
    store: Store, head: Head
) -> None:
    a, b = await grown(store, head, "a", "b")
    await store.acquire_head(ME, CHAT, "tea", "holder")
    await store.delete_node(ME, a.tree, b.id)
    late = await refusal(store.advance(ME, head.id, "holder", [NewNode("c")], b.id))
    assert isinstance(late, NotFound)
    moved, _ = await store.advance(ME, head.id, "holder", [NewNode("c")])
    assert await texts_to(store, moved.position) == ["", "a", "c"]


async def test_removing_a_tree_removes_its_heads_and_pieces(
    store: Store, head: Head, clock: Clock
) -> None:
    stays = await store.create_head(ME, CHAT, "coffee")
    await store.fork_head(ME, CHAT, "tea", "fork")
    for each in (head, stays):
        await store.acquire_head(ME, CHAT, each.name, "holder")
        await store.renew_head(ME, each.id, "holder", "a piece")
    await store.delete_tree(ME, head.position.tree)
    clock.now += 10_000
    assert (await store.purge()).archived == 1
    assert len(await store.list_heads(ME, CHAT, None, 10)) == 3
    clock.now += 20_000
    assert (await store.purge()).removed == 1
    assert [each.name for each in await store.list_heads(ME, CHAT, None, 10)] == ["coffee"]
    assert await store.pieces(ME, stays.id) == ["a piece"]
    for attempt in (
        store.get_head(ME, CHAT, "tea"),
        store.pieces(ME, head.id),
        store.renew_head(ME, head.id, "holder", "more"),
        store.advance(ME, head.id, "holder", [NewNode("x")]),
    ):
        assert isinstance(await refusal(attempt), NotFound)
    await store.release_head(ME, head.id, "holder")
    assert (await store.create_head(ME, CHAT, "tea")).id != head.id


# --- paths ---------------------------------------------------------------------------------------


async def test_the_last_part_of_a_path_is_read_in_order(store: Store, head: Head) -> None:
    nodes = await grown(store, head, *(f"{number}" for number in range(20)))
    last = nodes[-1]
    whole = await store.path(ME, last.tree, last.id)
    for limit in (1, 2, 20, 21, 22, 10_000, 2**63 - 1):
        assert await store.path_tail(ME, last.tree, last.id, limit) == whole[-limit:]
    middle = await store.path_tail(ME, last.tree, nodes[9].id, 3)
    assert middle == nodes[7:10]
    assert middle[0].parent == nodes[6].id
    assert await store.path_tail(ME, *head.position, 1) == whole[:1]
    for limit in (0, -1, 2**63):
        assert isinstance(
            await refusal(store.path_tail(ME, last.tree, last.id, limit)), InvalidParams
        )
