"""Short calls on stdio: one at a time, and many under way at once."""

from __future__ import annotations

import dataclasses

from bench.clients import TERMINAL, ask_count_line, call_pipelined, call_singly
from bench.measure import Effort, Figure, Target, compare, interleave, percentile
from bench.servers import LIMIT_STDIO, OURS_STDIO, Server, start

__all__ = ("latency", "pipelined")

IN_FLIGHT = 64
END = TERMINAL + b"\n"


def latency(effort: Effort) -> list[Figure]:
    """Each call after the one before has ended: reply, item and terminal."""

    def block(server: Server) -> tuple[float, float]:
        taken = call_singly(server, ask_count_line(1), END, effort.single_calls)
        return percentile(taken, 50) * 1e6, percentile(taken, 99) * 1e6

    with start(OURS_STDIO) as ours, start(LIMIT_STDIO) as limit:
        mine, best = interleave(lambda: block(ours), lambda: block(limit), effort.call_rounds)
    note = f"of {effort.single_calls} calls one after the other: reply, item, terminal"
    return [
        compare(
            f"calls_latency {name}",
            "us",
            [round_[column] for round_ in mine],
            [round_[column] for round_ in best],
            None,
            f"{name} {note}",
        )
        for column, name in enumerate(("p50", "p99"))
    ]


def pipelined(effort: Effort) -> list[Figure]:
    """Many calls under way on one connection."""
    calls = effort.pipelined_calls

    def block(server: Server) -> float:
        return call_pipelined(server, ask_count_line, END, calls, IN_FLIGHT) / calls * 1e6

    with start(OURS_STDIO) as ours, start(LIMIT_STDIO) as limit:
        mine, best = interleave(lambda: block(ours), lambda: block(limit), effort.call_rounds)
    figure = compare("calls_pipelined", "us/call", mine, best, Target("ratio", 4.0))
    assert figure.limit is not None
    rates = 1e6 / figure.ours.median, 1e6 / figure.limit.median
    note = f"{IN_FLIGHT} in flight; calls per second: %s and %s"
    return [dataclasses.replace(figure, note=note % tuple(f"{rate:,.0f}" for rate in rates))]
