"""Waiting on a connection: an event, flow control and a queue that are small until they are used.

A connection of uvicorn has up to six objects of asyncio of these kinds. Each contains a deque,
which takes 0.7 KiB of memory even while nothing waits, and an open stream hardly ever waits.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl

__all__ = ("ConnectionFlow", "LeanEvent", "MessageQueue")


class LeanEvent:
    """An event with the interface of `asyncio.Event`."""

    __slots__ = ("_is_set", "_waiters")

    def __init__(self, *, is_set: bool = False) -> None:
        self._is_set = is_set
        self._waiters: list[asyncio.Future[None]] | None = None

    def is_set(self) -> bool:
        """Return whether the event is set."""
        return self._is_set

    def set(self) -> None:
        """Set the event and wake the tasks that wait for it."""
        self._is_set = True
        waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            if not waiter.done():
                waiter.set_result(None)

    def clear(self) -> None:
        """Reset the event."""
        self._is_set = False

    async def wait(self) -> None:
        """Wait until the event is set."""
        if self._is_set:
            return
        waiter = asyncio.get_running_loop().create_future()
        if self._waiters is None:
            self._waiters = []
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter.cancelled() and self._waiters is not None:
                self._waiters.remove(waiter)


class ConnectionFlow(FlowControl):
    """The flow control of one connection."""

    __slots__ = ("_is_writable_event", "_transport", "read_paused", "write_paused")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.read_paused = False
        self.write_paused = False
        self._is_writable_event: Any = LeanEvent(is_set=True)


class MessageQueue:
    """The messages that a connection has for the app: a queue with one reader.

    It has the part of the interface of `asyncio.Queue` that uvicorn uses.
    """

    __slots__ = ("_messages", "_reader")

    def __init__(self) -> None:
        self._messages: list[Any] = []
        self._reader: asyncio.Future[None] | None = None

    def empty(self) -> bool:
        """Return whether there are no messages."""
        return not self._messages

    def put_nowait(self, message: Any) -> None:
        """Append a message."""
        self._messages.append(message)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def get(self) -> Any:
        """Remove and return the oldest message, waiting for one if there is none."""
        while not self._messages:
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        # Reading is paused while there are messages, so they are few.
        return self._messages.pop(0)
