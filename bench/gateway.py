"""Measures of mounts: what they add to a call, to progress, to a list and to a start.

The same server is called directly, through a mount, through FastMCP's proxy, and through a bare
relay, which shows how much of what a gateway adds is two more pipes and two more processes to wake.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import NamedTuple

from bench.clients import STREAM_READ, read_some, write_all
from bench.mcp import messages, stdio_client
from bench.mcp.contenders import installed, ours_stdio
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

__all__ = ("calls", "calls_of_everything", "cold_start", "lists", "progress")

UPSTREAM = (sys.executable, "-m", "bench.peers.bare_upstream")
PROXY = (sys.executable, "-m", "bench.peers.fastmcp_proxy")
RELAY = (sys.executable, "-m", "bench.peers.bare_relay")
OURS_STDIO = (sys.executable, "-m", "substrate", "--stdio", "--mcp", "--mcp-progress-rate", "0")
#: Mounts of the measure of lists, and the tools of each.
MOUNTS, TOOLS = 20, 30
#: Mounts of the measure of the start.
START_MOUNTS = 10
#: Timeout for the servers of all mounts to be listed.
LISTED_S = 60.0
#: Timeout of the command that looks for the official server.
INSTALLED_S = 60.0
#: The id of the measured requests, and a part of the lines that answer them.
REQUEST = 7
RESPONSE = b'"id":7'
#: Sides of the measure of calls: FastMCP's proxy, the bare relay, and a method of the program
#: itself, which is a run without another server.
FASTMCP, BARE_RELAY, OWN = "fastmcp proxy", "bare relay", "own method"


@contextmanager
def mounts(tables: Mapping[str, Sequence[str]]) -> Iterator[Mapping[str, str]]:
    """Write a file with mounts, or none. Yields the variables of a server that has them."""
    with scratch_folder() as folder:
        file = folder / "mounts.toml"
        if tables:
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


class Upstream(NamedTuple):
    """A server with a tool that repeats a text."""

    command: Sequence[str]
    #: The name of its tool, and the one that the tool has as a method of the mount `bench`.
    tool: bytes
    method: bytes
    #: The argument with the text.
    argument: bytes


BARE = Upstream(UPSTREAM, b"bench.echo", b"bench.bench_echo", b"text")


@functools.cache
def _everything() -> Upstream | None:
    """Return the official server with every feature, if it is installed."""
    done = subprocess.run(
        (sys.executable, "-m", "tests.conformance.node", "upstream", "everything"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=INSTALLED_S,
        check=True,
    )
    command = done.stdout.splitlines()
    return Upstream(command, b"echo", b"bench.echo", b"message") if command else None


def calls(effort: Effort) -> list[Figure]:
    """Measure sequential calls of an upstream that does nothing."""
    own = {OWN: (ours_stdio(), BARE.tool)}
    taken = _take_calls(effort, BARE, own)
    added, note = _added(taken)
    figures = [compare_all("mount_call", "us", taken, (), note)]
    figures.append(single("mount_call added", "us", added[OURS], Target("value", 150.0), note))
    return figures + _shares("mount_call", added, Target("value", 0.05))


def calls_of_everything(effort: Effort) -> list[Figure]:
    """Measure sequential calls of the official server with every feature.

    Raises OSError if it is not installed.
    """
    upstream = _everything()
    if upstream is None:
        raise OSError("not installed: run `python -m tests.conformance.node`")
    taken = _take_calls(effort, upstream, {})
    added, note = _added(taken)
    figures = [compare_all("mount_everything", "us", taken, (), note)]
    figures.append(single("mount_everything added", "us", added[OURS], None, note))
    return figures + _shares("mount_everything", added, None)


def _take_calls(
    effort: Effort, upstream: Upstream, more: Mapping[str, tuple[Sequence[str], bytes]]
) -> dict[str, list[float]]:
    """Return the median times of a call in microseconds, by side.

    `more` has the commands of further sides and their tools.
    """
    with ExitStack() as stack:
        variables = stack.enter_context(mounts({"bench": upstream.command}))
        _list_first(variables)
        ours = stack.enter_context(start((*OURS_STDIO, "--mcp-tools", "all"), variables))
        commands = {
            LIMIT: (upstream.command, upstream.tool),
            BARE_RELAY: ((*RELAY, *upstream.command), b"bench." + upstream.tool),
            **more,
        }
        if "fastmcp" in installed():
            commands[FASTMCP] = (*PROXY, *upstream.command), upstream.tool
        sides = {OURS: (ours, upstream.method)}
        for name, (command, tool) in commands.items():
            sides[name] = stack.enter_context(start(command)), tool
        for server, _ in sides.values():
            stdio_client.handshake(server)
        blocks = {}
        for name, (server, tool) in sides.items():
            argument = b"text" if name == OWN else upstream.argument
            share = effort.peer_share if name == FASTMCP else 1.0
            rounds = max(int(effort.single_calls * share), 10)
            blocks[name] = partial(_latency, server, tool, argument, rounds)
        return take_turns(blocks, effort.call_rounds)


def _latency(server: Server, tool: bytes, argument: bytes, rounds: int) -> float:
    """Return the median time of a call in microseconds."""
    params = b'"name":"%b","arguments":{"%b":"%b"}' % (tool, argument, messages.ECHOED)
    message = messages.request_bytes(REQUEST, b"tools/call", params)
    taken = []
    for _ in range(rounds):
        started = time.perf_counter()
        write_all(server.input_fd, message + b"\n")
        answer = b""
        # The official server also sends notifications.
        while RESPONSE not in answer or not answer.endswith(b"\n"):
            answer += read_some(server.output_fd, STREAM_READ)
        taken.append(time.perf_counter() - started)
        assert messages.ECHOED in answer, answer[:500]
    return percentile(taken, 50) * 1e6


def _added(taken: Mapping[str, Sequence[float]]) -> tuple[dict[str, list[float]], str]:
    """Return what each side adds to a call, from paired rounds, and a note with the medians."""
    added = {
        name: [one - other for one, other in zip(rounds, taken[LIMIT], strict=True)]
        for name, rounds in taken.items()
        if name != LIMIT
    }
    shown = ", ".join(f"{name} {percentile(each, 50):.0f} us" for name, each in added.items())
    note = "median of sequential calls on stdio; limit: the same server without a gateway; "
    return added, f"{note}added: {shown}"


def _shares(name: str, added: Mapping[str, Sequence[float]], target: Target | None) -> list[Figure]:
    """Return what a mount and the relay add, as shares of what FastMCP's proxy adds."""
    proxy = added.get(FASTMCP)
    if proxy is None:
        return []
    ours, relay = (
        [one / other for one, other in zip(added[side], proxy, strict=True)]
        for side in (OURS, BARE_RELAY)
    )
    text = "what is added to a call, as a share of what FastMCP's proxy adds; limit: a bare relay"
    return [single(f"{name} share", "x", ours, target, text, relay)]


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
        # The difference is a few milliseconds of a hundred, so that it needs more rounds.
        rounds = 3 * effort.start_rounds
        mine, best = interleave(
            lambda: _first_answer(variables), lambda: _first_answer(none), rounds
        )
    note = f"process start to `initialize` with {START_MOUNTS} mounts; limit: without any"
    return [compare("mount_start", "ms", mine, best, Target("ratio", 1.1), note)]


def _first_answer(variables: Mapping[str, str]) -> float:
    started = time.perf_counter()
    with start(OURS_STDIO, variables) as server:
        stdio_client.exchange(server, messages.initialize())
        return (time.perf_counter() - started) * 1e3
