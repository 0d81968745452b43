"""Ranges of items: from memory and the run store, within their bounds, as one value."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from activations_for_tests import Demo
from conftest import OpenHub
from hub_calls import OTHER, call, settled, until
from stored_runs import attach_store

from plexus import Activation, Content, Plexus, method
from plexus.errors import InvalidParams
from plexus.events import ErrorEvent, Event, Result
from plexus.limits import Limits
from plexus.principal import LOCAL, Principal
from plexus.rpc import wire
from plexus.runtime.run_items import MAX_ITEMS, RANGE_BYTES

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]


class Large(Activation):
    """Sends large events."""

    namespace = "large"
    version = "1.0.0"

    @method
    async def send(self, count: int, size: int) -> AsyncIterator[Content]:
        """Send COUNT events of SIZE characters."""
        for _ in range(count):
            yield Content(text="x" * size)


async def items(hub: Plexus, run: int, principal: Principal = LOCAL, **params: Any) -> Any:
    """Return the value of `plexus.items`, or the code of its error."""
    end = (await call(hub, "plexus.items", {"run": run, **params}, principal))[-1]
    if isinstance(end, ErrorEvent):
        return end.code
    assert isinstance(end, Result)
    return wire.decode_plain(end.result)


async def test_the_items_of_a_finished_run_have_numbers_times_and_events(open_hub: OpenHub) -> None:
    hub = open_hub(Demo)
    run = hub.call("demo.count", {"to": 2}).run
    await settled(run)
    found = await items(hub, run.id)
    assert (found["last_seq"], found["ended"]) == (4, True)
    assert [each["seq"] for each in found["items"]] == [1, 2, 3, 4]
    assert found["items"][0]["event"] == {"type": "content", "text": "1 "}
    assert found["items"][-1]["event"]["type"] == "complete"
    assert all(each["time_ms"] > 1_700_000_000_000 for each in found["items"])


async def test_a_range_begins_after_an_item_and_has_a_maximum_number(open_hub: OpenHub) -> None:
    hub = open_hub(Demo)
    run = hub.call("demo.count", {"to": 9}).run
    await settled(run)
    found = await items(hub, run.id, after=2, limit=3)
    assert [each["seq"] for each in found["items"]] == [3, 4, 5]
    assert found["ended"] is True
    assert found["last_seq"] > 5
    assert (await items(hub, run.id, after=found["last_seq"]))["items"] == []
    wrong: list[dict[str, Any]] = [{"after": -1}, {"limit": 0}, {"limit": MAX_ITEMS + 1}]
    for params in wrong:
        with pytest.raises(InvalidParams):
            await items(hub, run.id, **params)


async def test_a_range_does_not_wait_for_a_run_in_progress(open_hub: OpenHub) -> None:
    hub = open_hub(Demo)
    run = hub.call("demo.wait").run
    await until(lambda: run.log.last == 1)
    found = await items(hub, run.id)
    assert [each["event"]["text"] for each in found["items"]] == ["waiting"]
    assert (found["last_seq"], found["ended"]) == (1, False)
    assert (await items(hub, run.id, after=1))["items"] == []
    run.cancel("enough")
    await settled(run)


async def test_a_range_has_a_maximum_size_and_at_least_one_item(open_hub: OpenHub) -> None:
    hub = open_hub(Large)
    run = hub.call("large.send", {"count": 4, "size": 400_000}).run
    await settled(run)
    seen: list[int] = []
    while True:
        found = await items(hub, run.id, after=seen[-1] if seen else 0)
        if not found["items"]:
            break
        assert len(wire.encode(found["items"])) <= RANGE_BYTES + 1000
        seen += [each["seq"] for each in found["items"]]
    assert seen == [1, 2, 3, 4, 5]


async def test_items_that_are_not_kept_are_a_gap(open_hub: OpenHub) -> None:
    hub = open_hub(Demo, limits=Limits(log_items=10))
    run = hub.call("demo.count", {"to": 2000}).run
    await settled(run)
    first = run.log.first
    assert first > 1
    [gap, next_item, *_] = (await items(hub, run.id))["items"]
    assert gap["event"] == {"type": "gap", "from": 1, "to": first - 1}
    assert (gap["seq"], next_item["seq"]) == (first - 1, first)


async def test_items_of_other_processes_are_read_from_the_store(open_hub: OpenHub) -> None:
    hub = open_hub(Demo)
    store = attach_store(hub, log_items=2)
    stored: list[Event] = [Content(str(number)) for number in range(7)]
    store.create(7, *stored)
    store.create(8, *stored, Result(None))
    found = await items(hub, 7)
    assert [each["event"]["text"] for each in found["items"]] == list("0123456")
    assert (found["last_seq"], found["ended"]) == (7, False)
    found = await items(hub, 8, after=6)
    assert [each["event"]["type"] for each in found["items"]] == ["content", "complete"]
    assert (found["last_seq"], found["ended"]) == (8, True)


async def test_the_runs_of_another_principal_are_not_found(open_hub: OpenHub) -> None:
    hub = open_hub(Demo)
    run = hub.call("demo.echo", ["a"]).run
    await settled(run)
    assert await items(hub, run.id, OTHER) == await items(hub, 1, OTHER) == "not_found"


async def test_a_range_with_null_is_encoded_once(open_hub: OpenHub) -> None:
    hub = open_hub(Demo)
    run = hub.call("plexus.items", {"run": hub.call("demo.echo", ["null"]).run.id}).run
    await settled(run)
    [raw] = run.log.payloads
    assert wire.decode_trusted(raw)["result"]["items"][0]["event"]["result"] == "null"
