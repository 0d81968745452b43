"""The doorbell: who is told that the change table may have grown, and how another process says so.

NOTIFY carries no data. One connection a process listens, and everybody here who follows changes is
rung from it; they then read what is new from the table. A ring that was lost, because somebody died
between a commit and its ring or because our connection was away, is made good by looking at the
table once in a while.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import psycopg

from activations.arbor.postgres.session import CONNECT_S
from activations.arbor.postgres.writer import CHANNEL, pauses

__all__ = ("Bell",)

#: How often the table is looked at where nothing rings.
POLL_S = 1.0
#: An answer to a look at the table is waited for so long.
ANSWER_S = 10.0

Ring = Callable[[], None]


class Bell:
    """The subscribers of one process, and the task that listens for them while there are any."""

    def __init__(self, url: str, name: str) -> None:
        self._url = url
        #: What our own rings carry: our subscribers were already told.
        self._name = name
        self._rings: dict[object, Ring] = {}
        self._task: asyncio.Task[None] | None = None

    def subscribe(self, ring: Ring) -> Callable[[], None]:
        """Call this on the loop whenever there may be news; returns what ends it."""
        key = object()
        self._rings[key] = ring
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._listen())

        def leave() -> None:
            self._rings.pop(key, None)
            if not self._rings and self._task is not None:
                self._task.cancel()
                self._task = None

        return leave

    def ring(self) -> None:
        """Tell everybody here."""
        for ring in list(self._rings.values()):
            ring()

    async def close(self) -> None:
        """Stop listening."""
        self._rings.clear()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _listen(self) -> None:
        waits = pauses()
        while True:
            try:
                connection = await psycopg.AsyncConnection.connect(
                    self._url, autocommit=True, connect_timeout=CONNECT_S
                )
                async with connection:
                    await connection.execute(f"LISTEN {CHANNEL}".encode())
                    waits = pauses()
                    await self._follow(connection)
            except (psycopg.Error, TimeoutError):
                # Writes and reads tell their callers; who follows is rung when it is back.
                await asyncio.sleep(next(waits))

    async def _follow(self, connection: psycopg.AsyncConnection[tuple[object, ...]]) -> None:
        newest: object = None
        while True:
            async with asyncio.timeout(ANSWER_S):
                cursor = await connection.execute("SELECT max(seq) FROM changes")
                row = await cursor.fetchone()
            if row is not None and row[0] != newest:
                newest = row[0]
                self.ring()
            async for notice in connection.notifies(timeout=POLL_S):
                if notice.payload != self._name:
                    self.ring()
