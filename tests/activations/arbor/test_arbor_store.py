"""The operations of the store on trees and nodes, on every engine."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from arbor_databases import ENGINES, new_database

from activations.arbor.model import (
    APPEND_ITEMS,
    CONTENT_BYTES,
    HANDLE_BYTES,
    METADATA_BYTES,
    PAGE_BYTES,
    PAGE_ITEMS,
    QUERY_BYTES,
    Handle,
    NewNode,
    Node,
    Tree,
)
from activations.arbor.store import Store, open_store
from plexus.errors import Failed, InvalidParams, NotFound, PlexusError, TooBig

pytestmark = pytest.mark.anyio

ME = "me"
NOWHERE = "00000000-0000-4000-8000-000000000000"


@pytest.fixture(params=ENGINES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    opened = await open_store(new_database(request.param, tmp_path), purge_every_s=None)
    yield opened
    await opened.close()


@pytest.fixture
async def tree(store: Store) -> Tree:
    return await store.create_tree(ME, "owner", {"name": "one"})


async def add(store: Store, tree: Tree, parent: str | None, *texts: str) -> list[Node]:
    return await store.append(ME, tree.id, parent, [NewNode(text) for text in texts])


async def texts_below(store: Store, tree: Tree, node: str) -> list[str | None]:
    return [child.content for child in await store.children(ME, tree.id, node, None, 1000)]


async def refusal(awaitable: Any) -> PlexusError:
    with pytest.raises(PlexusError) as caught:
        await awaitable
    return caught.value


# --- trees ---------------------------------------------------------------------------------------


async def test_a_new_tree_has_an_empty_root_and_one_reference(store: Store, tree: Tree) -> None:
    assert await store.get_tree(ME, tree.id) == tree
    assert tree.refs == (1, {"owner": 1})
    assert (tree.state, tree.owner, tree.metadata) == ("active", "owner", {"name": "one"})
    root = await store.get_node(ME, tree.id, tree.root)
    assert (root.content, root.parent) == ("", None)


async def test_a_tree_of_another_principal_is_not_found(store: Store, tree: Tree) -> None:
    [node] = await add(store, tree, None, "mine")
    attempts = [
        store.get_tree("you", tree.id),
        store.append("you", tree.id, None, [NewNode("x")]),
        store.claim("you", tree.id, "owner"),
        store.delete_tree("you", tree.id),
        store.update_metadata("you", tree.id, {}),
        store.get_node("you", tree.id, node.id),
        store.children("you", tree.id, tree.root, None, 10),
        store.path("you", tree.id, node.id),
        store.walk("you", tree.id, None, 10),
        store.leaves("you", tree.id, None, 10),
        store.changes("you", tree.id, 0, 10),
        store.search("you", "mine", tree.id, None, 10),
    ]
    for attempt in attempts:
        assert isinstance(await refusal(attempt), NotFound)
    assert await store.list_trees("you", None, None, 10) == []
    assert await store.search("you", "mine", None, None, 10) == []


@pytest.mark.parametrize("name", ["", NOWHERE, "no id", "\0" * 36, "é" * 36, "x" * 100_000])
async def test_invalid_ids_are_not_found(store: Store, tree: Tree, name: str) -> None:
    assert isinstance(await refusal(store.get_tree(ME, name)), NotFound)
    assert isinstance(await refusal(store.get_node(ME, tree.id, name)), NotFound)
    assert isinstance(await refusal(store.append(ME, tree.id, name, [NewNode("")])), NotFound)


async def test_trees_are_listed_by_state_in_pages(store: Store) -> None:
    trees = [await store.create_tree(ME, "owner") for _ in range(7)]
    gone = {trees[0].id, trees[4].id}
    for each in gone:
        await store.delete_tree(ME, each)
    listed: list[str] = []
    while page := await store.list_trees(ME, "active", listed[-1] if listed else None, 2):
        assert all(found.refs.total == 1 for found in page)
        listed += [found.id for found in page]
        await store.create_tree("somebody else", "owner")
    assert listed == sorted({found.id for found in trees} - gone)
    scheduled = await store.list_trees(ME, "scheduled_delete", None, 10)
    assert {found.id for found in scheduled} == gone
    assert len(await store.list_trees(ME, None, None, 10)) == 7
    assert await store.list_trees(ME, "archived", None, 10) == []


async def test_metadata_is_replaced(store: Store, tree: Tree) -> None:
    values: list[Any] = [{"deep": [1, {"x": None}], "nul": "\0"}, [], "text", 0, None]
    for metadata in values:
        changed = await store.update_metadata(ME, tree.id, metadata)
        assert changed.metadata == metadata
    assert isinstance(await refusal(store.update_metadata(ME, NOWHERE, {})), NotFound)


# --- references ----------------------------------------------------------------------------------


async def test_the_last_release_schedules_and_a_claim_makes_active_again(
    store: Store, tree: Tree
) -> None:
    assert await store.claim(ME, tree.id, "other", 2) == (3, {"owner": 1, "other": 2})
    assert await store.release(ME, tree.id, "owner") == (2, {"other": 2})
    assert (await store.get_tree(ME, tree.id)).state == "active"
    assert await store.release(ME, tree.id, "other", 2) == (0, {})
    scheduled = await store.get_tree(ME, tree.id)
    assert (scheduled.state, scheduled.scheduled_ms is None) == ("scheduled_delete", False)
    await add(store, tree, None, "still to be written")
    await store.claim(ME, tree.id, "third")
    again = await store.get_tree(ME, tree.id)
    assert (again.state, again.scheduled_ms) == ("active", None)


async def test_an_owner_cannot_release_more_than_it_has(store: Store, tree: Tree) -> None:
    await store.claim(ME, tree.id, "other", 5)
    error = await refusal(store.release(ME, tree.id, "owner", 2))
    assert (error.code, error.data["held"]) == ("over_release", 1)
    assert (await refusal(store.release(ME, tree.id, "nobody"))).code == "over_release"
    assert (await store.get_tree(ME, tree.id)).refs.total == 6


@pytest.mark.parametrize("count", [0, -1, 2**31, 2**70])
async def test_invalid_counts_are_refused(store: Store, tree: Tree, count: int) -> None:
    assert isinstance(await refusal(store.claim(ME, tree.id, "o", count)), InvalidParams)
    assert isinstance(await refusal(store.release(ME, tree.id, "owner", count)), InvalidParams)


async def test_claims_and_releases_of_32_clients_have_exact_counts(
    store: Store, tree: Tree
) -> None:
    async def client(number: int) -> None:
        owner = f"client {number % 8}"
        for count in (3, 1, 2):
            await store.claim(ME, tree.id, owner, count)
        for count in (2, 2):
            await store.release(ME, tree.id, owner, count)

    await asyncio.gather(*(client(number) for number in range(32)))
    refs = (await store.get_tree(ME, tree.id)).refs
    assert refs.owners == {"owner": 1} | {f"client {number}": 8 for number in range(8)}
    assert refs.total == 65


async def test_a_deleted_tree_is_scheduled_immediately(store: Store, tree: Tree) -> None:
    await store.claim(ME, tree.id, "other", 9)
    deleted = await store.delete_tree(ME, tree.id)
    assert (deleted.state, deleted.refs.total) == ("scheduled_delete", 0)
    assert await store.delete_tree(ME, tree.id) == deleted


# --- nodes ---------------------------------------------------------------------------------------


async def test_nodes_are_appended_in_order_and_below_each_other(store: Store, tree: Tree) -> None:
    handle = Handle("files", "2", "read", ("a:b", ""))
    made = await store.append(
        ME,
        tree.id,
        None,
        [
            NewNode("first", metadata={"role": "user"}),
            NewNode(handle=handle, parent=0),
            NewNode("third", parent=1),
            NewNode("second child"),
        ],
    )
    assert [node.parent for node in made] == [tree.root, made[0].id, made[1].id, tree.root]
    for node in made:
        assert await store.get_node(ME, tree.id, node.id) == node
    assert made[1].handle == handle
    assert await texts_below(store, tree, tree.root) == ["first", "second child"]
    assert await store.parent(ME, tree.id, made[2].id) == made[1]
    assert await store.parent(ME, tree.id, tree.root) is None
    under = await store.append(ME, tree.id, None, [NewNode("x", parent=made[3].id)])
    assert under[0].parent == made[3].id


async def test_an_append_that_is_refused_adds_nothing(store: Store, tree: Tree) -> None:
    other = await store.create_tree(ME, "owner")
    refused: list[tuple[list[NewNode], type[PlexusError]]] = [
        ([NewNode("a"), NewNode("b", parent=1)], InvalidParams),
        ([NewNode("a"), NewNode("b", parent=-1)], InvalidParams),
        ([NewNode("a"), NewNode("b", parent=other.root)], NotFound),
        ([NewNode("a"), NewNode()], InvalidParams),
        ([NewNode("a", handle=Handle("p", "1", "m"))], InvalidParams),
        ([NewNode("a"), NewNode("b\0")], InvalidParams),
        ([NewNode("a", metadata=object())], InvalidParams),
        ([NewNode("a", position=-(1 << 60))], InvalidParams),
        ([NewNode("a"), NewNode("b", position=1 << 60)], InvalidParams),
        ([], TooBig),
    ]
    before = await store.get_tree(ME, tree.id)
    for items, kind in refused:
        assert isinstance(await refusal(store.append(ME, tree.id, None, items)), kind)
    assert isinstance(
        await refusal(store.append(ME, tree.id, other.root, [NewNode("a")])), NotFound
    )
    assert await store.get_tree(ME, tree.id) == before
    assert await texts_below(store, tree, tree.root) == []


async def test_every_text_round_trips(store: Store, tree: Tree) -> None:
    texts = [
        "",
        " ",
        "\n\r\u2028\x85",
        "\ufeff\ufffe\uffff",
        "".join(map(chr, range(1, 0x250))),
        "\U0010ffff\U0001f468\u200d\U0001f469\u0301",
        "'; DROP TABLE nodes; --",
        "% %s ? $1 :a @b",
    ]
    nodes = await add(store, tree, None, *texts)
    assert await texts_below(store, tree, tree.root) == texts
    for node, text in zip(nodes, texts, strict=True):
        assert (await store.get_node(ME, tree.id, node.id)).content == text
        meta = await store.update_metadata(ME, tree.id, {text: text})
        assert meta.metadata == {text: text}


@pytest.mark.parametrize("text", ["\0", "a\0b", "\ud800", "x" * 1000 + "\udfff"])
async def test_text_that_cannot_be_stored_is_refused(store: Store, tree: Tree, text: str) -> None:
    attempts = [
        add(store, tree, None, text),
        store.append(ME, tree.id, None, [NewNode(handle=Handle("p", text, "m"))]),
        store.claim(ME, tree.id, text),
        store.create_tree(ME, text),
        store.search(ME, text, None, None, 10),
        store.list_trees(ME, None, text, 10),
    ]
    for attempt in attempts:
        assert (await refusal(attempt)).code == "bad_text"


async def test_sizes_at_the_limit_are_stored_and_larger_ones_refused(
    store: Store, tree: Tree
) -> None:
    [node] = await add(store, tree, None, "é" * (CONTENT_BYTES // 2))
    assert (await store.get_node(ME, tree.id, node.id)).content == node.content
    handle = Handle("p", "1", "m", ("x" * (HANDLE_BYTES - len("p@1::m:")),))
    made = await store.append(ME, tree.id, None, [NewNode(handle=handle)])
    assert (await store.get_node(ME, tree.id, made[0].id)).handle == handle
    metadata = "x" * (METADATA_BYTES - 2)
    assert (await store.update_metadata(ME, tree.id, metadata)).metadata == metadata
    past = [
        (add(store, tree, None, "é" * (CONTENT_BYTES // 2) + "x"), CONTENT_BYTES),
        (add(store, tree, None, "x" * 10_000_000), CONTENT_BYTES),
        (
            store.append(
                ME, tree.id, None, [NewNode(handle=Handle("p", "1", "m", ("x" * HANDLE_BYTES,)))]
            ),
            HANDLE_BYTES,
        ),
        (store.update_metadata(ME, tree.id, metadata + "x"), METADATA_BYTES),
        (store.append(ME, tree.id, None, [NewNode("")] * (APPEND_ITEMS + 1)), APPEND_ITEMS),
        (store.search(ME, "x" * (QUERY_BYTES + 1), None, None, 1), QUERY_BYTES),
    ]
    for attempt, limit in past:
        error = await refusal(attempt)
        assert (error.code, error.data["limit"]) == ("too_big", limit)
    deep: Any = 1
    for _ in range(65):
        deep = [deep]
    assert (await refusal(store.update_metadata(ME, tree.id, deep))).code == "too_big"


async def test_the_maximum_number_of_nodes_is_appended_in_one_call(
    store: Store, tree: Tree
) -> None:
    made = await store.append(ME, tree.id, None, [NewNode(str(n)) for n in range(APPEND_ITEMS)])
    assert len({node.id for node in made}) == APPEND_ITEMS
    assert (await store.get_tree(ME, tree.id)).seq == made[-1].n


@pytest.mark.parametrize("limit", [0, -1, PAGE_ITEMS + 1])
async def test_invalid_page_sizes_are_refused(store: Store, tree: Tree, limit: int) -> None:
    attempts = [
        store.list_trees(ME, None, None, limit),
        store.children(ME, tree.id, tree.root, None, limit),
        store.walk(ME, tree.id, None, limit),
        store.structure(ME, tree.id, None, limit),
        store.leaves(ME, tree.id, None, limit),
        store.changes(ME, tree.id, 0, limit),
        store.all_changes(0, limit),
        store.search(ME, "x", None, None, limit),
    ]
    for attempt in attempts:
        assert isinstance(await refusal(attempt), InvalidParams)


@pytest.mark.parametrize("number", [-1, 2**63, 2**100])
async def test_an_invalid_cursor_is_refused(store: Store, tree: Tree, number: int) -> None:
    attempts = [
        store.children(ME, tree.id, tree.root, number, 1),
        store.walk(ME, tree.id, number, 1),
        store.leaves(ME, tree.id, number, 1),
        store.changes(ME, tree.id, number, 1),
        store.search(ME, "x", None, number, 1),
    ]
    for attempt in attempts:
        assert isinstance(await refusal(attempt), InvalidParams)


async def test_a_page_ends_early_when_it_is_large(store: Store, tree: Tree) -> None:
    size = PAGE_BYTES // 4
    for _ in range(6):
        await add(store, tree, None, "x" * size)
    seen: list[int] = []
    sizes = []
    while page := await store.walk(ME, tree.id, seen[-1] if seen else None, 1000):
        seen += [node.n for node in page]
        sizes.append(len(page))
    assert sizes == [5, 2]
    assert len(set(seen)) == 7


# --- reading -------------------------------------------------------------------------------------


async def test_the_path_leads_from_the_root_to_the_node(store: Store, tree: Tree) -> None:
    chain = [NewNode(str(n), parent=n - 1 if n else None) for n in range(3000)]
    made = await store.append(ME, tree.id, None, chain)
    path = await store.path(ME, tree.id, made[-1].id)
    assert [node.id for node in path] == [tree.root, *(node.id for node in made)]
    assert path[1:] == made
    stubs = await store.path_stubs(ME, tree.id, made[-1].id)
    assert [(stub.id, stub.parent) for stub in stubs] == [(node.id, node.parent) for node in path]
    assert [node.id for node in await store.path(ME, tree.id, tree.root)] == [tree.root]


async def test_leaves_are_the_ends_of_the_branches(store: Store, tree: Tree) -> None:
    assert [leaf.id for leaf in await store.leaves(ME, tree.id, None, 10)] == [tree.root]
    a, b = await add(store, tree, None, "a", "b")
    [c] = await add(store, tree, a.id, "c")
    [d] = await add(store, tree, a.id, "d")
    await store.delete_node(ME, tree.id, d.id)
    newer = await store.edit(ME, tree.id, b.id, "b again")
    leaves = await store.leaves(ME, tree.id, None, 10)
    assert [leaf.id for leaf in leaves] == [c.id, newer.id]


async def test_lists_have_no_repeats_and_no_gaps_while_others_insert(
    store: Store, tree: Tree
) -> None:
    before = await store.append(ME, tree.id, None, [NewNode(f"word {n}") for n in range(57)])

    async def pages(read: Any, cursor: Any = lambda item: item.n) -> list[Any]:
        seen: list[Any] = []
        while page := await read(cursor(seen[-1]) if seen else None):
            seen += page
            if len(seen) < 90:
                await add(store, tree, None, "a word more")
        return seen

    wanted = [node.id for node in before]
    lists = {
        "children": await pages(lambda at: store.children(ME, tree.id, tree.root, at, 5)),
        "walk": await pages(lambda at: store.walk(ME, tree.id, at, 5)),
        "skeleton": await pages(lambda at: store.structure(ME, tree.id, at, 5)),
        "leaves": await pages(lambda at: store.leaves(ME, tree.id, at, 5)),
    }
    for what, seen in lists.items():
        ids = [node.id for node in seen]
        assert len(set(ids)) == len(ids), what
        assert [i for i in ids if i in set(wanted)] == wanted, what
    hits = await pages(lambda at: store.search(ME, "word", tree.id, at, 5), lambda hit: hit.node.n)
    found = [hit.node.id for hit in hits]
    assert len(set(found)) == len(found)
    assert [i for i in found if i in set(wanted)] == wanted[::-1]
    changes = await pages(
        lambda at: store.changes(ME, tree.id, at or 0, 5), lambda change: change.seq
    )
    numbers = [change.seq for change in changes]
    assert numbers == sorted(set(numbers))
    assert numbers == [change.seq for change in await store.all_changes(0, 1000)]


async def test_children_continue_after_a_deleted_cursor_but_not_after_a_moved_one(
    store: Store, tree: Tree
) -> None:
    a, b, c = await add(store, tree, None, "a", "b", "c")
    await store.delete_node(ME, tree.id, b.id)
    assert [n.id for n in await store.children(ME, tree.id, tree.root, b.n, 9)] == [c.id]
    await store.move(ME, tree.id, a.id, c.id)
    error = await refusal(store.children(ME, tree.id, tree.root, a.n, 9))
    assert error.code == "expired"


# --- versions, moves, deletion -------------------------------------------------------------------


async def test_an_edit_is_a_version_next_to_the_old_one(store: Store, tree: Tree) -> None:
    a, b = await add(store, tree, None, "a", "b")
    [below] = await add(store, tree, a.id, "below")
    newer = await store.edit(ME, tree.id, a.id, "a2", metadata={"why": "better"})
    assert (newer.parent, newer.position, newer.replaces) == (a.parent, a.position, a.id)
    old = await store.get_node(ME, tree.id, a.id)
    assert (old.content, old.replaced_by) == ("a", newer.id)
    assert (await store.parent(ME, tree.id, below.id)) == old
    order = [node.id for node in await store.children(ME, tree.id, tree.root, None, 9)]
    assert order == [a.id, newer.id, b.id]
    error = await refusal(store.edit(ME, tree.id, a.id, "a3"))
    assert (error.code, error.data["replaced_by"]) == ("replaced", newer.id)
    external = await store.edit(ME, tree.id, newer.id, handle=Handle("p", "1", "m"))
    assert external.content is None
    assert (await refusal(store.edit(ME, tree.id, tree.root, "x"))).code == "root"
    kinds = [change.kind for change in await store.changes(ME, tree.id, below.n, 9)]
    assert kinds == ["node_edited", "node_edited"]


async def test_an_append_may_contain_a_node_and_its_versions(store: Store, tree: Tree) -> None:
    made = await store.append(
        ME, tree.id, None, [NewNode("1"), NewNode("2", replaces=0), NewNode("3", replaces=1)]
    )
    assert [n.replaced_by for n in made] == [made[1].id, made[2].id, None]
    for node in made:
        assert await store.get_node(ME, tree.id, node.id) == node
    twice = [NewNode("1"), NewNode("2", replaces=0), NewNode("3", replaces=0)]
    assert (await refusal(store.append(ME, tree.id, None, twice))).code == "replaced"


async def test_versions_are_relinked_when_one_between_is_deleted(store: Store, tree: Tree) -> None:
    [first] = await add(store, tree, None, "1")
    second = await store.edit(ME, tree.id, first.id, "2")
    third = await store.edit(ME, tree.id, second.id, "3")
    await store.delete_node(ME, tree.id, second.id)
    assert (await store.get_node(ME, tree.id, first.id)).replaced_by == third.id
    assert (await store.get_node(ME, tree.id, third.id)).replaces == first.id
    await store.delete_node(ME, tree.id, third.id)
    assert (await store.get_node(ME, tree.id, first.id)).replaced_by is None
    [top] = await add(store, tree, None, "top")
    fourth = await store.edit(ME, tree.id, first.id, "4")
    fifth = await store.edit(ME, tree.id, fourth.id, "5")
    for node in (fourth, fifth):
        await store.move(ME, tree.id, node.id, top.id)
    await store.delete_node(ME, tree.id, top.id)
    assert (await store.get_node(ME, tree.id, first.id)).replaced_by is None


async def test_a_move_takes_the_subtree_to_the_given_position(store: Store, tree: Tree) -> None:
    a, b, c = await add(store, tree, None, "a", "b", "c")
    [inner] = await add(store, tree, a.id, "inner")
    moved = await store.move(ME, tree.id, a.id, b.id)
    assert (moved.id, moved.parent) == (a.id, b.id)
    path = await store.path(ME, tree.id, inner.id)
    assert [node.content for node in path] == ["", "b", "a", "inner"]
    await store.move(ME, tree.id, c.id, tree.root, 0)
    assert await texts_below(store, tree, tree.root) == ["c", "b"]
    await store.move(ME, tree.id, a.id, tree.root, 1)
    assert await texts_below(store, tree, tree.root) == ["c", "a", "b"]
    await store.move(ME, tree.id, c.id, tree.root, 99)
    assert await texts_below(store, tree, tree.root) == ["a", "b", "c"]
    assert isinstance(await refusal(store.move(ME, tree.id, c.id, tree.root, -1)), InvalidParams)


async def test_siblings_are_renumbered_when_there_is_no_gap(store: Store, tree: Tree) -> None:
    first, last, *rest = await add(store, tree, None, "first", "last", *map(str, range(40)))
    wanted = ["first", *map(str, range(40)), "last"]
    for node in rest:  # each moves before the last one, into half of the remaining gap
        below = await store.children(ME, tree.id, tree.root, None, 100)
        index = [child.id for child in below].index(last.id)
        await store.move(ME, tree.id, node.id, tree.root, index)
    assert await texts_below(store, tree, tree.root) == wanted
    for expected in itertools.islice(itertools.cycle(["last", "first"]), 30):
        node = last if expected == "last" else first
        await store.move(ME, tree.id, node.id, tree.root, 1)
        assert (await texts_below(store, tree, tree.root))[1] == expected


async def test_a_move_cannot_create_a_cycle_or_leave_its_tree(store: Store, tree: Tree) -> None:
    other = await store.create_tree(ME, "owner")
    [a] = await add(store, tree, None, "a")
    [b] = await add(store, tree, a.id, "b")
    [c] = await add(store, tree, b.id, "c")
    for target in (a, b, c):
        assert (await refusal(store.move(ME, tree.id, a.id, target.id))).code == "cycle"
    assert (await refusal(store.move(ME, tree.id, tree.root, a.id))).code == "root"
    assert isinstance(await refusal(store.move(ME, tree.id, a.id, other.root)), NotFound)
    assert isinstance(await refusal(store.move(ME, other.id, a.id, other.root)), NotFound)
    assert (await store.path(ME, tree.id, c.id))[1].id == a.id


async def test_concurrent_moves_never_create_a_cycle(store: Store, tree: Tree) -> None:
    nodes = await add(store, tree, None, *map(str, range(8)))

    async def shuffle(number: int) -> None:
        for step in range(1, 12):
            target = nodes[(number * 5 + step * 3) % 8]
            with contextlib.suppress(Failed):
                await store.move(ME, tree.id, nodes[number].id, target.id)

    await asyncio.gather(*(shuffle(number) for number in range(8)))
    for node in nodes:
        path = await store.path(ME, tree.id, node.id)
        assert path[0].id == tree.root


async def test_deleting_a_node_deletes_its_subtree(store: Store, tree: Tree) -> None:
    a, b = await add(store, tree, None, "a", "b")
    [c] = await add(store, tree, a.id, "c word")
    [d] = await add(store, tree, c.id, "d word")
    assert await store.delete_node(ME, tree.id, a.id) == 3
    for node in (a, c, d):
        assert isinstance(await refusal(store.get_node(ME, tree.id, node.id)), NotFound)
        assert isinstance(await refusal(store.delete_node(ME, tree.id, node.id)), NotFound)
        assert isinstance(await refusal(add(store, tree, node.id, "x")), NotFound)
    assert [node.id for node in await store.walk(ME, tree.id, None, 9)] == [tree.root, b.id]
    assert await store.search(ME, "word", None, None, 9) == []
    assert (await refusal(store.delete_node(ME, tree.id, tree.root))).code == "root"
    last = (await store.changes(ME, tree.id, d.n, 9))[-1]
    assert (last.kind, last.node) == ("node_deleted", a.id)


# --- search --------------------------------------------------------------------------------------


async def found(store: Store, text: str, tree: str | None = None) -> list[str | None]:
    return [hit.node.content for hit in await store.search(ME, text, tree, None, 100)]


async def test_search_finds_every_word_newest_first(store: Store, tree: Tree) -> None:
    other = await store.create_tree(ME, "owner")
    await add(store, tree, None, "the quick fox", "the slow fox", "a bird")
    await store.append(ME, other.id, None, [NewNode("Another Fox, quick!")])
    assert await found(store, "fox") == ["Another Fox, quick!", "the slow fox", "the quick fox"]
    assert await found(store, "QUICK fox") == ["Another Fox, quick!", "the quick fox"]
    assert await found(store, "fox", tree.id) == ["the slow fox", "the quick fox"]
    assert await found(store, "fox cat") == []
    assert await found(store, "fo") == []
    await add(store, tree, None, "at once")
    assert await found(store, "once") == ["at once"]


async def test_an_excerpt_shows_the_word(store: Store, tree: Tree) -> None:
    await add(store, tree, None, "before " * 100 + "needle" + " after" * 100, "a needle")
    short, long = await store.search(ME, "Needle", None, None, 9)
    assert short.excerpt == "a needle"
    assert "needle" in long.excerpt
    assert len(long.excerpt) < 250


@pytest.mark.parametrize(
    "text",
    ['"fox"', "fox AND", "NOT fox", "fox OR", "fox*", "(fox", "content:fox", "^fox", "fox NEAR",
     "-fox", "fox'", "fox;", '""fox', "fox & | !", "fox:*", "<-> fox", "%fox%", "{fox} + fox"],
)  # fmt: skip
async def test_a_search_text_has_no_operators(store: Store, tree: Tree, text: str) -> None:
    await add(store, tree, None, "a fox and near or not content")
    assert len(await store.search(ME, text, tree.id, None, 10)) == 1


@pytest.mark.parametrize("text", ["", "   ", '"', "''", "***", "\u200b", "& | !"])
async def test_a_search_without_words_is_refused(store: Store, text: str) -> None:
    assert isinstance(await refusal(store.search(ME, text, None, None, 10)), InvalidParams)


async def test_words_of_other_scripts_are_found(store: Store, tree: Tree) -> None:
    texts = ["Grüße aus Köln", "привет мир", "שלום עולם", "ζεστό νερό"]
    await add(store, tree, None, *texts)
    for text in texts:
        assert await found(store, text.split()[1]) == [text]


async def test_large_texts_are_found_by_their_beginning(store: Store, tree: Tree) -> None:
    await add(store, tree, None, "needle " + "hay " * 500_000)
    assert len(await found(store, "needle")) == 1


# --- changes -------------------------------------------------------------------------------------


async def test_every_operation_is_recorded_as_a_change(store: Store) -> None:
    tree = await store.create_tree(ME, "owner")
    a, b = await add(store, tree, None, "a", "b")
    newer = await store.edit(ME, tree.id, a.id, "a2")
    await store.move(ME, tree.id, b.id, newer.id)
    await store.delete_node(ME, tree.id, b.id)
    await store.update_metadata(ME, tree.id, 1)
    await store.claim(ME, tree.id, "o")
    await store.release(ME, tree.id, "o")
    await store.delete_tree(ME, tree.id)
    changes = await store.changes(ME, tree.id, 0, 100)
    assert [(change.kind, change.node) for change in changes] == [
        ("tree_created", None),
        ("node_created", tree.root),
        ("node_created", a.id),
        ("node_created", b.id),
        ("node_edited", newer.id),
        ("node_moved", b.id),
        ("node_deleted", b.id),
        ("tree_updated", None),
        ("tree_claimed", None),
        ("tree_released", None),
        ("tree_scheduled", None),
    ]
    assert {(change.tree, change.principal) for change in changes} == {(tree.id, ME)}
    assert (await store.get_tree(ME, tree.id)).seq == changes[-1].seq
    assert await store.changes(ME, tree.id, changes[-1].seq, 9) == []
    assert (await store.counts()).seq == changes[-1].seq


async def test_refused_operations_are_no_changes_and_subscribers_can_unsubscribe(
    store: Store, tree: Tree
) -> None:
    notified = asyncio.Event()
    end = store.subscribe(notified.set)
    await add(store, tree, None, "a")
    async with asyncio.timeout(10):
        await notified.wait()
    before = await store.counts()
    await refusal(store.move(ME, tree.id, tree.root, tree.root))
    assert await store.counts() == before
    end()
    end()
    await asyncio.sleep(0.1)
    notified.clear()
    await add(store, tree, None, "b")
    await asyncio.sleep(0.1)
    assert not notified.is_set()


async def test_a_closed_store_refuses_calls(store: Store, tree: Tree) -> None:
    await store.close()
    await store.close()
    assert isinstance(await refusal(store.get_tree(ME, tree.id)), PlexusError)
    assert isinstance(await refusal(add(store, tree, None, "x")), PlexusError)
