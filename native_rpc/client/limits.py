"""Every bound of the client, in one frozen table, and the count of what is still unread."""

from __future__ import annotations

import dataclasses
from typing import Final

import anyio

from plexus.limits import KIB, MIB, Limits

__all__ = ("READING", "READ_BYTES", "ClientLimits", "Signal", "UnreadCounter")

#: How much is asked of a pipe or a socket in one go.
READ_BYTES: Final = 64 * KIB

#: What may be read of a server. A terminal may have 10 MiB and an envelope around it; what it
#: is made of was bounded by the server's encoder, which stops at 253 levels.
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
    """The bounds in force. Sizes are in bytes, times in seconds."""

    #: How long one attempt to connect may take.
    connect_s: float = 10.0
    #: How long the server may take to accept or refuse a call.
    reply_s: float = 30.0
    #: How long a lost connection is sought again; 0 for not at all. A server cancels a run whose
    #: caller has not come back after 10 s, so more than this helps only calls not yet begun.
    reconnect_s: float = 30.0
    #: How long a stream may be silent. A server says something every 15 s, if only a comment.
    silence_s: float = 60.0
    #: How long saying goodbye may take, and how long a process may take to end by itself.
    close_s: float = 5.0
    #: One request; a server refuses more, without saying to which request the refusal belongs.
    request_bytes: int = 1 * MIB
    #: What was read and not yet taken by the program, over all calls of one connection (over
    #: HTTP each call has its own). Past either bound nothing is read until half of it is gone.
    unread_items: int = 8192
    unread_bytes: int = 16 * MIB


class Signal:
    """Wakes whoever waits. To be used as `while not condition: await changed.wait()`."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event: anyio.Event | None = None

    def notify(self) -> None:
        """Wake everybody who waits now; costs next to nothing when nobody does."""
        if self._event is not None:
            self._event.set()
            self._event = None

    async def wait(self) -> None:
        """Wait for the next ringing."""
        if self._event is None:
            self._event = anyio.Event()
        await self._event.wait()


class UnreadCounter:
    """What was read from a server and not yet taken by the program.

    Once it is full it counts as full until half is gone, so that reading does not stop and start
    with every item.
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
        """One more item, of so many bytes."""
        self.items += 1
        self.bytes += size
        if self.items >= self._max_items or self.bytes >= self._max_bytes:
            self.full = True

    def remove(self, size: int) -> None:
        """One item was taken, or is wanted no more."""
        self.items -= 1
        self.bytes -= size
        if self.full and self.items <= self._max_items // 2 and self.bytes <= self._max_bytes // 2:
            self.full = False
            self._wakeup.notify()

    async def wait_for_capacity(self) -> None:
        """Wait while it is full."""
        while self.full:
            await self._wakeup.wait()
