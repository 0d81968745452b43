"""A server that is stopped with a connection in every possible state always exits cleanly."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest
from child_processes import limit_settings
from mcp_network import BOTH
from network import ANSWER_S, serving
from raw_peer import RawPeer, call_of, frame_of, post_of
from upgrade_requests import MALFORMED, upgrade_of

ECHO = call_of("demo.echo", ["x"])
#: No deadline of a connection comes before the server has stopped.
SETTINGS = limit_settings(header_s=300, body_s=300, ping_s=300, write_s=300, drain_s=0.5)
INITIALIZE = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "raw", "version": "1"},
}


def send_nothing(_: RawPeer) -> None:
    pass


def send_half_a_header(peer: RawPeer) -> None:
    peer.send(b"GET / HTTP/1.1\r\nHos")


def send_half_an_upgrade(peer: RawPeer) -> None:
    peer.send(upgrade_of(peer.port)[:-10])


def send_half_a_body(peer: RawPeer) -> None:
    peer.send(post_of(peer.port, ECHO)[:-10])


def send_half_a_chunked_body(peer: RawPeer) -> None:
    head = (
        f"POST /rpc HTTP/1.1\r\nHost: 127.0.0.1:{peer.port}\r\nContent-Type: application/json\r\n"
    )
    peer.send(f"{head}Transfer-Encoding: chunked\r\n\r\n5\r\n[[[[[".encode())


def send_half_a_body_to_mcp(peer: RawPeer) -> None:
    peer.send(post_of(peer.port, ECHO, "/mcp", BOTH)[:-10])


def expect_to_continue(peer: RawPeer) -> None:
    head = (
        f"POST /rpc HTTP/1.1\r\nHost: 127.0.0.1:{peer.port}\r\nContent-Type: application/json\r\n"
    )
    peer.send(f"{head}Expect: 100-continue\r\nContent-Length: 10\r\n\r\n".encode())
    assert b" 100 " in peer.read_until(b"\r\n\r\n")


def be_idle(peer: RawPeer) -> None:
    assert "result" in peer.answer(ECHO)


def wait_for_a_call(peer: RawPeer) -> None:
    peer.post(call_of("demo.wait"))


def queue_behind_a_call(peer: RawPeer) -> None:
    peer.send(post_of(peer.port, call_of("demo.wait")) + post_of(peer.port, ECHO))


def queue_half_a_body_behind_a_call(peer: RawPeer) -> None:
    peer.send(post_of(peer.port, call_of("demo.wait")) + post_of(peer.port, ECHO)[:-10])


def queue_an_upgrade_behind_a_call(peer: RawPeer) -> None:
    peer.send(post_of(peer.port, call_of("demo.wait")) + upgrade_of(peer.port))


def queue_an_upgrade_behind_a_stream(peer: RawPeer) -> None:
    peer.post(call_of("demo.wait"), accept="text/event-stream")
    peer.read_until(b"waiting")
    peer.send(upgrade_of(peer.port))


def read_no_stream(peer: RawPeer) -> None:
    peer.post(call_of("demo.flood"), accept="text/event-stream")
    peer.read_until(b"text/event-stream")
    time.sleep(0.5)  # so that everything between the two is full


def read_no_socket(peer: RawPeer) -> None:
    peer.upgrade()
    peer.send_json(call_of("demo.flood"))
    peer.read_until(b"content")
    time.sleep(0.5)  # so that everything between the two is full


def close_a_socket_without_reading(peer: RawPeer) -> None:
    read_no_socket(peer)
    peer.send(frame_of(b"", 8))


def break_a_socket_without_reading(peer: RawPeer) -> None:
    read_no_socket(peer)
    peer.send(b"\xff" * 100)


def open_an_mcp_session(peer: RawPeer) -> None:
    body = call_of("initialize", INITIALIZE)
    peer.send(post_of(peer.port, body, "/mcp", BOTH))
    status, headers, _ = peer.response()
    assert status == 200
    listen = f"GET /mcp HTTP/1.1\r\nHost: 127.0.0.1:{peer.port}\r\nAccept: text/event-stream\r\n"
    peer.send(f"{listen}Mcp-Session-Id: {headers['Mcp-Session-Id']}\r\n\r\n".encode())
    assert b" 200 " in peer.read_until(b"\r\n\r\n")


def open_a_pair(peer: RawPeer) -> None:
    peer.send(f"GET /sse HTTP/1.1\r\nHost: 127.0.0.1:{peer.port}\r\n\r\n".encode())
    peer.read_until(b"event: endpoint")


def open_a_socket(peer: RawPeer) -> None:
    peer.upgrade()


def open_a_socket_for_runs(peer: RawPeer) -> None:
    peer.upgrade("/mcp")
    peer.send_json(call_of("initialize", INITIALIZE))
    peer.read_until(b"serverInfo")


def upgrade_and_read_nothing(peer: RawPeer) -> None:
    peer.send(upgrade_of(peer.port))


def upgrade_with_early_frames(peer: RawPeer) -> None:
    peer.send(upgrade_of(peer.port) + frame_of(json.dumps(call_of("demo.wait")).encode()))


def send_half_a_frame(peer: RawPeer) -> None:
    peer.upgrade()
    peer.send(frame_of(json.dumps(ECHO).encode())[:-5])


def send_half_a_message(peer: RawPeer) -> None:
    peer.upgrade()
    peer.send(bytes([frame_of(b"x")[0] & 0x7F]) + frame_of(b"x")[1:])


def call_on_a_socket(peer: RawPeer) -> None:
    peer.upgrade()
    peer.send_json(call_of("demo.wait"))
    peer.read_until(b"waiting")


def reset_a_call(peer: RawPeer) -> None:
    call_on_a_socket(peer)
    peer.reset()


def be_refused(peer: RawPeer) -> None:
    peer.send(MALFORMED["a body that comes"].sent_to(peer.port))
    peer.read_until(b"without a body")


STATES: list[Callable[[RawPeer], None]] = [
    send_nothing,
    send_half_a_header,
    send_half_an_upgrade,
    send_half_a_body,
    send_half_a_chunked_body,
    send_half_a_body_to_mcp,
    expect_to_continue,
    be_idle,
    wait_for_a_call,
    queue_behind_a_call,
    queue_half_a_body_behind_a_call,
    queue_an_upgrade_behind_a_call,
    queue_an_upgrade_behind_a_stream,
    read_no_stream,
    read_no_socket,
    close_a_socket_without_reading,
    break_a_socket_without_reading,
    open_an_mcp_session,
    open_a_pair,
    open_a_socket,
    open_a_socket_for_runs,
    upgrade_and_read_nothing,
    upgrade_with_early_frames,
    send_half_a_frame,
    send_half_a_message,
    call_on_a_socket,
    reset_a_call,
    be_refused,
]


def exits_cleanly(states: list[Callable[[RawPeer], None]], auth: str = "off") -> None:
    """Bring connections into these states, stop the server, and check that it exits cleanly."""
    with serving(settings=SETTINGS, auth=auth) as server:
        peers = [RawPeer(server.port, receive_bytes=4096) for _ in states]
        for enter, peer in zip(states, peers, strict=True):
            enter(peer)
        server.process.terminate()
        _, written = server.process.communicate(timeout=ANSWER_S)
        for peer in peers:
            peer.sock.close()
    log_text = written.decode()
    assert server.process.returncode == 0, log_text
    for word in ("Traceback", "Exception", "Cancel ", "never retrieved"):
        assert word not in log_text, log_text


@pytest.mark.parametrize("state", STATES)
def test_a_server_exits_cleanly_with_a_connection_in_any_state(
    state: Callable[[RawPeer], None],
) -> None:
    exits_cleanly([state])


def test_a_server_exits_cleanly_with_connections_in_all_states() -> None:
    exits_cleanly(STATES)


@pytest.mark.parametrize("auth", ["off", "token"])
def test_a_server_exits_cleanly_right_after_every_malformed_upgrade(auth: str) -> None:
    def sender(sent: Callable[[int], bytes]) -> Callable[[RawPeer], None]:
        return lambda peer: peer.send(sent(peer.port))

    exits_cleanly([sender(wrong.sent_to) for wrong in MALFORMED.values()], auth)
