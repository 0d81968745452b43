"""Measures of MCP requests on stdio: cold start, tool lists and short calls."""

from __future__ import annotations

import dataclasses
import time
from functools import partial

from bench.clients import call_pipelined, call_sequentially
from bench.mcp import messages, stdio_client
from bench.mcp.contenders import Command, start_all, stdio_commands, with_missing_peers
from bench.measure import LIMIT, OURS, Effort, Figure, Target, compare_all, percentile, take_turns
from bench.servers import Server, ServerExited, start

__all__ = ("cold_start", "latency", "lists", "pipelined")

DISCOVER = " discover"
IN_FLIGHT = 64


def cold_start(effort: Effort) -> list[Figure]:
    """Measure the time to the first response, in a new process each time.

    The program and the limit are measured with `initialize` and with `server/discover`.
    """
    with stdio_commands() as commands:
        sides = {
            name: partial(_first_answer, command, messages.initialize())
            for name, command in commands.items()
        }
        for name in (OURS, LIMIT):
            sides[name + DISCOVER] = partial(_first_answer, commands[name], messages.discover())
        taken = take_turns(sides, effort.mcp_start_rounds)
    discovered = {name: taken.pop(name + DISCOVER) for name in (OURS, LIMIT)}
    note, targets = "process start to the response to %s on stdio", (Target("ratio", 3.0),)
    return [
        compare_all("mcp_start", "ms", with_missing_peers(taken), targets, note % "`initialize`"),
        compare_all("mcp_start discover", "ms", discovered, targets, note % "`server/discover`"),
    ]


def _first_answer(command: Command, message: bytes) -> float:
    started = time.perf_counter()
    with start(command) as server:
        stdio_client.exchange(server, message)
        return (time.perf_counter() - started) * 1e3


# --- lists ----------------------------------------------------------------------------------------


def lists(effort: Effort) -> list[Figure]:
    """Measure lists with twenty and with a thousand tools, in addition to the built-in ones."""
    return [
        _list_figure("mcp_list 20", "Few", (), effort),
        _list_figure("mcp_list 1000", "Thousand", (Target("ratio", 3.0),), effort),
    ]


def _list_figure(name: str, activation: str, targets: tuple[Target, ...], effort: Effort) -> Figure:
    with stdio_commands(activation, listing=True) as commands, start_all(commands) as servers:
        pages = {who: stdio_client.list_all(server) for who, server in servers.items()}
        tools = {who: b"".join(page).count(b'"inputSchema"') for who, page in pages.items()}
        taken = take_turns(
            {who: partial(_list_us, server, effort.mcp_lists) for who, server in servers.items()},
            effort.mcp_rounds,
        )
    size = sum(map(len, pages[OURS]))
    same = "the same bytes" if pages[OURS] == pages[LIMIT] else "OTHER BYTES"
    each = "in one page" if len(pages[OURS]) == 1 else f"in {len(pages[OURS])} pages"
    note = f"{tools[OURS]:,} tools, {size:,} bytes {each}, from the limit {same}; tools of peers: "
    note += ", ".join(f"{number:,}" for who, number in tools.items() if who not in (OURS, LIMIT))
    return compare_all(name, "us", with_missing_peers(taken), targets, note)


def _list_us(server: Server, times: int) -> float:
    started = time.perf_counter()
    for _ in range(times):
        stdio_client.list_all(server)
    return (time.perf_counter() - started) / times * 1e6


# --- short calls ----------------------------------------------------------------------------------


def latency(effort: Effort) -> list[Figure]:
    """Measure sequential calls."""
    calls = effort.single_calls

    def block(server: Server) -> tuple[float, float]:
        taken = call_sequentially(server, _line(1), b"\n", calls)
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
            with_missing_peers(
                {who: [pair[column] for pair in pairs] for who, pairs in taken.items()}
            ),
            note=f"{name} of {calls} sequential calls of an echo",
        )
        for column, name in enumerate(("p50", "p99"))
    ]


def pipelined(effort: Effort) -> list[Figure]:
    """Measure many concurrent calls on one connection."""

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
    figure = compare_all("mcp_calls_pipelined", "us/call", with_missing_peers(taken), targets)
    assert figure.limit is not None
    rates = [figure.ours, figure.limit, *(peer.value for peer in figure.peers.values() if peer)]
    shown = ", ".join(f"{1e6 / rate.median:,.0f}" for rate in rates)
    note = f"{IN_FLIGHT} in flight; calls per second of ours, the limit and peers: {shown}"
    return [dataclasses.replace(figure, note=note)]


def _line(request: int) -> bytes:
    return messages.call_echo(request) + b"\n"


def _check(servers: dict[str, Server]) -> None:
    for name, server in servers.items():
        answer = stdio_client.exchange(server, messages.call_echo())
        if messages.ECHOED not in answer or b'"error"' in answer:
            raise ServerExited(f"{name} answered {answer[:500]!r}")
