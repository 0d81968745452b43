"""Measures of short calls over Streamable HTTP: sequential, and on many connections.

A Starlette route that returns JSON is an additional contender: it shows the cost of a web service
without MCP. The program is also called by clients without a handshake.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from bench.mcp import http_client, messages
from bench.mcp.contenders import (
    FAST,
    STARLETTE,
    ResponseFormat,
    http_commands,
    ours_http,
    start_all_http,
    with_missing_peers,
)
from bench.measure import (
    ASGI,
    LIMIT,
    OURS,
    Effort,
    Figure,
    Target,
    compare_all,
    percentile,
    single,
    take_turns,
)
from bench.servers import ServerExited, start_http

__all__ = ("health_checks", "json_responses", "sse_responses")

CONNECTIONS = 64
STATELESS = " stateless"
ROUTE = (sys.executable, "-m", "bench.peers.starlette_route")
#: Contenders that follow the Accept header.
OWN = (OURS, LIMIT, ASGI)
#: At least this rate, and at most this time for 99 of 100 calls.
HEALTH_PER_S = 5_000
HEALTH_P99_MS = 15.0

#: Returns the request with this id.
RequestFactory = Callable[[int], bytes]


def json_responses(effort: Effort) -> list[Figure]:
    """Measure responses as JSON."""
    return _measure("json", effort)


def sse_responses(effort: Effort) -> list[Figure]:
    """Measure responses as a stream of one event."""
    return _measure("sse", effort)


def health_checks(effort: Effort) -> list[Figure]:
    """Measure calls of `health.check`, which all hosts make."""
    calls = effort.mcp_posts
    with start_http(ours_http()) as (_, port):
        endpoint = http_client.handshake(port)
        with http_client.connect(port) as sock:
            answer = http_client.exchange(sock, endpoint.request(messages.call_health()))
        if not answer.startswith(b"HTTP/1.1 200 ") or b'"isError":false' not in answer:
            raise ServerExited(f"health.check answered {answer[:1000]!r}")
        requests = [
            (port, endpoint.request(messages.call_health(each)))
            for each in range(1, CONNECTIONS + 1)
        ]
        rounds: list[tuple[float, float]] = []
        for number in range(effort.mcp_rounds + 1):
            taken: list[float] = []
            seconds = http_client.call_parallel(requests, calls, taken)
            if number:  # the first round warms up
                rounds.append((seconds / calls * 1e6, percentile(taken, 99) * 1e3))
    note = f"calls of health.check over HTTP, one on each of {CONNECTIONS} connections"
    each_us, p99_ms = ([each[column] for each in rounds] for column in (0, 1))
    rate = 1e6 / sorted(each_us)[len(each_us) // 2]
    return [
        single(
            "health_check",
            "us/call",
            each_us,
            Target("value", 1e6 / HEALTH_PER_S),
            f"{note}: {rate:,.0f} a second",
        ),
        single("health_check p99", "ms", p99_ms, Target("value", HEALTH_P99_MS), f"p99 of {note}"),
    ]


def _measure(response_format: ResponseFormat, effort: Effort) -> list[Figure]:
    with _contenders(response_format) as clients:
        sequential = take_turns(
            {
                name: partial(_latency_us, port, make, _share(name, effort.single_calls, effort))
                for name, (port, make) in clients.items()
            },
            effort.mcp_rounds,
        )
        parallel = take_turns(
            {
                name: partial(_parallel_us, port, make, _share(name, effort.mcp_posts, effort))
                for name, (port, make) in clients.items()
            },
            effort.mcp_rounds,
        )
    measure = f"mcp_http_{response_format}"
    one, many = "sequential, p50", f"one on each of {CONNECTIONS} connections"
    targets = (Target("ratio", 4.0), Target(STARLETTE, 1.0))
    return [
        *_figures(f"{measure} latency", "us", sequential, (), f"calls of an echo, {one}"),
        *_figures(f"{measure} parallel", "us/call", parallel, targets, f"calls of an echo, {many}"),
    ]


def _latency_us(port: int, make: RequestFactory, calls: int) -> float:
    return percentile(http_client.call_serially(port, make(1), calls), 50) * 1e6


def _parallel_us(port: int, make: RequestFactory, calls: int) -> float:
    requests = [(port, make(request)) for request in range(1, CONNECTIONS + 1)]
    return http_client.call_parallel(requests, calls) / calls * 1e6


def _share(name: str, calls: int, effort: Effort) -> int:
    """Return the number of calls per round. Peers make fewer."""
    if name.removesuffix(STATELESS) in FAST:
        return calls
    return max(int(calls * effort.peer_share), 2 * CONNECTIONS)


def _figures(
    name: str, unit: str, taken: dict[str, list[float]], targets: tuple[Target, ...], note: str
) -> list[Figure]:
    """Return the figure, and the figure for clients without a handshake."""
    stateless = {who: taken.pop(who + STATELESS) for who in (OURS, LIMIT)}
    stateless[STARLETTE] = taken[STARLETTE]
    return [
        compare_all(name, unit, with_missing_peers(taken), targets, note),
        compare_all(f"{name}{STATELESS}", unit, stateless, targets, f"{note}, without handshake"),
    ]


@contextmanager
def _contenders(response_format: ResponseFormat) -> Iterator[dict[str, tuple[int, RequestFactory]]]:
    """Start all contenders. Yields the port and request factory of each, after a checked call."""
    both = http_client.Endpoint(0).accept
    accept = both if response_format == "json" else b"text/event-stream"
    with http_commands(response_format) as commands:
        commands[STARLETTE] = ROUTE
        with start_all_http(commands) as ports:
            clients: dict[str, tuple[int, RequestFactory]] = {}
            for name, port in ports.items():
                plain = http_client.Endpoint(port, accept)
                if name == STARLETTE:
                    clients[name] = port, partial(_echo, plain)
                    continue
                # Peers require that a client accepts both, and follow their command line.
                endpoint = http_client.handshake(port, accept if name in OWN else both)
                clients[name] = port, partial(_echo, endpoint)
                if name in (OURS, LIMIT):
                    clients[name + STATELESS] = port, plain.stateless_echo
            for name, (port, make) in clients.items():
                _check(name, port, make, "json" if name == STARLETTE else response_format)
            yield clients


def _echo(endpoint: http_client.Endpoint, request: int) -> bytes:
    return endpoint.request(messages.call_echo(request))


def _check(name: str, port: int, make: RequestFactory, response_format: str) -> None:
    with http_client.connect(port) as sock:
        answer = http_client.exchange(sock, make(1))
    kind = {"json": b"application/json", "sse": b"text/event-stream"}[response_format]
    right = answer.startswith(b"HTTP/1.1 200 ") and b"content-type: " + kind in answer.lower()
    if not right or messages.ECHOED not in answer:
        raise ServerExited(f"{name} response_format {answer[:1000]!r}")
