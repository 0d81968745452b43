"""Streams: what one event costs on each transport, in a long stream of small ones."""

from __future__ import annotations

from collections.abc import Callable

from bench.clients import stream_sse, stream_stdio, stream_ws
from bench.measure import Effort, Figure, Target, compare, interleave
from bench.servers import LIMIT_ASGI, LIMIT_STDIO, OURS_HTTP, OURS_STDIO, start, start_http

__all__ = ("over_sse", "over_stdio", "over_ws")

TARGET = Target("ratio", 1.5)

#: Runs one stream and returns its seconds and its bytes.
Stream = Callable[[], tuple[float, int]]


def over_stdio(effort: Effort) -> list[Figure]:
    """Lines on a pipe."""
    events = effort.stream_events
    with start(OURS_STDIO) as ours, start(LIMIT_STDIO) as limit:
        return [
            _compare(
                "stream_stdio",
                lambda: stream_stdio(ours, events),
                lambda: stream_stdio(limit, events),
                effort,
            )
        ]


def over_sse(effort: Effort) -> list[Figure]:
    """Server-sent events on a socket."""
    return [_over_http("stream_sse", stream_sse, effort)]


def over_ws(effort: Effort) -> list[Figure]:
    """WebSocket messages on a socket."""
    return [_over_http("stream_ws", stream_ws, effort)]


def _over_http(
    name: str, client: Callable[[int, int], tuple[float, int]], effort: Effort
) -> Figure:
    events = effort.stream_events
    with start_http(OURS_HTTP) as (_, ours), start_http(LIMIT_ASGI) as (_, limit):
        return _compare(name, lambda: client(ours, events), lambda: client(limit, events), effort)


def _compare(name: str, ours: Stream, limit: Stream, effort: Effort) -> Figure:
    events = effort.stream_events
    mine, best = interleave(ours, limit, effort.stream_rounds)
    sizes = mine[0][1] / events, best[0][1] / events
    note = f"{events:,} events, request to last byte; bytes per event %.0f and %.0f" % sizes
    return compare(
        name,
        "us/event",
        [seconds / events * 1e6 for seconds, _ in mine],
        [seconds / events * 1e6 for seconds, _ in best],
        TARGET,
        note,
    )
