"""The methods of trees: create, list, claim, release and delete."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from arbor_hub import Grove, growing, open_grove
from hub_calls import OTHER, call

from activations.arbor import Arbor
from activations.arbor.model import METADATA_BYTES, Retention
from activations.arbor.schema import ARBOR
from plexus import InvalidParams, Plexus
from plexus.rpc import wire

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

MISSING = "00000000-0000-4000-8000-000000000000"

#: All methods of arbor.
NAMES = {
    "node_preview",
    *("tree_create", "tree_get", "tree_get_skeleton", "tree_list", "tree_update_metadata"),
    *("tree_claim", "tree_release", "tree_list_scheduled", "tree_list_archived", "tree_render"),
    *("node_create_text", "node_create_external", "node_get", "node_get_children"),
    *("node_get_parent", "node_get_path"),
    *("context_list_leaves", "context_get_path", "context_get_handles"),
    *("tree_delete", "tree_export", "tree_import", "watch", "search"),
    *("node_append", "node_edit", "node_move", "node_delete"),
}


@pytest.fixture
async def grove(tmp_path: Path) -> AsyncIterator[Grove]:
    async with growing(tmp_path / "arbor.db") as opened:
        yield opened


def test_every_method_exists_with_description_and_hints() -> None:
    hub = Plexus()
    hub.register(Arbor())
    methods = {spec.name.partition(".")[2]: spec for spec in hub.methods()}
    assert {name for name, spec in methods.items() if spec.role == "method"} == NAMES
    for name in NAMES:
        spec = methods[name]
        assert spec.hints.open_world is False, name
        assert spec.hints.read_only is True or spec.hints.destructive is not None, name
        assert spec.title, name
    described = hub.schema()["activations"][0]
    assert [each["name"] for each in described["methods"] if "broken" in each] == []


async def test_a_tree_has_an_empty_root_and_one_reference_of_its_owner(grove: Grove) -> None:
    before = time.time() * 1000 - 1
    tree = await grove.value("tree_create", metadata={"title": "Notes"}, owner_id="me")
    assert tree["state"] == "active"
    assert tree["owners"] == {"me": 1}
    assert tree["ref_count"] == 1
    assert tree["metadata"] == {"title": "Notes"}
    assert before <= tree["created_ms"] == tree["updated_ms"]
    [root] = await grove.nodes(tree["tree_id"])
    assert root["node_id"] == tree["root"]
    assert root["content"] == ""
    assert "parent" not in root


async def test_the_default_owner_is_the_caller(grove: Grove) -> None:
    assert (await grove.value("tree_create"))["owners"] == {"local": 1}
    theirs = await grove.value("tree_create", OTHER)
    assert theirs["owners"] == {OTHER.name: 1}


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tree_get", {}),
        ("tree_get_skeleton", {}),
        ("tree_update_metadata", {"metadata": {}}),
        ("tree_claim", {}),
        ("tree_release", {}),
        ("tree_delete", {}),
        ("tree_render", {}),
        ("tree_export", {}),
        ("watch", {}),
        ("node_create_text", {"content": "x"}),
        ("node_create_external", {"handle": "a@1::b"}),
        ("node_append", {"nodes": [{"content": "x"}]}),
        ("node_get", {"node_id": MISSING}),
        ("node_get_children", {"node_id": MISSING}),
        ("node_get_parent", {"node_id": MISSING}),
        ("node_get_path", {"node_id": MISSING}),
        ("node_edit", {"node_id": MISSING, "content": "x"}),
        ("node_move", {"node_id": MISSING, "parent": MISSING}),
        ("node_delete", {"node_id": MISSING}),
        ("context_list_leaves", {}),
        ("context_get_path", {"node_id": MISSING}),
        ("context_get_handles", {"node_id": MISSING}),
        ("search", {"text": "x"}),
    ],
)
async def test_missing_trees_and_those_of_other_principals_are_not_found(
    method: str, params: dict[str, Any], grove: Grove
) -> None:
    theirs = (await grove.value("tree_create", OTHER))["tree_id"]
    for tree in (MISSING, theirs, "no id", "", "\0", "x" * 5000):
        assert (await grove.error(method, tree_id=tree, **params)).code == "not_found", tree
    assert len(await grove.events("tree_get", OTHER, tree_id=theirs)) == 3


async def test_trees_are_listed_in_pages(grove: Grove) -> None:
    made = sorted([await grove.tree() for _ in range(7)])
    await grove.value("tree_create", OTHER)
    found: list[str] = []
    after = None
    for size in (3, 3, 1):
        page = await grove.value("tree_list", after=after, limit=3)
        assert len(page["trees"]) == size
        found += [tree["tree_id"] for tree in page["trees"]]
        after = page.get("next")
    assert after is None
    assert found == made


@pytest.mark.parametrize("method", ["tree_list", "tree_list_scheduled", "tree_list_archived"])
@pytest.mark.parametrize("limit", [0, -1, 1001])
async def test_an_invalid_page_size_is_refused(method: str, limit: int, grove: Grove) -> None:
    with pytest.raises(InvalidParams, match="limit: "):
        await grove.value(method, limit=limit)
    assert (await grove.value(method, limit=1000))["trees"] == []


async def test_metadata_is_replaced(grove: Grove) -> None:
    tree = await grove.tree(metadata={"a": 1})
    assert (await grove.value("tree_update_metadata", tree_id=tree, metadata={"b": 2}))[
        "metadata"
    ] == {"b": 2}
    updated = await grove.value("tree_update_metadata", tree_id=tree, metadata=None)
    assert "metadata" not in updated


async def test_metadata_of_the_maximum_size_is_accepted(grove: Grove) -> None:
    fits = {"a": "x" * (METADATA_BYTES - len('{"a":""}'))}
    tree = await grove.tree(metadata=fits)
    longer = {"a": fits["a"] + "x"}
    refused = await grove.error("tree_update_metadata", tree_id=tree, metadata=longer)
    assert refused.code == "too_big"
    assert refused.data == {"limit": METADATA_BYTES}


async def test_claims_and_releases_are_counted_by_owner(grove: Grove) -> None:
    tree = await grove.tree(owner_id="a")
    assert await grove.value("tree_claim", tree_id=tree, owner_id="b", count=3) == {
        "type": "refs",
        "tree_id": tree,
        "owner_id": "b",
        "count": 3,
        "ref_count": 4,
        "state": "active",
    }
    left = await grove.value("tree_release", tree_id=tree, owner_id="b", count=2)
    assert (left["count"], left["ref_count"]) == (1, 2)


@pytest.mark.parametrize(("owner", "count"), [("a", 2), ("b", 1)])
async def test_an_owner_cannot_release_more_than_it_has(
    owner: str, count: int, grove: Grove
) -> None:
    tree = await grove.tree(owner_id="a")
    refused = await grove.error("tree_release", tree_id=tree, owner_id=owner, count=count)
    assert refused.code == "over_release"
    [event, *_] = await grove.events("tree_get", tree_id=tree)
    assert event["owners"] == {"a": 1}


@pytest.mark.parametrize("count", [0, -1, 2**31])
@pytest.mark.parametrize("method", ["tree_claim", "tree_release"])
async def test_a_count_is_one_or_more(method: str, count: int, grove: Grove) -> None:
    tree = await grove.tree()
    assert (await grove.error(method, tree_id=tree, count=count)).code == "invalid_params"


@pytest.mark.parametrize("count", ["1", 1.5, None, True])
async def test_a_count_is_a_whole_number(count: object, grove: Grove) -> None:
    with pytest.raises(InvalidParams):
        grove.hub.call("arbor.tree_claim", {"tree_id": MISSING, "count": count})


async def test_the_last_release_schedules_a_tree_and_a_claim_keeps_it(grove: Grove) -> None:
    tree, other = await grove.tree(), await grove.tree()
    assert (await grove.value("tree_release", tree_id=tree))["state"] == "scheduled_delete"
    [scheduled] = (await grove.value("tree_list_scheduled"))["trees"]
    assert scheduled["tree_id"] == tree
    assert scheduled["scheduled_ms"] > 0
    listed = {each["tree_id"] for each in (await grove.value("tree_list"))["trees"]}
    assert listed == {tree, other}
    assert (await grove.value("tree_list_archived"))["trees"] == []

    assert (await grove.value("tree_claim", tree_id=tree))["state"] == "active"
    assert (await grove.value("tree_list_scheduled"))["trees"] == []


async def test_deleting_a_tree_schedules_it_despite_references(grove: Grove) -> None:
    tree = await grove.tree()
    await grove.value("tree_claim", tree_id=tree, owner_id="b", count=5)
    for _ in range(2):  # the second time it is already deleted
        deleted = await grove.value("tree_delete", tree_id=tree)
        assert (deleted["state"], deleted["ref_count"]) == ("scheduled_delete", 0)


async def test_an_archived_tree_is_read_only(tmp_path: Path) -> None:
    grove = open_grove(tmp_path / "arbor.db", retention=Retention(scheduled_s=0))
    tree = await grove.tree()
    node = await grove.text(tree, "kept")
    await grove.value("tree_delete", tree_id=tree)
    await asyncio.sleep(0.002)  # the retention period ends in the next millisecond
    await (await grove.arbor.store()).purge()

    [archived] = (await grove.value("tree_list_archived"))["trees"]
    assert (archived["tree_id"], archived["state"]) == (tree, "archived")
    assert (await grove.value("tree_list"))["trees"] == []
    assert [each.get("content") for each in await grove.nodes(tree)] == ["", "kept"]
    refusals: dict[str, dict[str, Any]] = {
        "tree_claim": {},
        "tree_release": {},
        "tree_delete": {},
        "tree_update_metadata": {"metadata": {}},
        "node_create_text": {"content": "x"},
        "node_append": {"nodes": [{"content": "x"}]},
        "node_edit": {"node_id": node, "content": "x"},
        "node_move": {"node_id": node, "parent": node},
        "node_delete": {"node_id": node},
    }
    for method, params in refusals.items():
        assert (await grove.error(method, tree_id=tree, **params)).code == "archived", method
    await grove.hub.close()


async def test_a_large_tree_is_streamed_in_batches_that_fit(grove: Grove) -> None:
    tree = await grove.tree()
    large = "\x01" * 90_000  # six bytes each when escaped
    items = [{"content": large} for _ in range(10)] + [{"content": str(i)} for i in range(1500)]
    for start in range(10):
        await grove.value("node_append", tree_id=tree, nodes=items[start : start + 1])
    made = await grove.value("node_append", tree_id=tree, nodes=items[10:])
    events = await grove.events("tree_get", tree_id=tree)
    assert events[0]["type"] == "tree"
    assert events[-1] == {"type": "complete"}
    sizes = [len(wire.encode(event)) for event in events]
    assert max(sizes) < grove.hub.limits.event_bytes
    nodes = [node for event in events[1:-1] for node in event["nodes"]]
    assert [node["content"] for node in nodes[1:11]] == [large] * 10
    assert [node["node_id"] for node in nodes[11:]] == made["node_ids"]

    skeleton = await grove.events("tree_get_skeleton", tree_id=tree)
    stubs = [bone for event in skeleton[1:-1] for bone in event["nodes"]]
    assert [bone["node_id"] for bone in stubs] == [node["node_id"] for node in nodes]
    assert stubs[1].keys() == {"type", "node_id", "parent", "position", "kind"}


async def test_nothing_is_opened_before_it_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "arbor.db"
    grove = open_grove(path)
    assert await grove.arbor.check_health() == "no data stored yet"
    assert await grove.hub.list_resources() == []
    assert not path.parent.exists()
    await grove.tree()
    assert path.exists()
    assert (
        await grove.arbor.check_health()
        == f"sqlite {path}, schema {ARBOR.version}, 1 trees, 1 nodes"
    )
    await grove.hub.close()


async def test_the_first_call_opens_the_store_and_concurrent_calls_wait(grove: Grove) -> None:
    calls = [call(grove.hub, "arbor.tree_create", {}) for _ in range(20)]
    ends = await asyncio.gather(*calls)
    assert {end[-1].type for end in ends} == {"complete"}
    assert len((await grove.value("tree_list"))["trees"]) == 20


async def test_a_store_that_cannot_be_opened_is_an_error_and_is_retried(
    tmp_path: Path,
) -> None:
    path = tmp_path / "arbor.db"
    path.write_bytes(b"this is no database, and never was one" * 100)
    grove = open_grove(path)
    assert (await grove.error("tree_create")).code.startswith("storage")
    path.unlink()
    assert await grove.tree()
    await grove.hub.close()


def test_a_password_in_a_url_is_never_shown() -> None:
    arbor = Arbor("postgresql://me:secret@host:5432/trees?sslmode=require")
    assert "secret" not in arbor.location()
    assert arbor.location().startswith("postgresql host:5432/trees")
