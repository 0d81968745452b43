"""Cold start: from starting the process to the first event of its first answer."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from bench.clients import ask_count, write_all
from bench.measure import Effort, Figure, Target, compare, interleave
from bench.servers import LIMIT_STDIO, OURS_STDIO, ServerGone, start

__all__ = ("cold_start",)

FIRST_ITEM = b'"seq":1,"result":{"type":"content","text":"1 "}}}\n'


def cold_start(effort: Effort) -> list[Figure]:
    """Both commands in turn, each time a new process."""
    ours, limit = interleave(
        lambda: _first_answer(OURS_STDIO), lambda: _first_answer(LIMIT_STDIO), effort.start_rounds
    )
    note = "process start to the reply and first item of a call on stdio"
    return [compare("cold_start", "ms", ours, limit, Target("ratio", 3.0), note)]


def _first_answer(command: Sequence[str]) -> float:
    request = ask_count(1) + b"\n"
    begun = time.perf_counter()
    with start(command) as server:
        write_all(server.input_fd, request)
        seen = b""
        while FIRST_ITEM not in seen:
            data = os.read(server.output_fd, 64 * 1024)
            if not data:
                raise ServerGone("the output was cut off")
            seen += data
        return (time.perf_counter() - begun) * 1e3
