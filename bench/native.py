"""Measures of the native protocol: cold start, streams, short calls and cancellation."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.clients import (
    CALL_READ,
    STREAM_READ,
    TERMINAL,
    call_pipelined,
    call_sequentially,
    count_request,
    count_request_line,
    first_event,
    live_delays_us,
    masked,
    open_ws,
    read_some,
    sse_request,
    stream_sse,
    stream_stdio,
    stream_ws,
    streams_ws,
    write_all,
    ws_request,
)
from bench.measure import (
    ASGI,
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
from bench.servers import (
    BARE_ASGI,
    LIMIT_HTTP,
    LIMIT_STDIO,
    LIMIT_WEBSOCKET,
    OURS_HTTP,
    OURS_STDIO,
    Server,
    ServerExited,
    start,
    start_http,
)

__all__ = (
    "cancel_tree",
    "cold_start",
    "first_events",
    "latency",
    "live_events",
    "over_sse",
    "over_stdio",
    "over_ws",
    "pipelined",
)

FIRST_ITEM = b'"seq":1,"result":{"type":"content","text":"1 "}}}\n'
#: Runs a stream and returns its seconds and bytes.
Stream = Callable[[], tuple[float, int]]
IN_FLIGHT = 64
#: Concurrent streams on one WebSocket.
SUBSCRIPTIONS = 100
#: Events of the stream whose first event is timed.
FIRST_OF = 5_000
END = TERMINAL + b"\n"
#: A child in a separate session, a child in the background, and the shell that waits for both.
COMMAND = "setsid sleep 300 & echo $!; sleep 300 & echo $!; wait"
POLL_S = 0.001
TIMEOUT_S = 10.0


def cold_start(effort: Effort) -> list[Figure]:
    """Measure the time from process start to the first item, in a new process each time."""
    ours, limit = interleave(
        lambda: _first_answer(OURS_STDIO), lambda: _first_answer(LIMIT_STDIO), effort.start_rounds
    )
    note = "process start to the reply and first item of a call on stdio"
    return [compare("cold_start", "ms", ours, limit, Target("ratio", 3.0), note)]


def _first_answer(command: Sequence[str]) -> float:
    request = count_request(1) + b"\n"
    started = time.perf_counter()
    with start(command) as server:
        write_all(server.input_fd, request)
        seen = b""
        while FIRST_ITEM not in seen:
            seen += read_some(server.output_fd, CALL_READ)
        return (time.perf_counter() - started) * 1e3


# --- streams --------------------------------------------------------------------------------------


def over_stdio(effort: Effort) -> list[Figure]:
    """Measure events as lines on a pipe."""
    events = effort.stream_events
    with start(OURS_STDIO) as ours, start(LIMIT_STDIO) as limit:
        return [
            _compare(
                "stream_stdio",
                {
                    OURS: (lambda: stream_stdio(ours, events), events),
                    LIMIT: (lambda: stream_stdio(limit, events), events),
                },
                effort,
            )
        ]


def over_sse(effort: Effort) -> list[Figure]:
    """Measure server-sent events on a socket."""
    return [_over_http("stream_sse", stream_sse, effort, LIMIT_HTTP)]


def over_ws(effort: Effort) -> list[Figure]:
    """Measure WebSocket messages: of one subscription, and of a hundred on one connection."""

    def hundred(port: int, events: int) -> tuple[float, int]:
        return streams_ws(port, events // SUBSCRIPTIONS, SUBSCRIPTIONS)

    return [
        _over_http("stream_ws", stream_ws, effort, LIMIT_WEBSOCKET),
        _over_http(f"stream_ws {SUBSCRIPTIONS}", hundred, effort, LIMIT_WEBSOCKET),
    ]


def _over_http(
    name: str,
    client: Callable[[int, int], tuple[float, int]],
    effort: Effort,
    limit_command: Sequence[str],
) -> Figure:
    """Compare the program with the limit, and with bare ASGI, which streams fewer events."""
    events = effort.stream_events
    fewer = max(int(events * effort.peer_share), SUBSCRIPTIONS)
    with (
        start_http(OURS_HTTP) as (_, ours),
        start_http(limit_command) as (_, limit),
        start_http(BARE_ASGI) as (_, asgi),
    ):
        return _compare(
            name,
            {
                OURS: (lambda: client(ours, events), events),
                LIMIT: (lambda: client(limit, events), events),
                ASGI: (lambda: client(asgi, fewer), fewer),
            },
            effort,
        )


def _compare(name: str, streams: Mapping[str, tuple[Stream, int]], effort: Effort) -> Figure:
    """Compare streams, each with its number of events."""
    taken = take_turns({who: stream for who, (stream, _) in streams.items()}, effort.stream_rounds)
    sizes = [taken[who][0][1] / streams[who][1] for who in (OURS, LIMIT)]
    note = f"{effort.stream_events:,} events, request to last byte; bytes per event {sizes[0]:.0f}"
    note += f" and {sizes[1]:.0f}"
    each_us = {
        who: [seconds / streams[who][1] * 1e6 for seconds, _ in rounds]
        for who, rounds in taken.items()
    }
    return compare_all(name, "us/event", each_us, (Target("ratio", 1.5),), note)


def first_events(effort: Effort) -> list[Figure]:
    """Measure the time from a request to the first event of a stream that never waits."""
    with (
        start(OURS_STDIO) as ours,
        start(LIMIT_STDIO) as limit,
        start_http(OURS_HTTP) as (_, ours_http),
        start_http(LIMIT_HTTP) as (_, limit_http),
        start_http(LIMIT_WEBSOCKET) as (_, limit_ws),
    ):
        sides = {
            "stdio": (partial(_first_on_pipe, ours), partial(_first_on_pipe, limit)),
            "sse": (partial(_first_on_sse, ours_http), partial(_first_on_sse, limit_http)),
            "ws": (partial(_first_on_ws, ours_http), partial(_first_on_ws, limit_ws)),
        }
        note = f"request to the first of {FIRST_OF:,} events that are ready"
        return [
            compare(
                f"first_event {name}",
                "us",
                *interleave(mine, best, effort.single_calls // 5),
                Target("ratio", 2.5),
                note,
            )
            for name, (mine, best) in sides.items()
        ]


def _first_on_pipe(server: Server) -> float:
    return 1e6 * first_event(
        lambda: os.read(server.output_fd, STREAM_READ),
        partial(write_all, server.input_fd),
        count_request(FIRST_OF) + b"\n",
    )


def _first_on_sse(port: int) -> float:
    with socket.create_connection(("127.0.0.1", port)) as sock:
        return 1e6 * first_event(
            lambda: sock.recv(STREAM_READ), sock.sendall, sse_request(port, FIRST_OF)
        )


def _first_on_ws(port: int) -> float:
    with open_ws(port) as sock:
        return 1e6 * first_event(lambda: sock.recv(STREAM_READ), sock.sendall, ws_request(FIRST_OF))


def live_events(effort: Effort) -> list[Figure]:
    """Measure how late the client has an event, of a stream with one event a millisecond."""
    times = effort.ticks
    message = b'{"jsonrpc":"2.0","id":1,"method":"bench.ticks","params":{"times":%d}}' % times

    def round_us(port: int) -> float:
        with open_ws(port) as sock:
            sock.sendall(masked(message))
            return percentile(live_delays_us(lambda: sock.recv(STREAM_READ), times), 50)

    with start_http(OURS_HTTP) as (_, ours), start_http(LIMIT_WEBSOCKET) as (_, limit):
        mine, best = interleave(
            lambda: round_us(ours), lambda: round_us(limit), effort.stream_rounds
        )
    note = f"p50 of {times} events, one a millisecond, from the event to the client of a WebSocket"
    return [compare("live_delay ws", "us", mine, best, Target("ratio", 1.5), note)]


# --- short calls ----------------------------------------------------------------------------------


def latency(effort: Effort) -> list[Figure]:
    """Measure sequential calls: reply, item and terminal."""

    def block(server: Server) -> tuple[float, float]:
        taken = call_sequentially(server, count_request_line(1), END, effort.single_calls)
        return percentile(taken, 50) * 1e6, percentile(taken, 99) * 1e6

    with start(OURS_STDIO) as ours, start(LIMIT_STDIO) as limit:
        mine, best = interleave(lambda: block(ours), lambda: block(limit), effort.call_rounds)
    note = f"of {effort.single_calls} sequential calls: reply, item, terminal"
    return [
        compare(
            f"calls_latency {name}",
            "us",
            [round_[column] for round_ in mine],
            [round_[column] for round_ in best],
            None,
            f"{name} {note}",
        )
        for column, name in enumerate(("p50", "p99"))
    ]


def pipelined(effort: Effort) -> list[Figure]:
    """Measure many concurrent calls on one connection."""
    calls = effort.pipelined_calls

    def block(server: Server) -> float:
        return call_pipelined(server, count_request_line, END, calls, IN_FLIGHT) / calls * 1e6

    with start(OURS_STDIO) as ours, start(LIMIT_STDIO) as limit:
        mine, best = interleave(lambda: block(ours), lambda: block(limit), effort.call_rounds)
    figure = compare("calls_pipelined", "us/call", mine, best, Target("ratio", 3.5))
    assert figure.limit is not None
    rates = 1e6 / figure.ours.median, 1e6 / figure.limit.median
    note = f"{IN_FLIGHT} in flight; calls per second: %s and %s"
    return [dataclasses.replace(figure, note=note % tuple(f"{rate:,.0f}" for rate in rates))]


# --- cancellation ---------------------------------------------------------------------------------


def cancel_tree(effort: Effort) -> list[Figure]:
    """Measure the time from `plexus.unsubscribe` until all processes of a command are gone."""
    with start(OURS_STDIO) as server:
        lines = _lines(server)
        _cancel_ms(server, lines)  # warm-up: the first command starts the process supervisor
        taken = [_cancel_ms(server, lines) for _ in range(effort.cancel_rounds)]
    note = "plexus.unsubscribe until three processes, one in a separate session, are gone"
    return [single("cancel_tree", "ms", taken, Target("value", 100.0), note)]


def _cancel_ms(server: Server, lines: Iterator[dict[str, Any]]) -> float:
    _request(server, 1, "bash.execute", {"command": COMMAND})
    number = next(lines)["result"]
    pids = [next(lines)["params"]["result"]["pid"]]
    text = ""
    while text.count("\n") < 2:
        text += next(lines)["params"]["result"]["data"]
    pids += map(int, text.split())
    _wait(lambda: _session(pids[1]) == pids[1])
    started = time.perf_counter()
    _request(server, 2, "plexus.unsubscribe", {"subscription": number})
    folders = [Path(f"/proc/{pid}") for pid in pids]
    _wait(lambda: not any(folder.exists() for folder in folders))
    taken = (time.perf_counter() - started) * 1e3
    while next(lines).get("id") != 2:
        pass
    return taken


def _request(server: Server, number: int, method: str, params: dict[str, Any]) -> None:
    message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    write_all(server.input_fd, json.dumps(message).encode() + b"\n")


def _lines(server: Server) -> Iterator[dict[str, Any]]:
    rest = b""
    while True:
        *lines, rest = (rest + read_some(server.output_fd, CALL_READ)).split(b"\n")
        yield from map(json.loads, lines)


def _session(pid: int) -> int:
    """Return the session of a process. The name in parentheses may contain spaces."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[3])


def _wait(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > until:
            raise ServerExited(f"timed out after {TIMEOUT_S:g} s")
        time.sleep(POLL_S)
