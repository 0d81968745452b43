"""The server's side of one supervisor: its process, what it is sent and its replacement.

A command can stop or kill the supervisor, so nothing here waits for it without a deadline, and
one that was stopped is not trusted again: it is killed, and the server takes over what it held
(`descendants.py`). Guards whose supervisor is gone go on with their work.
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

#: How long a supervisor may take to end orphans, and to end with all of its guards.
SWEEP_S = 2.0

#: How often to look whether a supervisor that owes an answer was stopped meanwhile.
LOOK_S = 0.1

#: How often to look whether one that closed its link, or was killed, can be reaped.
REAP_S = 0.001

#: It is a program of its own: the bare interpreter, and of our code two modules.
_PROGRAM = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from activations.processes.supervisor import main; main()"
)
_ROOT = Path(__file__).parents[2]


class CannotStart(Exception):
    """The command did not start; `step` says what was being done and `errno` what went wrong."""

    def __init__(self, step: str, number: int) -> None:
        super().__init__(f"{step}: {os.strerror(number)}")
        self.step = step
        self.errno = number


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """What to run. The first argument is the path of the program."""

    arguments: tuple[str, ...]
    directory: str
    environment: Mapping[str, str]
    #: Resource limits by name, as in {"CORE": 0}.
    limits: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def encoded(self) -> bytes:
        """The request as the supervisor reads it; ValueError if something cannot be passed on."""
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
    """A supervisor that was started, until `close()` or `retire()`."""

    def __init__(self) -> None:
        self._link, theirs = socket.socketpair()
        with contextlib.ExitStack() as stack, theirs:
            stack.enter_context(self._link)
            self._link.setblocking(False)
            # Its standard error is ours, so that a defect of its own can be seen; its session is
            # not, so that Ctrl-C in a terminal does not reach it.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _PROGRAM, str(_ROOT)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
            stack.pop_all()
        HELPERS.add(self._process.pid)

    def is_usable(self) -> bool:
        """Whether it runs: it has not ended, was not stopped and was not retired."""
        is_open = self._link.fileno() >= 0 and self._process.poll() is None
        return is_open and not is_stopped(self._process.pid)

    def hand_over(self, fds: list[int]) -> None:
        """Ask it to start a guard with these descriptors. Raises OSError."""
        socket.send_fds(self._link, [b"+"], fds)

    async def sweep(self) -> None:
        """End every process that lost its guard, here if the supervisor cannot."""
        if not self.is_usable() or not await self._sweeps_by_itself():
            await self._take_over()

    def retire(self) -> None:
        """Kill it. What it had adopted passes to the server; guards go on."""
        if self._link.fileno() >= 0:
            self._link.close()
            self._process.kill()
        self.is_reaped()
        kill_orphans()

    def is_reaped(self) -> bool:
        """Whether it has ended and left nothing in the process table."""
        # Never wait for it: a tracer can hold a killed process as long as it likes.
        if self._process.poll() is None:
            return False
        HELPERS.discard(self._process.pid)
        return True

    async def close(self) -> None:
        """Let it end its guards and itself; kill it and all that it held if it does not."""
        if self._link.fileno() >= 0:
            with contextlib.suppress(OSError):
                self._process.send_signal(signal.SIGCONT)
                self._link.shutdown(socket.SHUT_WR)
            # It closes its end when it exits, and it exits when its last guard has.
            await self._answers(self._link)
        await self._take_over()

    async def _take_over(self) -> None:
        self.retire()
        # A process closes its descriptors before its children pass to the next subreaper.
        for _ in range(round(SWEEP_S / REAP_S)):
            if self.is_reaped():
                break
            await asyncio.sleep(REAP_S)
        await sweep_orphans(SWEEP_S)

    async def _sweeps_by_itself(self) -> bool:
        ours, theirs = socket.socketpair()
        with ours:
            ours.setblocking(False)
            with theirs:
                try:
                    socket.send_fds(self._link, [b"?"], [theirs.fileno()])
                except OSError:
                    return False
            # One that dies closes it too, but does not write before.
            return await self._answers(ours) and ours.recv(1) != b""

    async def _answers(self, end: socket.socket) -> bool:
        """Wait for a byte or the end; False if the supervisor is stopped or takes too long."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[None] = loop.create_future()
        loop.add_reader(end, resolve, answered)
        try:
            for _ in range(round(SWEEP_S / LOOK_S)):
                await asyncio.wait([answered], timeout=LOOK_S)
                if answered.done():
                    return True
                if not self.is_usable():
                    return False
        finally:
            loop.remove_reader(end)
        return False
