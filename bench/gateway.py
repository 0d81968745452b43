"""Measures of mounts: what they add to a call, to progress, to a list and to a start.

The same bare server is called directly, through a mount, and through FastMCP's proxy.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

from bench.clients import write_all
from bench.mcp import messages, stdio_client
from bench.mcp.contenders import installed
from bench.measure import (
    LIMIT,
    OURS,
    Effort,
    Figure,
    Target,
    compare,
    compare_all,
    interleave,
    percentile,
    single,
    take_turns,
)
from bench.servers import ROOT, Server, format_command, scratch_folder, start

__all__ = ("calls", "cold_start", "lists", "progress")

UPSTREAM = (sys.executable, "-m", "bench.peers.bare_upstream")
PROXY = (sys.executable, "-m", "bench.peers.fastmcp_proxy")
OURS_STDIO = (sys.executable, "-m", "substrate", "--stdio", "--mcp", "--mcp-progress-rate", "0")
#: Mounts of the measure of lists, and the tools of each.
MOUNTS, TOOLS = 20, 30
#: Mounts of the measure of the start.
START_MOUNTS = 10
#: Timeout for the servers of all mounts to be listed.
LISTED_S = 60.0


@contextmanager
def mounts(tables: Mapping[str, Sequence[str]]) -> Iterator[Mapping[str, str]]:
    """Write a file with mounts. Yields the environment variables of a server that has them."""
    with scratch_folder() as folder:
        file = folder / "mounts.toml"
        file.write_text("".join(_table(name, command) for name, command in tables.items()))
        names = ("XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")
        variables = {name: str(folder) for name in names}
        yield variables | {"SUBSTRATE_MOUNTS_FILE": str(file), "PYTHONPATH": str(ROOT)}


def _table(name: str, command: Sequence[str]) -> str:
    program, *arguments = command
    listed = ", ".join(f'"{each}"' for each in arguments)
    return f'[mounts.{name}]\ncommand = "{program}"\nargs = [{listed}]\n'


def _list_first(variables: Mapping[str, str], *names: str) -> None:
    """List the servers of mounts, as their first use does. Raises OSError."""
    command = [sys.executable, "-m", "substrate", "mount", "refresh", *names]
    listed = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        timeout=LISTED_S,
        check=False,
    )
    if listed.returncode != 0:
        raise OSError(f"{format_command(command)}: {listed.stderr.decode()}")


def calls(effort: Effort) -> list[Figure]:
    """Measure sequential calls of an upstream that does nothing."""
    with ExitStack() as stack:
        variables = stack.enter_context(mounts({"bench": UPSTREAM}))
        _list_first(variables)
        ours = stack.enter_context(start((*OURS_STDIO, "--mcp-tools", "all"), variables))
        direct = stack.enter_context(start(UPSTREAM))
        sides = {OURS: ours, LIMIT: direct}
        if "fastmcp" in installed():
            sides["fastmcp proxy"] = stack.enter_context(start((*PROXY, *UPSTREAM)))
        for server in sides.values():
            stdio_client.handshake(server)
        names = {OURS: b"bench.bench_echo"}
        blocks = {
            name: partial(_latency, server, names.get(name, b"bench.echo"), effort, name)
            for name, server in sides.items()
        }
        taken = take_turns(blocks, effort.call_rounds)
    added = {
        name: percentile([one - other for one, other in zip(rounds, taken[LIMIT], strict=True)], 50)
        for name, rounds in taken.items()
        if name != LIMIT
    }
    note = (
        f"median of sequential calls on stdio; limit: the same server without a gateway; "
        f"added: {', '.join(f'{name} {value:.0f} us' for name, value in added.items())}"
    )
    figures = [compare_all("mount_call", "us", taken, (), note)]
    figures.append(single("mount_call added", "us", [added[OURS]], Target("value", 150.0), note))
    proxy = added.get("fastmcp proxy")
    if proxy is not None:
        share = [added[OURS] / proxy]
        text = "what a mount adds to a call, as a share of what FastMCP's proxy adds"
        figures.append(single("mount_call share", "x", share, Target("value", 0.05), text))
    return figures


def _latency(server: Server, tool: bytes, effort: Effort, side: str) -> float:
    """Return the median time of a call in microseconds."""
    params = b'"name":"%b","arguments":{"text":"%b"}' % (tool, messages.ECHOED)
    message = messages.request_bytes(7, b"tools/call", params)
    share = 1.0 if side in (OURS, LIMIT) else effort.peer_share
    taken = []
    for _ in range(max(int(effort.single_calls * share), 10)):
        started = time.perf_counter()
        answer = stdio_client.exchange(server, message)
        taken.append(time.perf_counter() - started)
        assert messages.ECHOED in answer, answer[:500]
    return percentile(taken, 50) * 1e6


def progress(effort: Effort) -> list[Figure]:
    """Measure progress notifications of an upstream, each forwarded to the client."""
    amount = effort.mcp_events
    with ExitStack() as stack:
        variables = stack.enter_context(mounts({"bench": UPSTREAM}))
        _list_first(variables)
        server = stack.enter_context(start(OURS_STDIO, variables))
        stdio_client.handshake(server)
        params = b'"name":"bench.bench_count","arguments":{"to":%d},"_meta":{"progressToken":7}'
        message = messages.request_bytes(7, b"tools/call", params % amount)
        write_all(server.input_fd, messages.request_bytes(6, b"tools/call", params % 1) + b"\n")
        stdio_client.read_lines(server, 2)
        taken = []
        for _ in range(effort.mcp_rounds):
            started = time.perf_counter()
            write_all(server.input_fd, message + b"\n")
            lines = stdio_client.read_lines(server, amount + 1)
            taken.append((time.perf_counter() - started) / amount * 1e6)
            assert lines.count(b'"progressToken"') == amount
    note = f"{amount} notifications of a call, forwarded one by one on stdio; target: 100,000/s"
    return [single("mount_progress", "us/event", taken, Target("value", 10.0), note)]


def lists(effort: Effort) -> list[Figure]:
    """Measure a list of the tools of twenty mounts while one more hangs."""
    tables: dict[str, Sequence[str]] = {
        f"m{number}": (*UPSTREAM, str(TOOLS)) for number in range(MOUNTS)
    }
    tables["hanging"] = (*UPSTREAM, "hang")
    with ExitStack() as stack:
        variables = stack.enter_context(mounts(tables))
        _list_first(variables, *list(tables)[:-1])
        server = stack.enter_context(start((*OURS_STDIO, "--mcp-tools", "all"), variables))
        stdio_client.handshake(server)
        listed = b"".join(stdio_client.list_all(server)).count(b'"inputSchema"')
        assert listed > MOUNTS * TOOLS, listed
        taken = []
        for _ in range(effort.mcp_rounds * effort.mcp_lists):
            started = time.perf_counter()
            stdio_client.list_all(server)
            taken.append((time.perf_counter() - started) * 1e3)
    note = f"tools/list with {MOUNTS} mounts of {TOOLS} tools, all exposed, while one more hangs"
    return [single("mount_list", "ms", taken, Target("value", 5.0), note)]


def cold_start(effort: Effort) -> list[Figure]:
    """Measure the time to the response to `initialize`, with mounts that were listed before."""
    tables = {f"m{number}": (*UPSTREAM, str(TOOLS)) for number in range(START_MOUNTS)}
    with mounts(tables) as variables, mounts({}) as none:
        _list_first(variables)
        mine, best = interleave(
            lambda: _first_answer(variables), lambda: _first_answer(none), effort.start_rounds
        )
    note = f"process start to `initialize` with {START_MOUNTS} mounts; limit: without mounts"
    return [compare("mount_start", "ms", mine, best, Target("ratio", 1.1), note)]


def _first_answer(variables: Mapping[str, str]) -> float:
    started = time.perf_counter()
    with start(OURS_STDIO, variables) as server:
        stdio_client.exchange(server, messages.initialize())
        return (time.perf_counter() - started) * 1e3
