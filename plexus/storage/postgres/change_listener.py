"""The change signal: who is notified in this process, and how other processes notify it.

NOTIFY carries no data. One connection per engine listens, and every subscriber is called from it;
subscribers then read what is new. A notification can be lost: its sender died after its commit, or
this connection was down. So the table of writers, which every commit updates, is polled as well.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import psycopg

from plexus.storage.postgres.session import CONNECT_S
from plexus.storage.postgres.writer import retry_delays

__all__ = ("ChangeListener",)

#: How often the table of writers is polled.
POLL_S = 1.0
#: How long a poll may take.
ANSWER_S = 10.0
#: Every commit raises one of the numbers, or adds a row that is newer than all.
POLL = "SELECT sum(last), max(at_ms), count(*) FROM writers"

Listener = Callable[[], None]


class ChangeListener:
    """The subscribers of one engine, and the task that listens while there are any."""

    def __init__(self, url: str, channel: str, writer: str) -> None:
        self._url = url
        self._channel = channel
        #: The payload of this engine's own notifications: its subscribers were called already.
        self._writer = writer
        self._listeners: dict[object, Listener] = {}
        self._task: asyncio.Task[None] | None = None

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` on the loop after commits. Returns a function that unsubscribes."""
        key = object()
        self._listeners[key] = listener
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._listen())

        def unsubscribe() -> None:
            self._listeners.pop(key, None)
            if not self._listeners and self._task is not None:
                self._task.cancel()
                self._task = None

        return unsubscribe

    def notify(self) -> None:
        """Call every subscriber of this engine."""
        for listener in list(self._listeners.values()):
            listener()

    async def close(self) -> None:
        """Stop listening."""
        self._listeners.clear()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _listen(self) -> None:
        delays = retry_delays()
        while True:
            try:
                connection = await psycopg.AsyncConnection.connect(
                    self._url, autocommit=True, connect_timeout=CONNECT_S
                )
                async with connection:
                    await connection.execute(f"LISTEN {self._channel}".encode())
                    delays = retry_delays()
                    await self._follow(connection)
            except (psycopg.Error, TimeoutError):
                # Reads and writes report it to their callers; subscribers are called on return.
                await asyncio.sleep(next(delays))

    async def _follow(self, connection: psycopg.AsyncConnection[tuple[object, ...]]) -> None:
        seen: object = None
        while True:
            async with asyncio.timeout(ANSWER_S):
                cursor = await connection.execute(POLL)
                row = await cursor.fetchone()
            if row != seen:
                seen = row
                self.notify()
            async for notice in connection.notifies(timeout=POLL_S):
                if notice.payload != self._writer:
                    self.notify()
