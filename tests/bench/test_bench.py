"""The benchmark runs, and its limits send the same bytes as the program. No times are asserted."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench import clients, measure, memory, native, servers
from bench.report import render

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

EVENTS = 3


def read_stdio(command: tuple[str, ...]) -> list[bytes]:
    with servers.start(command) as server:
        os.write(server.input_fd, clients.count_request(EVENTS) + b"\n")
        seen = b""
        while seen.count(b"\n") < EVENTS + 2:
            data = os.read(server.output_fd, 65536)
            assert data, "the server ended"
            seen += data
    return seen.splitlines()


def record(
    command: tuple[str, ...],
    client: Callable[[int, int], tuple[float, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> bytes:
    """Return all bytes that a client of the benchmark received."""
    received = bytearray()

    class Recording(socket.socket):
        def recv(self, size: int, flags: int = 0, /) -> bytes:
            data = super().recv(size, flags)
            received.extend(data)
            return data

    def connect(address: tuple[str, int]) -> socket.socket:
        sock = Recording()
        sock.settimeout(20)
        sock.connect(address)
        return sock

    with monkeypatch.context() as patched, servers.start_http(command) as (_, port):
        patched.setattr(socket, "create_connection", connect)
        client(port, EVENTS)
    return bytes(received)


def without_numbers(text: bytes) -> bytes:
    """Remove subscription numbers and dates, which differ between runs."""
    text = re.sub(rb"\d{14,16}", b"N", text)
    text = re.sub(rb"(?m)^[0-9a-f]+\r\n", b"", text)  # chunk sizes
    return re.sub(rb"(?m)^date: .*\r\n", b"", text)


def test_the_limit_on_stdio_sends_the_same_bytes_as_the_program() -> None:
    ours, limit = map(read_stdio, (servers.OURS_STDIO, servers.LIMIT_STDIO))

    assert [without_numbers(line) for line in limit] == [without_numbers(line) for line in ours]
    assert [list(json.loads(line)) for line in limit] == [list(json.loads(line)) for line in ours]


def test_the_limit_on_sse_sends_the_same_bytes_as_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, limit = (
        without_numbers(record(command, clients.stream_sse, monkeypatch)).replace(b"\r\n", b"")
        for command in (servers.OURS_HTTP, servers.LIMIT_HTTP)
    )

    assert limit == ours


def test_the_limit_on_websocket_sends_the_same_bytes_as_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, limit = (
        # Each text has a length prefix, and subscription numbers may differ by one digit.
        re.findall(rb"\{.*?\}(?=[^}\"]|$)", record(command, clients.stream_ws, monkeypatch))
        for command in (servers.OURS_HTTP, servers.LIMIT_WEBSOCKET)
    )

    assert len(ours) == EVENTS + 2
    assert [without_numbers(text) for text in limit] == [without_numbers(text) for text in ours]


@pytest.mark.parametrize("method", ["hold", "ticks"])
def test_the_limit_on_websocket_sends_the_same_messages_for_streams_that_wait(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = {"jsonrpc": "2.0", "id": 1, "method": f"bench.{method}", "params": {}}
    if method == "ticks":
        request["params"] = {"times": EVENTS}
    last = {"hold": b'"held "', "ticks": clients.TERMINAL}[method]

    def client(port: int, _events: int) -> tuple[float, int]:
        with clients.open_ws(port) as sock:
            sock.sendall(clients.masked(json.dumps(request).encode()))
            seen = b""
            while last not in seen:
                data = sock.recv(65536)
                assert data, seen
                seen += data
        return 0.0, len(seen)

    ours, limit = (
        re.findall(rb"\{.*?\}(?=[^}\"]|$)", record(command, client, monkeypatch))
        for command in (servers.OURS_HTTP, servers.LIMIT_WEBSOCKET)
    )

    assert len(ours) == {"hold": 2, "ticks": EVENTS + 2}[method]
    times = rb'(?<="text":")\d+'
    assert [re.sub(times, b"T", without_numbers(text)) for text in limit] == [
        re.sub(times, b"T", without_numbers(text)) for text in ours
    ]


@pytest.mark.parametrize(
    ("measured", "name"),
    [(native.live_events, "live_delay ws"), (memory.websockets, "memory_websocket")],
)
def test_a_measure_of_websockets_compares_the_program_with_the_limit(
    measured: Callable[[measure.Effort], list[measure.Figure]], name: str
) -> None:
    [figure] = measured(dataclasses.replace(measure.QUICK, ticks=3, mcp_streams=10))

    assert figure.name == name
    assert figure.ours.median > 0
    assert figure.ratio is not None
    assert figure.targets


def test_a_quick_run_writes_its_figures_and_their_command(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "bench.json"
    command = [sys.executable, "-m", "bench", "--quick", "--only", "stream_stdio", "calls_latency"]

    done = subprocess.run(
        [*command, "--json", str(file)],
        cwd=servers.ROOT,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(file.read_text())
    assert result["command"] == "python -m bench --quick --only stream_stdio calls_latency"
    assert result["command"] in done.stdout
    assert {"python", "packages", "cpus", "commit"} <= result["environment"].keys()
    names = [figure["name"] for figure in result["figures"]]
    assert names == ["stream_stdio", "calls_latency p50", "calls_latency p99"]
    for figure in result["figures"]:
        assert figure["ours"]["median"] > 0
        assert figure["limit"]["median"] > 0
        assert figure["ratio"]["rounds"] == measure.QUICK.stream_rounds
        assert figure["name"] in done.stdout


def test_a_ratio_is_the_median_of_the_ratios_of_neighbours() -> None:
    figure = measure.compare(
        "it", "us", [2.0, 40.0, 6.0], [1.0, 20.0, 1.0], measure.Target("ratio", 2.0)
    )

    assert figure.ratio is not None
    assert figure.ratio.median == 2.0
    assert figure.reached is True
    assert "<= 2 L" in render([figure])


def test_sides_take_turns_at_starting() -> None:
    order: list[str] = []

    measure.interleave(lambda: order.append("ours"), lambda: order.append("limit"), 2)

    assert order == ["ours", "limit", "ours", "limit", "limit", "ours"]


def test_a_server_that_exits_is_reported_with_its_stderr() -> None:
    command = (sys.executable, "-c", "import sys; sys.exit('no thanks')")

    with pytest.raises(servers.ServerExited) as caught, servers.start_http(command):
        pass

    assert "no thanks" in "\n".join(caught.value.__notes__)


def test_the_servers_of_a_measure_keep_their_files_in_a_folder_that_is_deleted() -> None:
    before = dict(os.environ)
    with servers.private_folders():
        folders = [Path(os.environ[name]) for name in ("XDG_STATE_HOME", "XDG_DATA_HOME")]
        with servers.start(servers.OURS_STDIO) as server:
            os.write(server.input_fd, clients.count_request_line(1))
            clients.read_until(lambda: os.read(server.output_fd, 65536), clients.TERMINAL + b"\n")
            until = time.monotonic() + 30
            while not any(folder.exists() for folder in folders):
                assert time.monotonic() < until
                time.sleep(0.01)
    assert dict(os.environ) == before
    assert not any(folder.parent.exists() for folder in folders)


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
def test_a_benchmark_that_is_ended_leaves_no_server_behind(
    sent: signal.Signals, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "bench", "stream_sse", "--json", str(tmp_path / "bench.json")]
    with subprocess.Popen(
        command, cwd=servers.ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            until = time.monotonic() + 60
            while not (found := listening_children(process.pid)):
                assert process.poll() is None
                assert time.monotonic() < until
                time.sleep(0.01)
            process.send_signal(sent)
            process.wait(30)
        finally:
            process.kill()
    until = time.monotonic() + 30
    while any(arguments(pid) for pid in found):
        assert time.monotonic() < until
        time.sleep(0.01)


def listening_children(parent: int) -> list[int]:
    """Return the servers of a benchmark that have been started with a port."""
    tasks = Path(f"/proc/{parent}/task/{parent}/children")
    children = [int(pid) for pid in tasks.read_text().split()] if tasks.exists() else []
    return [pid for pid in children if b"--port" in arguments(pid)[1:]]


def arguments(pid: int) -> list[bytes]:
    """Return the arguments of a process; empty if it has ended."""
    try:
        content = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return content.split(b"\0") if content else []
