"""How the client's tasks wait for each other: a bell, and a count of what is still unread."""

from __future__ import annotations

import anyio

from native_rpc.client.limits import ClientLimits

__all__ = ("Bell", "Unread")


class Bell:
    """Wakes whoever waits. To be used as `while not condition: await bell.wait()`."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event: anyio.Event | None = None

    def ring(self) -> None:
        """Wake everybody who waits now; costs next to nothing when nobody does."""
        if self._event is not None:
            self._event.set()
            self._event = None

    async def wait(self) -> None:
        """Wait for the next ringing."""
        if self._event is None:
            self._event = anyio.Event()
        await self._event.wait()


class Unread:
    """What was read from a server and not yet taken by the program.

    Once it is full it counts as full until half is gone, so that reading does not stop and start
    with every item.
    """

    __slots__ = ("_bell", "_max_bytes", "_max_items", "bytes", "full", "items")

    def __init__(self, limits: ClientLimits) -> None:
        self._max_items = limits.unread_items
        self._max_bytes = limits.unread_bytes
        self._bell = Bell()
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
            self._bell.ring()

    async def room(self) -> None:
        """Wait while it is full."""
        while self.full:
            await self._bell.wait()
