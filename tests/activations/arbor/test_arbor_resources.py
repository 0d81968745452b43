"""Trees and nodes as resources: reading, listing, suggestions and change notifications."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from arbor_hub import Grove, growing
from hub_calls import OTHER, call, until

from activations.arbor.feed import LIST_INTERVAL_S
from activations.arbor.model import NewNode
from plexus import Activation, Change, NotFound, Resource, method
from plexus.events import ErrorEvent, Result
from plexus.principal import LOCAL, Principal
from plexus.rpc import wire

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

MISSING = "00000000-0000-4000-8000-000000000000"


class Cone(Activation):
    """Keeps messages."""

    namespace = "cone"
    version = "1.0.0"

    @method(read_only=True)
    async def resolve_handle(self, handle: str) -> str:
        """What a handle stands for.

        Args:
            handle: The handle.
        """
        return f"resolved {handle}"


@pytest.fixture
async def grove(tmp_path: Path) -> AsyncIterator[Grove]:
    async with growing(tmp_path / "arbor.db", Cone) as opened:
        yield opened


async def read(grove: Grove, uri: str, principal: Principal = LOCAL) -> Any:
    spec, arguments = grove.hub.find_resource(uri)
    [end] = await call(grove.hub, spec.name, arguments, principal)
    return end.result if isinstance(end, Result) else end


async def listed(grove: Grove, limit: int, principal: Principal = LOCAL) -> list[str]:
    """The addresses of all trees and nodes, read in pages of this size."""
    found: list[str] = []
    after = None
    while page := await grove.arbor.resources(principal, after, limit):
        assert len(page) <= limit
        found += [entry.uri for entry in page]
        after = found[-1]
    return found


async def test_a_tree_is_read_as_its_drawing(grove: Grove) -> None:
    tree = await grove.tree(metadata={"title": "Notes"})
    await grove.text(tree, "one")
    assert await read(grove, f"arbor://tree/{tree}") == "Notes\none\n"


async def test_a_node_is_read_as_its_text_with_its_media_type(grove: Grove) -> None:
    tree = await grove.tree()
    for content, metadata, kind in (
        ("plain", None, "text/plain"),
        ("", {}, "text/plain"),
        ("# Title", {"media_type": "text/markdown"}, "text/markdown"),
        ("odd", {"media_type": 5}, "text/plain"),
    ):
        node = await grove.text(tree, content, metadata=metadata)
        uri = f"arbor://tree/{tree}/node/{node}"
        assert await read(grove, uri) == Resource(uri, None, kind, content)


async def test_a_handle_is_read_as_its_resolved_text_or_its_text_form(grove: Grove) -> None:
    tree = await grove.tree()
    for handle, text in (("cone@1::m", "resolved cone@1::m"), ("x@1::m", "x@1::m")):
        made = await grove.value("node_create_external", tree_id=tree, handle=handle)
        found = await read(grove, f"arbor://tree/{tree}/node/{made['node_id']}")
        assert found.content == text


async def test_missing_trees_and_those_of_other_principals_are_not_found(grove: Grove) -> None:
    tree = await grove.value("tree_create")
    uris = (
        f"arbor://tree/{tree['tree_id']}",
        f"arbor://tree/{tree['tree_id']}/node/{tree['root']}",
    )
    for uri in uris:
        end = await read(grove, uri, OTHER)
        assert isinstance(end, ErrorEvent)
        assert end.code == "not_found"
    for uri in (f"arbor://tree/{MISSING}", f"{uris[0]}/node/{MISSING}", "arbor://tree/x"):
        end = await read(grove, uri)
        assert isinstance(end, ErrorEvent)
        assert end.code == "not_found"
    with pytest.raises(NotFound):
        grove.hub.find_resource("arbor://forest/1")


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 1000])
async def test_trees_and_nodes_are_listed_by_uri_in_pages(limit: int, grove: Grove) -> None:
    expected = []
    for size in (0, 3, 1, 5):
        tree = await grove.value("tree_create")
        t = tree["tree_id"]
        nodes = [tree["root"], *[await grove.text(t, str(i)) for i in range(size)]]
        expected += [f"arbor://tree/{t}", *[f"arbor://tree/{t}/node/{node}" for node in nodes]]
    theirs = await grove.value("tree_create", OTHER)
    assert await listed(grove, limit) == sorted(expected)
    assert await listed(grove, limit, OTHER) == [
        f"arbor://tree/{theirs['tree_id']}",
        f"arbor://tree/{theirs['tree_id']}/node/{theirs['root']}",
    ]


async def test_lists_longer_than_a_store_page_have_no_gap(grove: Grove) -> None:
    trees = [await grove.tree() for _ in range(3)]
    for tree in trees:
        await grove.value("node_append", tree_id=tree, nodes=[{"content": "x"}] * 700)
    for limit in (999, 1001, 5000):
        found = await listed(grove, limit)
        assert len(found) == 3 * 702
        assert found == sorted(set(found))
    assert len(await grove.arbor.resources(LOCAL, None, 1001)) == 1001


@pytest.mark.parametrize(
    ("after", "count"),
    [(None, 2), ("", 2), ("arbor://tree/", 2), ("run://1", 0), ("z", 0), ("arbor://tree/z", 0),
     ("arbor://tree/\0", 2)],
)  # fmt: skip
async def test_a_page_may_start_after_any_text(after: str | None, count: int, grove: Grove) -> None:
    await grove.tree()
    found = await grove.hub.list_resources(LOCAL, after, 10)
    assert len([entry for entry in found if entry.uri.startswith("arbor:")]) == count


async def test_resource_names_show_titles_and_contents(grove: Grove) -> None:
    tree = await grove.tree(metadata={"title": "My notes"})
    await grove.text(tree, "first\nsecond", metadata={"media_type": "text/markdown"})
    await grove.value("node_create_external", tree_id=tree, handle="a@1::m")
    found = await grove.arbor.resources(LOCAL, None, 10)
    names = {entry.name: entry.mime_type for entry in found}
    assert names["My notes"] == "text/plain"
    assert names["first↵second"] == "text/markdown"
    assert names["a@1::m"] == "text/plain"


async def test_ids_are_suggested_by_prefix(grove: Grove) -> None:
    tree = await grove.value("tree_create")
    t, root = tree["tree_id"], tree["root"]
    await grove.tree()

    async def suggest(method: str, argument: str, value: str, **given: str) -> list[str]:
        [end] = await call(
            grove.hub,
            "plexus.complete",
            {"method": method, "argument": argument, "value": value, "given": given},
        )
        assert isinstance(end, Result), end
        values: list[str] = wire.decode_plain(end.result)["values"]
        return values

    assert len(await suggest("arbor.read_tree", "tree", "")) == 2
    assert t in await suggest("arbor.read_tree", "tree", t[:1])
    assert await suggest("arbor.read_node", "tree", t) == [t]
    assert await suggest("arbor.read_node", "node", root[:4], tree=t) == [root]
    for odd in ("z", "\0", "é", "A", "%"):
        assert await suggest("arbor.read_tree", "tree", odd) == []
    assert await suggest("arbor.read_node", "node", "") == []


# --- changes --------------------------------------------------------------------------------------


#: The principal of the trees.
ME = LOCAL.name


class ChangeRecorder:
    """A subscriber that records the changes of a hub."""

    def __init__(self, grove: Grove) -> None:
        self.changes: list[tuple[float, Change]] = []
        grove.hub.on_change(lambda change: self.changes.append((time.monotonic(), change)))

    def count(self, change: Change) -> int:
        return sum(each == change for _, each in self.changes)


async def test_the_hub_is_notified_of_changes(grove: Grove) -> None:
    tree = await grove.tree()
    recorder = ChangeRecorder(grove)
    node = await grove.text(tree, "a")
    touched = Change("resource", f"arbor://tree/{tree}", ME)
    made = Change("resource", f"arbor://tree/{tree}/node/{node}", ME)
    await until(lambda: recorder.count(touched) > 0 and recorder.count(made) > 0)
    await until(lambda: recorder.count(Change("resources", None, ME)) > 0)
    await grove.value("node_delete", tree_id=tree, node_id=node)
    await until(lambda: recorder.count(made) > 1)


async def test_the_hub_is_notified_when_heads_are_created_moved_and_deleted(grove: Grove) -> None:
    store = await grove.arbor.store()
    recorder = ChangeRecorder(grove)
    prompts = Change("prompts", None, "me")
    head = await store.create_head("me", "chat", "a")
    touched = Change("resource", f"arbor://tree/{head.position.tree}", "me")
    root = Change("resource", f"arbor://tree/{head.position.tree}/node/{head.position.node}", "me")
    await until(lambda: all(recorder.count(each) for each in (prompts, touched, root)))
    held = await store.acquire_head("me", "chat", "a", "holder")
    _, [node] = await store.advance("me", head.id, "holder", [NewNode("text")])
    made = Change("resource", f"arbor://tree/{head.position.tree}/node/{node.id}", "me")
    await until(lambda: recorder.count(made) > 0)
    before = recorder.count(touched), recorder.count(root)
    await store.move_head("me", "chat", "a", held.position.node, "holder")
    await until(lambda: recorder.count(touched) > before[0])
    assert recorder.count(root) == before[1]  # a head is not part of its node
    await store.release_head("me", head.id, "holder")
    assert recorder.count(prompts) == 1  # moving heads does not change the list
    await store.rename_head("me", "chat", "a", "b")
    await until(lambda: recorder.count(prompts) == 2)
    await store.delete_head("me", "chat", "b")
    await until(lambda: recorder.count(prompts) == 3)


async def test_the_hub_is_notified_of_the_very_first_change(grove: Grove) -> None:
    recorder = ChangeRecorder(grove)
    tree = await grove.tree()
    await until(lambda: recorder.count(Change("resource", f"arbor://tree/{tree}", ME)) > 0)
    await until(lambda: recorder.count(Change("resources", None, ME)) > 0)


async def test_the_hub_is_notified_of_changes_by_another_process(
    grove: Grove, tmp_path: Path
) -> None:
    tree = await grove.tree()
    recorder = ChangeRecorder(grove)
    async with growing(tmp_path / "arbor.db") as elsewhere:
        node = await elsewhere.text(tree, "a")
        made = Change("resource", f"arbor://tree/{tree}/node/{node}", ME)
        await until(lambda: recorder.count(made) > 0)


async def test_changed_lists_are_notified_at_intervals_and_at_the_end(grove: Grove) -> None:
    tree = await grove.tree()
    recorder = ChangeRecorder(grove)
    end = time.monotonic() + 1.5 * LIST_INTERVAL_S
    while time.monotonic() < end:
        await grove.text(tree, "a")
        await asyncio.sleep(0.01)
    last = await grove.text(tree, "last")
    written = time.monotonic()
    made = Change("resource", f"arbor://tree/{tree}/node/{last}", ME)
    await until(lambda: recorder.count(made) > 0)
    lists = Change("resources", None, ME)
    await until(lambda: any(at > written and each == lists for at, each in recorder.changes))
    times = [at for at, each in recorder.changes if each == lists]
    assert all(later - sooner >= 0.9 * LIST_INTERVAL_S for sooner, later in pairwise(times))


async def test_many_changes_are_summarized(grove: Grove) -> None:
    tree = await grove.tree()
    recorder = ChangeRecorder(grove)
    await grove.value("node_append", tree_id=tree, nodes=[{"content": "x"}] * 10_000)
    await until(lambda: recorder.count(Change("resources")) > 0)
    await until(lambda: recorder.count(Change("resource", f"arbor://tree/{tree}", ME)) > 0)
    assert len(recorder.changes) < 3000
