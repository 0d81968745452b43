"""The native protocol over HTTP: a plain HTTP client against the real server."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from network import Server, events, serving

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


def answer(response: http.client.HTTPResponse) -> Any:
    return json.loads(response.read())


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def wait_until_gone(pid: int, within_s: float) -> None:
    end = time.monotonic() + within_s
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    assert not alive(pid)


# --- one answer ------------------------------------------------------------------------------


@pytest.mark.parametrize("accept", ["application/json", "*/*", None])
def test_a_client_that_accepts_json_gets_one_answer_with_all_events(
    server: Server, accept: str | None
) -> None:
    headers = {} if accept is None else {"Accept": accept}
    response = server.call("demo.count", {"to": 2}, **headers)
    assert response.status == 200
    assert response.headers["Content-Type"] == "application/json"
    result = answer(response)["result"]
    assert isinstance(result["run"], int)
    assert [event["type"] for event in result["events"]] == ["content", "content", "progress"]
    assert result["terminal"] == {"type": "complete", "total": 2}


def test_a_failed_run_is_a_json_rpc_error_that_loses_nothing(server: Server) -> None:
    response = server.call("demo.fail", {"code": "mine", "message": "it broke"})
    assert response.status == 200
    error = answer(response)["error"]
    assert error["data"]["terminal"]["type"] == "error"
    assert error["message"] == error["data"]["terminal"]["message"]


def test_a_batch_is_answered_by_one_array(server: Server) -> None:
    batch = [{"jsonrpc": "2.0", "id": n, "method": "demo.echo", "params": [str(n)]} for n in (1, 2)]
    answers = answer(server.request("POST", "/rpc", [*batch, 7]))
    results = {entry["id"]: entry.get("result", {}).get("terminal") for entry in answers}
    assert results == {
        1: {"type": "complete", "result": "1"},
        2: {"type": "complete", "result": "2"},
        None: None,
    }


def test_a_notification_is_accepted_without_a_body(server: Server) -> None:
    message = {"jsonrpc": "2.0", "method": "demo.echo", "params": ["x"]}
    for headers in ({}, {"Accept": "text/event-stream"}):
        response = server.request("POST", "/rpc", message, headers)
        assert (response.status, response.read()) == (202, b"")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, -32700),
        (b"\xff", 400, -32700),
        (b"[]", 400, -32600),
        (b'{"jsonrpc":"1.0","id":1,"method":"demo.echo"}', 400, -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"no.such"}', 200, -32601),
        (b'{"jsonrpc":"2.0","id":1,"method":"demo.echo","params":{"text":5}}', 200, -32602),
    ],
)
def test_bad_messages_get_their_error_and_a_fitting_status(
    server: Server, body: bytes, status: int, code: int
) -> None:
    response = server.request("POST", "/rpc", body)
    assert response.status == status
    assert answer(response)["error"]["code"] == code


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_past_the_limit_is_refused_and_one_at_it_is_read(
    server: Server, declared: bool
) -> None:
    call = b'{"jsonrpc":"2.0","id":1,"method":"demo.echo","params":["x"]}'
    at_limit = call + b" " * (MIB - len(call))
    assert "result" in answer(server.request("POST", "/rpc", at_limit))
    headers = {} if declared else {"Transfer-Encoding": "chunked"}
    body = at_limit + b" " if declared else b"%x\r\n%b\r\n0\r\n\r\n" % (MIB + 1, at_limit + b" ")
    response = server.request("POST", "/rpc", body, headers)
    assert response.status == 413
    assert answer(response)["limit"] == MIB


@pytest.mark.parametrize(
    ("verb", "path", "headers", "status"),
    [
        ("GET", "/rpc", {}, 405),
        ("DELETE", "/rpc", {}, 405),
        ("POST", "/rpc", {"Content-Type": "text/plain"}, 415),
        ("POST", "/rpc", {"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ("POST", "/rpc", {"Accept": "image/png"}, 406),
        ("POST", "/runs/1/events", {}, 405),
        ("GET", "/runs/1/events", {}, 404),
        ("GET", "/runs/x/events", {}, 404),
        ("GET", "/nowhere", {}, 404),
    ],
)
def test_what_is_not_served_is_refused_by_its_status(
    server: Server, verb: str, path: str, headers: dict[str, str], status: int
) -> None:
    body = b'{"jsonrpc":"2.0","id":1,"method":"demo.echo","params":["x"]}'
    response = server.request(verb, path, body if verb == "POST" else None, headers)
    assert response.status == status
    response.read()


def test_the_index_identifies_the_server(server: Server) -> None:
    assert answer(server.request("GET", "/"))["name"] == "substrate"


# --- streams ---------------------------------------------------------------------------------


def test_a_stream_carries_the_reply_then_items_with_ids_that_name_run_and_number(
    server: Server,
) -> None:
    response = server.stream("demo.count", {"to": 2})
    assert response.headers["Content-Type"].startswith("text/event-stream")
    assert response.headers["X-Accel-Buffering"] == "no"
    (first_id, reply), *items = events(response)
    assert first_id is None
    run = reply["result"]
    assert [item_id for item_id, _ in items] == [f"{run}:{seq}" for seq in range(1, 5)]
    assert items[-1][1]["params"]["result"] == {"type": "complete", "total": 2}


def test_events_come_while_the_method_still_runs(server: Server) -> None:
    response = server.stream("bash.execute", {"command": "echo one; sleep 30"})
    for _, message in events(response):
        if message.get("params", {}).get("result", {}).get("type") == "stdout":
            break
    assert message["params"]["result"]["data"] == "one\n"
    response.close()


def test_a_silent_stream_is_kept_alive_by_comments() -> None:
    with serving(settings={"SUBSTRATE_LIMITS__KEEP_ALIVE_S": "0.2"}) as quick:
        response = quick.stream("bash.execute", {"command": "sleep 1"})
        assert response.read().count(b": keep-alive\n\n") >= 2


def test_a_refused_call_is_one_event_with_its_error(server: Server) -> None:
    ((event_id, message),) = events(server.stream("no.such"))
    assert event_id is None
    assert message["error"]["code"] == -32601


def test_a_dropped_stream_is_resumed_at_every_item_without_loss_or_repetition(
    server: Server,
) -> None:
    expected = list(range(1, 9))
    for cut in range(1, 9):
        response = server.stream("bash.execute", {"command": "echo a; sleep 0.2; echo b"})
        run, seen, last = 0, [], ""
        for event_id, message in events(response):
            run = run or message["result"]
            if event_id is not None:
                seen.append(message["params"]["seq"])
                last = event_id
                if len(seen) == cut:
                    break
        response.close()
        rest = server.request("GET", f"/runs/{run}/events", headers={"Last-Event-ID": last})
        if rest.status == 200:
            seen += [message["params"]["seq"] for _, message in events(rest)]
        assert seen == expected[: len(seen)]
        assert len(seen) >= 4


def test_a_run_can_be_followed_from_any_item(server: Server) -> None:
    run = answer(server.call("demo.count", {"to": 3}))["result"]["run"]
    for after in range(5):
        followed = server.request("GET", f"/runs/{run}/events?after={after}")
        numbers = [message["params"]["seq"] for _, message in events(followed)]
        assert numbers == list(range(after + 1, 6))


def test_an_event_source_that_reconnects_after_the_terminal_gets_204(server: Server) -> None:
    run = answer(server.call("demo.count", {"to": 1}))["result"]["run"]
    response = server.request("GET", f"/runs/{run}/events", headers={"Last-Event-ID": f"{run}:3"})
    assert (response.status, response.read()) == (204, b"")


@pytest.mark.parametrize("last", ["1:1", "x", "7", ":", "-1"])
def test_an_event_id_of_another_run_is_refused(server: Server, last: str) -> None:
    run = answer(server.call("demo.count", {"to": 1}))["result"]["run"]
    response = server.request("GET", f"/runs/{run}/events", headers={"Last-Event-ID": last})
    assert response.status == 400
    response.read()


def pid_of(response: http.client.HTTPResponse) -> int:
    for _, message in events(response):
        result = message.get("params", {}).get("result", {})
        if result.get("type") == "start":
            pid: int = result["pid"]
            return pid
    raise AssertionError("the command did not start")


def test_a_run_whose_stream_was_dropped_is_stopped_unless_the_client_reconnects() -> None:
    with serving(settings={"SUBSTRATE_LIMITS__ORPHAN_S": "0.3"}) as hasty:
        response = hasty.stream("bash.execute", {"command": "sleep 60"})
        pid = pid_of(response)
        response.close()
        wait_until_gone(pid, 10)


def test_hanging_up_on_a_buffered_call_stops_its_run(server: Server) -> None:
    body = json.dumps(
        {"jsonrpc": "2.0", "id": 1, "method": "bash.execute", "params": ["sleep 61.75"]}
    ).encode()
    head = f"POST /rpc HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n".encode()
    head += b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(head + body)
        end = time.monotonic() + 10
        while not (runs := running(server)) and time.monotonic() < end:
            time.sleep(0.02)
        assert runs
    while running(server) and time.monotonic() < end:
        time.sleep(0.02)
    assert not running(server)


def running(server: Server) -> list[dict[str, Any]]:
    listed = answer(server.call("plexus.runs", {"state": "running"}))["result"]["terminal"]
    return [run for run in listed["result"] if run["method"] == "bash.execute"]


# --- the end ---------------------------------------------------------------------------------


def test_a_stopped_server_writes_the_terminal_of_every_stream_and_leaves_no_process() -> None:
    with serving() as stopping:
        response = stopping.stream("bash.execute", {"command": "setsid sleep 60 & sleep 60"})
        pid = pid_of(response)
        assert stopping.stop() == 0
        *_, (_, last) = events(response)
        assert last["params"]["result"]["type"] == "cancelled"
        assert not alive(pid)


def test_an_occupied_port_is_reported_with_what_to_do(server: Server) -> None:
    second = subprocess.run(
        [sys.executable, "-m", "substrate", "--port", str(server.port)],
        capture_output=True,
        text=True,
        timeout=15,
        check=False,
    )
    assert second.returncode == 1
    assert "choose a different one with --port." in second.stderr


# --- numbers -------------------------------------------------------------------------------------

DIGITS = "9" * 5000


@pytest.mark.parametrize(
    "number", [DIGITS, "9" * 19, "-1", "1.5", "abc", "%D9%A1", "%C2%B2", "%00"]
)
def test_a_run_that_no_number_names_is_not_found(server: Server, number: str) -> None:
    with server.request("GET", f"/runs/{number}/events") as response:
        assert response.status == 404
        error = json.loads(response.read())["error"]
    assert error.startswith("Unknown run ")
    assert len(error) < 100


@pytest.mark.parametrize("after", [DIGITS, "9" * 19, "-1", "1.5", "abc", "%D9%A1", "%C2%B2", "%00"])
def test_an_item_that_no_number_names_is_refused(server: Server, after: str) -> None:
    run = answer(server.call("demo.echo", ["hi"]))["result"]["run"]
    with server.request("GET", f"/runs/{run}/events?after={after}") as response:
        assert response.status == 400
        assert json.loads(response.read()) == {"error": "after must be the seq of an item, or 0."}
    if "%" not in after:
        last = {"Last-Event-ID": f"{run}:{after}"}
        with server.request("GET", f"/runs/{run}/events", headers=last) as response:
            assert response.status == 400
            error = json.loads(response.read())["error"]
        assert error.endswith(f" is not an event of run {run}.")
        assert len(error) < 100
