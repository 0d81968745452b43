"""A client that is cut off finds everything again, and a run that nobody comes back to ends."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from mcp_network import (
    BOTH,
    JSON,
    SSE,
    Client,
    Event,
    read_events,
    reading,
    request,
    runs,
    send_raw,
    wait_for_state,
    wait_until,
)
from network import DEMO, Server, serving

REMOTE = DEMO.parent / "substrate" / "remote_activation.py"
SHORT = {"SUBSTRATE_LIMITS__ORPHAN_S": "0.3"}
HANDSHAKES = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("--activation", str(REMOTE), "--mcp-progress-rate", "0") as running:
        yield running


@pytest.fixture(scope="module")
def hasty() -> Iterator[Server]:
    """A server that does not wait long for those who were cut off."""
    with serving("--activation", str(REMOTE), settings=SHORT) as running:
        yield running


def said(events: list[Event]) -> list[Any]:
    return [event.message for event in events if event.data]


def number_of(event: Event) -> int:
    assert event.id is not None
    return int(event.id.split(":")[1])


# --- ids ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("revision", HANDSHAKES)
def test_every_event_has_an_id_that_names_its_stream(server: Server, revision: str) -> None:
    client = Client(server, revision)
    streams = [
        list(read_events(client.call("demo.count", {"to": 3}, token=1))),
        list(read_events(client.call("remote.steps", {"to": 3}, token=1))),
    ]
    names = []
    for events in streams:
        ids = [event.id or "" for event in events]
        assert len({event_id.split(":")[0] for event_id in ids}) == 1
        first = 0 if revision == "2025-11-25" else 1
        assert [number_of(event) for event in events] == list(range(first, first + len(ids)))
        names.append(ids[0].split(":")[0])
    assert names[0] != names[1]


def test_a_stream_begins_with_an_empty_event_where_clients_know_that(server: Server) -> None:
    for revision in HANDSHAKES:
        for tool in ("demo.echo", "remote.steps"):
            arguments: dict[str, Any] = {"text": "a"} if tool == "demo.echo" else {"to": 1}
            client = Client(server, revision)
            first = next(read_events(client.call(tool, arguments, accept=SSE)))
            if revision == "2025-11-25":
                assert (first.data, first.retry) == ("", "300")
            else:
                assert first.message["jsonrpc"] == "2.0"


# --- coming back -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("revision", "seen"),
    [("2025-11-25", 0)]  # elsewhere there is no id before the first event
    + [(revision, seen) for revision in ("2025-06-18", "2025-11-25") for seen in (1, 3, 6)],
)
def test_after_a_cut_exactly_the_rest_comes_and_nothing_twice(
    server: Server, revision: str, seen: int
) -> None:
    client = Client(server, revision)
    primes = revision == "2025-11-25"
    with reading(client.call("remote.steps", {"to": 8, "every_s": 0.02}, token="t")) as events:
        had = list(islice(events, seen + primes))
    rest = list(read_events(client.get(had[-1].id)))
    if primes:
        assert (rest[0].data, rest[0].id) == ("", had[-1].id)
    numbers = [number_of(event) for event in had + rest if event.data]
    assert numbers == list(range(1, numbers[-1] + 1))
    *progress, answer = said(had + rest)
    assert [message["params"]["message"] for message in progress][:8] == [
        f"step {number}" for number in range(1, 9)
    ]
    assert answer["result"]["content"] == [{"type": "text", "text": "arrived"}]
    assert len(runs(server, "remote.steps")) >= 1


def test_a_stream_can_be_cut_again_and_again(server: Server) -> None:
    client = Client(server)
    events: list[Event] = []
    response = client.call("remote.steps", {"to": 6, "every_s": 0.05}, token="t")
    while not events or "result" not in ((events[-1].data and events[-1].message) or {}):
        with reading(response) as stream:
            events += list(islice((event for event in stream if event.data), 2))
        response = client.get(events[-1].id)
    response.close()
    assert [number_of(event) for event in events] == list(range(1, len(events) + 1))


def test_what_has_ended_meanwhile_is_still_there(server: Server) -> None:
    client = Client(server)
    with reading(client.call("remote.pass_gate", token=1)) as events:
        cut = next(events).id
    client.call("remote.open_gate").read()
    wait_for_state(server, "remote.pass_gate", "complete")
    rest = said(list(read_events(client.get(cut))))
    assert rest[-1]["result"]["content"][0]["text"] == "through"


def test_a_whole_stream_is_still_there_for_those_who_lost_its_end(server: Server) -> None:
    client = Client(server)
    events = list(read_events(client.call("demo.count", {"to": 2}, token=1)))
    for seen, event in enumerate(events[:-1]):
        again = client.get(event.id)
        assert said(list(read_events(again))) == said(events[seen + 1 :])


def test_two_streams_are_taken_up_each_for_itself(server: Server) -> None:
    client = Client(server)
    cuts = []
    for number in (1, 2):
        arguments = {"to": 3, "every_s": 0.1}
        with reading(client.call("remote.steps", arguments, token=number, number=number)) as events:
            next(events)
            cuts.append(next(events).id)
    for number, cut in zip((1, 2), cuts, strict=True):
        rest = said(list(read_events(client.get(cut))))
        assert rest[-1]["id"] == number
        assert {message["params"]["progressToken"] for message in rest[:-1]} == {number}


def test_a_new_stream_replaces_the_previous_one(server: Server) -> None:
    client = Client(server)
    with reading(client.call("remote.pass_gate", token=1)) as first:
        cut = next(first).id
        next(first)
        with reading(client.get(cut)) as second:
            assert list(first) == []
            assert next(second).data == ""
            assert next(second).message["method"] == "notifications/progress"
            client.call("remote.open_gate").read()
            assert said(list(second))[-1]["result"]["content"][0]["text"] == "through"


def test_a_question_that_was_lost_is_asked_again(server: Server) -> None:
    client = Client(server, capabilities={"elicitation": {}})
    with reading(client.call("remote.burn")) as events:
        cut = next(events).id
        asked = next(events).message
    with reading(client.get(cut)) as again:
        assert next(again).data == ""
        assert next(again).message == asked
        client.post({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "cancel"}})
        assert next(again).message["result"]["isError"]


def test_what_is_kept_of_a_flood_is_bounded_and_the_newest_of_it_is_there(server: Server) -> None:
    client = Client(server)
    text = "x" * 900  # of which every progress message is made
    with reading(client.call("demo.flood", {"size": len(text)}, token=1)) as events:
        first = next(events).id
        assert len(list(islice(events, 5000))) == 5000
    with reading(client.get(first)) as again:
        next(again)
        numbers = [number_of(event) for event in islice(again, 2000)]
    assert numbers[0] > 1000  # what is older was dropped
    assert numbers == list(range(numbers[0], numbers[0] + 2000))
    client.notify("notifications/cancelled", {"requestId": 1})


# --- not coming back ---------------------------------------------------------------------------


@pytest.mark.parametrize("revision", HANDSHAKES)
def test_a_run_that_no_client_resumes_is_cancelled(hasty: Server, revision: str) -> None:
    client = Client(hasty, revision)
    with reading(client.call("demo.wait", token=1)) as events:
        last = [next(events), next(events)][-1] if revision == "2025-11-25" else next(events)
    assert runs(hasty, "demo.wait")[0] == "running"
    wait_for_state(hasty, "demo.wait", "cancelled")
    (answer,) = said(list(read_events(client.get(last.id))))
    assert (answer["id"], answer["error"]["code"]) == (1, -32603)
    assert "did not reconnect" in answer["error"]["message"]


def test_a_batch_that_no_client_resumes_is_answered_as_one(hasty: Server) -> None:
    client = Client(hasty, "2025-03-26")
    batch = [
        request("tools/call", {"name": "demo.wait", "_meta": {"progressToken": 1}}, number)
        for number in ("a", "b")
    ]
    with reading(client.post(batch)) as events:
        last = next(events).id
    wait_for_state(hasty, "demo.wait", "cancelled")
    answers = said(list(read_events(client.get(last))))[-1]
    assert {answer["id"] for answer in answers} == {"a", "b"}


def test_no_deadline_applies_while_a_client_reads(hasty: Server) -> None:
    client = Client(hasty)
    with reading(client.call("demo.wait", {"seconds": 1.2}, token=1)) as events:
        cut = [next(events), next(events)][-1].id
    rest = said(list(read_events(client.get(cut))))
    assert rest[-1]["result"]["isError"] is False


def test_a_client_that_takes_no_stream_cannot_come_back_and_its_run_is_stopped(
    server: Server,
) -> None:
    client = Client(server)
    before = len(runs(server, "demo.wait"))
    message = request("tools/call", {"name": "demo.wait"})
    with send_raw(server, message, client.headers | {"Accept": JSON}):
        wait_until(lambda: len(runs(server, "demo.wait")) > before)
    wait_for_state(server, "demo.wait", "cancelled")


def test_a_socket_that_breaks_without_a_word_is_no_cancel(server: Server) -> None:
    client = Client(server)
    message = request(
        "tools/call",
        {"name": "remote.steps", "arguments": {"to": 5}, "_meta": {"progressToken": 1}},
    )
    sock = send_raw(server, message, client.headers | {"Accept": BOTH})
    seen = b""
    while b'"progress":1' not in seen:
        seen += sock.recv(4096)
    # Closing with something unread makes the system send a reset.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    sock.close()
    ids = [line[4:].decode() for line in seen.split(b"\n") if line.startswith(b"id: ")]
    rest = said(list(read_events(client.get(ids[-1]))))
    assert rest[-1]["result"]["content"][0]["text"] == "arrived"


# --- streams that the server ends ----------------------------------------------------------------


def test_the_server_may_end_a_stream_and_have_the_client_come_back() -> None:
    settings = {"SUBSTRATE_MCP_STREAM_S": "0.3"}
    with serving("--activation", str(REMOTE), settings=settings) as server:
        client = Client(server)
        arguments = {"to": 5, "every_s": 0.25}
        response = client.call("remote.steps", arguments, token=1)
        events: list[Event] = []
        came_back = 0
        while True:
            part = list(read_events(response))
            assert part[0].retry == "300"
            events += part
            if said(part) and "result" in said(part)[-1]:
                break
            came_back += 1
            response = client.get(events[-1].id)
        assert came_back >= 2
        numbers = [number_of(event) for event in events if event.data]
        assert numbers == list(range(1, len(numbers) + 1))
        # A client that does not know this gets one stream to its end.
        whole = list(read_events(Client(server, "2025-06-18").call("remote.steps", arguments)))
        assert "result" in said(whole)[-1]


# --- the standing stream -------------------------------------------------------------------------


def test_the_standing_stream_sends_changes() -> None:
    with serving("--activation", str(REMOTE)) as server:
        client = Client(server)
        client.post(request("resources/subscribe", {"uri": "test://a"})).read()
        with reading(client.get()) as events:
            assert next(events).data == ""
            client.call("remote.touch", {"uri": "test://b"}).read()
            client.call("remote.touch", {"uri": "test://a"}).read()
            updated = next(events)
            assert updated.message == {
                "jsonrpc": "2.0",
                "method": "notifications/resources/updated",
                "params": {"uri": "test://a"},
            }
            client.call("remote.grow").read()
            assert next(events).message["method"] == "notifications/tools/list_changed"
        # What came while nobody listened is told to whoever comes back.
        client.call("remote.touch", {"uri": "test://a"}).read()
        with reading(client.get(updated.id)) as again:
            assert next(again).data == ""
            methods = [next(again).message["method"] for _ in range(2)]
            assert methods == [
                "notifications/tools/list_changed",
                "notifications/resources/updated",
            ]


def test_a_second_standing_stream_takes_the_place_of_the_first(server: Server) -> None:
    client = Client(server)
    client.post(request("resources/subscribe", {"uri": "test://a"})).read()
    with reading(client.get()) as first:
        next(first)
        with reading(client.get()) as second:
            next(second)
            assert list(first) == []
            client.call("remote.touch", {"uri": "test://a"}).read()
            assert next(second).message["method"] == "notifications/resources/updated"


@pytest.mark.parametrize("last", ["999:1", "nonsense", "1:x", ":", "9" * 5000 + ":1"])
def test_an_unknown_event_id_gets_a_stream_that_stays_open(server: Server, last: str) -> None:
    client = Client(server)
    client.post(request("resources/subscribe", {"uri": "test://a"})).read()
    with reading(client.get(last)) as events:
        assert next(events).data == ""
        client.call("remote.touch", {"uri": "test://a"}).read()
        assert next(events).message["method"] == "notifications/resources/updated"


def test_coming_back_for_what_one_has_had_does_not_disturb_who_listens(server: Server) -> None:
    client = Client(server)
    client.post(request("resources/subscribe", {"uri": "test://a"})).read()
    done = list(read_events(client.call("demo.count", {"to": 1}, token=1)))
    with reading(client.get()) as listening, reading(client.get(done[-1].id)) as waiting:
        assert next(listening).data == ""
        assert next(waiting).data == ""
        client.call("remote.touch", {"uri": "test://a"}).read()
        assert next(listening).message["method"] == "notifications/resources/updated"
        assert client.delete() == 204
        assert list(waiting) == []
        assert list(listening) == []


def test_streams_of_another_session_cannot_be_read(server: Server) -> None:
    owner, other = Client(server), Client(server)
    with reading(owner.call("remote.pass_gate", token=1)) as events:
        cut = next(events).id
    with reading(other.get(cut)) as foreign:
        assert next(foreign).data == ""
        owner.call("remote.open_gate").read()
        wait_for_state(server, "remote.pass_gate", "complete")
        other.post(request("resources/subscribe", {"uri": "test://a"})).read()
        other.call("remote.touch", {"uri": "test://a"}).read()
        assert next(foreign).message["method"] == "notifications/resources/updated"


@pytest.mark.parametrize(("accept", "status"), [(JSON, 406), ("*/*", 200), (SSE, 200)])
def test_a_stream_is_for_those_who_accept_one(server: Server, accept: str, status: int) -> None:
    with Client(server).get(accept=accept) as response:
        assert response.status == status


def test_standing_streams_end_with_the_server() -> None:
    with serving() as server:
        with reading(Client(server).get()) as events, reading(Client(server).get()) as others:
            next(events)
            next(others)
            server.process.terminate()
            assert list(events) == []
            assert list(others) == []
        assert server.process.wait(15) == 0
