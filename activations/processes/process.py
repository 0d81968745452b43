"""The server's side of a command: its control socket, its deadlines, its end.

All of this happens on the event loop with non-blocking descriptors: no threads and no child
watchers. Ending process trees is the job of `supervisor.py`; the server requests it by closing one
side of the control socket. The command can stop or kill the supervisor and the guard, so every wait
for them has a deadline, and a guard that misses it is killed: its tree then passes to the
supervisor, and if that fails too, to the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import weakref

from activations.processes.descendants import (
    HELPERS,
    PidHandle,
    adopt_orphans,
    is_stopped,
    kill_orphans,
)
from activations.processes.pipes import (
    CHUNK_BYTES,
    InputPipe,
    OutputPipe,
    open_ends,
    resolve,
)
from activations.processes.supervisor_client import CannotStart, Command, SupervisorClient

__all__ = (
    "CHUNK_BYTES",
    "CannotStart",
    "Command",
    "InputPipe",
    "Launcher",
    "OutputPipe",
    "Process",
)

#: Timeout for a guard to end its tree. Then the supervisor does it.
GONE_S = 2.0

#: Timeout for the supervisor and its guard to start a command on a busy machine.
START_S = 10.0

#: Maximum number of concurrent starts. Others wait, so that the link's buffer is never full and the
#: kernel's limit on descriptors in flight is not reached.
MAX_CONCURRENT_STARTS = 32

#: Maximum attempts for a start without a guard because the supervisor had just been killed.
START_ATTEMPTS = 3

#: Interval for checking helpers while commands run. A stopped helper is continued; a helper that is
#: stopped at two checks in a row is killed.
INSPECT_S = 1.0


class Process:
    """A command that was handed to the supervisor, until `end()` has been awaited."""

    def __init__(
        self,
        supervisor: SupervisorClient,
        control: socket.socket,
        stdin: InputPipe | None,
        stdout: OutputPipe,
        stderr: OutputPipe,
    ) -> None:
        #: None if the command reads from /dev/null.
        self.stdin = stdin
        self.stdout = stdout
        self.stderr = stderr
        self.pid = 0
        #: Exit code, or the negative signal number; set when the command itself has exited.
        self.returncode: int | None = None
        #: Seconds from the command's start to its exit.
        self.duration_s = 0.0
        #: Whether the command was still running at its deadline.
        self.expired = False
        #: Whether a guard accepted the request, or the reason for its absence is known.
        self.was_accepted = False
        self._supervisor = supervisor
        self._control = control
        self._guard: PidHandle | None = None
        self._guard_was_stopped = False
        self._is_stuck = False
        self._recovery: asyncio.Task[None] | None = None
        self._received = b""
        self._failure: CannotStart | None = None
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._deadline: asyncio.TimerHandle | None = None
        self._recovery_timer: asyncio.TimerHandle | None = None
        self._loop.add_reader(control, self._on_control)

    async def start(self, request: bytes) -> None:
        """Send the request and wait until the command runs. Raises CannotStart."""
        self.expire_after(START_S)
        # A guard that fails reports it before it closes the socket; the report is read below.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            await self._loop.sock_sendall(self._control, request)
        await self._started
        if self._failure is not None:
            raise self._failure
        self._cancel_deadline()

    def expire_after(self, seconds: float | None) -> None:
        """Kill the tree after this time, unless the command has exited, and set `expired`.

        None removes the deadline. Replaces an earlier deadline.
        """
        self._cancel_deadline()
        if self.returncode is None and seconds is not None:
            self._deadline = self._loop.call_later(seconds, self._expire)

    def kill(self) -> None:
        """Start killing the tree, without a graceful period. Idempotent."""
        if not self._gone.done():
            with contextlib.suppress(OSError):  # not connected: the guard itself is dead
                self._control.shutdown(socket.SHUT_WR)
            if self._guard is not None:  # a stopped guard would not notice
                self._guard.signal(signal.SIGCONT)
            self._schedule_recovery()

    @property
    def is_running(self) -> bool:
        """Whether a process of the tree may be left."""
        return not self._gone.done()

    async def wait(self) -> None:
        """Wait until no process of the tree is left."""
        await asyncio.shield(self._gone)

    async def end(self) -> None:
        """Kill the tree, wait for its end even if cancelled, and close the descriptors."""
        self.kill()
        cancellation: asyncio.CancelledError | None = None
        while not self._gone.done():
            try:
                await self.wait()
            except asyncio.CancelledError as error:
                cancellation = error
        self._control.close()
        self.stdout.close()
        self.stderr.close()
        if self.stdin is not None:
            self.stdin.close()
        if cancellation is not None:
            raise cancellation

    def inspect(self) -> None:
        """Continue a stopped guard; kill it if it was stopped at the last check too."""
        if self._gone.done() or self._guard is None:
            return
        stopped = is_stopped(self._guard.pid)
        if stopped:
            self._guard.signal(signal.SIGKILL if self._guard_was_stopped else signal.SIGCONT)
        self._guard_was_stopped = stopped

    def _on_control(self) -> None:
        fds: list[int] = []
        try:
            data, fds, _, _ = socket.recv_fds(self._control, 4096, 1)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        for fd in fds:
            os.set_inheritable(fd, False)
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            self.was_accepted = True
            word, _, rest = line.decode().partition(" ")
            if word == "guard":
                self._guard = PidHandle(int(rest), fds[0] if fds else -1)
                HELPERS.add(self._guard.pid)
            else:
                self._on_report(word, rest)
        if not data:
            self._recover()

    def _on_report(self, word: str, rest: str) -> None:
        if word == "started":
            self.pid = int(rest)
            resolve(self._started)
        elif word == "failed":
            number, _, step = rest.partition(" ")
            self._failure = CannotStart(step, int(number))
            resolve(self._started)
        elif word in ("exited", "signalled"):
            code, took_us = map(int, rest.split())
            self.returncode = code if word == "exited" else -code
            self.duration_s = took_us / 1_000_000
            self._cancel_deadline()
            self._schedule_recovery()
        elif word == "stuck":
            self._is_stuck = True
        elif word == "gone":
            self._finish()

    def _expire(self) -> None:
        self.expired = True
        self.kill()

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()

    def _schedule_recovery(self) -> None:
        if self._recovery_timer is None:
            self._recovery_timer = self._loop.call_later(GONE_S, self._on_recovery_timeout)

    def _on_recovery_timeout(self) -> None:
        # A program that changed its user cannot be killed, and a process in the middle of a disk
        # access takes its time. A guard that reports this works, and stays with them.
        if self._is_stuck:
            self._finish()
        else:
            self._recover()

    def _recover(self) -> None:
        """End the tree without the guard, which died or missed its deadline."""
        if self._gone.done() or self._recovery is not None:
            return
        self._loop.remove_reader(self._control)
        if self._guard is not None:
            self._guard.signal(signal.SIGKILL)
        self._recovery = self._loop.create_task(self._sweep())

    async def _sweep(self) -> None:
        try:
            # A guard closes its descriptors before its children pass to the supervisor.
            if self._guard is not None:
                await self._guard.wait(GONE_S)
            await self._supervisor.sweep()
        finally:
            self._finish()

    def _finish(self) -> None:
        if self._gone.done():
            return
        self._loop.remove_reader(self._control)
        self._cancel_deadline()
        if self._recovery_timer is not None:
            self._recovery_timer.cancel()
        if self._guard is not None:
            HELPERS.discard(self._guard.pid)
            self._guard.close()
        if not self._started.done():
            self._failure = CannotStart("start", errno.ETIMEDOUT if self.expired else errno.EPIPE)
        resolve(self._started)
        resolve(self._gone)
        self.stdout.finish()
        self.stderr.finish()


class _NotAccepted(CannotStart):
    """No guard accepted the request, so another supervisor can be used."""


class Launcher:
    """Launcher of commands through a supervisor, which is started on first use."""

    def __init__(self) -> None:
        self._supervisor: SupervisorClient | None = None
        #: Supervisors that were killed and are not reaped yet.
        self._retired: list[SupervisorClient] = []
        self._starting = asyncio.Semaphore(MAX_CONCURRENT_STARTS)
        self._processes: weakref.WeakSet[Process] = weakref.WeakSet()
        self._inspection: asyncio.TimerHandle | None = None

    def prepare(self) -> SupervisorClient:
        """Start the supervisor unless it runs. It boots concurrently with the caller."""
        if self._supervisor is None or not self._supervisor.is_usable():
            self._retire(self._supervisor)
            self._supervisor = SupervisorClient()
        return self._supervisor

    async def start(
        self, command: Command, stdin: bytes | None, *, stdin_stays_open: bool = False
    ) -> Process:
        """Start a command.

        Raises CannotStart, OSError, or ValueError for a NUL character. The caller must await
        `end()` of the result. Without `stdin` the command reads from /dev/null, never from our own
        standard input, which may carry a protocol. With `stdin_stays_open` more can be written to
        it, and the writer must `finish()` it.
        """
        request = command.encode()
        async with self._starting:
            for _ in range(START_ATTEMPTS - 1):
                with contextlib.suppress(_NotAccepted):
                    return await self._attempt(request, stdin, stdin_stays_open)
            return await self._attempt(request, stdin, stdin_stays_open)

    async def _attempt(self, request: bytes, stdin: bytes | None, stays_open: bool) -> Process:
        """Start a command. Raises _NotAccepted if the supervisor died and nothing was started."""
        supervisor = self.prepare()
        try:
            process = self._hand_over(supervisor, stdin, stays_open)
        except (BrokenPipeError, ConnectionResetError) as error:
            self._retire(supervisor)
            raise _NotAccepted("start", error.errno or errno.EPIPE) from error
        self._start_inspecting()
        try:
            await process.start(request)
        except BaseException as error:  # a cancelled start must leave no process either
            await process.end()
            if isinstance(error, CannotStart):
                # If it cannot fork, a command may have lowered its limits.
                if error.step == "fork" or not process.was_accepted:
                    self._retire(supervisor)
                if not process.was_accepted and not process.expired:
                    raise _NotAccepted(error.step, error.errno) from error
            raise
        return process

    def _hand_over(
        self, supervisor: SupervisorClient, stdin: bytes | None, stays_open: bool
    ) -> Process:
        """Create the pipes and the control socket and send the supervisor its ends of them."""
        ends = open_ends(stdin is not None, supervisor.hand_over)
        process = Process(
            supervisor,
            ends.control,
            None if stdin is None else InputPipe(ends.stdin, stdin, stays_open),
            OutputPipe(ends.stdout),
            OutputPipe(ends.stderr),
        )
        self._processes.add(process)
        return process

    async def close(self) -> None:
        """End every command that still runs, and the supervisor."""
        running = list(self._processes)
        for process in running:
            process.kill()
        if self._supervisor is not None:
            await self._supervisor.close()
            self._retire(self._supervisor)
        for process in running:
            await process.wait()
        while self._retired:
            await self._retired.pop().close()
        self._stop_inspecting()

    def _retire(self, supervisor: SupervisorClient | None) -> None:
        """Stop using this supervisor, unless it was replaced already."""
        if supervisor is not None and supervisor is self._supervisor:
            supervisor.retire()
            self._retired.append(supervisor)
            self._supervisor = None

    def _start_inspecting(self) -> None:
        if self._inspection is None:
            adopt_orphans(True)
            self._inspect_later()

    def _inspect_later(self) -> None:
        self._inspection = asyncio.get_running_loop().call_later(INSPECT_S, self._inspect)

    def _stop_inspecting(self) -> None:
        if self._inspection is not None:
            self._inspection.cancel()
            self._inspection = None
            adopt_orphans(False)

    def _inspect(self) -> None:
        """Check the helpers, and kill what lost them, while a command runs."""
        if self._supervisor is not None and not self._supervisor.is_usable():
            self._retire(self._supervisor)
        for process in list(self._processes):
            process.inspect()
        self._retired = [old for old in self._retired if not old.is_reaped()]
        if kill_orphans() or self._retired or any(each.is_running for each in self._processes):
            self._inspect_later()
        else:
            self._stop_inspecting()
