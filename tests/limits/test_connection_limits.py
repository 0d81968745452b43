"""Limits of connections and their timeouts: at the limit, past it, and after it is freed."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator

import pytest
from mcp_network import wait_until
from network import ANSWER_S, Server, events
from raw_peer import RawPeer, call_of, limited, post_of
from websockets.sync.client import connect

ECHO = call_of("demo.echo", ["x"])


def accepts_connections(server: Server) -> bool:
    """Whether a new connection works."""
    with RawPeer(server.port) as peer:
        return "result" in peer.answer(ECHO)


# --- how many --------------------------------------------------------------------------------


@pytest.mark.limit("connections", "at", "past", "after")
def test_a_connection_past_the_limit_is_refused_until_another_is_closed() -> None:
    with limited(connections=3) as server:
        first, second, third = peers = [RawPeer(server.port) for _ in range(3)]
        for peer in peers:
            assert "result" in peer.answer(ECHO)
        for sends in (b"", post_of(server.port, ECHO)):
            with RawPeer(server.port) as past:
                past.send(sends)
                status, headers, body = past.response()
                assert (status, json.loads(body)["limit"]) == (503, 3)
                assert headers["Retry-After"] == "1"
                assert past.read_to_end() == b""
        assert "result" in second.answer(ECHO)
        first.sock.close()

        def is_accepted() -> bool:
            with RawPeer(server.port) as after:
                after.post(ECHO)
                return after.response()[0] == 200

        wait_until(is_accepted)
        second.sock.close()
        third.sock.close()


def test_a_websocket_counts_as_one_connection() -> None:
    with limited(connections=2) as server, connect(server.ws), connect(server.ws) as peer:
        with RawPeer(server.port) as past:
            assert past.response()[0] == 503
        peer.send(json.dumps(ECHO))
        assert "result" in json.loads(peer.recv(timeout=ANSWER_S))


# --- how long a request may take -------------------------------------------------------------


@pytest.fixture(scope="module")
def impatient() -> Iterator[Server]:
    with limited(header_s=1.0, body_s=1.0) as running:
        yield running


def seconds_until_closed(peer: RawPeer) -> tuple[float, bytes]:
    began = time.monotonic()
    frame = peer.read_to_end()
    return time.monotonic() - began, frame


@pytest.mark.limit("header_s", "at", "past", "after")
def test_a_header_that_is_only_half_sent_is_cut(impatient: Server) -> None:
    request = post_of(impatient.port, ECHO)
    with RawPeer(impatient.port) as at:
        at.send(request[:30])
        time.sleep(0.2)
        at.send(request[30:])
        assert at.response()[0] == 200
        at.send(request[:30])  # also for a later request
        status, _, body = at.response()
        assert (status, json.loads(body)) == (
            408,
            {"error": "The header took longer than 1 s.", "limit": 1},
        )
        assert at.read_to_end() == b""
    assert accepts_connections(impatient)


def test_single_bytes_do_not_keep_an_incomplete_header_open(impatient: Server) -> None:
    with RawPeer(impatient.port) as slow:
        slow.send(b"GET / HTTP/1.1\r\n")
        slow.sock.settimeout(0.1)
        end = time.monotonic() + ANSWER_S
        frame = b""
        while not frame and time.monotonic() < end:
            slow.send(b"X")
            try:
                frame = slow.sock.recv(4096)
            except TimeoutError:
                continue
        assert b" 408 " in frame


def test_a_silent_connection_is_closed(impatient: Server) -> None:
    with RawPeer(impatient.port) as silent:
        took_s, frame = seconds_until_closed(silent)
        assert frame == b""
        assert took_s >= 0.9


def test_an_incomplete_upgrade_is_closed_and_a_complete_one_stays_open(impatient: Server) -> None:
    with RawPeer(impatient.port) as incomplete, connect(impatient.ws) as complete:
        incomplete.send(b"GET /rpc HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgr")
        assert b" 408 " in incomplete.read_to_end()
        complete.send(json.dumps(ECHO))
        assert "result" in json.loads(complete.recv(timeout=ANSWER_S))


@pytest.mark.limit("body_s", "at", "past", "after")
def test_an_incomplete_body_is_refused(impatient: Server) -> None:
    request = post_of(impatient.port, ECHO)
    with RawPeer(impatient.port) as at:
        at.send(request[:-10])
        time.sleep(0.2)
        at.send(request[-10:])
        assert at.response()[0] == 200
        at.send(request[:-10])
        status, _, body = at.response()
        assert (status, json.loads(body)["limit"]) == (408, 1)
        assert at.read_to_end() == b""
    assert accepts_connections(impatient)


def test_a_call_may_take_longer_than_its_request(impatient: Server) -> None:
    with RawPeer(impatient.port) as peer:
        assert "result" in peer.answer(call_of("demo.wait", [1.5]))
    with impatient.stream("demo.wait", [1.5]) as response:
        assert [m for _, m in events(response)][-1]["params"]["result"]["type"] == "complete"


# --- peers that do not read, or are not there ------------------------------------------------


@pytest.mark.limit("keep_alive_s", "at", "past", "after")
def test_a_silent_stream_is_kept_alive_and_continues() -> None:
    with limited(keep_alive_s=0.5) as server:
        with server.stream("demo.wait", [0.1]) as short:
            assert b": keep-alive\n\n" not in short.read()
        with server.stream("demo.wait", [1.5]) as silent:
            frame = silent.read()
        before, _, after = frame.partition(b": keep-alive\n\n")
        assert b"waiting" in before
        assert b"waited" in after


@pytest.mark.limit("write_s", "at", "past", "after")
def test_a_peer_that_does_not_read_is_disconnected_but_not_a_slow_one() -> None:
    with limited("--log-level", "info", write_s=1.0) as server:
        with RawPeer(server.port, receive_bytes=64 * 1024) as slow:
            slow.post(call_of("demo.flood"), accept="text/event-stream")
            end = time.monotonic() + 3
            while time.monotonic() < end:
                assert len(slow.sock.recv(64 * 1024)) > 0
                time.sleep(0.01)
        with RawPeer(server.port, receive_bytes=4096) as stuck:
            stuck.post(call_of("demo.flood"), accept="text/event-stream")
            assert server.process.stderr is not None
            while b"lagged" not in server.process.stderr.readline():
                pass
            # Data in system buffers can still be read, then the connection ends.
            stuck.read_to_end()
        assert accepts_connections(server)


@pytest.mark.limit("ping_s", "at", "past", "after")
def test_a_websocket_that_answers_no_pings_is_closed() -> None:
    with limited(ping_s=0.5) as server, connect(server.ws) as alive:
        with RawPeer(server.port) as dead:
            dead.upgrade()
            took_s, frame = seconds_until_closed(dead)
            assert took_s >= 0.8
            assert frame[0] == 0x89  # a ping
            assert b"keepalive ping timeout" in frame
        alive.send(json.dumps(ECHO))
        assert "result" in json.loads(alive.recv(timeout=ANSWER_S))
        with connect(server.ws) as after:
            after.send(json.dumps(ECHO))
            assert "result" in json.loads(after.recv(timeout=ANSWER_S))


# --- the end ---------------------------------------------------------------------------------


@pytest.mark.limit("drain_s", "at", "past", "after")
def test_a_call_may_finish_within_the_drain_limit_when_the_server_stops() -> None:
    with limited(drain_s=1.5) as server:
        short = server.stream("demo.wait", [0.5])
        long = server.stream("demo.wait")
        for response in (short, long):
            next(events(response))
        server.process.terminate()
        *_, (_, ended) = events(short)
        assert ended["params"]["result"]["type"] == "complete"
        *_, (_, stopped) = events(long)
        assert stopped["params"]["result"] == {
            "type": "cancelled",
            "reason": "the server is stopping",
        }
        assert server.process.wait(ANSWER_S) == 0
        with socket.socket() as sock:
            assert sock.connect_ex(("127.0.0.1", server.port)) != 0
