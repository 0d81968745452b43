"""Measures of resident memory: of an idle process, during a long stream, and per WebSocket."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack

from bench.clients import (
    CALL_READ,
    TERMINAL,
    call_sequentially,
    count_lines,
    count_request,
    count_request_line,
    masked,
    open_ws,
    write_all,
)
from bench.measure import (
    LIMIT,
    OURS,
    Effort,
    Figure,
    Target,
    compare,
    compare_all,
    interleave,
    single,
    take_turns,
)
from bench.servers import (
    LIMIT_STDIO,
    LIMIT_WEBSOCKET,
    OURS_HTTP,
    OURS_STDIO,
    Server,
    ServerExited,
    resident_kb,
    start,
    start_http,
)

__all__ = ("idle", "stable_kb", "stream", "websockets")

#: WebSockets opened before measuring, so that one-time allocations do not count.
WARMUP_SOCKETS = 20
HOLD = b'{"jsonrpc":"2.0","id":1,"method":"bench.hold","params":{}}'
HELD = b'"text":"held "'

#: After this event a stream should need no more memory: the log of its run has its full length.
WARMUP_EVENTS = 10_000
#: A process has started, and has done what it does once after its first calls, such as opening its
#: database, when its memory has not changed for this time.
STABLE_S = 0.5
#: Other processes, such as those with another garbage collector, are measured as they are.
MAX_STABLE_S = 10.0
POLL_S = 0.01
SETTLE_S = 0.2
#: Memory grows by pages, so smaller growth is not visible.
PAGE_KIB = 4


def idle(effort: Effort) -> list[Figure]:
    """Measure a process after its start and after one call; the limit after one call."""
    mine, best = interleave(
        lambda: _idle_mib(OURS_STDIO), lambda: _idle_mib(LIMIT_STDIO), effort.memory_rounds
    )
    after_call = [after for _, after in best]
    target = Target("ratio", 2.0)
    return [
        compare(
            "memory_idle start",
            "MiB",
            [before for before, _ in mine],
            after_call,
            target,
            "resident, nothing called yet; the limit after one call",
        ),
        compare(
            "memory_idle call",
            "MiB",
            [after for _, after in mine],
            after_call,
            target,
            "resident, after one call; the limit also after one call",
        ),
    ]


def stream(effort: Effort) -> list[Figure]:
    """Measure the growth of a process during a long stream, and while its reader is stalled."""
    events, stall_s = effort.memory_events, effort.stall_s
    return [
        _growth(
            "memory_stream",
            Target("value", 5.0),
            f"growth from event {WARMUP_EVENTS:,} to the end of a stream of {events:,}",
            effort,
            0.0,
        ),
        _growth(
            "memory_stream stalled",
            Target("value", 2.0),
            f"growth while its reader is stalled for {stall_s:g} s; the high-water mark is 1 MiB",
            effort,
            stall_s,
        ),
    ]


def websockets(effort: Effort) -> list[Figure]:
    """Measure the memory of an open WebSocket with one subscription, in a new process each time."""
    number = effort.mcp_streams
    taken = take_turns(
        {
            OURS: lambda: _socket_kib(OURS_HTTP, number),
            LIMIT: lambda: _socket_kib(LIMIT_WEBSOCKET, number),
        },
        effort.mcp_memory_rounds,
        warm=False,
    )
    note = f"growth of the server per WebSocket with an open stream, of {number:,}"
    targets = (Target("value", 20.0),)
    return [compare_all("memory_websocket", "KiB", taken, targets, note)]


def _socket_kib(command: Sequence[str], number: int) -> float:
    with start_http(command) as (server, port), ExitStack() as stack:
        for _ in range(WARMUP_SOCKETS):
            _hold(stack, port)
        before = stable_kb(server)
        for _ in range(number):
            _hold(stack, port)
        time.sleep(SETTLE_S)
        return max(resident_kb(server.pid) - before, PAGE_KIB) / number


def _hold(stack: ExitStack, port: int) -> None:
    """Open a WebSocket with a stream, wait for its first event, and keep it open."""
    sock = stack.enter_context(open_ws(port))
    sock.sendall(masked(HOLD))
    seen = b""
    while HELD not in seen:
        data = sock.recv(CALL_READ)
        if not data or b'"error"' in data:
            raise ServerExited(f"the server did not open a stream: {seen[:500]!r} {data[:500]!r}")
        seen += data


def _growth(name: str, target: Target, note: str, effort: Effort, stall_s: float) -> Figure:
    mine, best = interleave(
        lambda: _growth_mib(OURS_STDIO, effort.memory_events, stall_s),
        lambda: _growth_mib(LIMIT_STDIO, effort.memory_events, stall_s),
        effort.growth_rounds,
    )
    return single(name, "MiB", mine, target, note, limit=best)


def _idle_mib(command: Sequence[str]) -> tuple[float, float]:
    """Return the memory after the start and after one call."""
    with start(command) as server:
        before = stable_kb(server)
        call_sequentially(server, count_request_line(1), TERMINAL + b"\n", 1)
        return before / 1024, resident_kb(server.pid) / 1024


def stable_kb(server: Server) -> int:
    """Return the resident memory once it does not change any more."""
    size, since = resident_kb(server.pid), time.monotonic()
    end = since + MAX_STABLE_S
    while since + STABLE_S > time.monotonic() < end:
        time.sleep(POLL_S)
        now = resident_kb(server.pid)
        if now != size:
            size, since = now, time.monotonic()
    return size


def _growth_mib(command: Sequence[str], events: int, stall_s: float) -> float:
    """Return the growth after warm-up: to the end of the stream, or to the peak of the stall."""
    lines = events + 2  # the reply and the terminal
    with start(command) as server:
        write_all(server.input_fd, count_request(events) + b"\n")
        seen = count_lines(server, WARMUP_EVENTS)
        warm = resident_kb(server.pid)
        peak = 0
        until = time.monotonic() + stall_s
        while time.monotonic() < until:
            peak = max(peak, resident_kb(server.pid))
            time.sleep(POLL_S)
        seen += count_lines(server, lines - seen)
        if seen != lines:
            raise ServerExited(f"received {seen} lines instead of {lines}")
        return ((peak if stall_s else resident_kb(server.pid)) - warm) / 1024
