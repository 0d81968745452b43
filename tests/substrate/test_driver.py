"""The driver: effects performed on a hub, at the speed at which a peer reads."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

import pytest
from activations_for_tests import Demo
from conftest import OpenHub
from hub_calls import OTHER, WAIT_S, happened, quiet, settled, until
from pydantic import AfterValidator

from native_rpc.framing import MESSAGES
from native_rpc.protocol import NativeConnection
from plexus import Activation, Content, Plexus, Principal, method
from plexus.events import Cancelled
from plexus.limits import Limits
from plexus.principal import LOCAL
from plexus.rpc import wire
from substrate.driver import Connection
from substrate.server.shutdown import OpenStreams

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]


def explode(_: int) -> int:
    raise ZeroDivisionError("a validator with a defect")


class Meter(Activation):
    """Counts the events it yields."""

    namespace = "meter"
    version = "1.0.0"

    def __init__(self) -> None:
        self.made = 0
        self.started = asyncio.Event()
        self.closed = asyncio.Event()

    @method
    async def flow(self, to: int = 1_000_000) -> AsyncIterator[Content]:
        """Yield items as fast as they are read."""
        self.started.set()
        try:
            for number in range(to):
                self.made = number + 1
                yield Content(text=str(number))
        finally:
            self.closed.set()

    @method
    async def trap(self, number: Annotated[int, AfterValidator(explode)]) -> int:
        """Declare a validator that raises an unexpected exception."""
        return number


class Client:
    """A peer that reads on request."""

    def __init__(
        self,
        hub: Plexus,
        *,
        principal: Principal = LOCAL,
        buffered: bool = False,
    ) -> None:
        view = NativeConnection(MESSAGES, hub.limits, hub.new_id, buffered=buffered)
        self.connection = Connection(hub, view, principal)
        self._limits = hub.limits
        self._ids = iter(range(1, 1000))
        self.pending: list[Any] = []

    def call(self, name: str, params: Any = None) -> int:
        number = next(self._ids)
        message = {"jsonrpc": "2.0", "id": number, "method": name, "params": params or {}}
        self.connection.receive(wire.decode(json.dumps(message).encode(), self._limits))
        return number

    def collect(self) -> list[Any]:
        return [json.loads(frame) for frame in self.connection.collect()]

    async def read(self) -> Any:
        """Return the next message."""
        async with asyncio.timeout(30):
            while not self.pending:
                await self.connection.ready()
                self.pending = self.collect()
        return self.pending.pop(0)

    async def start(self, name: str, params: Any = None) -> int:
        """Call a method and return the subscription."""
        number = self.call(name, params)
        reply = await self.read()
        assert reply["id"] == number
        subscription: int = reply["result"]
        return subscription


async def test_the_reply_comes_before_the_first_item_even_if_the_run_is_done_already(
    open_hub: OpenHub,
) -> None:
    client = Client(open_hub(Demo))
    client.call("demo.echo", ["a"])
    client.call("demo.count", {"to": 2})
    await quiet()
    messages = client.collect()
    assert [message.get("id") for message in messages[:2]] == [1, 2]
    for reply in messages[:2]:
        items = [
            m["params"] for m in messages[2:] if m["params"]["subscription"] == reply["result"]
        ]
        assert [item["seq"] for item in items] == list(range(1, len(items) + 1))
        assert items[-1]["result"]["type"] == "complete"


async def test_collect_returns_nothing_without_new_items(open_hub: OpenHub) -> None:
    client = Client(open_hub(Demo))
    assert client.collect() == []
    assert await client.connection.ready(0.01) is False
    assert not client.connection.reading


async def test_a_task_that_waits_after_another_one_is_woken(open_hub: OpenHub) -> None:
    hub = open_hub(Demo)
    view = NativeConnection(MESSAGES, hub.limits, hub.new_id)
    connection = Connection(hub, view, LOCAL)

    async def take_over() -> bool:
        connection.wake()  # the first task is cancelled, but has not ended yet
        return await connection.ready()

    first = asyncio.create_task(connection.ready())
    await asyncio.sleep(0)
    second = asyncio.create_task(take_over())
    await first
    connection.receive(wire.Request(1, "demo.echo", ["a"]))
    assert await asyncio.wait_for(second, 10)


async def test_a_peer_that_does_not_read_blocks_its_own_run_only(open_hub: OpenHub) -> None:
    meter = Meter()
    hub = open_hub(meter, Demo)
    slow, quick = Client(hub), Client(hub)
    slow.call("meter.flow")
    await happened(meter.started)
    await quiet(200)
    held_at = meter.made
    assert held_at < 5000
    await quick.start("demo.echo", ["still here"])
    assert (await quick.read())["params"]["result"]["result"] == "still here"
    assert meter.made == held_at
    assert slow.connection.unsent < 1000
    # As soon as the peer reads, the run continues.
    slow.collect()
    await until(lambda: meter.made > held_at)


async def test_a_peer_that_reads_slowly_gets_every_item_in_order(open_hub: OpenHub) -> None:
    client = Client(open_hub(Meter, limits=Limits(high_water_bytes=32 * 1024)))
    await client.start("meter.flow", {"to": 2000})
    for seq in range(1, 2001):
        item = (await client.read())["params"]
        assert (item["seq"], item["result"]["text"]) == (seq, str(seq - 1))
    assert (await client.read())["params"]["result"]["type"] == "complete"


async def test_no_item_follows_the_answer_to_unsubscribe(open_hub: OpenHub) -> None:
    meter = Meter()
    client = Client(open_hub(meter))
    subscription = await client.start("meter.flow")
    await until(lambda: meter.made > 10)
    client.call("plexus.unsubscribe", [subscription])
    messages = client.pending + client.collect()
    await happened(meter.closed)
    await quiet()
    assert messages[-1] == {"jsonrpc": "2.0", "id": 2, "result": True}
    assert client.collect() == []
    assert not client.connection.reading


async def test_detaching_from_a_followed_run_does_not_stop_it(open_hub: OpenHub) -> None:
    hub = open_hub(Demo)
    owner, watcher = Client(hub), Client(hub)
    run = await owner.start("demo.wait")
    subscription = await watcher.start("plexus.attach", [run])
    watcher.call("plexus.unsubscribe", [subscription])
    await quiet()
    assert hub.runs.find(run, LOCAL).terminal is None


async def test_a_peer_that_is_lost_has_its_runs_cancelled(open_hub: OpenHub) -> None:
    meter = Meter()
    hub = open_hub(meter)
    client = Client(hub)
    run = hub.runs.find(await client.start("meter.flow"), LOCAL)
    await happened(meter.started)
    client.connection.lost()
    assert await settled(run) == Cancelled("disconnected")
    assert meter.closed.is_set()
    assert client.collect() == []
    assert not client.connection.reading


async def test_a_run_with_a_key_outlives_its_connection_and_is_found_again(
    open_hub: OpenHub,
) -> None:
    hub = open_hub(Demo)
    first = Client(hub)
    run = await first.start("demo.wait", {"seconds": 0.05, "_run": "k"})
    first.connection.lost()
    await quiet()
    second = Client(hub)
    assert await second.start("demo.wait", {"seconds": 0.05, "_run": "k"}) == run
    texts = [(await second.read())["params"]["result"].get("text") for _ in range(3)]
    assert texts == ["waiting", "waited", None]


async def test_the_run_of_another_principal_cannot_be_followed(open_hub: OpenHub) -> None:
    hub = open_hub(Demo)
    run = await Client(hub).start("demo.wait")
    stranger = Client(hub, principal=OTHER)
    stranger.call("plexus.attach", [run])
    assert (await stranger.read())["error"]["code"] == -32004


async def test_a_call_that_follows_a_finished_run_past_its_end_ends(open_hub: OpenHub) -> None:
    client = Client(open_hub(Demo))
    run = await client.start("demo.echo", ["a"])
    assert (await client.read())["params"]["seq"] == 1
    await client.start("plexus.attach", {"run": run, "after": 1})
    assert (await client.read())["params"]["result"]["type"] == "complete"
    assert not client.connection.reading


async def test_finishing_waits_for_what_is_still_to_be_written(open_hub: OpenHub) -> None:
    hub = open_hub(Demo)
    client = Client(hub)
    await client.start("demo.wait")
    assert (await client.read())["params"]["result"]["type"] == "content"
    client.connection.finish()
    assert not client.connection.finished
    await hub.close(reason="good night")
    [last] = client.collect()
    assert last["params"]["result"] == {"type": "cancelled", "reason": "good night"}
    assert client.connection.finished


async def test_a_buffered_connection_answers_when_the_run_has_ended(open_hub: OpenHub) -> None:
    client = Client(open_hub(Demo), buffered=True)
    client.call("demo.count", {"to": 1})
    answer = (await client.read())["result"]
    assert [event["type"] for event in answer["events"]] == ["content", "progress"]
    assert answer["terminal"] == {"type": "complete", "total": 1}


async def test_a_buffered_answer_that_grows_too_big_is_shortened_and_its_run_continues(
    open_hub: OpenHub,
) -> None:
    meter = Meter()
    hub = open_hub(meter, limits=Limits(answer_bytes=50_000))
    client = Client(hub, buffered=True)
    client.call("meter.flow", {"to": 20_000})
    answer = (await client.read())["result"]
    assert meter.made == 20_000
    assert answer["truncated"] is True
    assert answer["events"][0]["text"] == "0"
    assert answer["events"][-1]["text"] == "19999"
    assert len(json.dumps(answer, separators=(",", ":"))) < 60_000
    assert not client.connection.reading


async def test_a_notification_runs_and_is_not_read(open_hub: OpenHub) -> None:
    meter = Meter()
    hub = open_hub(meter)
    client = Client(hub)
    client.connection.receive(wire.Notification("meter.flow", {"to": 5000}))
    await until(lambda: meter.made == 5000)
    while client.connection.reading:
        await client.connection.ready()
        assert client.collect() == []


async def test_notifications_are_bounded_like_calls(open_hub: OpenHub) -> None:
    hub = open_hub(Demo, limits=Limits(calls_in_flight=5))
    client = Client(hub)
    for _ in range(50):
        client.connection.receive(wire.Notification("demo.wait", None))
    await quiet()
    assert len(hub.runs.running()) <= 5


async def test_a_validator_that_raises_anything_is_answered_and_the_connection_continues(
    open_hub: OpenHub,
) -> None:
    client = Client(open_hub(Meter, Demo))
    client.call("meter.trap", {"number": 1})
    assert (await client.read())["error"]["code"] == -32603
    await client.start("demo.echo", ["a"])


async def test_the_shutdown_ends_a_connection_whose_former_writer_ends_later(
    open_hub: OpenHub,
) -> None:
    hub = open_hub(Demo)
    streams = OpenStreams()
    connection = Connection(hub, NativeConnection(MESSAGES, hub.limits, hub.new_id), LOCAL)
    streams.add(connection)
    streams.add(connection)  # the client has reconnected
    streams.discard(connection)
    ending = asyncio.create_task(streams.finish(WAIT_S))
    await until(lambda: connection.finished)
    assert not ending.done()
    streams.discard(connection)
    await ending
