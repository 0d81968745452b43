"""HTTP on runs of other processes: `GET /runs/{run}/events` and `POST /rpc` in one process."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from activations_for_tests import Demo
from conftest import OpenHub
from hub_calls import OTHER, local, settled, until
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stored_runs import MemoryStore, attach_store, record_run

from plexus import Content, Plexus, Principal
from plexus.errors import Failed
from plexus.events import Complete
from plexus.limits import Limits
from plexus.principal import LOCAL
from substrate.security.authentication import Access, Credential
from substrate.security.credential_watch import CredentialWatch
from substrate.server.rpc_http import RpcEndpoint, RunEvents

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]


class Exchange:
    """One HTTP request to an endpoint, and its response so far."""

    def __init__(
        self, endpoint: Any, scope: dict[str, Any], principal: Principal, body: bytes = b""
    ) -> None:
        self._gone = asyncio.Event()
        self._body: list[bytes] = [body]
        self.status = 0
        self.body = b""
        whole = {
            "type": "http",
            "query_string": b"",
            "headers": [],
            "path_params": {},
            "principal": principal,
            "credential": Credential(principal),
        } | scope
        self.task = asyncio.create_task(endpoint(whole, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if self._body:
            return {"type": "http.request", "body": self._body.pop(), "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.status = message.get("status", self.status)
        self.body += message.get("body", b"")

    def disconnect(self) -> None:
        self._gone.set()

    async def complete(self) -> Exchange:
        """Wait for the end of the response."""
        async with asyncio.timeout(30):
            await self.task
        return self

    def events(self) -> list[tuple[str, Any]]:
        """Return the id and the data of each event so far."""
        found = []
        for block in self.body.decode().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
            if "data" in fields:
                found.append((fields.get("id", ""), json.loads(fields["data"])))
        return found


def watch() -> CredentialWatch:
    return CredentialWatch(Access.open())


def follow(
    hub: Plexus,
    run: object,
    *,
    last: str | None = None,
    after: int | None = None,
    principal: Principal = LOCAL,
) -> Exchange:
    scope: dict[str, Any] = {"method": "GET", "path_params": {"run": str(run)}}
    if last is not None:
        scope["headers"] = [(b"last-event-id", last.encode())]
    if after is not None:
        scope["query_string"] = f"after={after}".encode()
    return Exchange(RunEvents(hub, watch()), scope, principal)


def post(hub: Plexus, method: str, params: Any, accept: str, principal: Principal) -> Exchange:
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    scope = {"method": "POST", "headers": [(b"accept", accept.encode())]}
    return Exchange(RpcEndpoint(hub, watch()), scope, principal, json.dumps(message).encode())


@pytest.fixture
def hub(open_hub: OpenHub) -> Plexus:
    return open_hub(Demo)


@pytest.fixture
def store(hub: Plexus) -> MemoryStore:
    store = attach_store(hub, log_items=4)
    store.create(7, *(Content(str(number)) for number in range(1, 10)), Complete())
    return store


@pytest.mark.parametrize("cut", range(11))
async def test_a_client_resumes_a_stored_run_after_any_event(
    cut: int, hub: Plexus, store: MemoryStore
) -> None:
    response = await follow(hub, 7, last=f"7:{cut}").complete()
    if cut == 10:
        assert response.status == 204  # the client has everything
        return
    assert response.status == 200
    assert [each for each, _ in response.events()] == [f"7:{seq}" for seq in range(cut + 1, 11)]
    same = await follow(hub, 7, after=cut).complete()
    assert same.events() == response.events()
    assert store.requests == []


async def test_a_client_follows_a_run_of_another_process_live_and_comes_back(
    hub: Plexus, store: MemoryStore
) -> None:
    store.create(8, *(Content(str(number)) for number in range(1, 8)))
    first = follow(hub, 8)
    await until(lambda: len(first.events()) == 7)
    store.append(8, Content("8"))
    await until(lambda: len(first.events()) == 8)
    first.disconnect()
    await first.complete()
    assert store.followed == []
    store.append(8, Content("9"), Content("10"))
    second = follow(hub, 8, last="8:8")
    await until(lambda: len(second.events()) == 2)
    store.append(8, Complete())
    await second.complete()
    ids = [each for each, _ in first.events() + second.events()]
    assert ids == [f"8:{seq}" for seq in range(1, 12)]
    # The process of the run decides whether it still waits for this client.
    await until(lambda: len(store.requests) == 2)
    assert {name for name, _ in store.requests} == {"plexus.release"}


@given(count=st.integers(1, 300), log_items=st.integers(1, 30), cut=st.integers(0, 300))
@settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
async def test_a_client_resumes_a_local_run_whose_early_items_are_only_stored(
    count: int, log_items: int, cut: int
) -> None:
    hub = Plexus(limits=Limits(log_items=log_items))
    hub.register(Demo)
    store = attach_store(hub)
    run = local(hub.call("demo.count", {"to": count}).run)
    record_run(store, run)
    await settled(run)
    cut = min(cut, count + 1)
    response = await follow(hub, run.id, last=f"{run.id}:{cut}").complete()
    expected = [f"{run.id}:{seq}" for seq in range(cut + 1, count + 3)]
    assert [each for each, _ in response.events()] == expected
    assert not any(data["params"]["result"]["type"] == "gap" for _, data in response.events())
    await hub.close()


@pytest.mark.parametrize("run", [7, 99, "x"])
async def test_a_run_of_another_principal_is_404_like_an_unknown_one(
    run: object, hub: Plexus, store: MemoryStore
) -> None:
    response = await follow(hub, run, principal=OTHER).complete()
    assert response.status == 404
    error = json.loads(response.body)["error"]
    assert error == f"Unknown run {run}. List your runs with plexus.runs."
    assert store.requests == []


async def test_a_store_that_fails_is_503(hub: Plexus, store: MemoryStore) -> None:
    store.error = Failed("the disk is full")
    response = await follow(hub, 7).complete()
    assert (response.status, json.loads(response.body)) == (503, {"error": "the disk is full"})


async def test_the_cursor_must_be_one_of_the_run(hub: Plexus, store: MemoryStore) -> None:
    assert store.loaded == {}
    response = await follow(hub, 7, last="8:1").complete()
    assert response.status == 400


async def test_a_posted_attach_is_answered_after_the_run_was_loaded(
    hub: Plexus, store: MemoryStore
) -> None:
    params = {"run": 7, "after": 7}
    response = await post(hub, "plexus.attach", params, "application/json", LOCAL).complete()
    assert response.status == 200
    result = json.loads(response.body)["result"]
    assert [event["text"] for event in result["events"]] == ["8", "9"]
    stream = await post(hub, "plexus.attach", params, "text/event-stream", LOCAL).complete()
    assert [each for each, _ in stream.events()][1:] == ["7:8", "7:9", "7:10"]
    assert store.loads == 1
    for accept in ("application/json", "text/event-stream"):
        refused = await post(hub, "plexus.attach", params, accept, OTHER).complete()
        assert b"Unknown run 7" in refused.body
