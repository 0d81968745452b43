"""The server's side of a program that it runs: its pipes, its control socket, its end.

Everything here happens on the event loop with descriptors that never block: no threads, no child
watchers, no tasks. Nothing is read from a pipe before somebody asks for it, so a command whose
output nobody takes is held by the kernel once its pipe is full. How trees are ended is the
business of `supervisor.py`, which is told so by closing one side of the control socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import os
import socket
import subprocess
import sys
import weakref
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

__all__ = ("CannotStart", "Command", "InputPipe", "Launcher", "OutputPipe", "Process")

#: The most that is read in one go, and so the size of an event: what a pipe holds on Linux.
CHUNK_BYTES = 64 * 1024

#: How long a killed tree may take to go. A process in the middle of a disk access can take
#: longer than anybody should wait; its guard stays with it.
GONE_S = 2.0

#: How long the supervisor and its guard may take to start a command on a busy machine.
START_S = 10.0

#: Starts under way at once. The rest wait their turn, so that the link's buffer is never full and
#: the kernel's bound on descriptors in flight is far.
STARTS_AT_ONCE = 32

_SUPERVISOR = Path(__file__).with_name("supervisor.py")


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


class OutputPipe:
    """One of a command's two outputs: iterate over it, or read it piece by piece."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._waiter: asyncio.Future[None] | None = None
        self._finished = False

    def finish(self) -> None:
        """Nobody writes any more: what is in the pipe is still read, but nothing is waited for."""
        self._finished = True
        if self._waiter is not None:
            _resolve(self._waiter)

    async def read(self) -> bytes:
        """What is there by now, waiting until something is; nothing at the end."""
        while True:
            try:
                return os.read(self._fd, CHUNK_BYTES)
            except BlockingIOError:
                if self._finished:
                    return b""
                await self._readable()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while data := await self.read():
            yield data

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        loop.add_reader(self._fd, _resolve, self._waiter)
        try:
            await self._waiter
        finally:
            loop.remove_reader(self._fd)
            self._waiter = None

    def close(self) -> None:
        self.finish()
        os.close(self._fd)


