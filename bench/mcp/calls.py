"""Short calls of a tool on stdio: one at a time, and many under way at once."""

from __future__ import annotations

import dataclasses
from functools import partial

from bench.clients import call_pipelined, call_singly
from bench.mcp import messages, pipes
from bench.mcp.contenders import missing, start_all, stdio_commands
from bench.measure import LIMIT, OURS, Effort, Figure, Target, compare_all, percentile, take_turns
from bench.servers import Server, ServerGone

__all__ = ("latency", "pipelined")

IN_FLIGHT = 64


def latency(effort: Effort) -> list[Figure]:
    """Each call after the one before has been answered."""
    calls = effort.single_calls

    def block(server: Server) -> tuple[float, float]:
        taken = call_singly(server, _line(1), b"\n", calls)
        return percentile(taken, 50) * 1e6, percentile(taken, 99) * 1e6

    with stdio_commands() as commands, start_all(commands) as servers:
        _check(servers)
        taken = take_turns(
            {name: partial(block, server) for name, server in servers.items()}, effort.mcp_rounds
        )
    return [
        compare_all(
            f"mcp_calls_latency {name}",
            "us",
            missing({who: [pair[column] for pair in pairs] for who, pairs in taken.items()}),
            note=f"{name} of {calls} calls of an echo, one after the other",
        )
        for column, name in enumerate(("p50", "p99"))
    ]


def pipelined(effort: Effort) -> list[Figure]:
    """Many calls under way on one connection."""

    def block(server: Server, calls: int) -> float:
        return call_pipelined(server, _line, b"\n", calls, IN_FLIGHT) / calls * 1e6

    all_calls = effort.pipelined_calls
    some_calls = max(int(all_calls * effort.peer_share), 2 * IN_FLIGHT)
    with stdio_commands() as commands, start_all(commands) as servers:
        _check(servers)
        taken = take_turns(
            {
                name: partial(block, server, all_calls if name in (OURS, LIMIT) else some_calls)
                for name, server in servers.items()
            },
            effort.mcp_rounds,
        )
    targets = (Target("ratio", 5.0), Target("mcp", 1 / 30))
    figure = compare_all("mcp_calls_pipelined", "us/call", missing(taken), targets)
    assert figure.limit is not None
    rates = [figure.ours, figure.limit, *(peer.value for peer in figure.peers.values() if peer)]
    shown = ", ".join(f"{1e6 / rate.median:,.0f}" for rate in rates)
    note = f"{IN_FLIGHT} in flight; calls per second of ours, the limit and peers: {shown}"
    return [dataclasses.replace(figure, note=note)]


def _line(request: int) -> bytes:
    return messages.call_echo(request) + b"\n"


def _check(servers: dict[str, Server]) -> None:
    for name, server in servers.items():
        answer = pipes.exchange(server, messages.call_echo())
        if messages.ECHOED not in answer or b'"error"' in answer:
            raise ServerGone(f"{name} answered {answer[:500]!r}")
