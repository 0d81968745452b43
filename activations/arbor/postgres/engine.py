"""The engine: works that write go to one thread, works that read to a few others.

A server that is away is waited for, and every wait has an end: a call fails by name once the
server has not come back in time, and the next call tries afresh.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from activations.arbor.engine import Transaction
from activations.arbor.postgres.bell import Bell
from activations.arbor.postgres.faults import Gone
from activations.arbor.postgres.migrations import migrate
from activations.arbor.postgres.session import Session, scoped
from activations.arbor.postgres.writer import Work, Writer, pauses
from plexus.errors import Failed

__all__ = ("PATIENCE_S", "PostgresEngine", "open_engine")

T = TypeVar("T")

#: A call waits so long for a server that is away.
PATIENCE_S = 10.0
READERS = 4
#: How often it is looked whether a server has fallen silent, while anything is under way.
LOOK_S = 1.0
SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


async def open_engine(url: str) -> PostgresEngine:
    """Migrate the database, and have an engine on it."""
    stop = threading.Event()
    session = Session(url)
    until = time.monotonic() + PATIENCE_S
    try:
        await asyncio.to_thread(_tried, session, lambda: migrate(session), until, stop)
    finally:
        stop.set()
    return PostgresEngine(url)


def _tried(session: Session, act: Callable[[], T], until: float, stop: threading.Event) -> T:
    """Do something that can be done again, until the server has answered or the time is up."""
    for pause in pauses():
        try:
            return act()
        except Gone as gone:
            session.drop()
            if stop.is_set() or time.monotonic() + pause > until:
                raise gone.failure from gone
        stop.wait(pause)
    raise AssertionError  # pauses have no end


class PostgresEngine:
    """A database on a server, shared with other processes."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._loop = asyncio.get_running_loop()
        self._writer = Writer(url, self._settled)
        self._bell = Bell(url, self._writer.name)
        self._readers = ThreadPoolExecutor(READERS, "arbor reader")
        self._own = threading.local()
        self._sessions = [self._writer.session]
        self._under_way = 0
        self._looking = False
        self._closing = threading.Event()

    async def write(self, work: Callable[[Transaction], T]) -> T:
        """Run the work in a transaction that it shares with others; stored when this returns."""
        self._check_open()
        future: asyncio.Future[T] = self._loop.create_future()
        with self._watched():
            self._writer.submit(Work(work, future, time.monotonic() + PATIENCE_S))
            return await future

    async def read(self, work: Callable[[Transaction], T]) -> T:
        """Run the work over one snapshot."""
        self._check_open()
        until = time.monotonic() + PATIENCE_S
        with self._watched():
            return await self._loop.run_in_executor(self._readers, self._read, work, until)

    def subscribe(self, ring: Callable[[], None]) -> Callable[[], None]:
        """Call this on the loop whenever the change table may have grown; returns what ends it."""
        self._check_open()
        return self._bell.subscribe(ring)

    async def backup(self, path: Path) -> None:  # noqa: ARG002 - the protocol's
        """A server is backed up by its own tools."""
        raise Failed(
            "this store is on a PostgreSQL server: make a backup with pg_dump", code="unsupported"
        )

    async def check(self) -> None:
        """Nothing: the disk and the files are the server's."""

    async def close(self) -> None:
        """Finish what waits, if the server answers, and close every connection."""
        self._closing.set()
        await self._bell.close()
        await asyncio.to_thread(self._writer.close)
        await asyncio.to_thread(self._readers.shutdown)
        for session in self._sessions:
            session.drop()

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise Failed("the store is closed", code="storage_closed")

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Something is under way, so the server must be answering."""
        self._under_way += 1
        if not self._looking:
            self._looking = True
            self._loop.call_later(LOOK_S, self._look)
        try:
            yield
        finally:
            self._under_way -= 1

    def _look(self) -> None:
        for session in self._sessions:
            session.cut_if_silent()
        self._looking = self._under_way > 0
        if self._looking:
            self._loop.call_later(LOOK_S, self._look)

    def _settled(self, group: Sequence[Work], wrote: bool) -> None:
        """Called on the writer's thread, once for all works of a transaction."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            self._loop.call_soon_threadsafe(self._answer, group, wrote)

    def _answer(self, group: Sequence[Work], wrote: bool) -> None:
        for work in group:
            if work.future.done():
                continue  # its caller has gone
            if work.error is None:
                work.future.set_result(work.result)
            else:
                work.future.set_exception(work.error)
        if wrote:
            self._bell.ring()

    def _read(self, work: Callable[[Transaction], T], until: float) -> T:
        """On a reader's thread. What only reads can always be done again."""
        session: Session | None = getattr(self._own, "session", None)
        if session is None:
            session = self._own.session = Session(self._url)
            self._sessions.append(session)
        own = session

        def act() -> T:
            with scoped(own, SNAPSHOT) as transaction:
                return work(transaction)

        return _tried(own, act, until, self._closing)
