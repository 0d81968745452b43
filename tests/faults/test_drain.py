"""Shutdown of a server: which runs may finish, which are cancelled, and that nothing is left."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from conftest import OpenHub
from hub_calls import quiet, settled
from leaving import Leaving
from mcp_network import BOTH, ENVELOPE, STATELESS, body_of, wait_until
from network import ANSWER_S, Server, events, lock_file, serving
from raw_peer import RawPeer, call_of, limited
from websockets.sync.client import ClientConnection, connect

from plexus.errors import Busy
from plexus.events import Result

STOPPING = "the server is stopping"
SHORT = {"seconds": 1.0}
LONG: dict[str, Any] = {}
#: No other process sleeps for exactly this duration.
SLEEP_S = f"300.{os.getpid()}"
ECHO = call_of("demo.echo", ["x"])


class Sent(NamedTuple):
    """A call that was posted, and whether it is a short one."""

    peer: RawPeer
    short: bool


def post_mcp(peer: RawPeer, arguments: dict[str, Any]) -> None:
    params = {"name": "demo.wait", "arguments": arguments, "_meta": ENVELOPE}
    body = json.dumps(call_of("tools/call", params)).encode()
    head = f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{peer.port}\r\nAccept: {BOTH}\r\n"
    head += f"MCP-Protocol-Version: {STATELESS}\r\nMcp-Method: tools/call\r\n"
    head += "Mcp-Name: demo.wait\r\nContent-Type: application/json\r\n"
    peer.send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)


def hear(peer: ClientConnection) -> Any:
    return json.loads(peer.recv(timeout=ANSWER_S))


def start_command(peer: ClientConnection) -> int:
    """Return the pid of a command that has children, one of them in another session."""
    peer.send(
        json.dumps(call_of("bash.execute", [f"setsid sleep {SLEEP_S} & sleep {SLEEP_S}"], "bash"))
    )
    while True:
        result = hear(peer).get("params", {}).get("result", {})
        if result.get("type") == "start":
            pid: int = result["pid"]
            return pid


def running(server: Server) -> int:
    found = body_of(server.call("plexus.runs", {"state": "running", "limit": 100}))
    return len(found["result"]["terminal"]["result"])


def sleepers() -> set[int]:
    """Return every process that sleeps for the duration that these tests use."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "cmdline").read_bytes() == f"sleep\0{SLEEP_S}\0".encode():
                    found.add(int(entry.name))
            except OSError:
                continue
    return found


def test_fifty_calls_over_four_transports_finish_or_report_their_cancellation() -> None:
    with limited(drain_s=3.0) as server, ExitStack() as stack:
        sse: list[Sent] = []
        mcp: list[Sent] = []
        plain: list[Sent] = []
        sockets = [stack.enter_context(connect(server.ws)) for _ in range(3)]
        expected: list[dict[int, bool]] = []
        for number, peer in enumerate(sockets):
            subscriptions: dict[int, bool] = {}
            for index in range(4):
                short = (number + index) % 2 == 0
                peer.send(json.dumps(call_of("demo.wait", SHORT if short else LONG, index)))
                subscriptions[hear(peer)["result"]] = short
                assert hear(peer)["params"]["result"]["text"] == "waiting"
            expected.append(subscriptions)
        for index in range(12):
            short = index % 2 == 0
            arguments = SHORT if short else LONG
            for sent in (sse, mcp, plain):
                sent.append(Sent(stack.enter_context(RawPeer(server.port)), short))
            sse[-1].peer.post(call_of("demo.wait", arguments), accept="text/event-stream")
            post_mcp(mcp[-1].peer, arguments)
            plain[-1].peer.post(call_of("demo.wait", arguments))
        host = stack.enter_context(connect(f"ws://127.0.0.1:{server.port}/mcp"))
        with connect(server.ws) as commander, RawPeer(server.port) as idle:
            pids = {start_command(commander), start_command(commander)}
            assert "result" in idle.answer(ECHO)
            assert sleepers()
            wait_until(lambda: running(server) >= 24)  # the long ones at least
            server.process.terminate()

            # Nothing new is let in, wherever it comes from.
            def is_closed() -> bool:
                with socket.socket() as sock:
                    return sock.connect_ex(("127.0.0.1", server.port)) != 0

            wait_until(is_closed)
            idle.post(ECHO)
            status, headers, body = idle.response()
            assert (status, headers["Connection"]) == (503, "close")
            assert json.loads(body)["error"] == {"code": -32002, "message": STOPPING}
            commander.send(json.dumps(call_of("demo.echo", ["x"], "late")))
            while (late := hear(commander)).get("id") != "late":
                pass
            assert late["error"] == {"code": -32002, "message": STOPPING}
            params = {"name": "demo.echo", "arguments": {"text": "x"}, "_meta": ENVELOPE}
            host.send(json.dumps(call_of("tools/call", params)))
            assert hear(host)["error"] == {"code": -32003, "message": STOPPING}

            # Every call gets its end.
            for peer, subscriptions in zip(sockets, expected, strict=True):
                while subscriptions:
                    item = hear(peer)["params"]
                    if item["result"]["type"] in ("complete", "cancelled"):
                        short = subscriptions.pop(item["subscription"])
                        assert item["result"]["type"] == ("complete" if short else "cancelled")
            for each, short in sse:
                output = each.read_to_end()
                assert (b'"type":"complete"' in output) is short
                assert (b'"type":"cancelled"' in output) is not short
            for each, short in plain:
                answer = json.loads(each.response()[2])
                if short:
                    assert answer["result"]["terminal"] == {"type": "complete"}
                else:
                    assert answer["error"]["code"] == -32007
                    assert answer["error"]["data"]["terminal"]["reason"] == STOPPING
            for each, short in mcp:
                output = each.read_to_end()
                assert (b"waited" in output) is short
                assert (STOPPING.encode() in output) is not short
        assert server.process.wait(ANSWER_S) == 0
        assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
        wait_until(lambda: not sleepers())


