"""The server's ends of a command's standard streams: on the event loop, never blocking.

They are created together with the control socket, so that a command gets all of them or none.

Nothing is read from a pipe before a reader requests it, so the kernel blocks a command whose output
is not read once its pipe is full.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import select
import socket
from collections.abc import AsyncIterator, Callable

__all__ = ("CHUNK_BYTES", "Ends", "InputPipe", "OutputPipe", "open_ends", "resolve")

#: Maximum bytes per read, and so per event: the capacity of a pipe on Linux.
CHUNK_BYTES = 64 * 1024


class OutputPipe:
    """One of a command's two outputs: iterate over it, or read chunk by chunk."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._waiter: asyncio.Future[None] | None = None
        self._receive: Callable[[bytes], None] | None = None
        self._finished = False

    def finish(self) -> None:
        """Stop waiting for data, because no process writes any more.

        Buffered data can still be read.
        """
        self._finished = True
        if self._waiter is not None:
            resolve(self._waiter)
        while self._receive is not None:  # until the end of what is buffered
            self._on_readable()

    def start_reading(self, receive: Callable[[bytes], None]) -> None:
        """Pass each chunk to a function as soon as it arrives, and empty bytes at the end.

        For dialogues: it saves the turns of the loop that waking a reader costs. Use it instead of
        `read`, and close the pipe to stop.
        """
        self._receive = receive
        asyncio.get_running_loop().add_reader(self._fd, self._on_readable)

    def _on_readable(self) -> None:
        receive = self._receive
        if receive is None:
            return
        try:
            data = os.read(self._fd, CHUNK_BYTES)
        except BlockingIOError:
            if not self._finished:
                return
            data = b""
        if not data:
            self._receive = None
            asyncio.get_running_loop().remove_reader(self._fd)
        receive(data)

    async def read(self) -> bytes:
        """Return the available data, waiting for some if there is none; empty at the end."""
        while self._fd >= 0:
            try:
                return os.read(self._fd, CHUNK_BYTES)
            except BlockingIOError:
                if self._finished:
                    return b""
                await self._readable()
        return b""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while data := await self.read():
            yield data

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        loop.add_reader(self._fd, resolve, self._waiter)
        try:
            await self._waiter
        finally:
            if self._fd >= 0:  # else the number may belong to another pipe already
                loop.remove_reader(self._fd)
            self._waiter = None

    def close(self) -> None:
        self.finish()
        if self._waiter is not None:  # it runs only after the number was given away
            self._waiter.get_loop().remove_reader(self._fd)
        os.close(self._fd)
        self._fd = -1


class InputPipe:
    """Standard input of a command, which may read all of it, a part or nothing.

    It is closed when all data is written, unless `stays_open`: then more can be written, until
    `finish()`.
    """

    def __init__(self, fd: int, data: bytes, stays_open: bool) -> None:
        self._fd = fd
        self._rest = memoryview(data)
        self._stays_open = stays_open
        self._waiters: set[asyncio.Future[None]] = set()
        #: Called when the command has closed its end while data was written.
        self.on_broken: Callable[[], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.add_writer(fd, self._write)

    @property
    def is_broken(self) -> bool:
        """Whether the command has closed its end, so that nothing is read any more."""
        if self._fd < 0:
            return True
        poll = select.poll()
        poll.register(self._fd, 0)
        return bool(poll.poll(0))  # without requested events, only an error is reported

    async def write(self, data: bytes) -> None:
        """Write more data, and wait until at most one chunk of it is unread.

        Data written after the pipe was closed, by us or by the command, is lost, as in any pipe.
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

    def try_write(self, data: bytes) -> bool:
        """Write data immediately, if nothing waits to be written. Returns whether that was done.

        What the pipe does not take immediately is written later, in order.
        """
        if self._fd < 0 or not self._stays_open or self._rest:
            return False
        try:
            written = os.write(self._fd, data[:CHUNK_BYTES])
        except (BlockingIOError, BrokenPipeError):
            return False  # `write` waits, and reports a broken pipe
        if written < len(data):
            self._rest = memoryview(data)[written:]
            self._loop.add_writer(self._fd, self._write)
        return True

    def finish(self) -> None:
        """Close the pipe when the remaining data is written."""
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
            if self.on_broken is not None:
                self.on_broken()
            return
        for waiter in self._waiters:
            resolve(waiter)
        if not self._rest:
            self._loop.remove_writer(self._fd)
            if not self._stays_open:
                self.close()

    def close(self) -> None:
        self._rest = self._rest[:0]
        for waiter in self._waiters:
            resolve(waiter)
        if self._fd >= 0:
            self._loop.remove_writer(self._fd)
            os.close(self._fd)
            self._fd = -1


def resolve(future: asyncio.Future[None]) -> None:
    """Wake the waiter of this future, unless it is done."""
    if not future.done():
        future.set_result(None)


@dataclasses.dataclass(frozen=True, slots=True)
class Ends:
    """The server's ends of one command's channels."""

    control: socket.socket
    #: -1 if the command reads from /dev/null.
    stdin: int
    stdout: int
    stderr: int


def open_ends(has_stdin: bool, hand_over: Callable[[list[int]], None]) -> Ends:
    """Open a control socket and three streams, and pass the other ends on. Raises OSError."""
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
        control, guard_end = socket.socketpair()
        ours.enter_context(control)
        theirs.enter_context(guard_end)
        stdout, their_stdout = _pipe(ours, theirs)
        stderr, their_stderr = _pipe(ours, theirs)
        stdin = -1
        if has_stdin:
            their_stdin, stdin = _pipe(theirs, ours)
            os.set_blocking(stdin, False)
        else:
            their_stdin = os.open(os.devnull, os.O_RDONLY)
            theirs.callback(os.close, their_stdin)
        control.setblocking(False)
        os.set_blocking(stdout, False)
        os.set_blocking(stderr, False)
        hand_over([guard_end.fileno(), their_stdin, their_stdout, their_stderr])
        ours.pop_all()
    return Ends(control, stdin, stdout, stderr)


def _pipe(reader: contextlib.ExitStack, writer: contextlib.ExitStack) -> tuple[int, int]:
    """Return a pipe whose ends are closed by the exit stack of the side that owns them."""
    ends = os.pipe()
    reader.callback(os.close, ends[0])
    writer.callback(os.close, ends[1])
    return ends
