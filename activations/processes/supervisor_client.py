"""The server's side of one supervisor: its process, its requests and its replacement.

A command can stop or kill the supervisor, so every wait for it has a deadline, and a supervisor
that was stopped is not trusted again: it is killed, and the server takes over its children
(`descendants.py`). Guards whose supervisor is dead continue to work.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from activations.processes.descendants import (
    HELPERS,
    is_stopped,
    kill_orphans,
    sweep_orphans,
)
from activations.processes.pipes import resolve

__all__ = ("CannotStart", "Command", "SupervisorClient")

#: Timeout for a supervisor to kill orphans, and to exit with all of its guards.
SWEEP_S = 2.0

#: Interval for checking whether a supervisor that has not replied was stopped.
POLL_S = 0.1

#: Interval for checking whether a killed or exiting supervisor can be reaped.
REAP_S = 0.001

#: A separate program: the bare interpreter with two of our modules.
_PROGRAM = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from activations.processes.supervisor import main; main()"
)
_ROOT = Path(__file__).parents[2]


class CannotStart(Exception):
    """The command did not start. `step` is the step that failed and `errno` the reason."""

    def __init__(self, step: str, number: int) -> None:
        super().__init__(f"{step}: {os.strerror(number)}")
        self.step = step
        self.errno = number


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """A program to run. The first argument is the path of the program."""

    arguments: tuple[str, ...]
    directory: str
    environment: Mapping[str, str]
    #: Resource limits by name, as in {"CORE": 0}.
    limits: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the request in the supervisor's format. Raises ValueError for a NUL character."""
        fields = [
            self.directory,
            str(len(self.limits)),
            *(f"{name} {value}" for name, value in self.limits.items()),
            str(len(self.arguments)),
            *self.arguments,
            *(f"{name}={value}" for name, value in self.environment.items()),
        ]
        for field in fields:
            if "\0" in field:
                raise ValueError(f"a NUL character in {field[:40]!r}")
        body = b"\0".join(os.fsencode(field) for field in fields)
        return len(body).to_bytes(4, "big") + body


class SupervisorClient:
    """A running supervisor, until `close()` or `retire()`."""

    def __init__(self) -> None:
        self._link, theirs = socket.socketpair()
        with contextlib.ExitStack() as stack, theirs:
            stack.enter_context(self._link)
            self._link.setblocking(False)
            # It shares our standard error, so that its own defects are visible, but not our
            # session, so that Ctrl-C in a terminal does not reach it.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _PROGRAM, str(_ROOT)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
            stack.pop_all()
        HELPERS.add(self._process.pid)

    def is_usable(self) -> bool:
        """Return whether it runs: it has not exited, was not stopped and was not retired."""
        is_open = self._link.fileno() >= 0 and self._process.poll() is None
        return is_open and not is_stopped(self._process.pid)

    def hand_over(self, fds: list[int]) -> None:
        """Request a guard with these descriptors. Raises OSError."""
        socket.send_fds(self._link, [b"+"], fds)

    async def sweep(self) -> None:
        """Kill every process that lost its guard, from here if the supervisor cannot."""
        if not self.is_usable() or not await self._request_sweep():
            await self._take_over()

    def retire(self) -> None:
        """Kill it. Its orphans pass to the server; its guards continue."""
        if self._link.fileno() >= 0:
            self._link.close()
            self._process.kill()
        self.is_reaped()
        kill_orphans()

    def is_reaped(self) -> bool:
        """Return whether it has exited and is no longer in the process table."""
        # Never block: a tracer can delay the end of a killed process indefinitely.
        if self._process.poll() is None:
            return False
        HELPERS.discard(self._process.pid)
        return True

    async def close(self) -> None:
        """Let it end its guards and exit; after a timeout, kill it and all that it adopted."""
        if self._link.fileno() >= 0:
            with contextlib.suppress(OSError):
                self._process.send_signal(signal.SIGCONT)
                self._link.shutdown(socket.SHUT_WR)
            # It closes its end when it exits, which it does after its last guard.
            await self._wait_for_reply(self._link)
        await self._take_over()

    async def _take_over(self) -> None:
        self.retire()
        # A process closes its descriptors before its children pass to the next subreaper.
        for _ in range(round(SWEEP_S / REAP_S)):
            if self.is_reaped():
                break
            await asyncio.sleep(REAP_S)
        await sweep_orphans(SWEEP_S)

    async def _request_sweep(self) -> bool:
        ours, theirs = socket.socketpair()
        with ours:
            ours.setblocking(False)
            with theirs:
                try:
                    socket.send_fds(self._link, [b"?"], [theirs.fileno()])
                except OSError:
                    return False
            # A dying supervisor closes it too, but without writing.
            return await self._wait_for_reply(ours) and ours.recv(1) != b""

    async def _wait_for_reply(self, end: socket.socket) -> bool:
        """Wait for a byte or the end; False if the supervisor is stopped or times out."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[None] = loop.create_future()
        loop.add_reader(end, resolve, answered)
        try:
            for _ in range(round(SWEEP_S / POLL_S)):
                await asyncio.wait([answered], timeout=POLL_S)
                if answered.done():
                    return True
                if not self.is_usable():
                    return False
        finally:
            loop.remove_reader(end)
        return False
