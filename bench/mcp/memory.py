"""Measures of the memory of MCP servers: of an idle process, and per open stream."""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import partial

from bench.mcp import http_client, messages, stdio_client
from bench.mcp.contenders import (
    FAST,
    Command,
    http_commands,
    stdio_commands,
    with_missing_peers,
)
from bench.measure import Effort, Figure, Target, compare_all, take_turns
from bench.memory import stable_kb
from bench.servers import resident_kb, start, start_http

__all__ = ("idle", "streams")

#: Streams opened before measuring, so that one-time allocations do not count.
WARMUP_STREAMS = 20
SETTLE_S = 0.2
#: Memory grows by pages, so smaller growth is not visible.
PAGE_KIB = 4


def idle(effort: Effort) -> list[Figure]:
    """Measure a process on stdio with one plugin, in a new process each time."""
    with stdio_commands() as commands:
        taken = take_turns(
            {name: partial(_idle_mib, command) for name, command in commands.items()},
            effort.mcp_memory_rounds,
            warm=False,
        )
    note = "resident memory of a process on stdio after `initialize` and the first `tools/list`"
    targets = (Target("ratio", 1.6),)
    return [compare_all("mcp_memory_idle", "MiB", with_missing_peers(taken), targets, note)]


def _idle_mib(command: Command) -> float:
    with start(command) as server:
        stdio_client.handshake(server)
        stdio_client.list_all(server)
        time.sleep(SETTLE_S)
        return resident_kb(server.pid) / 1024


def streams(effort: Effort) -> list[Figure]:
    """Measure the memory of an open stream, in a new process each time."""
    number = effort.mcp_streams
    fewer = int(number * effort.peer_share)
    with http_commands("sse") as commands:
        taken = take_turns(
            {
                name: partial(_stream_kib, command, number if name in FAST else fewer)
                for name, command in commands.items()
            },
            effort.mcp_memory_rounds,
            warm=False,
        )
    note = f"growth of the server per open call, with {number:,} open calls ({fewer:,} for peers)"
    targets = (Target("value", 16.0),)
    return [compare_all("mcp_memory_streams", "KiB", with_missing_peers(taken), targets, note)]


def _stream_kib(command: Command, number: int) -> float:
    with start_http(command) as (server, port), ExitStack() as stack:
        endpoint = http_client.handshake(port)
        for request in range(1, WARMUP_STREAMS + 1):
            http_client.open_stream(stack, port, endpoint.request(messages.call_hold(request)))
        before = stable_kb(server)
        for request in range(WARMUP_STREAMS + 1, WARMUP_STREAMS + number + 1):
            http_client.open_stream(stack, port, endpoint.request(messages.call_hold(request)))
        time.sleep(SETTLE_S)
        return max(resident_kb(server.pid) - before, PAGE_KIB) / number
