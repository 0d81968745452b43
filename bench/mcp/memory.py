"""Resident memory of a server with many open streams, each a call that goes on."""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import partial

from bench.mcp import messages, sockets
from bench.mcp.contenders import Command, http_commands, missing
from bench.measure import LIMIT, OURS, Effort, Figure, Target, compare_all, take_turns
from bench.servers import resident_kb, start_http

__all__ = ("streams",)

#: After so many streams everything that is needed once has been made.
WARM_STREAMS = 20
SETTLE_S = 0.2


def streams(effort: Effort) -> list[Figure]:
    """What one more open stream costs, each time in a new process."""
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
    note = f"growth of the server with {number:,} open calls ({fewer:,} with peers), for each"
    targets = (Target("value", 24.0),)
    return [compare_all("mcp_memory_streams", "KiB", missing(taken), targets, note)]


def _stream_kib(command: Command, number: int) -> float:
    with start_http(command) as (server, port), ExitStack() as stack:
        endpoint = sockets.shake_hands(port)
        for request in range(1, WARM_STREAMS + 1):
            sockets.hold(stack, port, endpoint.request(messages.call_hold(request)))
        before = resident_kb(server.pid)
        for request in range(WARM_STREAMS + 1, WARM_STREAMS + number + 1):
            sockets.hold(stack, port, endpoint.request(messages.call_hold(request)))
        time.sleep(SETTLE_S)
        return (resident_kb(server.pid) - before) / number
