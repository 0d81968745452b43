"""Measures of progress streams: time per event, and memory per stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial

from bench.clients import write_all
from bench.mcp import http_client, messages, stdio_client
from bench.mcp.contenders import (
    Command,
    http_commands,
    start_all,
    start_all_http,
    stdio_commands,
    with_missing_peers,
)
from bench.measure import LIMIT, OURS, Effort, Figure, Target, compare_all, take_turns
from bench.servers import Server, ServerExited, resident_kb, start_http

__all__ = ("memory", "over_sse", "over_stdio")

TARGETS = (Target("ratio", 3.0),)
PROGRESS = b'"method":"notifications/progress"'

#: Streams opened before measuring, so that one-time allocations do not count.
WARMUP_STREAMS = 20
SETTLE_S = 0.2

#: Takes the number of events; returns the seconds and all received bytes.
Stream = Callable[[int], tuple[float, bytes]]


def over_stdio(effort: Effort) -> list[Figure]:
    """Measure notifications as lines on a pipe."""
    with stdio_commands() as commands, start_all(commands) as servers:
        streams = {name: partial(_on_pipe, server) for name, server in servers.items()}
        return [_compare("mcp_stream_stdio", streams, effort)]


def over_sse(effort: Effort) -> list[Figure]:
    """Measure notifications as server-sent events."""
    with http_commands("sse") as commands, start_all_http(commands) as ports:
        streams = {
            name: partial(_on_socket, http_client.handshake(port)) for name, port in ports.items()
        }
        return [_compare("mcp_stream_sse", streams, effort)]


def _on_pipe(server: Server, events: int) -> tuple[float, bytes]:
    started = time.perf_counter()
    write_all(server.input_fd, messages.call_count(events) + b"\n")
    data = stdio_client.read_lines(server, events + 1)
    return time.perf_counter() - started, data


def _on_socket(endpoint: http_client.Endpoint, events: int) -> tuple[float, bytes]:
    return http_client.stream(endpoint.port, endpoint.request(messages.call_count(events)))


def _compare(name: str, streams: Mapping[str, Stream], effort: Effort) -> Figure:
    sizes: dict[str, float] = {}

    def event_us(who: str) -> float:
        events = effort.mcp_events
        if who not in (OURS, LIMIT):
            events = int(events * effort.peer_share)
        seconds, data = streams[who](events)
        if data.count(PROGRESS) != events:
            raise ServerExited(f"{who} sent {data.count(PROGRESS)} of {events} events")
        sizes[who] = len(data) / events
        return seconds / events * 1e6

    taken = take_turns({who: partial(event_us, who) for who in streams}, effort.mcp_rounds)
    shown = ", ".join(f"{size:.0f}" for size in sizes.values())
    note = (
        f"{effort.mcp_events:,} events, each a notification, request to the last byte of the "
        f"response; bytes per event of ours, the limit and peers: {shown}"
    )
    return compare_all(name, "us/event", with_missing_peers(taken), TARGETS, note)


# --- memory ---------------------------------------------------------------------------------------


def memory(effort: Effort) -> list[Figure]:
    """Measure the memory of an open stream, in a new process each time."""
    number = effort.mcp_streams
    fewer = int(number * effort.peer_share)
    with http_commands("sse") as commands:
        taken = take_turns(
            {
                name: partial(_stream_kib, command, number if name in (OURS, LIMIT) else fewer)
                for name, command in commands.items()
            },
            effort.mcp_memory_rounds,
            warm=False,
        )
    note = f"growth of the server per open call, with {number:,} open calls ({fewer:,} for peers)"
    targets = (Target("value", 24.0),)
    return [compare_all("mcp_memory_streams", "KiB", with_missing_peers(taken), targets, note)]


def _stream_kib(command: Command, number: int) -> float:
    with start_http(command) as (server, port), ExitStack() as stack:
        endpoint = http_client.handshake(port)
        for request in range(1, WARMUP_STREAMS + 1):
            http_client.open_stream(stack, port, endpoint.request(messages.call_hold(request)))
        before = resident_kb(server.pid)
        for request in range(WARMUP_STREAMS + 1, WARMUP_STREAMS + number + 1):
            http_client.open_stream(stack, port, endpoint.request(messages.call_hold(request)))
        time.sleep(SETTLE_S)
        return (resident_kb(server.pid) - before) / number
