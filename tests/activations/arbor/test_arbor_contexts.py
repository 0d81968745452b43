"""Paths to nodes, leaves, and full-text search."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from arbor_hub import Grove, growing
from hub_calls import OTHER

from plexus import InvalidParams

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


@pytest.fixture
async def grove(tmp_path: Path) -> AsyncIterator[Grove]:
    async with growing(tmp_path / "arbor.db") as opened:
        yield opened


async def deep(grove: Grove, tree: str, depth: int, content: str = "x") -> list[str]:
    """Create a chain of nodes."""
    nodes = [{"content": content} | ({"parent": i - 1} if i else {}) for i in range(depth)]
    made: list[str] = (await grove.value("node_append", tree_id=tree, nodes=nodes))["node_ids"]
    return made


async def path(grove: Grove, tree: str, node: str) -> list[dict[str, Any]]:
    events = await grove.events("context_get_path", tree_id=tree, node_id=node)
    assert events[-1] == {"type": "complete"}
    return [node for event in events[:-1] for node in event["nodes"]]


async def test_leaves_are_listed_in_pages(grove: Grove) -> None:
    tree = await grove.tree()
    empty = await grove.value("context_list_leaves", tree_id=tree)
    assert len(empty["leaves"]) == 1
    top = await grove.text(tree, "top")
    ends = [await grove.text(tree, str(i), top) for i in range(5)]
    found: list[str] = []
    after = None
    while True:
        page = await grove.value("context_list_leaves", tree_id=tree, after=after, limit=2)
        found += page["leaves"]
        after = page.get("next")
        if after is None:
            break
    assert found == ends


async def test_a_replaced_version_is_not_a_leaf(grove: Grove) -> None:
    tree = await grove.tree()
    old = await grove.text(tree, "one")
    new = (await grove.value("node_edit", tree_id=tree, node_id=old, content="two"))["node_id"]
    assert (await grove.value("context_list_leaves", tree_id=tree))["leaves"] == [new]


async def test_the_path_to_a_node_starts_at_the_root(grove: Grove) -> None:
    tree = await grove.value("tree_create")
    chain = await deep(grove, tree["tree_id"], 3)
    nodes = await path(grove, tree["tree_id"], chain[-1])
    assert [node["node_id"] for node in nodes] == [tree["root"], *chain]
    assert [node.get("parent") for node in nodes] == [None, tree["root"], *chain[:-1]]
    assert len(await path(grove, tree["tree_id"], tree["root"])) == 1


async def test_a_path_of_ten_thousand_nodes_is_returned_in_batches(grove: Grove) -> None:
    tree = await grove.tree()
    chain = await deep(grove, tree, 10_000)
    events = await grove.events("context_get_path", tree_id=tree, node_id=chain[-1])
    assert len(events) > 10
    nodes = [node["node_id"] for event in events[:-1] for node in event["nodes"]]
    assert nodes[1:] == chain
    ids = await grove.value("node_get_path", tree_id=tree, node_id=chain[-1])
    assert ids["path"] == nodes


async def test_only_the_handles_on_the_path_are_listed(grove: Grove) -> None:
    tree = await grove.tree()
    made = await grove.value(
        "node_append",
        tree_id=tree,
        nodes=[
            {"handle": "a@1::m:1"},
            {"content": "text", "parent": 0},
            {"handle": "b@1::m:2", "parent": 1},
            {"handle": "c@1::m:3", "parent": 1},
        ],
    )
    found = await grove.value("context_get_handles", tree_id=tree, node_id=made["node_ids"][2])
    assert [(each["node_id"], each["handle"]["text"]) for each in found["handles"]] == [
        (made["node_ids"][0], "a@1::m:1"),
        (made["node_ids"][2], "b@1::m:2"),
    ]


async def search(grove: Grove, text: str, **params: Any) -> tuple[list[Any], dict[str, Any]]:
    events = await grove.events("search", text=text, **params)
    return [hit for event in events[:-1] for hit in event["hits"]], events[-1]


async def test_words_are_found_in_one_tree_or_in_all_own_trees(grove: Grove) -> None:
    one, two = await grove.tree(), await grove.tree()
    a = await grove.text(one, "The quick brown fox")
    b = await grove.text(two, "A QUICK answer")
    theirs = (await grove.value("tree_create", OTHER))["tree_id"]
    await grove.value("node_create_text", OTHER, tree_id=theirs, content="quick and theirs")
    hits, end = await search(grove, "quick")
    assert [hit["node_id"] for hit in hits] == [b, a]
    assert end == {"type": "complete", "count": 2}
    hits, _ = await search(grove, "fox quick", tree_id=one)
    assert [(hit["node_id"], hit["excerpt"]) for hit in hits] == [(a, "The quick brown fox")]
    assert (await search(grove, "quick slow"))[0] == []


async def test_a_search_continues_where_the_previous_one_ended(grove: Grove) -> None:
    tree = await grove.tree()
    made = await grove.value(
        "node_append", tree_id=tree, nodes=[{"content": f"word {i}"} for i in range(250)]
    )
    first, end = await search(grove, "word", limit=120)
    assert end["count"] == 120
    second, last = await search(grove, "word", before=end["next"], limit=1000)
    assert "next" not in last
    assert [hit["node_id"] for hit in first + second] == made["node_ids"][::-1]


@pytest.mark.parametrize("text", ['"', "a OR b*", "NEAR(a b)", "x'; DROP TABLE nodes; --", "a:b"])
async def test_a_search_text_has_no_operators(text: str, grove: Grove) -> None:
    tree = await grove.tree()
    await grove.text(tree, "nothing of the kind")
    events = await grove.events("search", text=text)
    assert events[-1]["type"] in ("complete", "error")
    assert events[-1].get("code", "invalid_params") == "invalid_params"
    assert len(await grove.nodes(tree)) == 2


@pytest.mark.parametrize("limit", [0, 10_001])
async def test_an_invalid_number_of_results_is_refused(limit: int, grove: Grove) -> None:
    with pytest.raises(InvalidParams, match="limit: "):
        await grove.events("search", text="a", limit=limit)


@pytest.mark.parametrize("params", [{"text": ""}, {"text": "."}, {"text": "a\0"}])
async def test_an_invalid_search_is_refused(params: dict[str, Any], grove: Grove) -> None:
    assert (await grove.error("search", **params)).code in ("invalid_params", "bad_text")


async def test_deleted_nodes_are_not_found(grove: Grove) -> None:
    tree = await grove.tree()
    node = await grove.text(tree, "vanishing")
    await grove.value("node_delete", tree_id=tree, node_id=node)
    assert (await search(grove, "vanishing"))[0] == []
