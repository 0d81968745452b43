"""Resident memory: of a process that does nothing, and in the course of a long stream."""

from __future__ import annotations

import time
from collections.abc import Sequence

from bench.clients import (
    TERMINAL,
    ask_count,
    ask_count_line,
    call_singly,
    count_lines,
    write_all,
)
from bench.measure import Effort, Figure, Target, compare, interleave, single
from bench.servers import LIMIT_STDIO, OURS_STDIO, Server, ServerGone, resident_kb, start

__all__ = ("idle", "stream")

#: From here on a stream should need no more memory: the log of its run is as long as it gets.
WARM_EVENTS = 10_000
#: A process whose memory has not changed for so long has started.
SETTLED_S = 0.5
POLL_S = 0.01


def idle(effort: Effort) -> list[Figure]:
    """A process after its start, and after one call; both beside the limit after one call."""
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
            "resident, after one call; the limit likewise",
        ),
    ]


def stream(effort: Effort) -> list[Figure]:
    """How much a process grows in the course of one long stream, and when its reader stops."""
    events, stall_s = effort.memory_events, effort.stall_s
    return [
        _growth(
            "memory_stream",
            Target("value", 5.0),
            f"growth from event {WARM_EVENTS:,} to the end of a stream of {events:,}",
            effort,
            0.0,
        ),
        _growth(
            "memory_stream stalled",
            Target("value", 2.0),
            f"growth while its reader stops for {stall_s:g} s; the high-water mark is 1 MiB",
            effort,
            stall_s,
        ),
    ]


def _growth(name: str, target: Target, note: str, effort: Effort, stall_s: float) -> Figure:
    mine, best = interleave(
        lambda: _growth_mib(OURS_STDIO, effort.memory_events, stall_s),
        lambda: _growth_mib(LIMIT_STDIO, effort.memory_events, stall_s),
        effort.growth_rounds,
    )
    return single(name, "MiB", mine, target, note, limit=best)


def _idle_mib(command: Sequence[str]) -> tuple[float, float]:
    """After the start, and after one call."""
    with start(command) as server:
        before = _settled_kb(server)
        call_singly(server, ask_count_line(1), TERMINAL + b"\n", 1)
        return before / 1024, resident_kb(server.pid) / 1024


def _settled_kb(server: Server) -> int:
    size, since = resident_kb(server.pid), time.monotonic()
    while time.monotonic() - since < SETTLED_S:
        time.sleep(POLL_S)
        now = resident_kb(server.pid)
        if now != size:
            size, since = now, time.monotonic()
    return size


def _growth_mib(command: Sequence[str], events: int, stall_s: float) -> float:
    """From the event where it should be warm to the end, or to the most while nobody reads."""
    lines = events + 2  # the reply and the terminal
    with start(command) as server:
        write_all(server.input_fd, ask_count(events) + b"\n")
        seen = count_lines(server, WARM_EVENTS)
        warm = resident_kb(server.pid)
        most = 0
        until = time.monotonic() + stall_s
        while time.monotonic() < until:
            most = max(most, resident_kb(server.pid))
            time.sleep(POLL_S)
        seen += count_lines(server, lines - seen)
        if seen != lines:
            raise ServerGone(f"{seen} lines came in place of {lines}")
        return ((most if stall_s else resident_kb(server.pid)) - warm) / 1024
