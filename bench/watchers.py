"""Measures of watchers: what each event of a run costs for every client that follows it live."""

from __future__ import annotations

import json
import re
import selectors
import socket
import time
from contextlib import ExitStack
from typing import Any

from bench.clients import CALL_READ, TERMINAL, masked, open_ws
from bench.measure import Effort, Figure, single
from bench.record_cost import cpu_s
from bench.servers import OURS_HTTP, Server, ServerExited, start_http

__all__ = ("live",)

#: Clients that follow one run, each on its own WebSocket.
WATCHERS = 100
TIMEOUT_S = 60.0
_NUMBER = re.compile(rb'"id":1,"result":(\d+)')


def live(effort: Effort) -> list[Figure]:
    """Measure the CPU of a server for each event and watcher, with one event a millisecond."""
    events = 5 * effort.ticks
    with start_http(OURS_HTTP) as (server, port):
        alone = [_cpu_us(server, port, events, 0) for _ in range(effort.call_rounds // 3 or 1)]
        watched = [_cpu_us(server, port, events, WATCHERS) for _ in alone]
    added = [(many - one) / WATCHERS for many, one in zip(watched, alone, strict=True)]
    note = f"CPU time for each event and watcher; {WATCHERS} WebSockets follow one run with"
    note += f" {events:,} events, one a millisecond, without the cost of the run itself"
    return [single("watchers", "us/event", added, note=note)]


def _cpu_us(server: Server, port: int, events: int, watchers: int) -> float:
    """Return the CPU time of the server for one event of a run with this number of watchers."""
    with ExitStack() as stack:
        owner = stack.enter_context(open_ws(port))
        others = [stack.enter_context(open_ws(port)) for _ in range(watchers)]
        before = cpu_s(server.pid)
        _send(owner, "bench.ticks", {"times": events})
        seen = b""
        while (run := _NUMBER.search(seen)) is None:
            seen += _receive(owner)
        for sock in others:
            _send(sock, "plexus.attach", {"run": int(run[1])})
        _read_all([owner, *others])
        return (cpu_s(server.pid) - before) / events * 1e6


def _send(sock: socket.socket, method: str, params: dict[str, Any]) -> None:
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    sock.sendall(masked(json.dumps(message).encode()))


def _receive(sock: socket.socket) -> bytes:
    data = sock.recv(CALL_READ)
    if not data:
        raise ServerExited("the server closed the connection")
    return data


def _read_all(sockets: list[socket.socket]) -> None:
    """Read every socket up to the end of its stream."""
    until = time.monotonic() + TIMEOUT_S
    with selectors.DefaultSelector() as selector:
        tails = dict.fromkeys(sockets, b"")
        for each in sockets:
            selector.register(each, selectors.EVENT_READ, each)
        while tails:
            ready = selector.select(until - time.monotonic())
            if not ready:
                raise ServerExited("timed out waiting for the end of a stream")
            for key, _ in ready:
                sock: socket.socket = key.data
                data = tails[sock] + _receive(sock)
                tails[sock] = data[-len(TERMINAL) :]
                if TERMINAL in data:
                    selector.unregister(sock)
                    del tails[sock]
