"""Progress: what one event costs when each is a notification of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial

from bench.clients import write_all
from bench.mcp import messages, pipes, sockets
from bench.mcp.contenders import (
    http_commands,
    missing,
    start_all,
    start_all_http,
    stdio_commands,
)
from bench.measure import LIMIT, OURS, Effort, Figure, Target, compare_all, take_turns
from bench.servers import Server, ServerGone

__all__ = ("over_sse", "over_stdio")

TARGETS = (Target("ratio", 3.0),)
PROGRESS = b'"method":"notifications/progress"'

#: Takes the number of events; returns the seconds and all that came.
Stream = Callable[[int], tuple[float, bytes]]


def over_stdio(effort: Effort) -> list[Figure]:
    """Lines on a pipe."""
    with stdio_commands() as commands, start_all(commands) as servers:
        streams = {name: partial(_on_pipe, server) for name, server in servers.items()}
        return [_compare("mcp_stream_stdio", streams, effort)]


def over_sse(effort: Effort) -> list[Figure]:
    """Server-sent events that answer a call."""
    with http_commands("sse") as commands, start_all_http(commands) as ports:
        streams = {
            name: partial(_on_socket, sockets.shake_hands(port)) for name, port in ports.items()
        }
        return [_compare("mcp_stream_sse", streams, effort)]


def _on_pipe(server: Server, events: int) -> tuple[float, bytes]:
    begun = time.perf_counter()
    write_all(server.input_fd, messages.call_count(events) + b"\n")
    data = pipes.read_lines(server, events + 1)
    return time.perf_counter() - begun, data


def _on_socket(endpoint: sockets.Endpoint, events: int) -> tuple[float, bytes]:
    return sockets.stream(endpoint.port, endpoint.request(messages.call_count(events)))


def _compare(name: str, streams: Mapping[str, Stream], effort: Effort) -> Figure:
    sizes: dict[str, float] = {}

    def event_us(who: str) -> float:
        events = effort.mcp_events
        if who not in (OURS, LIMIT):
            events = int(events * effort.peer_share)
        seconds, data = streams[who](events)
        if data.count(PROGRESS) != events:
            raise ServerGone(f"{who} sent {data.count(PROGRESS)} of {events} events")
        sizes[who] = len(data) / events
        return seconds / events * 1e6

    taken = take_turns({who: partial(event_us, who) for who in streams}, effort.mcp_rounds)
    shown = ", ".join(f"{size:.0f}" for size in sizes.values())
    note = (
        f"{effort.mcp_events:,} events, each a notification, request to the last byte of the "
        f"answer; bytes per event of ours, the limit and peers: {shown}"
    )
    return compare_all(name, "us/event", missing(taken), TARGETS, note)
