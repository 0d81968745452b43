"""Servers that processes start in the background, for tests that have their own state folder."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from child_processes import is_alive

from substrate.security.lockfile import RunningServer, find_running, lock_folder

__all__ = ("eventually", "kill_servers", "servers")

T = TypeVar("T")
WAIT_S = 30.0


def eventually(found: Callable[[], T | None], what: str, within_s: float = WAIT_S) -> T:
    """Wait until a function returns a true value, and return it."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        value = found()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"not in {within_s:g} s: {what}")


def servers() -> list[RunningServer]:
    """Return the servers that are running."""
    ports = [int(path.stem) for path in lock_folder().glob("*.json")]
    return [server for port in ports if (server := find_running(port)) is not None]


def kill_servers() -> None:
    """Kill all servers and wait until they are gone."""
    for server in servers():
        with suppress(ProcessLookupError):
            os.kill(server.pid, signal.SIGKILL)
        eventually(partial(_is_gone, server.pid), "the server is gone")


def _is_gone(pid: int) -> bool:
    return not is_alive(pid)
