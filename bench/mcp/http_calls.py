"""Short calls over Streamable HTTP: one at a time, and on many connections at once.

A route of Starlette that answers JSON is one more contender: it is what a web service without
MCP costs. Ours is also called by clients that know no handshake.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from bench.mcp import http_client, messages
from bench.mcp.contenders import STARLETTE, Answered, http_commands, missing, start_all_http
from bench.measure import LIMIT, OURS, Effort, Figure, Target, compare_all, percentile, take_turns
from bench.servers import ServerGone

__all__ = ("answered_as_json", "answered_as_sse")

CONNECTIONS = 64
STATELESS = " stateless"
ROUTE = (sys.executable, "-m", "bench.peers.starlette_route")

#: Makes the request with this id.
Ask = Callable[[int], bytes]


def answered_as_json(effort: Effort) -> list[Figure]:
    """Each answer one JSON text."""
    return _measure("json", effort)


def answered_as_sse(effort: Effort) -> list[Figure]:
    """Each answer a stream of one event."""
    return _measure("sse", effort)


def _measure(answered: Answered, effort: Effort) -> list[Figure]:
    with _contenders(answered) as asks:
        singly = take_turns(
            {
                name: partial(_latency_us, port, ask, _share(name, effort.single_calls, effort))
                for name, (port, ask) in asks.items()
            },
            effort.mcp_rounds,
        )
        at_once = take_turns(
            {
                name: partial(_parallel_us, port, ask, _share(name, effort.mcp_posts, effort))
                for name, (port, ask) in asks.items()
            },
            effort.mcp_rounds,
        )
    measure = f"mcp_http_{answered}"
    one, many = "one at a time: the p50", f"one on each of {CONNECTIONS} connections"
    targets = (Target(STARLETTE, 1.0),)
    return [
        *_figures(f"{measure} latency", "us", singly, (), f"calls of an echo, {one}"),
        *_figures(f"{measure} parallel", "us/call", at_once, targets, f"calls of an echo, {many}"),
    ]


def _latency_us(port: int, ask: Ask, calls: int) -> float:
    return percentile(http_client.serially(port, ask(1), calls), 50) * 1e6


def _parallel_us(port: int, ask: Ask, calls: int) -> float:
    requests = [ask(request) for request in range(1, CONNECTIONS + 1)]
    return http_client.parallel(port, requests, calls) / calls * 1e6


def _share(name: str, calls: int, effort: Effort) -> int:
    """How many calls one round has: the fast do all of them."""
    if name.removesuffix(STATELESS) in (OURS, LIMIT, STARLETTE):
        return calls
    return max(int(calls * effort.peer_share), 2 * CONNECTIONS)


def _figures(
    name: str, unit: str, taken: dict[str, list[float]], targets: tuple[Target, ...], note: str
) -> list[Figure]:
    """The figure, and the one of clients that know no handshake beside the same others."""
    stateless = {who: taken.pop(who + STATELESS) for who in (OURS, LIMIT)}
    stateless[STARLETTE] = taken[STARLETTE]
    return [
        compare_all(name, unit, missing(taken), targets, note),
        compare_all(f"{name}{STATELESS}", unit, stateless, targets, f"{note}, without handshake"),
    ]


@contextmanager
def _contenders(answered: Answered) -> Iterator[dict[str, tuple[int, Ask]]]:
    """All of them: where each listens, and how it is asked. Each has answered once."""
    both = http_client.Endpoint(0).accept
    accept = both if answered == "json" else b"text/event-stream"
    with http_commands(answered) as commands:
        commands[STARLETTE] = ROUTE
        with start_all_http(commands) as ports:
            asks: dict[str, tuple[int, Ask]] = {}
            for name, port in ports.items():
                plain = http_client.Endpoint(port, accept)
                if name == STARLETTE:
                    asks[name] = port, partial(_echo, plain)
                    continue
                # Peers want a client to accept both, and go by how they were started.
                endpoint = http_client.shake_hands(port, accept if name in (OURS, LIMIT) else both)
                asks[name] = port, partial(_echo, endpoint)
                if name in (OURS, LIMIT):
                    asks[name + STATELESS] = port, plain.stateless_echo
            for name, (port, ask) in asks.items():
                _check(name, port, ask, "json" if name == STARLETTE else answered)
            yield asks


def _echo(endpoint: http_client.Endpoint, request: int) -> bytes:
    return endpoint.request(messages.call_echo(request))


def _check(name: str, port: int, ask: Ask, answered: str) -> None:
    with http_client.connect(port) as sock:
        answer = http_client.exchange(sock, ask(1))
    kind = {"json": b"application/json", "sse": b"text/event-stream"}[answered]
    right = answer.startswith(b"HTTP/1.1 200 ") and b"content-type: " + kind in answer.lower()
    if not right or messages.ECHOED not in answer:
        raise ServerGone(f"{name} answered {answer[:1000]!r}")
