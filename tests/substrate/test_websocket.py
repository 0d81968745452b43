"""The native protocol over WebSocket: a plain client against the real server."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from network import Server, serving
from raw_peer import RawPeer, frame_of
from websockets.sync.client import ClientConnection, connect

from substrate.server.websocket import BATCH_BYTES, join_messages


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


def send_request(peer: ClientConnection, method: str, params: Any, request_id: Any = 1) -> None:
    message = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
    peer.send(json.dumps(message))


def receive(peer: ClientConnection) -> Any:
    return json.loads(peer.recv(timeout=15))


def receive_start(peer: ClientConnection) -> tuple[int, int]:
    """Return the subscription and the pid of a command that was just called."""
    number = receive(peer)["result"]
    return number, receive(peer)["params"]["result"]["pid"]


def wait_until_gone(pid: int) -> None:
    end = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < end:
        time.sleep(0.02)
    assert not Path(f"/proc/{pid}").exists()


def test_messages_are_text_frames_and_binary_ones_are_read_too(server: Server) -> None:
    with connect(server.ws) as peer:
        peer.send(b'{"jsonrpc":"2.0","id":"x","method":"demo.echo","params":["a"]}')
        first = peer.recv(timeout=15)
        assert isinstance(first, str)
        assert json.loads(first)["id"] == "x"


def test_many_calls_share_a_connection_and_none_gets_anothers_items(server: Server) -> None:
    with connect(server.ws) as peer:
        for number in range(50):
            send_request(peer, "demo.echo", [f"text {number}"], number)
        texts: dict[int, int] = {}
        results: dict[int, str] = {}
        while len(results) < 50:
            message = receive(peer)
            if "id" in message:
                texts[message["result"]] = message["id"]
            else:
                params = message["params"]
                results[texts[params["subscription"]]] = params["result"]["result"]
        assert results == {number: f"text {number}" for number in range(50)}


def test_garbage_and_huge_frames_do_not_end_a_connection(server: Server) -> None:
    with connect(server.ws) as peer:
        for garbage in ("{", "[]", "null", "\x00", "[" * 500_000):
            peer.send(garbage)
            assert receive(peer)["error"]["code"] in (-32700, -32600)
        send_request(peer, "demo.echo", ["still here"])
        assert "result" in receive(peer)


def test_a_frame_past_the_limit_closes_the_connection_that_sent_it_and_no_other(
    server: Server,
) -> None:
    with connect(server.ws) as other, connect(server.ws) as peer:
        peer.send(" " * (1024 * 1024 + 1))
        with pytest.raises(Exception, match="1009"):
            peer.recv(timeout=15)
        send_request(other, "demo.echo", ["still here"])
        assert "result" in receive(other)


def test_unsubscribing_stops_the_command(server: Server) -> None:
    with connect(server.ws) as peer:
        send_request(peer, "bash.execute", ["sleep 60"])
        number, pid = receive_start(peer)
        send_request(peer, "plexus.unsubscribe", [number], 2)
        assert receive(peer) == {"jsonrpc": "2.0", "id": 2, "result": True}
        wait_until_gone(pid)


@pytest.mark.parametrize("politely", [True, False])
def test_a_disconnect_stops_runs_that_cannot_be_resumed(server: Server, politely: bool) -> None:
    with connect(server.ws) as peer:
        send_request(peer, "bash.execute", ["setsid sleep 60 & sleep 60"])
        _, pid = receive_start(peer)
        if not politely:
            peer.socket.shutdown(socket.SHUT_RDWR)
    wait_until_gone(pid)


def test_a_run_with_a_key_survives_a_disconnect_and_is_resumed(
    server: Server,
) -> None:
    params = {"command": "echo a; sleep 1; echo b", "_run": "a key of mine"}
    with connect(server.ws) as peer:
        send_request(peer, "bash.execute", params)
        number, pid = receive_start(peer)
        assert receive(peer)["params"]["result"]["data"] == "a\n"
    with connect(server.ws) as again:
        send_request(again, "bash.execute", {**params, "_after": 2})
        assert receive(again)["result"] == number
        rest = [receive(again)["params"] for _ in range(2)]
        assert [item["seq"] for item in rest] == [3, 4]
        assert rest[0]["result"] == {"type": "stdout", "data": "b\n"}
    wait_until_gone(pid)


def test_a_peer_that_does_not_read_blocks_only_its_own_run(server: Server) -> None:
    with connect(server.ws, max_queue=1, close_timeout=0.2) as slow, connect(server.ws) as other:
        send_request(slow, "bash.execute", {"command": "yes", "max_output_bytes": 10**9})
        for number in range(20):
            send_request(other, "demo.echo", ["x"], number)
            assert receive(other)["id"] == number
            assert receive(other)["params"]["result"]["result"] == "x"


def test_a_peer_that_never_reads_is_cut_off_and_its_run_stopped() -> None:
    with (
        serving(settings={"SUBSTRATE_LIMITS__WRITE_S": "0.5"}) as strict,
        connect(strict.ws, max_queue=1, close_timeout=0.2) as slow,
        connect(strict.ws) as other,
    ):
        send_request(slow, "bash.execute", {"command": "yes", "max_output_bytes": 10**9})
        end = time.monotonic() + 15
        state = "running"
        while state in ("running", "cancelling") and time.monotonic() < end:
            time.sleep(0.1)
            send_request(other, "plexus.runs", {})
            receive(other)
            runs = receive(other)["params"]["result"]["result"]
            state = next((r["state"] for r in runs if r["method"] == "bash.execute"), state)
        assert state == "cancelled"


def test_a_stopping_server_sends_each_terminal_before_it_closes() -> None:
    with serving() as stopping, connect(stopping.ws) as peer:
        send_request(peer, "bash.execute", ["sleep 60"])
        _, pid = receive_start(peer)
        assert stopping.stop() == 0
        assert receive(peer)["params"]["result"]["type"] == "cancelled"
        wait_until_gone(pid)


def test_a_text_frame_that_is_not_utf8_closes_the_connection_without_a_traceback() -> None:
    with serving() as server:
        for path in ("/rpc", "/mcp"):
            for text in (b"\xff\xfe{}", b"\xed\xa0\x80", b'{"a": "\xc3'):
                with RawPeer(server.port) as peer:
                    peer.upgrade(path)
                    peer.send(frame_of(text))
                    closed = peer.read_to_end()
                assert closed[:1] == b"\x88"
                assert closed[2:] == (1007).to_bytes(2) + b"a text frame must be UTF-8"
        assert server.status("GET", "/") == 200
        server.process.terminate()
        assert server.process.stderr is not None
        assert b"Traceback" not in server.process.stderr.read()


def test_a_text_that_is_not_utf8_is_noticed_in_the_last_of_several_frames(server: Server) -> None:
    with RawPeer(server.port) as peer:
        peer.upgrade()
        first, last = bytearray(frame_of(b'{"a": "\xc3')), bytearray(frame_of(b'"}'))
        first[0], last[0] = 0x01, 0x80  # a fragmented text and its last fragment
        peer.send(bytes(first))
        peer.send(bytes(last))
        assert peer.read_to_end()[2:4] == (1007).to_bytes(2)


def test_frames_of_every_length_arrive_whole_and_in_order(server: Server) -> None:
    # Around the limits between the three forms of a frame's length.
    sizes = [*range(140), *range(65_200, 65_540, 20)]
    with connect(server.ws) as peer:
        for first in range(0, len(sizes), 16):
            sent = sizes[first : first + 16]
            for size in sent:
                send_request(peer, "demo.echo", ["x" * size], size)
            requests: dict[int, int] = {}
            received: dict[int, str] = {}
            while len(received) < len(sent):
                message = receive(peer)
                if "id" in message:
                    requests[message["result"]] = message["id"]
                else:
                    params = message["params"]
                    received[requests[params["subscription"]]] = params["result"]["result"]
            assert received == {size: "x" * size for size in sent}


# --- batches --------------------------------------------------------------------------------------


def items_of(peer: ClientConnection, method: str, params: Any) -> tuple[list[Any], list[int]]:
    """Call a method. Return its items, and the number of messages of each frame."""
    send_request(peer, method, params)
    messages: list[Any] = []
    sizes: list[int] = []
    while (
        not messages or messages[-1].get("params", {}).get("result", {}).get("type") != "complete"
    ):
        message = receive(peer)
        batch = message if isinstance(message, list) else [message]
        sizes.append(len(batch))
        messages += batch
    reply, *items = messages
    assert {each["params"]["subscription"] for each in items} == {reply["result"]}
    return [each["params"] for each in items], sizes


@pytest.mark.parametrize(("query", "is_batched"), [("?frames=batch", True), ("", False)])
def test_messages_that_are_ready_at_once_are_one_frame_for_a_client_that_asks_for_it(
    server: Server, query: str, is_batched: bool
) -> None:
    with connect(server.ws + query) as peer:
        found, sizes = items_of(peer, "demo.count", {"to": 3000})
    assert [each["seq"] for each in found] == list(range(1, len(found) + 1))
    assert len(found) == 3002
    if is_batched:
        assert len(sizes) < len(found) / 3
    else:
        assert set(sizes) == {1}


@pytest.mark.parametrize("query", ["?frames=", "?frames=batch&frames=one", "?xframes=batch"])
def test_anything_but_batch_gets_a_message_in_each_frame(server: Server, query: str) -> None:
    with connect(server.ws + query) as peer:
        _, sizes = items_of(peer, "demo.count", {"to": 200})
    assert set(sizes) == {1}


def test_batches_are_bounded_and_a_reply_to_a_batch_stays_an_array_of_its_own() -> None:
    small, reply, large = b"1" * 1000, b"[2,3]", b"4" * (BATCH_BYTES + 1)
    assert join_messages([small]) == [small]
    assert join_messages([small, small]) == [b"[" + small + b"," + small + b"]"]
    assert join_messages([small, reply, small]) == [small, reply, small]
    assert join_messages([reply, reply]) == [reply, reply]
    assert join_messages([large, small, large]) == [large, small, large]
    joined = join_messages([small] * 1000)
    assert [number for frame in joined for number in json.loads(frame)] == [int(small)] * 1000
    assert max(map(len, joined)) <= BATCH_BYTES + 1000
