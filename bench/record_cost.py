"""Measures of what recording costs a process: recording on, against `SUBSTRATE_RECORD=off`.

Both sides are the same program, in turn. Every process has its own empty run store. The CPU time of
a round is that of the main thread, which executes the runs; it includes what is recorded after the
round, and the time of the other side does not: each round ends with a pause.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from bench.clients import (
    CALL_READ,
    TERMINAL,
    call_pipelined,
    call_sequentially,
    count_request_line,
    read_some,
    read_until,
    stream_sse,
    stream_stdio,
    stream_ws,
    write_all,
)
from bench.mcp import messages, stdio_client
from bench.mcp.contenders import ours_stdio
from bench.measure import LIMIT, OURS, Effort, Figure, Target, compare, single, take_turns
from bench.servers import OURS_HTTP, OURS_STDIO, Server, port_of, scratch_folder, start

__all__ = (
    "calls",
    "cpu_s",
    "idle",
    "mcp_calls",
    "memory",
    "over_sse",
    "over_stdio",
    "over_ws",
    "private_kb",
    "recorded",
    "start_time",
)

OFF = {"SUBSTRATE_RECORD": "off"}
IN_FLIGHT = 64
END = TERMINAL + b"\n"
#: After a round, so that its last runs are written before the other side has its turn.
PAUSE_S = 0.6
#: The store is opened after the first run has answered. Memory is read when it no longer changes.
STABLE_S = 1.0
POLL_S = 0.05
#: After that, the background work of the store has begun and found nothing.
BEGUN_S = 8.0
SIDES = "recording on; limit: off"
MOST = Target("ratio", 1.1)

#: One round: makes its requests and returns the seconds until the last byte.
Round: TypeAlias = Callable[[], float]


class Times(NamedTuple):
    """The seconds of a round, and the CPU seconds of the main thread."""

    wall: float
    cpu: float


@contextmanager
def recorded(command: Sequence[str], *, on: bool = True) -> Iterator[Server]:
    """Start a process with an empty run store."""
    with scratch_folder() as folder:
        variables = {name: str(folder) for name in ("XDG_STATE_HOME", "XDG_DATA_HOME")}
        with start(command, variables if on else variables | OFF) as server:
            yield server


def cpu_s(pid: int, thread: int | None = None) -> float:
    """Return the CPU seconds of one thread of a process; of all threads without one."""
    tasks = Path(f"/proc/{pid}/task")
    chosen = [tasks / str(thread)] if thread is not None else list(tasks.iterdir())
    return sum(int((task / "schedstat").read_text().split()[0]) for task in chosen) / 1e9


def private_kb(pid: int) -> int:
    """Return the private memory of a process that was written to, in KiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty:"))


# --- streams and calls ----------------------------------------------------------------------------


def over_stdio(effort: Effort) -> list[Figure]:
    """Measure events as lines on a pipe."""
    events = effort.stream_events

    def prepare(server: Server) -> Round:
        return lambda: stream_stdio(server, events)[0]

    return _compare("recorded_stdio", OURS_STDIO, prepare, events, "event", effort)


def over_sse(effort: Effort) -> list[Figure]:
    """Measure server-sent events on a socket."""
    return _over_http("recorded_sse", stream_sse, effort)


def over_ws(effort: Effort) -> list[Figure]:
    """Measure WebSocket messages on a socket."""
    return _over_http("recorded_websocket", stream_ws, effort)


def _over_http(
    name: str, client: Callable[[int, int], tuple[float, int]], effort: Effort
) -> list[Figure]:
    events = effort.stream_events

    def prepare(server: Server) -> Round:
        port = port_of(server)
        return lambda: client(port, events)[0]

    return _compare(name, OURS_HTTP, prepare, events, "event", effort)


def calls(effort: Effort) -> list[Figure]:
    """Measure many concurrent native calls on one connection."""
    number = effort.pipelined_calls

    def prepare(server: Server) -> Round:
        return lambda: call_pipelined(server, count_request_line, END, number, IN_FLIGHT)

    return _compare("recorded_calls", OURS_STDIO, prepare, number, "call", effort)


def mcp_calls(effort: Effort) -> list[Figure]:
    """Measure many concurrent `tools/call` on one connection."""
    number = effort.pipelined_calls

    def prepare(server: Server) -> Round:
        stdio_client.handshake(server)
        return lambda: call_pipelined(server, _echo_line, b"\n", number, IN_FLIGHT)

    return _compare("recorded_mcp_calls", ours_stdio(), prepare, number, "call", effort)


def _echo_line(request: int) -> bytes:
    return messages.call_echo(request) + b"\n"


