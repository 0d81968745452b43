"""The driver and runs that are not in memory: loaded first, then everything as for local runs."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from activations_for_tests import Demo
from conftest import OpenHub
from hub_calls import OTHER, WAIT_S, quiet, until
from stored_runs import MemoryStore, attach_store

from native_rpc.framing import MESSAGES
from native_rpc.protocol import NativeConnection
from plexus import Content, Plexus, Principal
from plexus.errors import Failed, PlexusError
from plexus.events import Complete
from plexus.principal import LOCAL
from plexus.rpc import wire
from plexus.rpc.effects import AnswerQuestion, CancelRun, Effect, KeepRun, LoadRun
from substrate import connection_tasks
from substrate.driver import Connection

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

ATTACH = "plexus.attach"


class Client:
    """A peer of the native view."""

    def __init__(
        self,
        hub: Plexus,
        principal: Principal = LOCAL,
        *,
        buffered: bool = False,
        client: str | None = None,
    ) -> None:
        self.view = NativeConnection(MESSAGES, hub.limits, hub.new_id, buffered=buffered)
        self.connection = Connection(hub, self.view, principal, client=client)
        self.messages: list[Any] = []

    def call(self, number: int, method: str, params: Any) -> None:
        self.connection.receive(wire.Request(number, method, params))

    async def read(self, count: int) -> list[Any]:
        """Wait until this many messages have arrived, and return all."""
        async with asyncio.timeout(WAIT_S):
            while len(self.messages) < count:
                await self.connection.ready()
                self.collect()
        return self.messages

    @property
    def idle(self) -> bool:
        """Whether neither the view nor the driver has work left."""
        return self.view.idle and not self.connection.reading

    def collect(self) -> None:
        self.messages += [json.loads(frame) for frame in self.connection.collect()]


@pytest.fixture
def hub(open_hub: OpenHub) -> Plexus:
    return open_hub(Demo)


@pytest.fixture
def store(hub: Plexus) -> MemoryStore:
    store = attach_store(hub)
    store.create(7, Content("a"), Content("b"), Complete())
    return store


def items_of(messages: list[Any], subscription: int) -> list[tuple[int, Any]]:
    found = [each["params"] for each in messages if "params" in each]
    return [(item["seq"], item["result"]) for item in found if item["subscription"] == subscription]


async def test_a_run_is_loaded_and_then_followed(hub: Plexus, store: MemoryStore) -> None:
    client = Client(hub)
    client.call(1, ATTACH, {"run": 7, "after": 1})
    assert client.connection.collect() == []
    assert (client.view.idle, client.connection.reading) == (False, True)
    messages = await client.read(3)
    assert messages[0] == {"jsonrpc": "2.0", "id": 1, "result": 7}
    assert [seq for seq, _ in items_of(messages, 7)] == [2, 3]
    assert store.loads == 1
    assert client.idle


async def test_two_requests_at_once_are_both_answered(hub: Plexus, store: MemoryStore) -> None:
    store.create(8, Content("x"), Complete())
    client = Client(hub)
    store.open.clear()
    client.call(1, ATTACH, {"run": 7})
    client.call(2, ATTACH, {"run": 8})
    client.call(3, ATTACH, {"run": 9})
    client.call(4, "demo.echo", ["local runs do not wait"])
    await quiet()
    client.collect()
    assert [each["id"] for each in client.messages if "id" in each] == [4]
    store.open.set()
    await client.read(2 + 1 + 3 + 1 + 2 + 1)
    replies = {each["id"]: each for each in client.messages if "id" in each}
    assert (replies[1]["result"], replies[2]["result"]) == (7, 8)
    assert "Unknown run 9" in replies[3]["error"]["message"]
    assert [seq for seq, _ in items_of(client.messages, 7)] == [1, 2, 3]
    assert [seq for seq, _ in items_of(client.messages, 8)] == [1, 2]


async def test_a_run_of_another_principal_is_like_an_unknown_one(
    hub: Plexus, store: MemoryStore
) -> None:
    client = Client(hub, OTHER)
    for number, run in ((1, 7), (2, 99)):
        client.call(number, ATTACH, {"run": run})
    first, second = await client.read(2)
    assert first["error"]["code"] == second["error"]["code"]
    assert first["error"]["message"] == second["error"]["message"].replace("99", "7")
    assert store.loads == 2


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (Failed("the disk is full"), "the disk is full"),
        (KeyError("defect"), "failed with keyerror"),
    ],
)
async def test_an_error_of_the_store_answers_the_request(
    raised: Exception, expected: str, hub: Plexus, store: MemoryStore
) -> None:
    store.error = raised
    refused: list[PlexusError] = []
    hub.runs.on_refused(lambda _, __, error: refused.append(error))
    client = Client(hub, buffered=True)
    client.call(1, ATTACH, {"run": 7})
    [answer] = await client.read(1)
    assert expected in answer["error"]["message"].lower()
    assert len(refused) == 1


async def test_a_store_that_does_not_answer_is_an_error_after_the_deadline(
    hub: Plexus, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_tasks, "DEADLINE_S", 0.05)
    store.open.clear()
    client = Client(hub)
    client.call(1, ATTACH, {"run": 7})
    client.connection.finish()
    assert not client.connection.finished  # the request is answered before that
    [answer] = await client.read(1)
    assert "did not answer within 0.05 s" in answer["error"]["message"]
    assert client.connection.finished


async def test_the_number_of_loads_of_a_connection_is_bounded(
    hub: Plexus, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_tasks, "MAX_TASKS", 2)
    store.open.clear()
    client = Client(hub)
    for number in range(1, 4):
        client.call(number, ATTACH, {"run": 7})
    client.collect()
    [busy] = client.messages
    assert (busy["id"], "Try again" in busy["error"]["message"]) == (3, True)
    store.open.set()
    await client.read(1 + 2 + 2 * 3)


async def test_a_disconnect_cancels_the_loads(hub: Plexus, store: MemoryStore) -> None:
    store.open.clear()
    client = Client(hub)
    client.call(1, ATTACH, {"run": 7})
    await quiet()
    client.connection.lost()
    assert not client.connection.reading
    store.open.set()
    await quiet()
    assert client.connection.collect() == []
    assert store.loaded == {}


async def test_a_revoked_credential_answers_what_waits_for_the_store(
    hub: Plexus, store: MemoryStore
) -> None:
    store.open.clear()
    client = Client(hub, buffered=True)
    client.call(1, ATTACH, {"run": 7})
    client.connection.revoke("the token was revoked")
    client.collect()
    [answer] = client.messages
    assert (answer["id"], answer["error"]["message"]) == (1, "the token was revoked")
    assert client.connection.finished


async def test_leaving_a_stored_run_does_not_cancel_it(hub: Plexus, store: MemoryStore) -> None:
    store.create(8, Content("x"))
    client = Client(hub)
    client.call(1, ATTACH, {"run": 8})
    await client.read(2)
    assert store.followed == [8]
    client.call(2, "plexus.unsubscribe", {"subscription": 8})
    client.connection.lost()
    await quiet()
    assert store.followed == []
    assert store.requests == []


async def test_a_run_has_the_client_of_its_connection(hub: Plexus) -> None:
    clients: list[str | None] = []
    hub.runs.on_start(lambda run, *_: clients.append(run.client))
    for name in (None, "page/1"):
        Client(hub, client=name).call(1, "demo.echo", ["a"])
    assert clients == [None, "page/1"]


# --- effects with an outcome ---------------------------------------------------------------------


async def idle(connection: Connection) -> None:
    """Wait until no effect is pending."""
    async with asyncio.timeout(WAIT_S):
        while connection.reading:
            await connection.ready()


class Recorder(NativeConnection):
    """A view that records the outcomes of effects."""

    def __init__(self, hub: Plexus) -> None:
        super().__init__(MESSAGES, hub.limits, hub.new_id)
        self.outcomes: list[tuple[Effect, PlexusError | None]] = []

    def on_outcome(self, effect: Any, error: PlexusError | None) -> list[Effect]:
        self.outcomes.append((effect, error))
        return []


async def test_the_outcome_in_another_process_is_reported_once(
    hub: Plexus, store: MemoryStore
) -> None:
    store.create(8, Content("x"))
    view = Recorder(hub)
    connection = Connection(hub, view, LOCAL)
    call = object()
    effects: list[Any] = [
        AnswerQuestion(call, 8, "1", True),
        CancelRun(8, "enough", call),
        KeepRun(call, 8, 5.0),
        LoadRun(call, None),
        CancelRun(8, "no outcome"),
    ]
    connection.perform(effects)
    assert view.outcomes == []
    await idle(connection)
    assert dict(view.outcomes) == dict.fromkeys(effects[:4])
    await until(lambda: len(store.requests) == 4)
    answered = ("plexus.respond", {"run": 8, "request": "1", "answer": True})
    assert answered in store.requests
    view.outcomes.clear()
    store.answer = lambda *_: Failed("no such answer")
    connection.perform(effects[:3])
    await idle(connection)
    assert {str(error) for _, error in view.outcomes} == {"no such answer"}
    assert len(view.outcomes) == 3


async def test_effects_on_an_unknown_run_are_reported_as_not_found(
    hub: Plexus, store: MemoryStore
) -> None:
    view = Recorder(hub)
    connection = Connection(hub, view, LOCAL)
    effects: list[Any] = [AnswerQuestion(1, 99, "1", True), KeepRun(1, 99, 5.0), CancelRun(99, "x")]
    connection.perform(effects)
    await idle(connection)
    assert [error.code for _, error in view.outcomes if error is not None] == ["not_found"] * 2
    assert store.loads == 3
