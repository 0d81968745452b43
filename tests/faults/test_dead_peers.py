"""Peers that vanish, stop reading, or never really existed."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp_network import (
    BOTH,
    ENVELOPE,
    STATELESS,
    body_of,
    runs,
    wait_for_state,
    wait_until,
)
from network import ANSWER_S, Server
from raw_peer import RawPeer, call_of, frame_of, limited
from websockets.sync.client import ClientConnection, connect

from substrate.server.peers import watch_for_dead_peers
from substrate.server.serve import bind

LEAVING = str(Path(__file__).with_name("leaving.py"))
ECHO = call_of("demo.echo", ["x"])
#: After how many events the peer vanishes; 0 is before the first.
POINTS = [0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    # Over MCP every number is sent too.
    options = ("--activation", LEAVING, "--mcp-progress-rate", "0")
    with limited(*options, orphan_s=0.3) as running:
        yield running


def open_generators(server: Server) -> int:
    found: int = body_of(server.call("leaving.open"))["result"]["terminal"]["result"]
    return found


def start_sse(peer: RawPeer) -> None:
    peer.post(call_of("leaving.speak"), accept="text/event-stream")


def start_buffered(peer: RawPeer) -> None:
    peer.post(call_of("leaving.speak"))


def start_websocket(peer: RawPeer) -> None:
    peer.upgrade()
    peer.send_json(call_of("leaving.speak"))


def start_mcp(peer: RawPeer) -> None:
    meta = ENVELOPE | {"progressToken": 1}
    params = {"name": "leaving.speak", "arguments": {}, "_meta": meta}
    body = json.dumps(call_of("tools/call", params)).encode()
    head = f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{peer.port}\r\nAccept: {BOTH}\r\n"
    head += f"MCP-Protocol-Version: {STATELESS}\r\nMcp-Method: tools/call\r\n"
    head += "Mcp-Name: leaving.speak\r\nContent-Type: application/json\r\n"
    peer.send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)


def reset(peer: RawPeer) -> None:
    peer.reset()


def close(peer: RawPeer) -> None:
    peer.sock.close()


def half_close(peer: RawPeer) -> None:
    peer.sock.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("vanish", [reset, close, half_close])
@pytest.mark.parametrize("start", [start_sse, start_websocket, start_mcp])
def test_the_generator_is_closed_wherever_in_its_stream_the_peer_vanishes(
    server: Server, start: Any, vanish: Any
) -> None:
    peers = [RawPeer(server.port) for _ in POINTS]
    for peer in peers:
        start(peer)
    wait_until(lambda: open_generators(server) == len(POINTS))
    for peer, point in zip(peers, POINTS, strict=True):
        if point:
            peer.read_until(b"<%d>" % point)
        vanish(peer)
    wait_until(lambda: open_generators(server) == 0)
    for peer in peers:
        peer.sock.close()
    assert body_of(server.request("POST", "/rpc", ECHO))["result"]["terminal"]["result"] == "x"


@pytest.mark.parametrize("vanish", [reset, close, half_close])
def test_the_generator_is_closed_when_a_client_waiting_for_the_result_vanishes(
    server: Server, vanish: Any
) -> None:
    with RawPeer(server.port) as peer:
        start_buffered(peer)
        wait_until(lambda: open_generators(server) == 1)
        vanish(peer)
        wait_until(lambda: open_generators(server) == 0)


def test_a_client_that_hangs_up_before_it_is_accepted_disturbs_no_other(server: Server) -> None:
    for _ in range(50):
        RawPeer(server.port).reset()
    assert body_of(server.request("POST", "/rpc", ECHO))["result"]["terminal"]["result"] == "x"


# --- readers that stop -----------------------------------------------------------------------


def echo(peer: ClientConnection) -> None:
    peer.send(json.dumps(ECHO))
    while json.loads(peer.recv(timeout=ANSWER_S)).get("method") != "demo.echo":
        pass


def is_running(server: Server, method: str) -> bool:
    running = body_of(server.call("plexus.runs", {"state": "running"}))
    return method in {run["method"] for run in running["result"]["terminal"]["result"]}


def test_a_websocket_that_stops_reading_is_cut_with_lagged_and_others_do_not_notice() -> None:
    with limited(write_s=1.0) as server, connect(server.ws) as other:
        with RawPeer(server.port, receive_bytes=4096) as stuck:
            stuck.upgrade()
            stuck.send_json(call_of("demo.flood"))
            stuck.read_until(b"subscription")
            while is_running(server, "demo.flood"):
                echo(other)
            # It finds out why, at the end of what it missed: 1008, and a word.
            stuck.read_until(b"\x03\xf0lagged")
        echo(other)


def test_a_stream_that_stops_being_read_is_cut_and_its_run_stopped() -> None:
    with (
        limited("--log-level", "info", write_s=1.0, orphan_s=0.3) as server,
        connect(server.ws) as other,
        RawPeer(server.port, receive_bytes=4096) as stuck,
    ):
        stuck.post(call_of("demo.flood"), accept="text/event-stream")
        stuck.read_until(b"subscription")
        while is_running(server, "demo.flood"):
            echo(other)
        assert server.process.stderr is not None
        while b"lagged" not in server.process.stderr.readline():
            pass
        echo(other)


def test_the_memory_of_a_stuck_reader_is_bounded() -> None:
    def resident(server: Server) -> int:
        for line in Path(f"/proc/{server.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("the server is gone")

    with limited(write_s=20.0) as server, connect(server.ws) as other:
        # The run store is opened after the first run.
        opened = time.monotonic() + 1.5
        while time.monotonic() < opened:
            echo(other)
        before = resident(server)
        stuck = [RawPeer(server.port, receive_bytes=4096) for _ in range(4)]
        for peer in stuck:
            peer.upgrade()
            peer.send_json(call_of("demo.flood"))
        end = time.monotonic() + 3
        while time.monotonic() < end:
            echo(other)
            time.sleep(0.01)  # thousands of ended runs, which are retained, would count too
        # 4 MiB for each, what the interpreter does with it, and what the run store caches.
        assert resident(server) - before < len(stuck) * 10 * 1024 * 1024
        for peer in stuck:
            peer.reset()


# --- peers that were never really there ------------------------------------------------------


def test_many_half_sent_headers_are_cut_and_others_do_not_notice() -> None:
    with limited(header_s=1.0, connections=200) as server, connect(server.ws) as other:
        halves = [RawPeer(server.port) for _ in range(100)]
        for number, half in enumerate(halves):
            half.send(b"POST /rpc HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Half: "[: number % 50])
        for half in halves:
            echo(other)
            received = half.read_to_end()
            assert received == b"" or b" 408 " in received
            half.sock.close()
        echo(other)


def test_a_websocket_that_answers_no_pings_is_closed_and_its_run_cancelled() -> None:
    with limited(ping_s=0.5) as server, RawPeer(server.port) as dead:
        dead.upgrade()
        dead.send_json(call_of("demo.wait"))
        wait_for_state(server, "demo.wait", "running")
        wait_for_state(server, "demo.wait", "cancelled")


def test_a_websocket_that_answers_pings_stays() -> None:
    with limited(ping_s=0.3) as server, RawPeer(server.port) as alive:
        alive.upgrade()
        alive.send_json(call_of("demo.wait"))
        alive.read_until(b"waiting")
        answered = 0
        while answered < 5:
            head = alive.sock.recv(2)
            assert head[0] == 0x89
            payload = alive.sock.recv(head[1])
            alive.send(frame_of(payload, opcode=10))
            answered += 1
        assert runs(server, "demo.wait") == ["running"]


def test_keepalive_detects_peers_that_vanish_silently() -> None:
    with bind(0) as listening:
        watch_for_dead_peers(listening, 20.0)
        with RawPeer(listening.getsockname()[1]), listening.accept()[0] as accepted:
            found = {
                name: accepted.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
                for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
            }
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert found["TCP_USER_TIMEOUT"] == 40_000
    gone_s = found["TCP_KEEPIDLE"] + found["TCP_KEEPINTVL"] * found["TCP_KEEPCNT"]
    assert gone_s <= 60
