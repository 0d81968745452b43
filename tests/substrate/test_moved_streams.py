"""Streams of tool calls that another server continues.

Two servers in this process share one hub, and so the runs: what moves is the stream.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from activations_for_tests import Demo
from arbor_databases import server as postgres
from conftest import OpenHub
from mcp_network import LATEST, Client
from network import Event, read_events
from several_servers import Address
from test_several_servers import FORMS, elsewhere, status

from mcp_view.server import McpOptions
from plexus.limits import Limits
from plexus.principal import LOCAL
from plexus.runtime.hub import Plexus
from substrate.security.authentication import Access
from substrate.server.limits import ServerLimits
from substrate.server.mcp.shared_streams import parse_event_id
from substrate.server.serve import bind, make_server
from substrate.server.shared_state import open_shared_state

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

#: So short that a run which its server does not leave to another one would be cancelled.
ORPHAN_S = 0.5


class Pair:
    """Two servers in this process."""

    def __init__(self, hub: Plexus, addresses: list[Address]) -> None:
        self.hub = hub
        self.first, self.second = addresses

    def states(self) -> list[str]:
        return [run.state for run in self.hub.runs.list_for(LOCAL)]


@asynccontextmanager
async def _serving(hub: Plexus, database: str) -> AsyncIterator[Address]:
    shared = await open_shared_state(database, ServerLimits.of(hub.limits))
    sock = bind(0)
    port = sock.getsockname()[1]
    server = make_server(hub, port, mcp_options=McpOptions(), access=Access.open(), shared=shared)
    task = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        yield Address(port, "")
    finally:
        server.should_exit = True
        await task
        await shared.close()


@pytest.fixture
async def pair(open_hub: OpenHub) -> AsyncIterator[Pair]:
    hub = open_hub(Demo, limits=Limits(orphan_s=ORPHAN_S))
    database = postgres().url(postgres().new_database())
    async with AsyncExitStack() as stack:
        addresses = [await stack.enter_async_context(_serving(hub, database)) for _ in range(2)]
        yield Pair(hub, addresses)
        hub.runs.cancel_all("the test has ended")


def first_event(client: Client, tool: str, arguments: dict[str, Any], **options: Any) -> Event:
    """Call a tool, read one event, and disconnect."""
    with client.call(tool, arguments, **options) as response:
        return next(each for each in read_events(response) if each.data)


def rest_of(client: Client, last: str | None) -> list[Any]:
    with client.get(last) as response:
        return [each.message for each in read_events(response) if each.data]


async def test_another_server_continues_after_the_last_event(pair: Pair) -> None:
    client = await asyncio.to_thread(Client, pair.first)
    event = await asyncio.to_thread(
        first_event, client, "demo.wait", {"seconds": 1.5}, token="t", number=9
    )
    rest = await asyncio.to_thread(rest_of, elsewhere(client, pair.second), event.id)
    assert rest[-1]["id"] == 9
    text = rest[-1]["result"]["content"][0]["text"]
    assert "waiting" in text, "the result contains what was sent before"
    assert "waited" in text
    values = [each["params"]["progress"] for each in (event.message, *rest[:-1])]
    assert values == sorted(set(values)), "progress increases over both servers"
    assert "waiting" not in json.dumps(rest[:-1]), "what was received is not repeated"
    assert pair.states() == ["complete"], "the first server has left the run to the second"


async def test_a_stream_moves_back_and_forth(pair: Pair) -> None:
    client = await asyncio.to_thread(Client, pair.first)
    event = await asyncio.to_thread(
        first_event, client, "demo.wait", {"seconds": 2}, token="t", number=9
    )
    there = elsewhere(client, pair.second)

    def opening(last: str | None) -> str:
        with there.get(last) as response:
            return str(next(read_events(response)).id)

    moved = await asyncio.to_thread(opening, event.id)
    rest = await asyncio.to_thread(rest_of, client, moved)
    assert "waited" in rest[-1]["result"]["content"][0]["text"]
    assert pair.states() == ["complete"]


async def test_a_received_question_stays_open_and_is_not_repeated(pair: Pair) -> None:
    client = await asyncio.to_thread(lambda: Client(pair.first, capabilities=FORMS))
    event = await asyncio.to_thread(first_event, client, "demo.delete", {}, number=4)
    there = elsewhere(client, pair.second)

    def answer_all(asked: dict[str, Any]) -> tuple[list[Any], Any]:
        seen = []
        with there.get(event.id) as response:
            stream = (each.message for each in read_events(response) if each.data)
            for content in ({}, {"answer": "there"}):
                result = {"action": "accept", "content": content}
                message = {"jsonrpc": "2.0", "id": asked["id"], "result": result}
                assert (
                    status(client.post(message)) == 202
                )  # to the first server, which passes it on
                asked = next(stream)
                seen.append(asked.get("method"))
        return seen, asked

    seen, answer = await asyncio.to_thread(answer_all, event.message)
    assert seen == ["elicitation/create", None], "only the second question was sent there"
    assert "deleted there" in answer["result"]["content"][0]["text"]


async def test_a_cancellation_reaches_the_server_that_has_the_stream_now(pair: Pair) -> None:
    client = await asyncio.to_thread(Client, pair.first)
    event = await asyncio.to_thread(first_event, client, "demo.wait", {}, token="t", number=9)
    there = elsewhere(client, pair.second)

    def cancel() -> list[Any]:
        with there.get(event.id) as response:
            stream = read_events(response)
            next(stream)
            assert client.notify("notifications/cancelled", {"requestId": 9}) == 202
            return [each.message for each in stream if each.data]

    assert await asyncio.to_thread(cancel) == []
    assert pair.states() == ["cancelled"]


async def test_a_client_that_has_the_answer_does_not_get_it_again(pair: Pair) -> None:
    client = await asyncio.to_thread(Client, pair.first)

    def whole() -> list[Event]:
        with client.call("demo.wait", {"seconds": 0.1}, token="t", number=9) as response:
            return [each for each in read_events(response) if each.data]

    events = await asyncio.to_thread(whole)
    last, before = events[-1].id, events[-2].id
    assert last is not None
    assert before is not None
    limits = pair.hub.limits
    final, partial = parse_event_id(last.encode(), limits), parse_event_id(before.encode(), limits)
    assert final is not None
    assert final.point is None, "nothing follows the answer"
    assert partial is not None
    assert partial.point is not None
    again = await asyncio.to_thread(rest_of, elsewhere(client, pair.second), before)
    assert again[-1] == events[-1].message, "an earlier event leads to the same answer"


async def test_a_request_whose_run_is_lost_is_answered_with_an_error(pair: Pair) -> None:
    client = await asyncio.to_thread(Client, pair.first)
    rest = await asyncio.to_thread(rest_of, client, "abc.1:1:5.6.WzEsMV0")  # request 1 of run 5
    assert [each["id"] for each in rest] == [1]
    assert "Repeat the request" in rest[0]["error"]["message"]


@pytest.mark.parametrize(
    "wrong",
    [
        "x",
        "1:1",
        "abc.1:1",
        "abc.1:1:5",
        "abc.1:1:5.6.!!!",
        "abc.1:1:5.6.WzFd",  # [1]
        "abc.1:1:5.6.W251bGwsbnVsbF0",  # [null,null]
        "abc.1:1:999999999999999999999.6.WzEsMV0",
        "a" * 5000,
    ],
)
async def test_an_unknown_event_opens_a_stream_without_events(pair: Pair, wrong: str) -> None:
    client = await asyncio.to_thread(lambda: Client(pair.first, LATEST))

    def opening() -> str:
        with client.get(wrong) as response:
            assert response.status == 200
            return next(read_events(response)).data

    assert await asyncio.to_thread(opening) == ""
