"""Export and import of trees: an import is an exact copy, or nothing."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from arbor_hub import Grove, growing
from hub_calls import OTHER

from activations.arbor.methods import transfer
from activations.arbor.model import Counts

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


@pytest.fixture
async def grove(tmp_path: Path) -> AsyncIterator[Grove]:
    async with growing(tmp_path / "arbor.db") as opened:
        yield opened


async def grown(grove: Grove) -> str:
    """Create a tree with every kind of node."""
    tree = await grove.value("tree_create", metadata={"title": "All", "deep": {"a": [1, None]}})
    t = tree["tree_id"]
    made = await grove.value(
        "node_append",
        tree_id=t,
        nodes=[
            {"content": "a\nb\u2028c\u0085"},
            {"content": "", "parent": 0},
            {"handle": "p@1::m:a%3Ab", "parent": 0, "metadata": {"k": "\U0001f468"}},
            {"content": "\x01" * 120_000},
            {"content": "last", "metadata": {}},
        ],
    )
    a, empty, _, _, last = made["node_ids"]
    new = await grove.value("node_edit", tree_id=t, node_id=empty, content="edited")
    await grove.value("node_edit", tree_id=t, node_id=new["node_id"], content="again")
    # From here, some nodes come before their parents.
    top = await grove.text(t, "a later parent")
    await grove.value("node_move", tree_id=t, node_id=a, parent=top)
    await grove.value("node_move", tree_id=t, node_id=last, parent=tree["root"], position=1)
    return str(t)


def shape(text: str) -> Any:
    """Return the contents of an export except ids and times, as nested values."""
    header, *lines, end = map(json.loads, text.rstrip("\n").split("\n"))
    names = {line["id"]: line for line in lines}
    below: dict[str | None, list[dict[str, Any]]] = {}
    for line in lines:
        below.setdefault(line.get("parent"), []).append(line)

    def nested(line: dict[str, Any]) -> Any:
        children = sorted(below.get(line["id"], []), key=lambda each: each["position"])
        old = names.get(line.get("replaces", ""), {}).get("content")
        held = [line.get(name) for name in ("content", "handle", "metadata", "position")]
        return [*held, old, [nested(child) for child in children]]

    [root] = below[None]
    return header.get("metadata"), nested(root), end


async def counts(grove: Grove) -> Counts:
    store = await grove.arbor.store()
    await store.purge()
    return await store.counts()


async def test_an_import_is_the_same_tree_again(grove: Grove) -> None:
    tree = await grown(grove)
    text = await grove.export(tree)
    made = await grove.value("tree_import", lines=text, owner_id="me")
    assert made["nodes"] == 9
    again = await grove.export(made["tree_id"])
    assert shape(again) == shape(text)
    [new, *_] = await grove.events("tree_get", tree_id=made["tree_id"])
    assert (new["state"], new["owners"], new["owner_id"]) == ("active", {"me": 1}, "me")
    assert "scheduled_ms" not in new
    assert new["root"] == made["root"]
    ids = {node["node_id"] for node in await grove.nodes(tree)}
    assert ids.isdisjoint(node["node_id"] for node in await grove.nodes(made["tree_id"]))
    replaced = [n for n in await grove.nodes(made["tree_id"]) if "replaced_by" in n]
    assert len(replaced) == 2


async def test_lines_may_be_passed_in_parts_or_as_a_file(grove: Grove, tmp_path: Path) -> None:
    text = await grove.export(await grown(grove))
    file = tmp_path / "tree.jsonl"
    file.write_text(text.replace("\n", "\r\n") + "\n\n")
    for params in (
        {"lines": text.split("\n")},
        {"lines": [text[: text.index("\n") + 1], text[text.index("\n") + 1 :]]},
        {"path": str(file)},
    ):
        made = await grove.value("tree_import", **params)
        assert shape(await grove.export(made["tree_id"])) == shape(text)


async def test_every_event_of_an_export_fits_and_progress_is_reported(grove: Grove) -> None:
    tree = await grown(grove)
    events = await grove.events("tree_export", tree_id=tree)
    assert max(len(json.dumps(event)) for event in events) < grove.hub.limits.event_bytes
    assert [e["done"] for e in events if e["type"] == "progress"] == [9]
    whole = [event["text"] for event in events if event["type"] == "content"]
    assert all(text.endswith("\n") for text in whole if len(text) < 100_000)


async def test_a_large_import_is_stored_in_chunks_and_progress_is_reported(grove: Grove) -> None:
    tree = await grove.tree()
    chain = [{"content": str(i)} | ({"parent": i - 1} if i % 7 else {}) for i in range(3500)]
    await grove.value("node_append", tree_id=tree, nodes=chain)
    text = await grove.export(tree)
    events = await grove.events("tree_import", lines=text)
    steps = [event["done"] for event in events if event["type"] == "progress"]
    assert len(steps) > 3
    assert steps == sorted(steps)
    assert shape(await grove.export(events[-1]["tree_id"])) == shape(text)


def without(name: str) -> Callable[[list[dict[str, Any]]], None]:
    def change(lines: list[dict[str, Any]]) -> None:
        del lines[2][name]

    return change


def with_field(index: int, **fields: Any) -> Callable[[list[dict[str, Any]]], None]:
    def change(lines: list[dict[str, Any]]) -> None:
        lines[index].update(fields)

    return change


def cut(start: int, stop: int) -> Callable[[list[dict[str, Any]]], None]:
    def change(lines: list[dict[str, Any]]) -> None:
        del lines[start:stop]

    return change


def doubled(lines: list[dict[str, Any]]) -> None:
    lines.insert(3, lines[2])


def circular(lines: list[dict[str, Any]]) -> None:
    lines[2]["parent"], lines[3]["parent"] = lines[3]["id"], lines[2]["id"]


def after_the_end(lines: list[dict[str, Any]]) -> None:
    lines.append(dict(lines[2], id="new"))


DAMAGE = {
    "no header": cut(0, 1),
    "another version": with_field(0, arbor=2),
    "metadata that is none": with_field(0, metadata=[]),
    "no root": cut(1, 2),
    "a node less": cut(3, 4),
    "no end": cut(-1, None),  # type: ignore[arg-type]  # to the end
    "another count": with_field(-1, end=6),
    "no id": without("id"),
    "no parent": without("parent"),
    "nothing in it": without("content"),
    "both in it": with_field(2, handle="a@1::b"),
    "a bad handle": with_field(3, handle="a", content=None),
    "an unknown parent": with_field(4, parent="nobody"),
    "an unknown version": with_field(4, replaces="nobody"),
    "a version of itself": lambda lines: lines[4].update(replaces=lines[4]["id"]),
    "two versions of one": lambda lines: [
        line.update(replaces=lines[2]["id"]) for line in lines[3:5]
    ],
    "a node twice": doubled,
    "a circle": circular,
    "an unknown field": with_field(3, colour="red"),
    "a number for a text": with_field(3, content=5),
    "a text for a number": with_field(3, position="5"),
    "a position that is too high": with_field(3, position=2**60),
    "more after the end": after_the_end,
    "a NUL": with_field(4, content="\0"),
    "a root with a parent": with_field(1, parent="x"),
}


@pytest.mark.parametrize("kind", DAMAGE)
async def test_an_invalid_import_leaves_nothing(kind: str, grove: Grove) -> None:
    tree = await grove.tree(metadata={"a": 1})
    await grove.value("node_append", tree_id=tree, nodes=[{"content": str(i)} for i in range(4)])
    lines = [json.loads(line) for line in (await grove.export(tree)).splitlines()]
    before = await counts(grove)
    DAMAGE[kind](lines)
    lines = [{k: v for k, v in line.items() if v is not None} for line in lines]
    events = await grove.events("tree_import", lines=[json.dumps(line) for line in lines])
    assert events[-1]["type"] == "error", events
    assert events[-1]["code"] in (
        *("bad_import", "invalid_params", "bad_text", "replaced", "not_found"),
    )
    after = await counts(grove)
    assert (after.trees, after.nodes) == (before.trees, before.nodes)
    assert len((await grove.value("tree_list"))["trees"]) == 1


@pytest.mark.parametrize(
    "lines", ["", "\n", "{", "5", "[]", "null", '{"arbor":1}', '{"arbor":1', "[" * 10_000]
)
async def test_text_that_is_not_an_export_is_refused(lines: str, grove: Grove) -> None:
    assert (await grove.error("tree_import", lines=lines)).code == "bad_import"


async def test_either_lines_or_a_path_is_required(grove: Grove) -> None:
    assert (await grove.error("tree_import")).code == "invalid_params"
    assert (await grove.error("tree_import", lines="", path="x")).code == "invalid_params"


async def test_a_file_that_cannot_be_read_is_refused(grove: Grove, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "missing", tmp_path, tmp_path / "pipe", Path("/dev/zero"), "a\0b"):
        assert (await grove.error("tree_import", path=str(path))).code == "unreadable", path
    (tmp_path / "binary").write_bytes(b"\xff\xfe\n")
    refused = await grove.error("tree_import", path=str(tmp_path / "binary"))
    assert refused.code == "bad_import"


@pytest.mark.parametrize(
    ("bound", "least"), [("MAX_NODES", 5), ("MAX_WAITING_CHARACTERS", 3), ("LINE_BYTES", 1_000_000)]
)
async def test_an_import_at_its_limits_is_accepted(
    bound: str, least: int, grove: Grove, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = await grove.tree()
    nodes = [{"content": "x"} for _ in range(3)]
    await grove.value("node_append", tree_id=tree, nodes=nodes)
    if bound == "LINE_BYTES":
        await grove.text(tree, "x" * 2_000_000)
    else:
        top = await grove.text(tree, "top")
        for node in await grove.nodes(tree):
            if node["content"] == "x":
                await grove.value("node_move", tree_id=tree, node_id=node["node_id"], parent=top)
    file = tmp_path / "lines"
    file.write_text(await grove.export(tree))
    monkeypatch.setattr(transfer, bound, least if bound != "LINE_BYTES" else 3_000_000)
    assert await grove.value("tree_import", path=str(file))
    monkeypatch.setattr(transfer, bound, least - 1)
    events = await grove.events("tree_import", path=str(file))
    assert events[-1]["code"] == "too_big"
    assert len((await grove.value("tree_list"))["trees"]) == 2


async def test_an_import_is_invisible_until_it_is_complete(grove: Grove) -> None:
    tree = await grove.tree()
    await grove.value(
        "node_append", tree_id=tree, nodes=[{"content": "needle"} for _ in range(2500)]
    )
    lines = (await grove.export(tree)).splitlines()
    work = transfer.TreeImporter(await grove.arbor.store(), "me")
    for number, line in enumerate(lines, 1):
        await work.add(number, line.encode())
    for principal in ("local", OTHER.name):
        store = await grove.arbor.store()
        trees = await store.list_trees(principal, None, None, 10)
        assert [each.id for each in trees] == ([tree] if principal == "local" else [])
        assert len(await store.list_by_id(principal, "", "", 1000)) in (1000, 0)
    found = await grove.events("search", text="needle", limit=10_000)
    assert found[-1]["count"] == 2500
    whole = await work.finish("local")
    await work.discard()  # no effect after publication
    assert len(await grove.nodes(whole.id)) == 2501


async def test_an_import_whose_process_died_is_purged_like_a_tree_without_references(
    grove: Grove,
) -> None:
    tree = await grove.tree()
    await grove.text(tree, "a")
    lines = (await grove.export(tree)).splitlines()
    store = await grove.arbor.store()
    work = transfer.TreeImporter(store, "me")
    for number, line in enumerate(lines[:2], 1):
        await work.add(number, line.encode())
    assert (await store.counts()).trees == 2
    far = 10**15
    await store.purge(far)
    await store.purge(far * 2)
    assert (await store.counts()).trees == 1


async def test_nodes_that_were_repeatedly_moved_to_the_front_keep_their_order(
    grove: Grove,
) -> None:
    tree = await grove.value("tree_create")
    t = tree["tree_id"]
    for i in range(5):
        node = await grove.text(t, str(i))
        await grove.value("node_move", tree_id=t, node_id=node, parent=tree["root"], position=0)
    text = await grove.export(t)
    made = await grove.value("tree_import", lines=text)
    assert shape(await grove.export(made["tree_id"])) == shape(text)
    drawn = await grove.value("tree_render", tree_id=made["tree_id"])
    assert [line[-1] for line in drawn.splitlines()[1:]] == ["4", "3", "2", "1", "0"]
