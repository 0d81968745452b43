"""Watching a tree: past changes, then new ones, by this or another process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from arbor_hub import Grove, growing, open_grove
from hub_calls import OTHER, WAIT_S, settled, until

from activations.arbor.model import Retention
from plexus.events import Cancelled, ErrorEvent
from plexus.rpc import wire
from plexus.runtime.run import Run

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


@pytest.fixture
async def grove(tmp_path: Path) -> AsyncIterator[Grove]:
    async with growing(tmp_path / "arbor.db") as opened:
        yield opened


def watching(grove: Grove, tree: str, after: int = 0) -> Run:
    return grove.hub.call("arbor.watch", {"tree_id": tree, "after": after}).run


async def seen(run: Run, count: int) -> list[dict[str, Any]]:
    """Wait for this many changes and return them."""
    await until(lambda: run.log.last >= count or run.terminal is not None)
    changes: list[dict[str, Any]] = wire.decode_plain(run.log.events[:count])
    return changes


async def test_a_watch_streams_past_and_then_new_changes(grove: Grove) -> None:
    tree = await grove.value("tree_create")
    t = tree["tree_id"]
    run = watching(grove, t)
    first = await seen(run, 2)
    assert [change["kind"] for change in first] == ["tree_created", "node_created"]
    assert first[1]["node_id"] == tree["root"]
    assert first[-1]["seq"] == tree["seq"]

    a = await grove.text(t, "a")
    b = (await grove.value("node_edit", tree_id=t, node_id=a, content="b"))["node_id"]
    c = await grove.text(t, "c")
    await grove.value("node_move", tree_id=t, node_id=c, parent=a)
    await grove.value("node_delete", tree_id=t, node_id=c)
    await grove.value("tree_update_metadata", tree_id=t, metadata={})
    await grove.value("tree_claim", tree_id=t)
    await grove.value("tree_release", tree_id=t, count=2)
    changes = (await seen(run, 11))[2:]
    assert [(change["kind"], change.get("node_id")) for change in changes] == [
        ("node_created", a),
        ("node_edited", b),
        ("node_created", c),
        ("node_moved", c),
        ("node_deleted", c),
        ("tree_updated", None),
        ("tree_claimed", None),
        ("tree_released", None),
        ("tree_scheduled", None),
    ]
    numbers = [change["seq"] for change in changes]
    assert numbers == sorted(set(numbers))
    run.cancel("enough")
    assert await settled(run) == Cancelled("enough")


async def test_a_watch_resumes_after_any_change_without_loss_or_repetition(
    grove: Grove,
) -> None:
    tree = await grove.tree()
    await grove.value("node_append", tree_id=tree, nodes=[{"content": str(i)} for i in range(20)])
    whole = await seen(watching(grove, tree), 22)
    for cut in range(23):
        after = whole[cut - 1]["seq"] if cut else 0
        run = watching(grove, tree, after)
        await grove.value("tree_claim", tree_id=tree)
        rest = await seen(run, 22 - cut + 1)
        assert rest[: 22 - cut] == whole[cut:]
        whole.append(rest[-1])
        whole = whole[:22]
        run.cancel("enough")
        await settled(run)


async def test_changes_of_other_trees_and_callers_are_not_streamed(grove: Grove) -> None:
    tree, other = await grove.tree(), await grove.tree()
    run = watching(grove, tree)
    await seen(run, 2)
    await grove.text(other, "not for you")
    await grove.text(tree, "for you")
    [*_, last] = await seen(run, 3)
    assert last["tree_id"] == tree
    theirs = grove.hub.call("arbor.watch", {"tree_id": tree}, OTHER).run
    end = await settled(theirs)
    assert isinstance(end, ErrorEvent)
    assert end.code == "not_found"


async def test_a_burst_of_changes_is_streamed_completely(grove: Grove) -> None:
    tree = await grove.tree()
    run = watching(grove, tree)
    made = await asyncio.gather(
        *(
            grove.value("node_append", tree_id=tree, nodes=[{"content": "x"}] * 500)
            for _ in range(6)
        )
    )
    ids = {node for each in made for node in each["node_ids"]}
    async with asyncio.timeout(WAIT_S), aclosing(run.batches(0, owner=True)) as batches:
        async for batch in batches:
            ids -= {event.node_id for event in batch.events}  # type: ignore[attr-defined]
            if not ids:
                break


async def test_changes_by_another_process_are_streamed(grove: Grove, tmp_path: Path) -> None:
    tree = await grove.tree()
    run = watching(grove, tree)
    await seen(run, 2)
    # Another store on the same file has its own connections and threads, like another process.
    async with growing(tmp_path / "arbor.db") as elsewhere:
        node = await elsewhere.text(tree, "from elsewhere")
        [*_, last] = await seen(run, 3)
    assert (last["kind"], last["node_id"]) == ("node_created", node)


async def test_watching_from_a_purged_number_has_expired(tmp_path: Path) -> None:
    grove = open_grove(tmp_path / "arbor.db", retention=Retention(changes_s=0))
    tree = await grove.tree()
    first = (await seen(watching(grove, tree), 2))[0]["seq"]
    await asyncio.sleep(0.01)
    await (await grove.arbor.store()).purge()
    end = await settled(watching(grove, tree, first))
    assert isinstance(end, ErrorEvent)
    assert end.code == "expired"
    assert end.data["oldest"] > first
    run = watching(grove, tree, end.data["oldest"])
    await grove.text(tree, "new")
    assert [change["kind"] for change in await seen(run, 1)] == ["node_created"]
    await grove.hub.close()


async def test_a_watch_ends_when_its_tree_is_removed(tmp_path: Path) -> None:
    grove = open_grove(tmp_path / "arbor.db", retention=Retention(scheduled_s=0, archived_s=0))
    tree = await grove.tree()
    run = watching(grove, tree)
    await seen(run, 2)
    await grove.value("tree_delete", tree_id=tree)
    store = await grove.arbor.store()
    for _ in range(3):
        await asyncio.sleep(0.002)
        await store.purge()
    await grove.tree()  # any change notifies the watcher
    end = await settled(run)
    assert isinstance(end, ErrorEvent)
    assert end.code == "not_found"
    await grove.hub.close()


async def test_watches_end_with_the_hub(tmp_path: Path) -> None:
    grove = open_grove(tmp_path / "arbor.db")
    tree = await grove.tree()
    run = watching(grove, tree)
    await seen(run, 2)
    await grove.hub.close()
    assert isinstance(run.terminal, Cancelled)