class InputPipe:
    """Feeds a command that may read what it is given, leave it or end before it has read it all.

    It is closed when all of it is written, unless it stays open: then more can be written, until
    `finish()`.
    """

    def __init__(self, fd: int, data: bytes, stays_open: bool) -> None:
        self._fd = fd
        self._rest = memoryview(data)
        self._stays_open = stays_open
        self._waiters: set[asyncio.Future[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._loop.add_writer(fd, self._write)

    async def write(self, data: bytes) -> None:
        """Give it some more, and wait until no more than a chunk of all that is still unread.

        What is written after the end, ours or the command's, is lost, as it is in any pipe.
        """
        if self._fd < 0 or not self._stays_open:
            return
        self._rest = memoryview(bytes(self._rest) + data)
        self._loop.add_writer(self._fd, self._write)
        while len(self._rest) > CHUNK_BYTES:
            waiter = self._loop.create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)

    def finish(self) -> None:
        """Nothing more is written: close it when what is left has been."""
        self._stays_open = False
        if self._fd >= 0:
            self._loop.add_writer(self._fd, self._write)

    def _write(self) -> None:
        try:
            if self._rest:
                self._rest = self._rest[os.write(self._fd, self._rest[:CHUNK_BYTES]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self.close()
            return
        for waiter in self._waiters:
            _resolve(waiter)
        if not self._rest:
            self._loop.remove_writer(self._fd)
            if not self._stays_open:
                self.close()

    def close(self) -> None:
        self._rest = self._rest[:0]
        for waiter in self._waiters:
            _resolve(waiter)
        if self._fd >= 0:
            self._loop.remove_writer(self._fd)
            os.close(self._fd)
            self._fd = -1


class Process:
    """A command that was handed to the supervisor, until `end()` has been awaited."""

    def __init__(
        self,
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
        #: Set when the command itself has ended: its exit code, or minus the signal's number.
        self.returncode: int | None = None
        #: From the command's start to its own end.
        self.duration_s = 0.0
        #: Whether the command was still running when its time was up.
        self.expired = False
        self._control = control
        self._received = b""
        self._failure: CannotStart | None = None
        self._loop = asyncio.get_running_loop()
        self._started_at = 0.0
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._deadline: asyncio.TimerHandle | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._loop.add_reader(control, self._on_control)

    async def start(self, request: bytes) -> None:
        """Send the request and wait until the command runs; raises CannotStart."""
        self.expire_after(START_S)
        # A guard that failed has said so before it closed the socket: what it said is read below.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            await self._loop.sock_sendall(self._control, request)
        await self._started
        if self._failure is not None:
            raise self._failure
        self._cancel_deadline()

    def expire_after(self, seconds: float | None) -> None:
        """Kill the tree if the command still runs by then, and say so in `expired`; None: never.

        It takes the place of what was said before.
        """
        self._cancel_deadline()
        if self.returncode is None and seconds is not None:
            self._deadline = self._loop.call_later(seconds, self._expire)

    def kill(self) -> None:
        """Begin to end the tree, at once and without asking it. May be repeated."""
        if not self._gone.done():
            with contextlib.suppress(OSError):  # not connected: the guard itself is gone
                self._control.shutdown(socket.SHUT_WR)
            self._expect_gone()

    async def gone(self) -> None:
        """Wait until no process of the tree is left."""
        await asyncio.shield(self._gone)

    async def end(self) -> None:
        """Kill the tree, wait for its end however often we are cancelled meanwhile, and close."""
        self.kill()
        cancellation: asyncio.CancelledError | None = None
        while not self._gone.done():
            try:
                await self.gone()
            except asyncio.CancelledError as error:
                cancellation = error
        self._control.close()
        self.stdout.close()
        self.stderr.close()
        if self.stdin is not None:
            self.stdin.close()
        if cancellation is not None:
            raise cancellation

    def _on_control(self) -> None:
        try:
            data = self._control.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            word, _, rest = line.decode().partition(" ")
            self._on_report(word, rest)
        if not data:
            self._on_gone()

    def _on_report(self, word: str, rest: str) -> None:
        if word == "started":
            self.pid = int(rest)
            self._started_at = self._loop.time()
            _resolve(self._started)
        elif word == "failed":
            number, _, step = rest.partition(" ")
            self._failure = CannotStart(step, int(number))
            _resolve(self._started)
        elif word in ("exited", "signalled"):
            self.returncode = int(rest) if word == "exited" else -int(rest)
            self.duration_s = self._loop.time() - self._started_at
            self._cancel_deadline()
            self._expect_gone()
        elif word == "gone":
            self._on_gone()

    def _expire(self) -> None:
        self.expired = True
        self.kill()

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()

    def _expect_gone(self) -> None:
        if self._patience is None:
            self._patience = self._loop.call_later(GONE_S, self._on_gone)

    def _on_gone(self) -> None:
        if self._gone.done():
            return
        self._loop.remove_reader(self._control)
        self._cancel_deadline()
        if self._patience is not None:
            self._patience.cancel()
        if not self._started.done():
            self._failure = CannotStart("start", errno.ETIMEDOUT if self.expired else errno.EPIPE)
        _resolve(self._started)
        _resolve(self._gone)
        self.stdout.finish()
        self.stderr.finish()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Launcher:
    """Starts commands through a supervisor, which it starts when first needed."""

    def __init__(self) -> None:
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._starting = asyncio.Semaphore(STARTS_AT_ONCE)
        self._processes: weakref.WeakSet[Process] = weakref.WeakSet()

    def prepare(self) -> None:
        """Start the supervisor unless it runs; it boots while the caller goes on."""
        if self._supervisor is not None and self._supervisor.poll() is None:
            return
        if self._link is not None:
            self._link.close()
        self._link, theirs = socket.socketpair()
        with theirs:
            self._link.setblocking(False)
            # Its standard error is ours, so that a defect of its own can be seen; its session is
            # not, so that Ctrl-C in a terminal does not reach it.
            self._supervisor = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_SUPERVISOR)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )

    async def start(
        self, command: Command, stdin: bytes | None, *, stdin_stays_open: bool = False
    ) -> Process:
        """Start a command; raises CannotStart, OSError, or ValueError for what cannot be passed.

        The caller must await `end()` of what is returned. Without `stdin` the command reads from
        /dev/null, never from our own standard input, which may be somebody's protocol. If it
        stays open, more can be written to it, and whoever writes must `finish()` it.
        """
        request = command.encoded()
        async with self._starting:
            self.prepare()
            process = self._hand_over(stdin, stdin_stays_open)
            try:
                await process.start(request)
            except BaseException:  # whoever is cancelled here leaves no process behind either
                await process.end()
                raise
        return process

    def _hand_over(self, stdin: bytes | None, stays_open: bool) -> Process:
        """Make the pipes and the control socket and send the supervisor its ends of them."""
        assert self._link is not None
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            control, guard_end = socket.socketpair()
            ours.enter_context(control)
            theirs.enter_context(guard_end)
            stdout, their_stdout = _pipe(ours, theirs)
            stderr, their_stderr = _pipe(ours, theirs)
            if stdin is None:
                feed = None
                their_stdin = os.open(os.devnull, os.O_RDONLY)
                theirs.callback(os.close, their_stdin)
            else:
                their_stdin, feed = _pipe(theirs, ours)
                os.set_blocking(feed, False)
            control.setblocking(False)
            os.set_blocking(stdout, False)
            os.set_blocking(stderr, False)
            handed = [guard_end.fileno(), their_stdin, their_stdout, their_stderr]
            socket.send_fds(self._link, [b"+"], handed)
            process = Process(
                control,
                None if feed is None or stdin is None else InputPipe(feed, stdin, stays_open),
                OutputPipe(stdout),
                OutputPipe(stderr),
            )
            ours.pop_all()
        self._processes.add(process)
        return process

    async def close(self) -> None:
        """End every command that still runs, and the supervisor."""
        for process in self._processes:
            process.kill()
        if self._supervisor is None or self._link is None:
            return
        self._link.shutdown(socket.SHUT_WR)
        with self._link, contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(GONE_S):
                # It closes its end when it exits, and it exits when its last guard has.
                await asyncio.get_running_loop().sock_recv(self._link, 1)
        self._supervisor.kill()
        self._supervisor.wait()
        self._supervisor = self._link = None


def _pipe(reader: contextlib.ExitStack, writer: contextlib.ExitStack) -> tuple[int, int]:
    """A pipe, each end of which is closed by the stack of the side that it belongs to."""
    ends = os.pipe()
    reader.callback(os.close, ends[0])
    writer.callback(os.close, ends[1])
    return ends