def _compare(
    name: str,
    command: Sequence[str],
    prepare: Callable[[Server], Round],
    number: int,
    each: str,
    effort: Effort,
) -> list[Figure]:
    with ExitStack() as stack:
        sides: dict[str, Callable[[], Times]] = {}
        for side, on in ((OURS, True), (LIMIT, False)):
            server = stack.enter_context(recorded(command, on=on))
            sides[side] = partial(_times, server, prepare(server))
        taken = take_turns(sides, effort.recorded_rounds)
    note = f"{number:,} {each}s, {SIDES}"
    return [
        compare(
            f"{name} {column}",
            f"us/{each}",
            [getattr(times, column) / number * 1e6 for times in taken[OURS]],
            [getattr(times, column) / number * 1e6 for times in taken[LIMIT]],
            MOST,
            f"{kind} of {note}",
        )
        for column, kind in (("wall", "time"), ("cpu", "CPU time of the main thread"))
    ]


def _times(server: Server, round_: Round) -> Times:
    before = cpu_s(server.pid, server.pid)
    wall = round_()
    time.sleep(PAUSE_S)
    return Times(wall, cpu_s(server.pid, server.pid) - before)


# --- start and memory -----------------------------------------------------------------------------


def start_time(effort: Effort) -> list[Figure]:
    """Measure the time from process start to the end of the first call."""
    taken = take_turns(_sides(_first_call_ms), effort.start_rounds)
    note = f"process start to the end of a call on stdio, {SIDES}"
    target = Target("ratio", 1.03)
    return [compare("recorded_start", "ms", taken[OURS], taken[LIMIT], target, note)]


def _sides(measure: Callable[[bool], float]) -> Mapping[str, Callable[[], float]]:
    return {OURS: partial(measure, True), LIMIT: partial(measure, False)}


def _first_call_ms(on: bool) -> float:
    with scratch_folder() as folder:
        variables = {name: str(folder) for name in ("XDG_STATE_HOME", "XDG_DATA_HOME")}
        started = time.perf_counter()
        with start(OURS_STDIO, variables if on else variables | OFF) as server:
            write_all(server.input_fd, count_request_line(1))
            read_until(lambda: read_some(server.output_fd, CALL_READ), END)
            return (time.perf_counter() - started) * 1e3


def memory(effort: Effort) -> list[Figure]:
    """Measure how much more private memory a process has after its first run."""
    taken = take_turns(_sides(_private_mib), effort.memory_rounds, warm=False)
    added = [on - off for on, off in zip(taken[OURS], taken[LIMIT], strict=True)]
    note = "private memory after the first run, recording on minus off"
    return [single("recorded_memory", "MiB", added, Target("value", 3.0), note)]


def _private_mib(on: bool) -> float:
    with recorded(OURS_STDIO, on=on) as server:
        call_sequentially(server, count_request_line(1), END, 1)
        size, since = private_kb(server.pid), time.monotonic()
        while time.monotonic() - since < STABLE_S:
            time.sleep(POLL_S)
            now = private_kb(server.pid)
            if now != size:
                size, since = now, time.monotonic()
        return size / 1024


# --- waiting --------------------------------------------------------------------------------------


def idle(effort: Effort) -> list[Figure]:
    """Measure the CPU of processes that only wait after a run."""
    target = Target("value", 0.05)
    for_s = effort.idle_s
    with recorded(OURS_STDIO) as server, recorded(OURS_STDIO, on=False) as other:
        shares = _idle_shares([server, other], for_s)
    rows = [
        single(
            "recorded_idle stdio",
            "% CPU",
            [shares[0]],
            target,
            f"a process on stdio that waits for {for_s:g} s after a run, {SIDES}",
            limit=[shares[1]],
        )
    ]
    with ExitStack() as stack:
        servers = [stack.enter_context(recorded(OURS_HTTP, on=on)) for on in (True, False)]
        for server in servers:
            stack.enter_context(_watch(port_of(server)))
        shares = _idle_shares(servers, for_s)
        note = f"a server with a client on plexus.watch for {for_s:g} s, {SIDES}; uvicorn wakes"
        note += " ten times a second in both"
        added = shares[0] - shares[1]
        rows.append(
            single("recorded_idle watch", "% CPU", [shares[0]], None, note, limit=[shares[1]])
        )
        note = "what recording adds to that server"
        rows.append(single("recorded_idle added", "% CPU", [added], target, note))
    return rows


def _idle_shares(servers: Sequence[Server], for_s: float) -> list[float]:
    """Return the CPU of each process in per cent of one processor, after a run on stdio."""
    for server in servers:
        if server.is_on_stdio:
            call_sequentially(server, count_request_line(1), END, 1)
    time.sleep(BEGUN_S)
    before, started = [cpu_s(server.pid) for server in servers], time.monotonic()
    time.sleep(for_s)
    elapsed = time.monotonic() - started
    return [
        (cpu_s(server.pid) - spent) / elapsed * 100
        for server, spent in zip(servers, before, strict=True)
    ]


@contextmanager
def _watch(port: int) -> Iterator[None]:
    """Hold a stream of `plexus.watch` open, after one run."""
    stream_sse(port, 1)
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "plexus.watch", "params": {}}
    body = json.dumps(message).encode()
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(
            b"POST /rpc HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAccept: text/event-stream\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (port, len(body), body)
        )
        read_until(lambda: sock.recv(CALL_READ), b"\n\n\r\n")
        yield
