"""Servers that are killed or replaced: another one continues their runs under the same numbers."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import signal
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from arbor_databases import ENGINES, new_database
from child_processes import limit_settings
from mcp_network import body_of
from network import ANSWER_S, REPOSITORY, Server, events

pytestmark = pytest.mark.timeout(120)

MIB = 1024 * 1024
#: The example stores a checkpoint every 16 MiB.
BODY = hashlib.sha256(b"x").digest() * (40 * MIB // 32)
STALLS_AT = 36 * MIB
LAST_CHECKPOINT = 32 * MIB

COUNTER = '''
"""Counts slowly."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from plexus import Activation, Content, Context, method


class Counter(Activation):
    """Counts slowly."""

    namespace = "counter"
    version = "1.0.0"

    @method(restart="from_checkpoint")
    async def count(self, until: str, *, ctx: Context) -> AsyncIterator[Content]:
        """Count until a file exists."""
        number = ctx.restored or 0
        while not Path(until).exists():
            number += 1
            yield Content(text=f"{number}")
            await ctx.checkpoint(number)
            await asyncio.sleep(0.02)
'''

StartServer = Callable[..., Server]


@pytest.fixture(params=ENGINES)
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StartServer]:
    """Start servers that share a run store, and kill them at the end."""
    servers: list[Server] = []
    options: tuple[str, ...] = ()
    settings = {"XDG_DATA_HOME": str(tmp_path / "data"), **limit_settings(drain_s=0.2)}
    if request.param == "postgres":
        options = ("--database", new_database("postgres", tmp_path))

    def make(activation: Path, **variables: str) -> Server:
        server = Server(
            *options, settings=settings | variables, activation=activation, cwd=tmp_path
        )
        servers.append(server)
        return server

    yield make
    for server in servers:
        server.stop(kill=True)


class Origin(ThreadingHTTPServer):
    """Serves one file; the first response stalls."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.ranges: list[str | None] = []
        self.released = threading.Event()


class Handler(BaseHTTPRequestHandler):
    """Serves the file of its server."""

    protocol_version = "HTTP/1.1"
    server: Origin

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.ranges.append(wanted)
        is_first = len(self.server.ranges) == 1
        start = 0 if wanted is None else int(wanted.removeprefix("bytes=").removesuffix("-"))
        self.close_connection = True
        self.send_response(206 if wanted else 200)
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", str(len(BODY) - start))
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{len(BODY) - 1}/{len(BODY)}")
        self.end_headers()
        with contextlib.suppress(OSError):
            if is_first:
                self.wfile.write(BODY[:STALLS_AT])
                self.server.released.wait(60)
            else:
                self.wfile.write(BODY[start:])

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def origin() -> Iterator[Origin]:
    with Origin() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.released.set()
        server.shutdown()
        thread.join()


def runs_of(server: Server, state: str = "running") -> list[dict[str, Any]]:
    found = body_of(server.call("plexus.runs", {"state": state, "limit": 100}))
    listed: list[dict[str, Any]] = found["result"]["terminal"]["result"]
    return [run for run in listed if not run["method"].startswith("plexus.")]


def wait_for(condition: Callable[[], Any]) -> Any:
    """Return the first value of a condition that is true."""
    end = time.monotonic() + ANSWER_S
    while not (found := condition()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)
    return found


def follow(server: Server, run: int) -> http.client.HTTPResponse:
    """Read a run from its first item, wherever it executes."""
    return server.request("GET", f"/runs/{run}/events", headers={"Last-Event-ID": f"{run}:0"})


def items_of(response: http.client.HTTPResponse) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the numbers and the events of a stream."""
    for number, message in events(response):
        if number is not None:
            yield int(number.rpartition(":")[2]), message["params"]["result"]


def test_another_server_finishes_the_download_of_a_killed_one(
    start: StartServer, origin: Origin, tmp_path: Path
) -> None:
    folder = {"DOWNLOADS_FOLDER": str(tmp_path)}
    example = REPOSITORY / "examples" / "download.py"
    one, two = start(example, **folder), start(example, **folder)
    url = f"http://127.0.0.1:{origin.server_address[1]}/a.bin"
    with one.stream("download.fetch", {"url": url}):
        part = tmp_path / "a.bin.part"
        wait_for(lambda: part.exists() and part.stat().st_size >= STALLS_AT - MIB)
        run = wait_for(lambda: runs_of(one))[0]["run"]
        with follow(two, run) as response:
            items = items_of(response)
            seen = [next(items)]
            one.process.send_signal(signal.SIGKILL)
            seen += items
    numbers, found = zip(*seen, strict=True)
    assert list(numbers) == list(range(1, len(numbers) + 1))
    types = [event["type"] for event in found]
    assert types.count("restarted") == 1
    assert "gap" not in types
    assert found[-1]["sha256"] == hashlib.sha256(BODY).hexdigest()
    assert (tmp_path / "a.bin").read_bytes() == BODY
    first, second = origin.ranges
    assert first is None
    assert second is not None
    assert int(second.removeprefix("bytes=").removesuffix("-")) >= LAST_CHECKPOINT


def test_a_rolling_restart_loses_no_run(start: StartServer, tmp_path: Path) -> None:
    activation = tmp_path / "counter.py"
    activation.write_text(COUNTER)
    one, two = start(activation), start(activation)
    end = tmp_path / "end"
    streams = [each.stream("counter.count", {"until": str(end)}) for each in (one, two, one, two)]
    wait_for(lambda: len(runs_of(two)) == len(streams))
    runs = [run["run"] for run in runs_of(two)]
    three = start(activation)
    one.process.terminate()
    one.process.wait(ANSWER_S)
    four = start(activation)
    two.process.terminate()
    two.process.wait(ANSWER_S)
    followed = [
        follow(each, run) for each, run in zip((three, four, three, four), runs, strict=True)
    ]
    end.touch()
    for response in followed:
        with response:
            numbers, found = zip(*items_of(response), strict=True)
        assert list(numbers) == list(range(1, len(numbers) + 1))
        counted = [int(event["text"]) for event in found if event["type"] == "content"]
        assert sorted(set(counted)) == list(range(1, counted[-1] + 1))
        assert "restarted" in [event["type"] for event in found]
        assert found[-1]["type"] == "complete"
    for stream in streams:
        stream.close()
