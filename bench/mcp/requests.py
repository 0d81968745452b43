"""Measures of MCP requests on stdio: cold start, tool lists, short calls and buffered events."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from bench.clients import call_pipelined, call_sequentially
from bench.mcp import messages, stdio_client
from bench.mcp.contenders import FAST, Command, start_all, stdio_commands, with_missing_peers
from bench.measure import LIMIT, OURS, Effort, Figure, Target, compare_all, percentile, take_turns
from bench.servers import NONE, ROOT, Server, ServerExited, scratch_folder, start

__all__ = ("buffered", "cold_start", "first_lists", "latency", "lists", "pipelined")

DISCOVER = " discover"
VARIABLE = " variable"
FILE = " file"
#: A settings file, and a variable. Both set what is the default.
SETTINGS_FILE = 'log_level = "warning"\n'
SETTING = {"SUBSTRATE_LOG_LEVEL": "warning"}
IN_FLIGHT = 64


def cold_start(effort: Effort) -> list[Figure]:
    """Measure the time to the first response, in a new process each time.

    The program and the limit are measured with `initialize` and with `server/discover`; the program
    also with one variable, and with a settings file in its folder.
    """
    with stdio_commands() as commands, scratch_folder() as folder:
        (folder / "substrate.toml").write_text(SETTINGS_FILE)
        first = messages.initialize()
        sides = {name: partial(_first_answer, command, first) for name, command in commands.items()}
        for name in (OURS, LIMIT):
            sides[name + DISCOVER] = partial(_first_answer, commands[name], messages.discover())
        ours = commands[OURS]
        sides[OURS + VARIABLE] = partial(_first_answer, ours, first, SETTING)
        sides[OURS + FILE] = partial(_first_answer, (*ours, "--trust"), first, NONE, folder)
        taken = take_turns(sides, effort.mcp_start_rounds)
    discovered = {name: taken.pop(name + DISCOVER) for name in (OURS, LIMIT)}
    with_variable, with_file = (taken.pop(OURS + each) for each in (VARIABLE, FILE))
    note, targets = "process start to the response to %s on stdio", (Target("ratio", 2.0),)
    started = note % "`initialize`"
    rows = (
        ("", with_missing_peers(taken), started),
        (DISCOVER, discovered, note % "`server/discover`"),
        (VARIABLE, {**taken, OURS: with_variable}, f"{started}, with one variable of settings"),
        (FILE, {**taken, OURS: with_file}, f"{started}, with a trusted settings file"),
    )
    return [
        compare_all(f"mcp_start{name}", "ms", sides, targets, text) for name, sides, text in rows
    ]


def _first_answer(
    command: Command,
    message: bytes,
    variables: Mapping[str, str] = NONE,
    folder: Path = ROOT,
) -> float:
    started = time.perf_counter()
    with start(command, variables, folder=folder) as server:
        stdio_client.exchange(server, message)
        return (time.perf_counter() - started) * 1e3


# --- lists ----------------------------------------------------------------------------------------


def first_lists(effort: Effort) -> list[Figure]:
    """Measure the time to a list of a thousand tools, in a new process each time."""
    with stdio_commands("Thousand", listing=True) as commands:
        taken = take_turns(
            {name: partial(_first_list_ms, command) for name, command in commands.items()},
            effort.mcp_start_rounds,
        )
    note = "process start, `initialize` and the first `tools/list` of a thousand tools of a plugin"
    targets = (Target("ratio", 3.0),)
    return [compare_all("mcp_first_list", "ms", with_missing_peers(taken), targets, note)]


def _first_list_ms(command: Command) -> float:
    started = time.perf_counter()
    with start(command) as server:
        stdio_client.handshake(server)
        stdio_client.list_all(server)
        return (time.perf_counter() - started) * 1e3


def lists(effort: Effort) -> list[Figure]:
    """Measure lists with twenty and with a thousand tools, in addition to the built-in ones."""
    return [
        _list_figure("mcp_list 20", "Few", (), effort),
        _list_figure("mcp_list 1000", "Thousand", (Target("ratio", 2.0),), effort),
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
    calls, fewer = effort.single_calls, max(int(effort.single_calls * effort.peer_share), 20)

    def block(server: Server, calls: int) -> tuple[float, float]:
        taken = call_sequentially(server, _line(1), b"\n", calls)
        return percentile(taken, 50) * 1e6, percentile(taken, 99) * 1e6

    with stdio_commands() as commands, start_all(commands) as servers:
        _check(servers)
        taken = take_turns(
            {
                name: partial(block, server, calls if name in FAST else fewer)
                for name, server in servers.items()
            },
            effort.mcp_rounds,
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
                name: partial(block, server, all_calls if name in FAST else some_calls)
                for name, server in servers.items()
            },
            effort.mcp_rounds,
        )
    targets = (Target("ratio", 4.0), Target("mcp", 1 / 30))
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


# --- buffered events ------------------------------------------------------------------------------


def buffered(effort: Effort) -> list[Figure]:
    """Measure a call whose events are buffered into one result."""
    events = effort.mcp_events
    text = "".join(f"{number} " for number in range(1, events + 1))

    def collect(server: Server) -> float:
        started = time.perf_counter()
        answer = stdio_client.exchange(server, messages.call_collect(events))
        taken = time.perf_counter() - started
        if json.loads(answer)["result"]["content"] != [{"type": "text", "text": text}]:
            raise ServerExited(f"not all events: {answer[:200]!r}")
        return taken * 1e3

    with stdio_commands() as commands, start_all(commands) as servers:
        taken = take_turns(
            {name: partial(collect, server) for name, server in servers.items()},
            effort.mcp_rounds,
        )
    note = f"{events:,} events buffered into one result"
    targets = (Target("ratio", 2.0),)
    return [compare_all("mcp_buffered", "ms", with_missing_peers(taken), targets, note)]
