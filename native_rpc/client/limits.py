"""The limits of the client, and the counter of unread items."""

from __future__ import annotations

import dataclasses
from typing import Final

import anyio

from plexus.limits import KIB, MIB, Limits
from plexus.version import __version__

__all__ = ("READING", "READ_BYTES", "USER_AGENT", "ClientLimits", "Signal", "UnreadCounter")

#: The name and version of this client, by which servers show who has started a run.
USER_AGENT: Final = f"substrate/{__version__}"

#: Maximum bytes per read of a pipe or socket.
READ_BYTES: Final = 64 * KIB

#: Limits for messages from a server. A terminal may have 10 MiB plus its envelope; the encoder of
#: the server limits its depth to 253 levels.
READING: Final = Limits(
    message_bytes=16 * MIB,
    message_containers=8_000_000,
    message_members=8_000_000,
    message_values=16_000_000,
    message_depth=256,
    batch_requests=10_000,
)


@dataclasses.dataclass(frozen=True, slots=True)
class ClientLimits:
    """The limits of a client. Sizes are in bytes, times in seconds."""

    #: Timeout of one attempt to connect.
    connect_s: float = 10.0
    #: Timeout for the server to accept or refuse a call.
    reply_s: float = 30.0
    #: How long to retry a lost connection; 0 to not reconnect. A server cancels a run whose caller
    #: has not reconnected after 10 s, so a longer time helps only calls that have not started.
    reconnect_s: float = 30.0
    #: Maximum silence of a stream. A server sends at least a comment every 15 s.
    silence_s: float = 60.0
    #: Timeout for closing a connection, and for a process to exit after its input was closed.
    close_s: float = 5.0
    #: Maximum size of a request. A server rejects larger ones without naming the request.
    request_bytes: int = 1 * MIB
    #: Maximum unread items and bytes of all calls of one connection (over HTTP, of each call).
    #: Above either limit, reading stops until half of it is consumed.
    unread_items: int = 8192
    unread_bytes: int = 16 * MIB


class Signal:
    """Wakes waiting tasks. Use as `while not condition: await signal.wait()`."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event: anyio.Event | None = None

    def notify(self) -> None:
        """Wake all waiting tasks. Cheap if no task waits."""
        if self._event is not None:
            self._event.set()
            self._event = None

    async def wait(self) -> None:
        """Wait for the next notification."""
        if self._event is None:
            self._event = anyio.Event()
        await self._event.wait()


class UnreadCounter:
    """Counts items that were received and not yet consumed by the program.

    Once full, it stays full until half is consumed, so that reading does not stop and start with
    every item.
    """

    __slots__ = ("_max_bytes", "_max_items", "_wakeup", "bytes", "full", "items")

    def __init__(self, limits: ClientLimits) -> None:
        self._max_items = limits.unread_items
        self._max_bytes = limits.unread_bytes
        self._wakeup = Signal()
        self.items = 0
        self.bytes = 0
        self.full = False

    def add(self, size: int) -> None:
        """Count an item of this size."""
        self.items += 1
        self.bytes += size
        if self.items >= self._max_items or self.bytes >= self._max_bytes:
            self.full = True

    def remove(self, size: int) -> None:
        """Remove an item that was consumed or discarded."""
        self.items -= 1
        self.bytes -= size
        if self.full and self.items <= self._max_items // 2 and self.bytes <= self._max_bytes // 2:
            self.full = False
            self._wakeup.notify()

    async def wait_for_capacity(self) -> None:
        """Wait while the counter is full."""
        while self.full:
            await self._wakeup.wait()
