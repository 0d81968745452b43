"""Cold start: from starting the process to its first answer."""

from __future__ import annotations

import time
from functools import partial

from bench.mcp import messages, pipes
from bench.mcp.contenders import Command, missing, stdio_commands
from bench.measure import LIMIT, OURS, Effort, Figure, Target, compare_all, take_turns
from bench.servers import start

__all__ = ("cold_start",)

TARGETS = (Target("ratio", 3.0),)
DISCOVER = " discover"


def cold_start(effort: Effort) -> list[Figure]:
    """All in turn, each time a new process; ours and the limit both ways of beginning."""
    with stdio_commands() as commands:
        sides = {
            name: partial(_first_answer, command, messages.initialize())
            for name, command in commands.items()
        }
        for name in (OURS, LIMIT):
            sides[name + DISCOVER] = partial(_first_answer, commands[name], messages.discover())
        taken = take_turns(sides, effort.mcp_start_rounds)
    discovered = {name: taken.pop(name + DISCOVER) for name in (OURS, LIMIT)}
    note = "process start to the answer to %s on stdio"
    return [
        compare_all("mcp_start", "ms", missing(taken), TARGETS, note % "`initialize`"),
        compare_all("mcp_start discover", "ms", discovered, TARGETS, note % "`server/discover`"),
    ]


def _first_answer(command: Command, message: bytes) -> float:
    begun = time.perf_counter()
    with start(command) as server:
        pipes.exchange(server, message)
        return (time.perf_counter() - begun) * 1e3
