"""Measures of progress streams: time per event, to the first event, and delay of a live event."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial

from bench.clients import STREAM_READ, live_delays_us, read_some, write_all
from bench.mcp import http_client, messages, stdio_client
from bench.mcp.contenders import (
    FAST,
    http_commands,
    start_all,
    start_all_http,
    stdio_commands,
    with_missing_peers,
)
from bench.measure import Effort, Figure, Target, compare_all, percentile, take_turns
from bench.servers import Server, ServerExited

__all__ = ("first_events", "live_events", "over_sse", "over_stdio")

PROGRESS = b'"method":"notifications/progress"'
#: Every result of a tool contains it, and no notification does.
RESULT = b'"result":{'
#: Streams of a round whose first event is timed.
FIRST_STREAMS = 5

#: Takes the number of events; returns the seconds and all received bytes.
Stream = Callable[[int], tuple[float, bytes]]


def over_stdio(effort: Effort) -> list[Figure]:
    """Measure notifications as lines on a pipe."""
    with stdio_commands() as commands, start_all(commands) as servers:
        streams = {name: partial(_on_pipe, server) for name, server in servers.items()}
        return [_compare("mcp_stream_stdio", streams, 3.0, effort)]


def over_sse(effort: Effort) -> list[Figure]:
    """Measure notifications as server-sent events."""
    with http_commands("sse") as commands, start_all_http(commands) as ports:
        streams = {
            name: partial(_on_socket, http_client.handshake(port)) for name, port in ports.items()
        }
        return [_compare("mcp_stream_sse", streams, 1.5, effort)]


def _on_pipe(server: Server, events: int) -> tuple[float, bytes]:
    started = time.perf_counter()
    write_all(server.input_fd, messages.call_count(events) + b"\n")
    data = stdio_client.read_lines(server, events + 1)
    return time.perf_counter() - started, data


def _on_socket(endpoint: http_client.Endpoint, events: int) -> tuple[float, bytes]:
    return http_client.stream(endpoint.port, endpoint.request(messages.call_count(events)))


def _compare(name: str, streams: Mapping[str, Stream], target: float, effort: Effort) -> Figure:
    sizes: dict[str, float] = {}

    def event_us(who: str) -> float:
        events = effort.mcp_events
        if who not in FAST:
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
    return compare_all(
        name, "us/event", with_missing_peers(taken), (Target("ratio", target),), note
    )


# --- the first event ------------------------------------------------------------------------------


def first_events(effort: Effort) -> list[Figure]:
    """Measure the time from a call to its first notification, of a stream that never waits."""
    with stdio_commands() as commands, start_all(commands) as servers:
        on_pipes = _first_figure(
            "mcp_first_event stdio",
            {name: partial(_first_on_pipe, server) for name, server in servers.items()},
            effort,
        )
    with http_commands("sse") as commands, start_all_http(commands) as ports:
        endpoints = {name: http_client.handshake(port) for name, port in ports.items()}
        on_sockets = _first_figure(
            "mcp_first_event sse",
            {name: partial(_first_on_socket, endpoint) for name, endpoint in endpoints.items()},
            effort,
        )
    return [on_pipes, on_sockets]


def _first_figure(name: str, sides: Mapping[str, Callable[[int], float]], effort: Effort) -> Figure:
    events = effort.mcp_events

    def round_us(who: str) -> float:
        number = events if who in FAST else int(events * effort.peer_share)
        return statistics.median(sides[who](number) for _ in range(FIRST_STREAMS)) * 1e6

    taken = take_turns({who: partial(round_us, who) for who in sides}, effort.mcp_rounds)
    note = f"call to the first of {events:,} notifications that are ready"
    targets = (Target("ratio", 2.5),)
    return compare_all(name, "us", with_missing_peers(taken), targets, note)


def _first_on_pipe(server: Server, events: int) -> float:
    write = partial(write_all, server.input_fd)
    read = partial(read_some, server.output_fd, STREAM_READ)
    return _first(write, read, messages.call_count(events) + b"\n", lambda tail: tail[-1:] == b"\n")


def _first_on_socket(endpoint: http_client.Endpoint, events: int) -> float:
    request = endpoint.request(messages.call_count(events))
    with http_client.connect(endpoint.port) as sock:
        return _first(
            sock.sendall,
            partial(http_client.receive, sock, STREAM_READ),
            request,
            # A short response is not chunked.
            lambda tail: tail.endswith((http_client.LAST_CHUNK, b"}\n\n")),
        )


def _first(
    write: Callable[[bytes], object],
    read: Callable[[], bytes],
    request: bytes,
    is_end: Callable[[bytes], bool],
) -> float:
    """Return the seconds until the first notification, and read up to the end of the result."""
    started = time.perf_counter()
    write(request)
    seen = read()
    while PROGRESS not in seen:
        seen += read()
    taken = time.perf_counter() - started
    has_result = RESULT in seen
    while not (has_result and is_end(seen)):
        data = seen[-len(RESULT) :] + read()
        has_result = has_result or RESULT in data
        seen = data
    return taken


# --- live events ----------------------------------------------------------------------------------


def live_events(effort: Effort) -> list[Figure]:
    """Measure how late the client has an event, of a stream with one event a millisecond."""
    times = effort.ticks
    with http_commands("sse") as commands, start_all_http(commands) as ports:
        endpoints = {name: http_client.handshake(port) for name, port in ports.items()}

        def round_us(who: str) -> float:
            request = endpoints[who].request(messages.call_ticks(times))
            with http_client.connect(ports[who]) as sock:
                sock.sendall(request)
                read = partial(http_client.receive, sock, STREAM_READ)
                return percentile(live_delays_us(read, times), 50)

        taken = take_turns({who: partial(round_us, who) for who in endpoints}, effort.mcp_rounds)
    note = f"p50 of {times} events, one a millisecond, from the event to the client"
    targets = (Target("ratio", 1.5),)
    return [compare_all("mcp_live_delay", "us", with_missing_peers(taken), targets, note)]
