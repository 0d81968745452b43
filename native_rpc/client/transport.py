"""Transports: the interface, and the transport that multiplexes calls over one connection.

Rules:
- A connection has one reader and one writer task, which end with it. `serve` reconnects as soon as
  a call needs a connection, and repeats the requests of all open calls.
- A call that cannot be repeated without running twice fails with `ConnectionLost`.
- Unread items are limited over all calls together. Above the limit nothing is read, so a consumer
  that never reads eventually blocks the others. A server closes a connection that it cannot write
  to for 30 s, and cancels a run whose caller is disconnected for 10 s.
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

#: The first and the maximum delay between attempts to connect.
FIRST_DELAY_S = 0.05
MAX_DELAY_S = 2.0


class Transport(Protocol):
    """Sends calls to a server and delivers their items."""

    #: Whether calls outlive a connection.
    resumable: bool
    limits: ClientLimits

    def unread(self) -> UnreadCounter:
        """Return the counter for the items of a new call."""

    def start(self, exchange: Exchange) -> None:
        """Send a call, now or after reconnecting. The call may fail immediately."""

    def abandon(self, exchange: Exchange) -> None:
        """Unsubscribe a call from the server. Does nothing if the call is done."""

    async def open(self) -> None:
        """Connect to the server. Raises ConnectionLost or Denied."""

    async def serve(self) -> None:
        """Send and receive until cancelled."""

    async def close(self) -> None:
        """Abandon all open calls and notify the server, within a bounded time."""


def retry_delays(total_s: float) -> Iterator[float]:
    """Yield the delays before attempts: zero, then exponential backoff up to a total time.

    The delays are randomized, so that clients do not reconnect to a restarted server together.
    """
    end = anyio.current_time() + total_s
    yield 0.0
    delay = FIRST_DELAY_S
    while (left := end - anyio.current_time()) > 0:
        yield min(delay * random.uniform(0.5, 1.0), left)
        delay = min(delay * 2, MAX_DELAY_S)


class PipeTransport:
    """Multiplexes calls over connections that `open_pipe` opens."""

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
        #: The session of the current connection; None while disconnected.
        self._session: Session | None = None
        #: Calls to start, and encoded messages, in sending order.
        self._outbox: deque[Exchange | bytes] = deque()
        self._wakeup = Signal()
        self._writing = False
        #: Why no more calls can be sent.
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
        self._closed_error = closed = ConnectionLost("The client was closed.")
        unsent = [entry for entry in self._outbox if isinstance(entry, Exchange)]
        for exchange in unsent + (
            self._session.open_exchanges() if self._session is not None else []
        ):
            exchange.fail(_copy_error(closed))
            self.abandon(exchange)
        with anyio.move_on_after(self.limits.close_s):
            # A call can be unsubscribed only after its reply has arrived.
            while self._session is not None and not (
                self._session.idle and not self._outbox and not self._writing
            ):
                await self._wakeup.wait()

    # --- one connection -----------------------------------------------------------------------

    async def _use(self, pipe: Pipe) -> ConnectionLost:
        """Read and write until the connection is lost. Returns the reason."""
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
            # Divide the size equally between the messages; only the sum matters.
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

    # --- reconnecting -------------------------------------------------------------------------

    def _requeue(self, session: Session, lost: ConnectionLost) -> None:
        """Queue the calls that can be resumed, and fail the others."""
        unsent = [entry for entry in self._outbox if isinstance(entry, Exchange)]
        self._outbox.clear()
        for exchange in session.disconnect() + unsent:
            exchange.sent_at = None
            if self.resumable and exchange.resumable:
                self._outbox.append(exchange)
            else:
                exchange.fail(_copy_error(lost))

    async def _reconnect(self) -> Pipe:
        """Open a new connection, once a call needs one."""
        while True:
            while not self._outbox:
                await self._wakeup.wait()
            failure: PlexusError = ConnectionLost(f"Cannot reconnect to {self._where}.")
            for delay in retry_delays(self.limits.reconnect_s):
                await anyio.sleep(delay)
                try:
                    return await self._open_pipe()
                except ConnectionLost as error:
                    failure = error
                except PlexusError as error:  # refused: a retry would not help
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
    """Copy an error for another call, so that no two calls share a traceback."""
    another = type(error)(error.message, code=error.code, data=error.data)
    another.__cause__ = error.__cause__
    return another
