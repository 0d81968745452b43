"""Cancelling: how long a tree of processes outlives the word that it is not wanted any more."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.clients import write_all
from bench.measure import Effort, Figure, Target, single
from bench.servers import OURS_STDIO, Server, ServerGone, start

__all__ = ("tree",)

#: One child in a session of its own, one in the background, and the shell that waits for both.
COMMAND = "setsid sleep 300 & echo $!; sleep 300 & echo $!; wait"
POLL_S = 0.001
PATIENCE_S = 10.0


def tree(effort: Effort) -> list[Figure]:
    """From sending `plexus.unsubscribe` until no process of the command is left."""
    with start(OURS_STDIO) as server:
        lines = _lines(server)
        _cancel_ms(server, lines)  # the first starts the supervisor of commands
        taken = [_cancel_ms(server, lines) for _ in range(effort.cancel_rounds)]
    note = "plexus.unsubscribe until three processes, one in its own session, are gone"
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
    begun = time.perf_counter()
    _request(server, 2, "plexus.unsubscribe", {"subscription": number})
    folders = [Path(f"/proc/{pid}") for pid in pids]
    _wait(lambda: not any(folder.exists() for folder in folders))
    taken = (time.perf_counter() - begun) * 1e3
    while next(lines).get("id") != 2:
        pass
    return taken


def _request(server: Server, number: int, method: str, params: dict[str, Any]) -> None:
    message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    write_all(server.input_fd, json.dumps(message).encode() + b"\n")


def _lines(server: Server) -> Iterator[dict[str, Any]]:
    rest = b""
    while data := os.read(server.output_fd, 64 * 1024):
        *lines, rest = (rest + data).split(b"\n")
        yield from map(json.loads, lines)
    raise ServerGone("the output was cut off")


def _session(pid: int) -> int:
    """The session of a process. Its name, in brackets before, may have blanks in it."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[3])


def _wait(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > until:
            raise ServerGone(f"what was waited for did not happen in {PATIENCE_S:g} s")
        time.sleep(POLL_S)
