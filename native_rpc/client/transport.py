"""Carrying many calls over one connection, and over the next one when it breaks.

Rules:
- One reader and one writer for as long as a connection lives. Both end with it; `serve` then
  seeks a new one, as soon as there is a call that wants it, and asks for every open call again.
- A call that cannot be asked again without running twice fails with `ConnectionLost`.
- What the program has not taken is bounded over all calls together: past the bound nothing is
  read, so one consumer that never reads does hold up the others in the end. A server that cannot
  write for 30 s gives the connection up, and a run whose caller is away for 10 s.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Protocol

import anyio

from native_rpc.client.limits import ClientLimits, Signal, UnreadCounter
from native_rpc.client.pipes import Pipe
from native_rpc.client.session import Exchange, Session
from native_rpc.errors import ConnectionLost
from plexus.errors import PlexusError

__all__ = ("PipeTransport", "Transport", "retry_delays")

#: The first pause between two attempts to connect, and the longest.
FIRST_DELAY_S = 0.05
MAX_DELAY_S = 2.0


class Transport(Protocol):
    """What takes calls to a server and brings back what becomes of them."""

    #: Whether calls outlive a connection.
    resumable: bool
    limits: ClientLimits

    def unread(self) -> UnreadCounter:
        """Where the items of a new call are counted."""

    def start(self, exchange: Exchange) -> None:
        """Send it, now or when there is a connection again; it may fail at once."""

    def abandon(self, exchange: Exchange) -> None:
        """Tell the server that nobody wants this any more. Harmless when it is over."""

    async def open(self) -> None:
        """Make sure that there is a server; raises ConnectionLost or Denied."""

    async def serve(self) -> None:
        """Carry, until cancelled."""

    async def close(self) -> None:
        """Leave whatever is open, and see it told to the server. Bounded in time."""


def retry_delays(total_s: float) -> Iterator[float]:
    """The pauses before attempts: none, then growing, scattered, and ending in time.

    Scattered, so that a server that comes back is not met by all its clients at once.
    """
    end = anyio.current_time() + total_s
    yield 0.0
    pause = FIRST_DELAY_S
    while (left := end - anyio.current_time()) > 0:
        yield min(pause * random.uniform(0.5, 1.0), left)
        pause = min(pause * 2, MAX_DELAY_S)


class PipeTransport:
    """Carries calls over pipes that `open_pipe` makes."""

    def __init__(
        self,
        where: str,
        open_pipe: Callable[[], Awaitable[Pipe]],
        limits: ClientLimits,
        *,
        resumable: bool,
    ) -> None:
        self._where = where
        self._open_pipe = open_pipe
        self.limits = limits
        self.resumable = resumable
        self._unread = UnreadCounter(limits)
        self._pipe: Pipe | None = None
        #: The books of the present connection; None while there is none.
        self._session: Session | None = None
        #: What is to be sent: calls to begin, and finished messages.
        self._outbox: deque[Exchange | bytes] = deque()
        self._wakeup = Signal()
        self._writing = False
        #: Why nothing can be carried any more.
        self._closed_error: ConnectionLost | None = None

    # --- for calls ----------------------------------------------------------------------------

    def unread(self) -> UnreadCounter:
        return self._unread

    def start(self, exchange: Exchange) -> None:
        if self._closed_error is not None:
            exchange.fail(_copy_error(self._closed_error))
            return
        if self._session is not None:
            exchange.sent_at = anyio.current_time()
        self._outbox.append(exchange)
        self._wakeup.notify()

    def abandon(self, exchange: Exchange) -> None:
        exchange.abandon()
        frame = None if self._session is None else self._session.unsubscribe(exchange)
        if frame is not None:
            self._outbox.append(frame)
            self._wakeup.notify()

    # --- for the client -----------------------------------------------------------------------

    async def open(self) -> None:
        self._pipe = await self._open_pipe()

    async def serve(self) -> None:
        pipe = self._pipe
        while pipe is not None:
            lost = await self._use(pipe)
            pipe = await self._reconnect() if self.resumable else None
            if pipe is None:
                self._closed_error = lost

    async def close(self) -> None:
        self._closed_error = closed = ConnectionLost("the client was closed")
        unsent = [entry for entry in self._outbox if isinstance(entry, Exchange)]
        for exchange in unsent + (
            self._session.open_exchanges() if self._session is not None else []
        ):
            exchange.fail(_copy_error(closed))
            self.abandon(exchange)
        with anyio.move_on_after(self.limits.close_s):
            # A call whose reply is still to come can be left only when it has come.
            while self._session is not None and not (
                self._session.idle and not self._outbox and not self._writing
            ):
                await self._wakeup.wait()

    # --- one connection -----------------------------------------------------------------------

    async def _use(self, pipe: Pipe) -> ConnectionLost:
        """Read and write until the connection is lost, and say why it was."""
        session = self._session = Session()
        now = anyio.current_time()
        for entry in self._outbox:
            if isinstance(entry, Exchange):
                entry.sent_at = now
                entry.changed.notify()
        lost: list[ConnectionLost] = []
        try:
            async with anyio.create_task_group() as tasks:
                for work in (
                    partial(self._read, pipe, session),
                    partial(self._write, pipe, session),
                    partial(pipe.watch, self._unread),
                ):
                    tasks.start_soon(_until_lost, work, lost, tasks.cancel_scope)
        finally:
            self._session = None
            self._writing = False
            with anyio.CancelScope(shield=True):
                await pipe.close()
        self._requeue(session, lost[0])
        return lost[0]

    async def _read(self, pipe: Pipe, session: Session) -> None:
        while True:
            await self._unread.wait_for_capacity()
            received, size = await pipe.receive()
            messages = [
                message
                for entry in received
                for message in (entry if isinstance(entry, list) else (entry,))
            ]
            # What came together is counted in equal parts; the sum is what matters.
            share = size // len(messages) if messages else 0
            for message in messages:
                answer = session.receive(message, share)
                if answer is not None:
                    self._outbox.append(answer)
            self._wakeup.notify()

    async def _write(self, pipe: Pipe, session: Session) -> None:
        while True:
            while not self._outbox:
                await self._wakeup.wait()
            frames: list[bytes] = []
            while self._outbox:
                entry = self._outbox.popleft()
                if isinstance(entry, bytes):
                    frames.append(entry)
                elif not entry.done:
                    frame = session.start(entry, self.limits.request_bytes)
                    if frame is not None:
                        frames.append(frame)
            self._writing = True
            if frames:
                await pipe.send(frames)
            self._writing = False
            self._wakeup.notify()

    # --- from one to the next -----------------------------------------------------------------

    def _requeue(self, session: Session, lost: ConnectionLost) -> None:
        """Keep what can be asked for again, and let the rest fail."""
        unsent = [entry for entry in self._outbox if isinstance(entry, Exchange)]
        self._outbox.clear()
        for exchange in session.disconnect() + unsent:
            exchange.sent_at = None
            if self.resumable and exchange.resumable:
                self._outbox.append(exchange)
            else:
                exchange.fail(_copy_error(lost))

    async def _reconnect(self) -> Pipe:
        """A new connection, once there is a call that wants one."""
        while True:
            while not self._outbox:
                await self._wakeup.wait()
            failure: PlexusError = ConnectionLost(f"{self._where} cannot be reached again")
            for pause in retry_delays(self.limits.reconnect_s):
                await anyio.sleep(pause)
                try:
                    return await self._open_pipe()
                except ConnectionLost as error:
                    failure = error
                except PlexusError as error:  # refused, which trying again does not change
                    failure = error
                    break
            while self._outbox:
                entry = self._outbox.popleft()
                if isinstance(entry, Exchange):
                    entry.fail(_copy_error(failure))


async def _until_lost(
    work: Callable[[], Awaitable[None]], lost: list[ConnectionLost], scope: anyio.CancelScope
) -> None:
    try:
        await work()
    except ConnectionLost as error:
        lost.append(error)
        scope.cancel()


def _copy_error(error: PlexusError) -> PlexusError:
    """The same error for another call, so that no two share a traceback."""
    another = type(error)(error.message, code=error.code, data=error.data)
    another.__cause__ = error.__cause__
    return another
