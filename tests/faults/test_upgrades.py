"""Malformed WebSocket upgrades: they get a response and leave nothing behind."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from child_processes import limit_settings
from mcp_network import wait_until
from network import ANSWER_S, Server, bearer, events, serving
from raw_peer import RawPeer, call_of, frame_of, post_of
from upgrade_requests import MALFORMED, upgrade_of
from websockets.sync.client import connect

from substrate.server.connections import LimitedConfig
from substrate.server.limits import ServerLimits
from substrate.server.serve import Server as HttpServer
from substrate.server.serve import bind
from substrate.server.shutdown import OpenStreams

ECHO = call_of("demo.echo", ["x"])
HEADER_S = 1.0
#: How long an answer that is due at the deadline may take on a busy machine.
DUE_S = HEADER_S + 4
#: Nothing but the deadline of a header ends a connection of these tests.
SETTINGS = limit_settings(header_s=HEADER_S, body_s=300, ping_s=300, write_s=300)
CLOSE_FRAME = 0x88
PONG_FRAME = 0x8A


@pytest.fixture(scope="module", params=["off", "token"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with serving(settings=SETTINGS, auth=request.param) as running:
        yield running
        running.process.terminate()
        _, written = running.process.communicate(timeout=ANSWER_S)
        assert running.process.returncode == 0, written.decode()
        assert b"Traceback" not in written, written.decode()


@pytest.fixture(scope="module")
def open_server() -> Iterator[Server]:
    """Run a server without authentication."""
    with serving(settings=SETTINGS) as running:
        yield running
        running.process.terminate()
        _, written = running.process.communicate(timeout=ANSWER_S)
        assert b"Traceback" not in written, written.decode()


def is_well(server: Server) -> bool:
    """Return whether a new connection is answered by the app."""
    with RawPeer(server.port) as peer:
        peer.post(ECHO)
        return peer.response()[0] in (200, 401)


def statuses(peer: RawPeer, count: int) -> tuple[list[int], bytes]:
    """Return the statuses of the next responses, and what follows the last status line."""
    read = b""
    while len(found := re.findall(rb"HTTP/1\.1 (\d{3}) ", read)) < count:
        chunk = peer.sock.recv(65536)
        assert chunk, read
        read += chunk
    return [int(status) for status in found], read.rpartition(b"HTTP/1.1 ")[2]


def echoed(peer: RawPeer) -> bytes:
    """Return the response of an open WebSocket to an echo."""
    peer.send_json(ECHO)
    read: bytes = peer.read_until(b'"complete"')
    return read


# --- every way to be wrong -------------------------------------------------------------------


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_upgrade_is_answered_within_the_deadline_of_a_header(
    server: Server, kind: str
) -> None:
    wrong = MALFORMED[kind]
    with RawPeer(server.port) as peer:
        peer.sock.settimeout(DUE_S)
        peer.send(wrong.sent_to(server.port))
        (status,), read = statuses(peer, 1)
        if status == 101:  # only to send the close reason; the peer does not answer that
            assert wrong.refused_by_app
            read += peer.read_to_end()
            assert read.partition(b"\r\n\r\n")[2][0] == CLOSE_FRAME
        else:
            assert status in wrong.statuses
    assert is_well(server)


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_upgrade_is_answered_behind_another_request_too(
    server: Server, kind: str
) -> None:
    wrong = MALFORMED[kind]
    with RawPeer(server.port) as peer:
        peer.sock.settimeout(DUE_S)
        first = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode()
        peer.send(first + wrong.sent_to(server.port))
        (before, status), _ = statuses(peer, 2)
        assert before == 200
        assert status in wrong.statuses | {400, 431} or wrong.refused_by_app
    assert is_well(server)


def test_the_response_says_what_is_wrong(open_server: Server) -> None:
    with RawPeer(open_server.port) as peer:
        peer.send(MALFORMED["a body that comes"].sent_to(open_server.port))
        status, headers, body = peer.response()
        assert (status, headers["Connection"]) == (400, "close")
        assert json.loads(body) == {
            "error": "An upgrade must be an HTTP/1.1 GET request without a body."
        }
        assert peer.read_to_end() == b""


def test_six_hundred_malformed_upgrades_lock_no_client_out_after_their_deadline() -> None:
    with serving(settings=SETTINGS, auth="token") as server:
        kinds = list(MALFORMED.values())
        peers = []
        for number in range(600):
            peer = RawPeer(server.port)
            peers.append(peer)
            wrong = kinds[number % len(kinds)]
            try:
                peer.send(wrong.sent_to(server.port))
            except ConnectionError:
                continue  # it was over the limit of connections and is closed already
        headers = bearer(server.token)
        wait_until(lambda: server.status("GET", "/metrics", headers) == 200)
        with server.request("GET", "/metrics", headers=headers) as response:
            assert b"substrate_open_connections" in response.read()

        def only_this_one_is_open() -> bool:
            with server.request("GET", "/metrics", headers=headers) as response:
                return b"\nsubstrate_open_connections 1.0\n" in response.read()

        wait_until(only_this_one_is_open)
        for peer in peers:
            peer.sock.close()
        server.process.terminate()
        _, written = server.process.communicate(timeout=ANSWER_S)
        assert server.process.returncode == 0
        assert b"Traceback" not in written, written.decode()


# --- order -----------------------------------------------------------------------------------


def test_an_upgrade_queued_behind_a_running_call_is_refused_after_its_response(
    open_server: Server,
) -> None:
    port = open_server.port
    with RawPeer(port) as peer:
        peer.send(post_of(port, call_of("demo.wait", [0.5])) + upgrade_of(port))
        called, refused = peer.read_to_end().split(b"HTTP/1.1 ")[1:]
        assert called.startswith(b"200 ")
        assert b'"complete"' in called
        assert refused.startswith(b"400 ")
        assert b"earlier requests" in refused


def test_an_upgrade_during_a_stream_does_not_disturb_the_stream(open_server: Server) -> None:
    port = open_server.port
    with RawPeer(port) as peer:
        peer.post(call_of("demo.wait", [1.5]), accept="text/event-stream")
        head = peer.read_until(b"waiting")
        assert b" 200 " in head
        peer.send(upgrade_of(port))
        rest = peer.read_to_end()
        stream, end, behind = rest.partition(b"\r\n0\r\n\r\n")
        assert b"HTTP/1.1" not in stream
        assert b'"complete"' in stream
        assert end
        assert behind.startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    "later", [b"GET / HT", b"\x00\xff\r\n\r\n", b"GET / HTTP/1.1\r\nX: " * 9999]
)
def test_a_bad_request_during_a_stream_is_answered_when_the_stream_is_complete(
    open_server: Server, later: bytes
) -> None:
    with RawPeer(open_server.port) as peer:
        peer.post(call_of("demo.wait", [1.5]), accept="text/event-stream")
        peer.read_until(b"waiting")
        peer.send(later)
        stream, end, behind = peer.read_to_end().partition(b"\r\n0\r\n\r\n")
        assert b'"complete"' in stream
        assert b"HTTP/1.1" not in stream
        assert end
        assert behind.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 408 ", b"HTTP/1.1 431 "))


def test_a_valid_upgrade_after_a_complete_response_is_a_websocket(open_server: Server) -> None:
    with RawPeer(open_server.port) as peer:
        assert "result" in peer.answer(ECHO)
        peer.upgrade()
        assert b'"x"' in echoed(peer)


def test_a_request_behind_an_upgrade_to_another_protocol_is_answered(open_server: Server) -> None:
    port = open_server.port
    with RawPeer(port) as peer:
        peer.send(upgrade_of(port, upgrade="h2c") + post_of(port, ECHO))
        (ignored, answered), rest = statuses(peer, 2)
        assert (ignored, answered) == (405, 200)
        while b'"complete"' not in rest:
            rest += peer.sock.recv(4096)
        assert "result" in peer.answer(ECHO)


def test_a_queued_request_is_not_cut_before_it_is_read() -> None:
    with serving(settings=SETTINGS | {"SUBSTRATE_LIMITS__BODY_S": "0.5"}) as server:
        request = post_of(server.port, ECHO)
        with RawPeer(server.port) as peer:
            peer.send(post_of(server.port, call_of("demo.wait", [2.0])) + request[:-10])
            status, _, body = peer.response()
            assert (status, b"waited" in body) == (200, True)
            peer.send(request[-10:])
            assert peer.response()[0] == 200


def test_a_call_ends_with_its_connection_even_if_another_request_is_queued(
    open_server: Server,
) -> None:
    port = open_server.port

    def running() -> Any:
        with open_server.call("plexus.runs", {"state": "running", "limit": 100}) as response:
            found = json.loads(response.read())["result"]["terminal"]["result"]
            return [run for run in found if run["method"] == "demo.wait"]

    with RawPeer(port) as peer:
        peer.send(post_of(port, call_of("demo.wait")) + post_of(port, ECHO))
        wait_until(lambda: len(running()) == 1)
    wait_until(lambda: not running())


# --- frames that come too early --------------------------------------------------------------


@pytest.mark.parametrize("pieces", [1, 2, 3])
def test_frames_that_are_sent_with_the_upgrade_are_answered_after_it(
    open_server: Server, pieces: int
) -> None:
    early = b"".join(
        frame_of(json.dumps(call_of("demo.echo", [str(n)], n)).encode()) for n in (1, 2)
    )
    sent = upgrade_of(open_server.port) + frame_of(b"hi", 9) + early
    with RawPeer(open_server.port) as peer:
        peer.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        size = len(sent) // pieces + 1
        for start in range(0, len(sent), size):
            peer.send(sent[start : start + size])
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += peer.sock.recv(1)
        assert head.startswith(b"HTTP/1.1 101 ")
        assert peer.sock.recv(2) == bytes([PONG_FRAME, 2])
        read = b""
        while read.count(b'"complete"') < 2:
            read += peer.sock.recv(4096)
        assert b'"1"' in read
        assert b'"2"' in read


def test_a_close_frame_with_the_upgrade_closes_it_in_order(open_server: Server) -> None:
    with RawPeer(open_server.port) as peer:
        peer.send(upgrade_of(open_server.port) + frame_of(b"", 8))
        head, _, frames = peer.read_to_end().partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 ")
        assert frames[0] == CLOSE_FRAME
    assert is_well(open_server)


def test_early_bytes_that_are_not_frames_close_the_socket(open_server: Server) -> None:
    with RawPeer(open_server.port) as peer:
        peer.send(upgrade_of(open_server.port) + b"GET / HTTP/1.1\r\n\r\n")
        head, _, frames = peer.read_to_end().partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 ")
        assert frames[0] == CLOSE_FRAME
    assert is_well(open_server)


# --- handshakes that are not finished --------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 20, 60, -30, -1])
def test_half_an_upgrade_is_answered_and_leaves_nothing_if_its_peer_vanished(
    server: Server, cut: int
) -> None:
    half = upgrade_of(server.port)[:cut]
    with (
        RawPeer(server.port) as silent,
        RawPeer(server.port) as gone,
        RawPeer(server.port) as reset,
    ):
        silent.sock.settimeout(DUE_S)
        for peer in (silent, gone, reset):
            peer.send(half)
        gone.sock.close()
        reset.reset()
        assert silent.response()[0] == 408
        assert silent.read_to_end() == b""
    assert is_well(server)


def test_a_peer_that_never_answers_a_close_frame_is_closed_at_the_deadline() -> None:
    with serving(settings=SETTINGS, auth="token") as server, RawPeer(server.port) as peer:
        peer.sock.settimeout(DUE_S)
        peer.send(upgrade_of(server.port))  # without a token
        head, _, frames = peer.read_to_end().partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 ")
        assert frames[0] == CLOSE_FRAME
        with connect(server.ws, additional_headers=bearer(server.token)) as good:
            good.send(json.dumps(ECHO))
            assert "result" in json.loads(good.recv(timeout=ANSWER_S))


async def _silent_app(receive: Any, _send: Any) -> None:
    while (await receive())["type"] != "websocket.disconnect":
        pass


async def _late_app(receive: Any, send: Any) -> None:
    await receive()
    await asyncio.sleep(0.6)
    await send({"type": "websocket.accept"})
    await send({"type": "websocket.send", "text": "x"})


@pytest.mark.anyio
@pytest.mark.parametrize("app", [_silent_app, _late_app])
@pytest.mark.parametrize("stop_first", [False, True])
async def test_a_handshake_that_the_app_does_not_answer_ends_at_the_deadline_and_with_the_server(
    app: Any, stop_first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    called = asyncio.Event()

    async def serve_socket(_: Any, receive: Any, send: Any) -> None:
        called.set()
        await app(receive, send)

    sock = bind(0)
    port = sock.getsockname()[1]
    limits = ServerLimits(header_s=30.0 if stop_first else 0.3)
    config = LimitedConfig(serve_socket, limits, lifespan="off", log_config=None)
    server = HttpServer(config, OpenStreams())
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    async with asyncio.timeout(ANSWER_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(upgrade_of(port) + frame_of(b"early"))
        if stop_first:
            await called.wait()
            server.should_exit = True
        assert (await reader.read()).startswith(b"HTTP/1.1 500 ")
        writer.close()
        server.should_exit = True
        await serving
    assert not server.server_state.connections
    assert not server.server_state.tasks
    assert "Traceback" not in caplog.text
    assert "Exception in ASGI" not in caplog.text


def test_a_stream_is_complete_after_all_of_this(open_server: Server) -> None:
    with open_server.stream("demo.wait", [0.1]) as response:
        assert [m for _, m in events(response)][-1]["params"]["result"]["type"] == "complete"
