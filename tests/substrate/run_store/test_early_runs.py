"""Runs that start before the run store exists, and short runs: nothing of them is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from activations_for_tests import Demo
from hub_calls import end_of, follow, read, register

from plexus import Plexus
from plexus.events import Gap
from plexus.limits import Limits
from plexus.principal import LOCAL
from plexus.runtime.builtin import PlexusActivation
from plexus.runtime.run_record import RunQuery
from substrate.run_store.lazy_store import LazyRunStore
from substrate.settings import Settings

pytestmark = pytest.mark.anyio

COUNT = 5000


@pytest.fixture
async def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Plexus]:
    """Return a hub with a short log, whose store does not exist yet."""
    monkeypatch.setattr("substrate.run_store.store.data_folder", lambda: tmp_path)
    hub = Plexus(limits=Limits(log_items=64))
    register(hub, PlexusActivation(hub), Demo)
    lazy = LazyRunStore(hub, Settings(), Path("/project"))
    yield hub
    await lazy.close()
    await hub.close()


async def read_all(hub: Plexus) -> None:
    """Call a method whose log drops items, and read all of them."""
    call = hub.call("demo.count", {"to": COUNT}, LOCAL)
    await read(call)
    assert call.run.log.first > 1, "items were dropped"
    events = await follow(call.run)
    assert not any(isinstance(event, Gap) for event in events)
    assert "".join(each.as_text() for each in events) == "".join(
        f"{n} " for n in range(1, COUNT + 1)
    )


async def test_items_that_are_dropped_before_the_store_exists_are_read_from_it(hub: Plexus) -> None:
    await read_all(hub)


async def test_items_that_are_dropped_before_the_first_tick_are_read_from_the_store(
    hub: Plexus,
) -> None:
    await end_of(hub, "demo.echo", {"text": "x"})
    stored = hub.runs.stored
    assert isinstance(stored, LazyRunStore)
    await (await stored.opened()).flushed()
    await read_all(hub)


async def test_short_runs_beside_one_that_drops_items_are_recorded_once_each(hub: Plexus) -> None:
    stored = hub.runs.stored
    assert isinstance(stored, LazyRunStore)
    await stored.opened()
    flood = hub.call("demo.count", {"to": COUNT}, LOCAL)
    calls = [hub.call("demo.echo", {"text": f"text {n}"}, LOCAL) for n in range(20)]
    for call in (*calls, flood):
        await read(call)
    found = await stored.query(LOCAL, RunQuery())
    assert sorted(each["run"] for each in found) == sorted(c.run.id for c in (*calls, flood))
    shown = {each["run"]: (each["summary"], each["outcome"]) for each in found}
    for n, call in enumerate(calls):
        assert shown[call.run.id] == (f"text {n}", "succeeded")
