"""Measures of `--background`: a front and its server, against runs in the same process."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from bench.clients import (
    CALL_READ,
    TERMINAL,
    call_sequentially,
    count_request_line,
    read_some,
    read_until,
    write_all,
)
from bench.measure import Effort, Figure, Target, compare, interleave, percentile
from bench.servers import (
    OURS_SERVER,
    OURS_STDIO,
    Server,
    port_of,
    scratch_folder,
    start,
)

__all__ = ("call_latency", "start_latency")

FRONT = (*OURS_STDIO, "--background")
END = TERMINAL + b"\n"


@contextmanager
def project_server() -> Iterator[Mapping[str, str]]:
    """Start the server that fronts find. Yields the environment variables that lead to it."""
    with scratch_folder() as folder:
        variables = {name: str(folder) for name in ("XDG_STATE_HOME", "XDG_DATA_HOME")}
        with start(OURS_SERVER, variables) as server:
            port_of(server)
            yield variables


def start_latency(effort: Effort) -> list[Figure]:
    """Measure the time from process start to the end of the first call."""
    with project_server() as variables:
        front, process = interleave(
            lambda: _first_call(FRONT, variables),
            lambda: _first_call(OURS_STDIO, variables),
            effort.start_rounds,
        )
    note = "process start to the end of a call; limit: runs in the same process"
    return [compare("front_start", "ms", front, process, Target("ratio", 1.0), note)]


def _first_call(command: Sequence[str], variables: Mapping[str, str]) -> float:
    started = time.perf_counter()
    with start(command, variables) as server:
        write_all(server.input_fd, count_request_line(1))
        read_until(lambda: read_some(server.output_fd, CALL_READ), END)
        return (time.perf_counter() - started) * 1e3


def call_latency(effort: Effort) -> list[Figure]:
    """Measure sequential calls."""

    def block(server: Server) -> float:
        taken = call_sequentially(server, count_request_line(1), END, effort.single_calls)
        return percentile(taken, 50) * 1e6

    with (
        project_server() as variables,
        start(FRONT, variables) as front,
        start(OURS_STDIO, variables) as process,
    ):
        mine, best = interleave(lambda: block(front), lambda: block(process), effort.call_rounds)
    added = percentile([one - other for one, other in zip(mine, best, strict=True)], 50)
    note = (
        f"median of {effort.single_calls} sequential calls; limit: runs in the same process; "
        f"added by the front: {added:+.0f} us"
    )
    return [compare("front_call", "us", mine, best, None, note)]
