"""Measures of Python sessions: their start, one evaluation, and many lines of output.

Calls are made in this process, without a wire. An evaluation is measured in addition to the time
that its code takes in the session.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from typing import Final

from activations.evaluate import Evaluate
from activations.evaluate.events import Evaluated
from bench.measure import Effort, Figure, Target, single
from plexus import Plexus

__all__ = ("sessions",)

STARTS: Final = 8
LINES: Final = 10_000


def sessions(effort: Effort) -> list[Figure]:
    """Measure the start of a session, a short evaluation, and 10,000 lines of output."""
    return asyncio.run(_measure(effort))


async def _measure(effort: Effort) -> list[Figure]:
    hub = Plexus()
    hub.register(Evaluate())
    try:
        await _evaluate(hub, "1", "first")  # starts the supervisor too
        starts = [(await _evaluate(hub, "1", str(number)))[0] for number in range(STARTS)]
        calls = [await _evaluate(hub, "3 + 4", "first") for _ in range(effort.single_calls)]
        code = f"for number in range({LINES}): print('line', number)"
        lines = [(await _evaluate(hub, code, "first"))[0] for _ in range(effort.call_rounds)]
    finally:
        await hub.close()
    beyond = [taken - inside for taken, inside in calls]
    return [
        single("python_start", "ms", starts, Target("value", 300), "a new session and `1`"),
        single("python_call", "ms", beyond, Target("value", 5), "`3 + 4`, beyond its execution"),
        single("python_lines", "ms", lines, None, f"{LINES:,} lines of print"),
    ]


async def _evaluate(hub: Plexus, code: str, session: str) -> tuple[float, float]:
    """Return the milliseconds of an evaluation, and those in the session."""
    started = time.perf_counter()
    call = hub.call("python.evaluate", {"expression": code, "session": session})
    inside = 0.0
    async with aclosing(call.run.batches(call.after, owner=call.owned)) as batches:
        async for batch in batches:
            if isinstance(end := batch.events[-1], Evaluated):
                inside = end.duration_ms
    return (time.perf_counter() - started) * 1000, inside