@pytest.mark.parametrize("hurry", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_stops_everything_immediately(hurry: signal.Signals) -> None:
    with limited(drain_s=300) as server:
        stream = server.stream("demo.wait")
        assert "result" in next(events(stream))[1]
        server.process.terminate()
        assert server.process.stderr is not None
        assert b"Waiting up to 300 s for 1 call to finish" in server.process.stderr.readline()
        server.process.send_signal(hurry)
        *_, (_, last) = events(stream)
        assert last["params"]["result"] == {"type": "cancelled", "reason": STOPPING}
        assert server.process.wait(ANSWER_S) == 0


def test_a_third_signal_ends_even_a_server_whose_method_ignores_cancellation() -> None:
    with limited(drain_s=300, cancel_s=300) as server:
        stream = server.stream("demo.refuse_to_stop")
        assert "result" in next(events(stream))[1]
        end = time.monotonic() + ANSWER_S
        while server.process.poll() is None and time.monotonic() < end:
            server.process.terminate()
            time.sleep(0.2)
        assert server.process.wait(ANSWER_S) == -signal.SIGTERM


def test_shutdown_does_not_wait_for_watchers() -> None:
    with limited(drain_s=300) as server:
        stream = server.stream("health.watch")
        assert "result" in next(events(stream))[1]
        server.process.terminate()
        *_, (_, last) = events(stream)
        assert last["params"]["result"]["type"] == "cancelled"
        assert server.process.wait(ANSWER_S) == 0


def test_an_idle_server_stops_immediately_even_with_open_connections() -> None:
    with limited(drain_s=300) as server, connect(server.ws), RawPeer(server.port) as idle:
        assert "result" in idle.answer(ECHO)
        server.process.terminate()
        assert server.process.wait(ANSWER_S) == 0


def test_the_lock_file_is_removed_and_the_store_is_intact_after_a_stop_in_mid_work(
    tmp_path: Path,
) -> None:
    settings = {"SUBSTRATE_LIMITS__DRAIN_S": "0.5", "SUBSTRATE_DATABASE": str(tmp_path / "a.db")}
    with serving(settings=settings, auth="token") as server:
        headers = {"Authorization": f"Bearer {server.token}"}
        assert lock_file(server.port).exists()
        made = body_of(server.call("arbor.tree_create", {"metadata": {"mine": True}}, **headers))
        tree = made["result"]["terminal"]["result"]["tree_id"]
        stuck = server.call("demo.wait", None, Accept="text/event-stream", **headers)
        assert "result" in next(events(stuck))[1]
        server.process.terminate()
        assert server.process.wait(ANSWER_S) == 0
        assert not lock_file(server.port).exists()
    with serving(settings=settings) as again:
        found = body_of(again.call("arbor.tree_get", {"tree_id": tree}))
        assert found["result"]["events"][0]["metadata"] == {"mine": True}
    assert not list(tmp_path.glob("*-journal"))


# --- the hub ---------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_run_that_may_finish_may_call_others_and_new_calls_are_refused(
    open_hub: OpenHub,
) -> None:
    hub = open_hub(Leaving())
    run = hub.call("leaving.delegate", {"after_s": 0.2}).run
    await quiet()
    assert await hub.drain(5.0)
    assert await settled(run) == Result(0)
    with pytest.raises(Busy) as refused:
        hub.call("leaving.open")
    assert refused.value.code == "stopping"


@pytest.mark.anyio
async def test_draining_ends_at_its_timeout(open_hub: OpenHub) -> None:
    hub = open_hub(Leaving())
    run = hub.call("leaving.delegate", {"after_s": 60.0}).run
    await quiet()
    assert not await hub.drain(0.1)
    assert run.terminal is None
    await hub.close()
    assert run.terminal is not None


@pytest.mark.parametrize(
    ("route", "code"), [("/rpc", -32002), ("/mcp", -32003), ("/messages", -32003)]
)
def test_a_client_that_posts_while_the_server_stops_gets_the_code_of_its_protocol(
    route: str, code: int
) -> None:
    # In MCP -32002 is a resource that does not exist.
    with limited(drain_s=5.0) as server, connect(server.ws) as busy, RawPeer(server.port) as late:
        assert "result" in late.answer(ECHO)
        busy.send(json.dumps(call_of("demo.wait", LONG)))
        hear(busy)
        server.process.terminate()

        def is_closed() -> bool:
            with socket.socket() as sock:
                return sock.connect_ex(("127.0.0.1", server.port)) != 0

        wait_until(is_closed)
        late.post(ECHO, path=route)
        status, _, body = late.response()
        assert status == 503
        assert json.loads(body)["error"] == {"code": code, "message": STOPPING}
