"""Runs on two servers of one database: each reads, answers and continues runs of the other."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from mcp_network import (
    LATEST,
    Client,
    Event,
    messages,
    read_events,
    request,
    runs,
    wait_until,
)
from several_servers import Address, Replicas, create_token, replicas
from test_several_servers import FORMS, ask_without_handshake, elsewhere, status
from websockets.sync.client import connect

pytestmark = pytest.mark.timeout(40)


@pytest.fixture(scope="module")
def both(_own_data_folder: None) -> Iterator[Replicas]:
    with replicas(token=create_token("ada", "--scope", "*")) as found:
        yield found


@contextmanager
def start(
    address: Address, method: str, params: Any = None
) -> Iterator[tuple[int, Iterator[Event]]]:
    """Start a run over native HTTP, and yield its number and the rest of its events."""
    with address.stream(method, params) as response:
        stream = (each for each in read_events(response) if each.data)
        yield next(stream).message["result"], stream


@contextmanager
def resumed(client: Client, last: str | None) -> Iterator[Iterator[Event]]:
    """Reconnect for the events after one."""
    with client.get(last) as response:
        yield (each for each in read_events(response) if each.data)


# --- native --------------------------------------------------------------------------------------


def test_the_events_of_a_run_are_read_on_another_server(both: Replicas) -> None:
    with (
        start(both.first, "demo.wait", {"seconds": 1}) as (run, _),
        both.second.request("GET", f"/runs/{run}/events") as response,
    ):
        assert response.status == 200
        texts = [each.data for each in read_events(response)]
    assert any("waiting" in each for each in texts)
    assert any("waited" in each for each in texts)


def test_a_stream_continues_on_another_server_after_its_last_event(both: Replicas) -> None:
    with start(both.first, "demo.count", {"to": 50}) as (run, stream):
        seen = [each.id for each in stream]
    last = {"Last-Event-ID": str(seen[20])}
    with both.second.request("GET", f"/runs/{run}/events", headers=last) as rest:
        assert [each.id for each in read_events(rest) if each.data] == seen[21:]


def test_a_run_is_cancelled_on_another_server(both: Replicas) -> None:
    with start(both.first, "demo.wait") as (run, stream):
        assert status(both.second.call("plexus.cancel", {"run": run})) == 200
        wait_until(lambda: runs(both.first, "demo.wait")[0] == "cancelled")
        assert "cancelled" in [each.data for each in stream][-1]


def test_a_question_is_answered_on_another_server(both: Replicas) -> None:
    with start(both.first, "demo.delete") as (run, stream):
        answer = {"run": run, "request": "1", "answer": False}
        assert status(both.second.call("plexus.respond", answer)) == 200
        wait_until(lambda: runs(both.first, "demo.delete")[0] == "complete")
        assert any("kept" in each.data for each in stream)


def test_a_websocket_attaches_to_a_run_of_another_server(both: Replicas) -> None:
    headers = {"Authorization": f"Bearer {both.token}"}
    url = f"ws://127.0.0.1:{both.second.port}/rpc"
    with (
        start(both.first, "demo.wait", {"seconds": 1}) as (run, _),
        connect(url, additional_headers=headers, proxy=None) as socket,
    ):
        socket.send(json.dumps(request("plexus.attach", {"run": run})))
        while "waited" not in str(socket.recv(10)):
            pass


def test_another_principal_does_not_find_a_run_on_another_server(both: Replicas) -> None:
    stranger = Address(both.second.port, create_token("eve", "--scope", "*"))
    with start(both.first, "demo.wait", {"seconds": 1}) as (run, _):
        assert stranger.status("GET", f"/runs/{run}/events") == 404
        assert both.second.status("GET", f"/runs/{run}/events") == 200


# --- MCP -----------------------------------------------------------------------------------------


def test_a_request_state_continues_its_run_on_another_server(both: Replicas) -> None:
    asked = ask_without_handshake(both.first)["result"]
    for address, answer in ((both.second, {}), (both.first, {"answer": "here"})):
        assert asked["resultType"] == "input_required"
        (key,) = asked["inputRequests"]
        response = {key: {"action": "accept", "content": answer}}
        given = {"requestState": asked["requestState"], "inputResponses": response}
        asked = ask_without_handshake(address, **given)["result"]
    assert "deleted here" in asked["content"][0]["text"]


def test_a_task_is_answered_by_every_server(both: Replicas) -> None:
    client = Client(both.first)
    params = {"name": "demo.wait", "arguments": {"seconds": 1}, "task": {"ttl": 60_000}}
    task = messages(client.post(request("tools/call", params)))[-1]["result"]["task"]
    there = elsewhere(client, both.second)
    named = {"taskId": task["taskId"]}
    found = messages(there.post(request("tasks/get", named)))[-1]["result"]
    assert found["status"] == "working"
    result = messages(there.post(request("tasks/result", named)))[-1]["result"]
    assert "waited" in result["content"][0]["text"]


def test_a_run_is_a_resource_on_every_server(both: Replicas) -> None:
    with start(both.first, "demo.count", {"to": 3}) as (run, stream):
        list(stream)
    client = Client(both.second)

    def is_readable() -> bool:
        read = messages(client.post(request("resources/read", {"uri": f"run://{run}"})))[-1]
        return "1 2 3" in json.dumps(read)

    wait_until(is_readable)


def test_a_stream_of_a_tool_call_continues_on_another_server(both: Replicas) -> None:
    client = Client(both.first)
    there = elsewhere(client, both.second)
    with client.call("demo.wait", {"seconds": 2}, token="t", number=9) as response:
        first = next(each for each in read_events(response) if each.data)
        assert first.id is not None
    with resumed(there, first.id) as stream:
        rest = [each.message for each in stream]
    assert rest[-1]["id"] == 9
    text = rest[-1]["result"]["content"][0]["text"]
    assert "waiting" in text, "the result contains what was sent before"
    assert "waited" in text
    steps = [first.message, *rest[:-1]]
    values = [each["params"]["progress"] for each in steps]
    assert values == sorted(set(values)), "progress increases over both servers"
    assert sum("waiting" in json.dumps(each) for each in steps) == 1, "nothing is repeated"
    assert runs(both.first, "demo.wait")[0] == "complete", "the other server has not cancelled it"


def test_a_question_stays_open_when_its_stream_moves(both: Replicas) -> None:
    client = Client(both.first, capabilities=FORMS)
    there = elsewhere(client, both.second)
    with client.call("demo.delete", number=4) as response:
        asked = next(each for each in read_events(response) if each.data)
        assert asked.id is not None
    with resumed(there, asked.id) as stream:
        for content in ({}, {"answer": "there"}):
            answer = {"action": "accept", "content": content}
            to = asked.message["id"]
            assert status(client.post({"jsonrpc": "2.0", "id": to, "result": answer})) == 202
            asked = next(stream)
    assert "deleted there" in asked.message["result"]["content"][0]["text"]


def test_a_stream_that_moved_is_cancelled_by_its_new_server(both: Replicas) -> None:
    client = Client(both.first)
    there = elsewhere(client, both.second)
    with client.call("demo.wait", token="t", number=9) as response:
        first = next(each for each in read_events(response) if each.data)
        assert first.id is not None
    with there.get(first.id):
        assert client.notify("notifications/cancelled", {"requestId": 9}) == 202
        wait_until(lambda: runs(both.first, "demo.wait")[0] == "cancelled")


@pytest.mark.usefixtures("_own_data_folder")
def test_a_call_whose_server_was_killed_is_answered_by_another() -> None:
    with replicas(token=create_token("bob", "--scope", "*")) as pair:
        client = Client(pair.first, LATEST)
        with client.call("demo.wait", token="t", number=5) as response:
            first = next(each for each in read_events(response) if each.data)
            assert first.id is not None
            run = first.id.split(":")[2].partition(".")[0]
            wait_until(lambda: pair.second.status("GET", f"/runs/{run}/events") == 200)
            pair.servers[0].process.send_signal(signal.SIGKILL)
        with resumed(elsewhere(client, pair.second), first.id) as stream:
            rest = [each.message for each in stream]
        assert rest[-1]["id"] == 5
        assert rest[-1]["result"]["isError"]
