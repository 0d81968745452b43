"""The methods of nodes: add, read, edit, move and delete."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from arbor_hub import Grove, growing
from hub_calls import call
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from activations.arbor.methods.nodes import parse_handle
from activations.arbor.model import CONTENT_BYTES
from plexus import InvalidParams, Resource
from plexus.events import Result

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

MISSING = "00000000-0000-4000-8000-000000000000"


@pytest.fixture
async def grove(tmp_path: Path) -> AsyncIterator[Grove]:
    async with growing(tmp_path / "arbor.db") as opened:
        yield opened


async def get(grove: Grove, tree: str, node: str) -> dict[str, Any]:
    found: dict[str, Any] = await grove.value("node_get", tree_id=tree, node_id=node)
    return found


async def children(grove: Grove, tree: str, node: str) -> list[str]:
    page = await grove.value("node_get_children", tree_id=tree, node_id=node)
    assert "next" not in page
    return [child["node_id"] for child in page["nodes"]]


async def test_a_text_is_added_to_the_root_unless_a_parent_is_named(grove: Grove) -> None:
    tree = await grove.value("tree_create")
    made = await grove.value("node_create_text", tree_id=tree["tree_id"], content="a")
    assert made["parent"] == tree["root"]
    below = await grove.text(tree["tree_id"], "b", made["node_id"], metadata={"role": "user"})
    node = await get(grove, tree["tree_id"], below)
    assert node["parent"] == made["node_id"]
    assert node["content"] == "b"
    assert node["metadata"] == {"role": "user"}


@pytest.mark.parametrize(
    "content",
    [
        "",
        " ",
        "\n",
        "\u2028\u2029\x85\x0b",
        "\U0001f468\u200d\U0001f469\u200d\U0001f467",
        "\u202e",
        "\x01\x1f\x7f",
        "\uffff",
        "\U0010ffff",
    ],
)
async def test_any_text_round_trips(content: str, grove: Grove) -> None:
    tree = await grove.tree()
    node = await grove.text(tree, content)
    assert (await get(grove, tree, node))["content"] == content


async def test_a_nul_is_refused_in_every_field(grove: Grove) -> None:
    tree = await grove.tree()
    refusals: dict[str, dict[str, Any]] = {
        "node_create_text": {"content": "a\0"},
        "node_create_external": {"handle": {"plugin": "a\0", "version": "1", "method": "b"}},
        "node_append": {"nodes": [{"content": "fine"}, {"content": "\0"}]},
    }
    for method, params in refusals.items():
        refused = await grove.error(method, tree_id=tree, **params)
        assert "NUL" in refused.message
    assert len(await grove.nodes(tree)) == 1


async def test_a_content_of_the_maximum_size_is_accepted(grove: Grove) -> None:
    tree = await grove.tree()
    node = await grove.text(tree, "é" * (CONTENT_BYTES // 2))
    assert len((await get(grove, tree, node))["content"]) == CONTENT_BYTES // 2
    refused = await grove.error("node_create_text", tree_id=tree, content="x" * 10_000_000)
    assert refused.code == "too_big"
    assert refused.data == {"limit": CONTENT_BYTES}


async def test_lists_omit_very_long_content_and_report_its_size(
    grove: Grove,
) -> None:
    tree = await grove.value("tree_create")
    node = await grove.text(tree["tree_id"], "x" * 100_001)
    page = await grove.value("node_get_children", tree_id=tree["tree_id"], node_id=tree["root"])
    [shown] = page["nodes"]
    assert "content" not in shown
    assert shown["size"] == 100_001
    assert len((await get(grove, tree["tree_id"], node))["content"]) == 100_001


async def test_a_handle_is_passed_as_text_or_parts_and_returned_as_both(grove: Grove) -> None:
    tree = await grove.tree()
    parts = {"plugin": "cone", "version": "1.0", "method": "chat", "meta": ["a:b", "%", "x@y", ""]}
    text = "cone@1.0::chat:a%3Ab:%25:x%40y:"
    for given_as in (text, parts):
        made = await grove.value("node_create_external", tree_id=tree, handle=given_as)
        node = await get(grove, tree, made["node_id"])
        assert node["handle"] == {"type": "handle", **parts, "text": text}
        assert "content" not in node
        again = await grove.value("node_create_external", tree_id=tree, handle=node["handle"])
        assert (await get(grove, tree, again["node_id"]))["handle"] == node["handle"]


BAD_HANDLES: list[Any] = [
    "",
    "cone",
    "cone@1",
    "cone@1:chat",
    "a@b@c::d",
    "a@1::b:%zz",
    {},
    {"plugin": "a", "version": "1"},
    {"plugin": "a", "version": "1", "method": 5},
    {"plugin": "a", "version": "1", "method": "b", "meta": "c"},
    {"plugin": "a", "version": "1", "method": "b", "meta": [1]},
    {"plugin": "a", "version": "1", "method": "b", "more": "c"},
]


@pytest.mark.parametrize("handle", BAD_HANDLES)
async def test_an_invalid_handle_is_refused(handle: Any, grove: Grove) -> None:
    tree = await grove.tree()
    refused = await grove.error("node_create_external", tree_id=tree, handle=handle)
    assert refused.code == "bad_handle"
    refused = await grove.error("node_append", tree_id=tree, nodes=[{"handle": handle}])
    assert refused.code == "bad_handle"
    assert len(await grove.nodes(tree)) == 1


TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TEXTS, TEXTS, TEXTS, st.lists(TEXTS, max_size=4))
def test_every_handle_survives_its_text_form(
    plugin: str, version: str, method: str, meta: list[str]
) -> None:
    handle = parse_handle({"plugin": plugin, "version": version, "method": method, "meta": meta})
    assert parse_handle(str(handle)) == handle


async def test_several_nodes_are_added_in_one_call_and_may_be_nested(grove: Grove) -> None:
    tree = await grove.tree()
    top = await grove.text(tree, "top")
    made = await grove.value(
        "node_append",
        tree_id=tree,
        parent=top,
        nodes=[
            {"content": "a"},
            {"content": "b", "parent": 0, "metadata": {"n": 1}},
            {"handle": "p@1::m", "parent": 1},
            {"content": "c", "parent": top},
        ],
    )
    a, b, external, c = made["node_ids"]
    assert await children(grove, tree, top) == [a, c]
    path = await grove.value("node_get_path", tree_id=tree, node_id=external)
    assert path["path"][1:] == [top, a, b, external]
    assert (await get(grove, tree, b))["metadata"] == {"n": 1}


@pytest.mark.parametrize(
    ("nodes", "code"),
    [
        ([], "too_big"),
        ([{"content": "a"}] * 10_001, "too_big"),
        ([{"content": "a"}, {}], "invalid_params"),
        ([{"content": "a"}, {"content": "b", "handle": "p@1::m"}], "invalid_params"),
        ([{"content": "a"}, {"content": "b", "parent": 1}], "invalid_params"),
        ([{"content": "a"}, {"content": "b", "parent": -1}], "invalid_params"),
        ([{"content": "a"}, {"content": "b", "parent": MISSING}], "not_found"),
        ([{"content": "a"}, {"content": "x" * (CONTENT_BYTES + 1)}], "too_big"),
    ],
)
async def test_an_append_that_is_refused_has_added_nothing(
    nodes: list[dict[str, Any]], code: str, grove: Grove
) -> None:
    tree = await grove.tree()
    assert (await grove.error("node_append", tree_id=tree, nodes=nodes)).code == code
    assert len(await grove.nodes(tree)) == 1


async def test_the_maximum_number_of_nodes_is_added_in_one_call(grove: Grove) -> None:
    tree = await grove.tree()
    made = await grove.value("node_append", tree_id=tree, nodes=[{"content": "a"}] * 10_000)
    assert len(made["node_ids"]) == 10_000
    assert len(await grove.nodes(tree)) == 10_001


@pytest.mark.parametrize("nodes", [None, {}, [1], [{"content": 1}], [{"text": "a"}], ["a"]])
async def test_malformed_nodes_are_refused(nodes: Any, grove: Grove) -> None:
    with pytest.raises(InvalidParams):
        grove.hub.call("arbor.node_append", {"tree_id": MISSING, "nodes": nodes})


async def test_a_node_of_another_tree_is_not_found_in_this_one(grove: Grove) -> None:
    tree, other = await grove.tree(), await grove.tree()
    node, theirs = await grove.text(tree, "mine"), await grove.text(other, "theirs")
    refusals: dict[str, dict[str, Any]] = {
        "node_create_text": {"content": "x", "parent": theirs},
        "node_get": {"node_id": theirs},
        "node_edit": {"node_id": theirs, "content": "x"},
        "node_move": {"node_id": node, "parent": theirs},
        "node_delete": {"node_id": theirs},
        "context_get_path": {"node_id": theirs},
        "tree_render": {"node_id": theirs},
    }
    for method, params in refusals.items():
        assert (await grove.error(method, tree_id=tree, **params)).code == "not_found", method
    assert len(await grove.nodes(tree)) == 2
    assert len(await grove.nodes(other)) == 2


async def test_children_come_in_order_page_by_page(grove: Grove) -> None:
    tree = await grove.value("tree_create")
    made = await grove.value(
        "node_append", tree_id=tree["tree_id"], nodes=[{"content": str(i)} for i in range(7)]
    )
    found: list[str] = []
    after = None
    while True:
        page = await grove.value(
            "node_get_children",
            tree_id=tree["tree_id"],
            node_id=tree["root"],
            after=after,
            limit=3,
        )
        found += [node["node_id"] for node in page["nodes"]]
        after = page.get("next")
        if after is None:
            break
    assert found == made["node_ids"]


async def test_a_page_of_large_children_ends_early_with_a_cursor(grove: Grove) -> None:
    tree = await grove.value("tree_create")
    made = [await grove.text(tree["tree_id"], "\x01" * 100_000) for _ in range(15)]
    found: list[str] = []
    after = None
    while len(found) < 15:
        page = await grove.value(
            "node_get_children", tree_id=tree["tree_id"], node_id=tree["root"], after=after
        )
        assert 0 < len(page["nodes"]) < 15
        found += [node["node_id"] for node in page["nodes"]]
        after = page.get("next")
    assert after is None
    assert found == made


async def test_the_root_has_no_parent_and_every_other_node_has_one(grove: Grove) -> None:
    tree = await grove.value("tree_create")
    node = await grove.text(tree["tree_id"], "a")
    parent = await grove.value("node_get_parent", tree_id=tree["tree_id"], node_id=node)
    assert parent["parent"]["node_id"] == tree["root"]
    none = await grove.value("node_get_parent", tree_id=tree["tree_id"], node_id=tree["root"])
    assert "parent" not in none


async def test_an_edit_creates_a_version_that_refers_to_the_old_one(
    grove: Grove,
) -> None:
    tree = await grove.value("tree_create")
    t = tree["tree_id"]
    first, other = await grove.text(t, "one"), await grove.text(t, "other")
    below = await grove.text(t, "below", first)
    made = await grove.value("node_edit", tree_id=t, node_id=first, content="two")
    assert made["replaces"] == first
    assert await children(grove, t, tree["root"]) == [first, made["node_id"], other]
    old, new = await get(grove, t, first), await get(grove, t, made["node_id"])
    assert (old["content"], old["replaced_by"]) == ("one", made["node_id"])
    assert (new["content"], new["replaces"]) == ("two", first)
    assert (await get(grove, t, below))["parent"] == first
    assert (await grove.error("node_edit", tree_id=t, node_id=first, content="x")).code == (
        "replaced"
    )


async def test_a_node_is_moved_with_its_subtree(grove: Grove) -> None:
    tree = await grove.value("tree_create")
    t = tree["tree_id"]
    a, b = await grove.text(t, "a"), await grove.text(t, "b")
    below = await grove.text(t, "below", a)
    moved = await grove.value("node_move", tree_id=t, node_id=a, parent=b)
    assert moved["parent"] == b
    path = await grove.value("node_get_path", tree_id=t, node_id=below)
    assert path["path"] == [tree["root"], b, a, below]
    await grove.value("node_move", tree_id=t, node_id=a, parent=tree["root"], position=0)
    assert await children(grove, t, tree["root"]) == [a, b]


async def test_a_node_cannot_move_into_its_subtree_and_the_root_cannot_move(grove: Grove) -> None:
    tree = await grove.value("tree_create")
    t = tree["tree_id"]
    a = await grove.text(t, "a")
    below = await grove.text(t, "below", a)
    for node, parent, code in ((a, a, "cycle"), (a, below, "cycle"), (tree["root"], a, "root")):
        refused = await grove.error("node_move", tree_id=t, node_id=node, parent=parent)
        assert refused.code == code
    refused = await grove.error("node_move", tree_id=t, node_id=a, parent=a, position=-1)
    assert refused.code in ("invalid_params", "cycle")


async def test_a_node_is_deleted_with_its_subtree(grove: Grove) -> None:
    tree = await grove.value("tree_create")
    t = tree["tree_id"]
    a, b = await grove.text(t, "a"), await grove.text(t, "b")
    below = await grove.text(t, "below", a)
    deleted = await grove.value("node_delete", tree_id=t, node_id=a)
    assert deleted["count"] == 2
    assert [node["node_id"] for node in await grove.nodes(t)] == [tree["root"], b]
    for node in (a, below):
        assert (await grove.error("node_get", tree_id=t, node_id=node)).code == "not_found"
    assert (await grove.error("node_delete", tree_id=t, node_id=tree["root"])).code == "root"


async def test_a_text_with_a_media_type_is_embedded_as_a_resource_too(grove: Grove) -> None:
    tree = await grove.tree()
    node = await grove.text(tree, "# Hi", metadata={"media_type": "text/markdown"})
    [shown, end] = await call(grove.hub, "arbor.node_get", {"tree_id": tree, "node_id": node})
    assert shown == Resource(f"arbor://tree/{tree}/node/{node}", None, "text/markdown", "# Hi")
    assert isinstance(end, Result)
    plain = await grove.text(tree, "Hi")
    assert len(await grove.events("node_get", tree_id=tree, node_id=plain)) == 1


async def test_a_preview_has_the_beginning_of_each_text(grove: Grove) -> None:
    tree = await grove.tree()
    long = await grove.text(tree, "a" * 5000, metadata={"kind": "note"})
    short = await grove.text(tree, "b")
    other = await grove.text(await grove.tree(), "c")
    found = await grove.value(
        "node_preview", tree_id=tree, node_ids=[long, short, other, MISSING, "?"], characters=10
    )
    nodes = {node["node_id"]: node for node in found["nodes"]}
    assert nodes.keys() == {long, short}
    assert (nodes[long]["content"], nodes[long]["size"]) == ("a" * 10, 5000)
    assert nodes[long]["metadata"] == {"kind": "note"}
    assert nodes[short]["content"] == "b"
    assert "size" not in nodes[short]


@pytest.mark.parametrize("nodes", [[], [MISSING] * 101])
async def test_a_preview_is_limited_to_100_nodes(nodes: list[str], grove: Grove) -> None:
    tree = await grove.tree()
    with pytest.raises(InvalidParams):
        await grove.value("node_preview", tree_id=tree, node_ids=nodes)
