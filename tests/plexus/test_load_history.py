"""The load of a process over time: samples, their bounds, and when they are taken."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest
from activations_for_tests import Demo
from conftest import OpenHub
from hub_calls import end_of, settled, until

from activations.health import Health
from plexus.events import Result
from plexus.rpc import wire
from plexus.runtime import load_history
from plexus.runtime.load_history import LoadHistory

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]


@pytest.fixture
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take samples every 20 and 60 milliseconds, and keep five of each."""
    for name, value in (("SHORT_S", 0.02), ("HOUR_S", 0.1), ("LONG_S", 0.06), ("DAY_S", 0.3)):
        monkeypatch.setattr(load_history, name, value)


def kept(history: LoadHistory) -> int:
    return len(history.since(1000))


@pytest.mark.usefixtures("_fast")
async def test_samples_have_the_rates_since_the_one_before(open_hub: OpenHub) -> None:
    hub = open_hub(Demo)
    with hub.load_history.sampling():
        waiting = hub.call("demo.wait").run
        await settled(hub.call("demo.count", {"to": 8}).run)
        await until(lambda: kept(hub.load_history) >= 3)
        first, *_, last = hub.load_history.since(1000)
    assert first.calls_per_s > 0
    assert first.events_per_s > first.calls_per_s
    assert (last.calls_per_s, last.events_per_s) == (0, 0)
    assert last.runs_active == 1
    assert last.rss_bytes > 1_000_000
    assert last.cpu >= 0
    assert last.at_ms > first.at_ms
    waiting.cancel("enough")
    await settled(waiting)


@pytest.mark.usefixtures("_fast")
async def test_watches_and_control_calls_are_not_counted(open_hub: OpenHub) -> None:
    hub = open_hub(Demo)
    with hub.load_history.sampling():
        watching = hub.call("plexus.watch").run
        await end_of(hub, "plexus.hash")
        await until(lambda: kept(hub.load_history) >= 1)
        [first, *_] = hub.load_history.since(1000)
    assert (first.runs_active, first.calls_per_s, first.events_per_s) == (0, 0, 0)
    watching.cancel("enough")
    await settled(watching)


@pytest.mark.usefixtures("_fast")
async def test_the_number_of_samples_is_bounded(open_hub: OpenHub) -> None:
    history = open_hub().load_history
    with history.sampling():
        await asyncio.sleep(0.6)
    samples = history.since(1000)
    assert 5 <= len(samples) <= 10
    assert samples == sorted(samples)
    assert history.since(0) == []


@pytest.mark.usefixtures("_fast")
async def test_samples_are_taken_only_while_they_are_needed(open_hub: OpenHub) -> None:
    history = open_hub().load_history
    await asyncio.sleep(0.1)
    assert kept(history) == 0
    with history.sampling():
        with history.sampling():
            pass
        await until(lambda: kept(history) > 0)
    before = history.since(1000)
    await asyncio.sleep(0.1)
    assert history.since(1000) == before


@pytest.mark.usefixtures("_fast")
async def test_watching_the_health_takes_samples(open_hub: OpenHub) -> None:
    hub = open_hub(Health())

    async def history(**params: Any) -> Any:
        end = await end_of(hub, "health.history", params)
        assert isinstance(end, Result)
        return wire.decode_plain(end.result)["samples"]

    assert await history() == []
    watching = hub.call("health.watch", {"interval": 0.1}).run
    async with aclosing(watching.batches()) as batches:
        await anext(batches)
        await until(lambda: kept(hub.load_history) > 0)
    [sample, *_] = await history(since_s=60)
    assert list(sample) == [
        "at_ms",
        "cpu",
        "rss_bytes",
        "runs_active",
        "calls_per_s",
        "events_per_s",
    ]
    watching.cancel("enough")
    await settled(watching)
    count = kept(hub.load_history)
    await asyncio.sleep(0.1)
    assert kept(hub.load_history) == count
