"""Measures of processes that share a run store: latency, stopping, and throughput.

SQLite is always measured. PostgreSQL is measured if `BENCH_POSTGRES` is the URL of a database that
the benchmark may write to.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bench.clients import CALL_READ, STREAM_READ, TERMINAL, count_request, read_some, write_all
from bench.measure import Effort, Figure, Target, percentile, single
from bench.servers import OURS_STDIO, Server, ServerExited, scratch_folder, start

__all__ = ("latency", "stop", "throughput")

#: Names the database of the measures on PostgreSQL.
POSTGRES = "BENCH_POSTGRES"
#: A child in a separate session, and the shell that waits for it.
COMMAND = "setsid sleep 300 & echo $!; wait"
#: Processes that write at the same time, and the events of each.
WRITERS = {"sqlite": 8, "postgres": 2}
RATES = {"sqlite": 50_000, "postgres": 20_000}
LATENCIES_MS = {"sqlite": (15.0, 30.0), "postgres": (15.0, 50.0)}
MAX_LOG_MB = 64.0
STOP_MS = 100.0
TIMEOUT_S = 60.0
POLL_S = 0.001
_NUMBER = re.compile(rb'"text":"(\d+) "')


class Store(NamedTuple):
    """A run store that several processes share."""

    engine: str
    folder: Path
    url: str | None

    @property
    def command(self) -> tuple[str, ...]:
        """The command of a process with this store."""
        return OURS_STDIO if self.url is None else (*OURS_STDIO, "--database", self.url)

    @property
    def variables(self) -> Mapping[str, str]:
        """The environment variables of a process with this store."""
        return {name: str(self.folder) for name in ("XDG_STATE_HOME", "XDG_DATA_HOME")}

    @contextmanager
    def processes(self, number: int) -> Iterator[list[Server]]:
        """Start processes on stdio, each after a first run."""
        with ExitStack() as stack:
            servers = [
                stack.enter_context(start(self.command, self.variables)) for _ in range(number)
            ]
            for server in servers:
                _call(server, "bench.count", {"to": 1})
                _read_until(server, TERMINAL)
            yield servers

    def query(self, sql: str) -> tuple[Any, ...]:
        """Return the first row of a query; zero before the first run has created the table."""
        if self.url is not None:
            import psycopg

            with psycopg.connect(self.url) as connection:
                return connection.execute(sql.encode()).fetchone() or ()
        path = self.folder / "substrate" / "runs.db"
        try:
            opened = sqlite3.connect(f"file:{path}?mode=ro", timeout=TIMEOUT_S, uri=True)
            with closing(opened) as connection:
                return tuple(connection.execute(sql).fetchone())
        except sqlite3.OperationalError:
            return (0,)

    @property
    def log_bytes(self) -> int:
        """The size of the write-ahead log; 0 on PostgreSQL, which manages it for all databases."""
        path = self.folder / "substrate" / "runs.db-wal"
        return path.stat().st_size if self.url is None and path.exists() else 0


@contextmanager
def _stores() -> Iterator[list[Store]]:
    url = os.environ.get(POSTGRES)
    with scratch_folder() as folder, scratch_folder() as other:
        stores = [Store("sqlite", folder, None)]
        yield stores if url is None else [*stores, Store("postgres", other, url)]


# --- latency --------------------------------------------------------------------------------------


def latency(effort: Effort) -> list[Figure]:
    """Measure how late another process delivers the events of a run that it follows."""
    figures: list[Figure] = []
    with _stores() as stores:
        for store in stores:
            with store.processes(2) as (owner, watcher):
                late = _latencies_ms(owner, watcher, effort.recorded_events)
            note = f"{len(late)} events of a run, read from another process that follows it"
            for per_cent, limit_ms in zip((50, 99), LATENCIES_MS[store.engine], strict=True):
                name = f"recorded_latency {store.engine} p{per_cent}"
                value = percentile(late, per_cent)
                figures.append(single(name, "ms", [value], Target("value", limit_ms), note))
    return figures


def _latencies_ms(owner: Server, watcher: Server, events: int) -> list[float]:
    reader = threading.Thread(target=_discard, args=(owner,), daemon=True)
    run = _call(owner, "bench.clock", {"times": events})
    reader.start()
    late: list[float] = []
    skipped = 5  # read before the owner knows that it is watched
    _call(watcher, "plexus.attach", {"run": run})
    rest = b""
    while TERMINAL not in rest:
        data = rest + read_some(watcher.output_fd, CALL_READ)
        now = time.monotonic_ns()
        lines, _, rest = data.rpartition(b"\n")
        late += [(now - int(at)) / 1e6 for at in _NUMBER.findall(lines)]
        if TERMINAL in lines:
            break
    if len(late) != events:
        raise ServerExited(f"received {len(late)} events instead of {events}")
    return late[skipped:]


def _discard(server: Server) -> None:
    """Read the output of a process until the end of a run, or of the process."""
    try:
        _read_until(server, TERMINAL)
    except (ServerExited, OSError):
        return


# --- stopping -------------------------------------------------------------------------------------


def stop(effort: Effort) -> list[Figure]:
    """Measure the time from `plexus.cancel` in another process until a command is gone."""
    figures: list[Figure] = []
    with _stores() as stores:
        for store in stores:
            with store.processes(2) as (owner, other):
                # To warm up: the first command starts the process supervisor.
                _stop_ms(store, owner, other)
                taken = [_stop_ms(store, owner, other) for _ in range(effort.stop_rounds)]
            name = f"recorded_stop {store.engine}"
            note = "plexus.cancel in another process until the processes of a command are gone"
            figures.append(single(name, "ms", taken, Target("value", STOP_MS), note))
    return figures


def _stop_ms(store: Store, owner: Server, other: Server) -> float:
    run = _call(owner, "bash.execute", {"command": COMMAND})
    seen = b""
    while (child := re.search(rb'"data":"(\d+)', seen)) is None:
        seen += read_some(owner.output_fd, CALL_READ)
    shell = re.search(rb'"pid":(\d+)', seen)
    assert shell is not None, "the first event has the process number"
    folders = [Path(f"/proc/{int(found[1])}") for found in (child, shell)]
    # A run is stored some milliseconds after its start.
    _wait(lambda: store.query(f"SELECT count(*) FROM runs WHERE id = {run}")[0] == 1)
    started = time.perf_counter()
    _send(other, "plexus.cancel", {"run": run})
    _wait(lambda: not any(folder.exists() for folder in folders))
    taken = (time.perf_counter() - started) * 1e3
    _read_until(other, b'"type":"complete"')
    _read_until(owner, b'"type":"cancelled"')
    return taken


# --- throughput -----------------------------------------------------------------------------------


def throughput(effort: Effort) -> list[Figure]:
    """Measure processes that record as fast as they can, until everything is stored."""
    figures: list[Figure] = []
    with _stores() as stores:
        for store in stores:
            figures += _throughput(store, effort.stream_events)
    return figures


def _throughput(store: Store, events: int) -> list[Figure]:
    writers = WRITERS[store.engine]
    total = writers * (events + 1)  # with the terminals
    logs: list[int] = [0]
    done = threading.Event()

    def measure_log() -> None:
        while not done.wait(0.005):
            logs.append(store.log_bytes)

    with store.processes(writers) as servers:
        readers = [threading.Thread(target=_discard, args=(each,), daemon=True) for each in servers]
        sampler = threading.Thread(target=measure_log, daemon=True)
        sampler.start()
        started = time.perf_counter()
        since_ms = round(time.time() * 1000)
        for server, reader in zip(servers, readers, strict=True):
            write_all(server.input_fd, count_request(events) + b"\n")
            reader.start()
        ended = "SELECT count(*) FROM runs WHERE method = 'bench.count' AND state >= 3"
        ended += f" AND started_ms >= {since_ms - 1}"
        _wait(lambda: store.query(ended)[0] >= writers)
        seconds = time.perf_counter() - started
        done.set()
        sampler.join()
        found = store.query(
            "SELECT coalesce(sum(to_seq - from_seq + 1), 0) FROM run_chunks WHERE run IN (SELECT id"
            f" FROM runs WHERE method = 'bench.count' AND started_ms >= {since_ms - 1})"
        )[0]
    lost = total - int(found)
    note = f"{writers} processes with {events:,} events each until all are stored: "
    note += f"{total / seconds:,.0f} events a second, {lost} lost"
    target = Target("value", 1e6 / RATES[store.engine])
    name = f"recorded_throughput {store.engine}"
    figures = [
        single(name, "us/event", [seconds / total * 1e6], target, note),
        single(f"{name} lost", "events", [float(lost)], Target("value", 0.0)),
    ]
    if store.url is None:
        note = f"largest write-ahead log; median of its samples {statistics.median(logs) / 1e6:.1f}"
        size = max(logs) / 1e6
        figures.append(single(f"{name} log", "MB", [size], Target("value", MAX_LOG_MB), note))
    return figures


# --- messages -------------------------------------------------------------------------------------


def _send(server: Server, method: str, params: Mapping[str, Any]) -> None:
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    write_all(server.input_fd, json.dumps(message).encode() + b"\n")


def _call(server: Server, method: str, params: Mapping[str, Any]) -> int:
    """Call a method. Returns the number of its run; what follows is not read."""
    _send(server, method, params)
    line = b""
    while not line.endswith(b"\n"):
        line += read_some(server.output_fd, 1)
    reply = json.loads(line)
    if "result" not in reply:
        raise ServerExited(f"{method}: {reply}")
    return int(reply["result"])


def _read_until(server: Server, mark: bytes) -> None:
    """Read up to the end of the line with this mark."""
    tail = b""
    while True:
        data = tail + read_some(server.output_fd, STREAM_READ)
        if mark in data and data.endswith(b"\n"):
            return
        tail = data[-2 * len(mark) :] if mark not in data else data


def _wait(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > until:
            raise ServerExited(f"timed out after {TIMEOUT_S:g} s")
        time.sleep(POLL_S)
