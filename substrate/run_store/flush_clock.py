"""The clock of the recorder: when what is new is collected and written, one flush at a time.

The clock runs only while there is something to record. In a burst of short runs it waits, because
making their rows holds the interpreter lock: the calls of a burst are recorded after it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Collection
from typing import Final, Protocol

from plexus.errors import PlexusError
from substrate.run_store.flush import Flush
from substrate.run_store.flush_writer import FlushWriter

__all__ = ("FlushClock", "FlushSource")

logger = logging.getLogger("substrate.run_store")

#: Seconds between flushes: while another process watches, and otherwise.
WATCHED_S: Final = 0.01
UNWATCHED_S: Final = 0.05
#: Seconds between flushes in a burst of short runs, and the numbers of them that are a burst and
#: that do not wait for more.
BURST_S: Final = 0.25
MIN_BURST: Final = 100
MAX_BURST: Final = 5_000
#: Age in seconds of a run that is followed with a cursor. Younger ones may turn out to be short.
FOLLOWED_S: Final = 0.025
#: Seconds after which a flush counts as delayed.
DELAYED_S: Final = 0.5
#: Seconds that readers wait for the items of this process to be written.
FLUSHED_S: Final = 2.0


class FlushSource(Protocol):
    """What the clock needs from the recorder."""

    @property
    def has_new(self) -> bool:
        """Whether there may be something to write."""

    @property
    def burst_size(self) -> int:
        """Number of short runs that are new; 0 if anything else is new."""

    def follow_new(self, until: float) -> None:
        """Follow the runs in progress that started before this time with cursors."""

    def prepare(self) -> Flush | None:
        """Collect what is new. Returns None if nothing is."""

    def on_flushed(self, flush: Flush, fenced: Collection[int]) -> None:
        """Handle a flush that was written; `fenced` are runs that another process has taken."""

    def on_given_up(self, flush: Flush) -> None:
        """Handle a flush that cannot be written."""


class FlushClock:
    """Decides when a flush is written, and writes it."""

    def __init__(
        self,
        source: FlushSource,
        write: Callable[[Flush], asyncio.Future[Collection[int]]],
        is_watched: Callable[[], bool],
        is_writable: Callable[[], Awaitable[bool]],
    ) -> None:
        self._source = source
        self._is_watched = is_watched
        self.writer = FlushWriter(write, is_writable)
        self._loop = asyncio.get_running_loop()
        #: The next tick; None if none is planned.
        self.timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._last_tick = 0.0
        self._last_flush = 0.0
        self._task: asyncio.Task[None] | None = None
        #: Whether the flush that is being written takes long, and the timer that sets it.
        self.is_delayed = False
        self._delay_timer: asyncio.TimerHandle | None = None
        self._closed = False
        #: Waiters for everything that was recorded until now to be written.
        self._waiters: list[asyncio.Future[None]] = []

    def schedule(self, *, urgent: bool = False) -> None:
        """Make sure that the clock ticks soon."""
        if self._closed or (self.timer is not None and not urgent):
            return
        interval = WATCHED_S if urgent or self._is_watched() else UNWATCHED_S
        now = self._loop.time()
        due = max(now, self._last_tick + interval)
        if self.timer is not None:
            if due >= self._due:
                return
            self.timer.cancel()
        self._due = due
        self.timer = self._loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self.timer = None
        if self._task is not None:
            return  # what is new is collected after the flush
        now = self._last_tick = self._loop.time()
        source = self._source
        is_hurried = bool(self._waiters) or self._is_watched()
        source.follow_new(now if is_hurried else now - FOLLOWED_S)
        may_wait = not is_hurried and now - self._last_flush < BURST_S
        is_burst = may_wait and MIN_BURST <= source.burst_size < MAX_BURST
        flush = None if is_burst else source.prepare()
        if flush is None:
            self._resolve_waiters()
            if source.has_new:
                self.schedule()
        else:
            self._last_flush = now
            self._task = self._loop.create_task(self._write(flush))
            self._task.add_done_callback(self._on_written)
            self._delay_timer = self._loop.call_later(DELAYED_S, self._on_delay)

    def _on_delay(self) -> None:
        self.is_delayed = True

    async def _write(self, flush: Flush) -> None:
        fenced = await self.writer.write(flush)
        if fenced is None:
            self._source.on_given_up(flush)
        else:
            self._source.on_flushed(flush, fenced)

    def _on_written(self, task: asyncio.Task[None]) -> None:
        self._task = None
        self.is_delayed = False
        if self._delay_timer is not None:
            self._delay_timer.cancel()
            self._delay_timer = None
        if not task.cancelled() and task.exception() is not None:
            logger.error("the recorder failed", exc_info=task.exception())
        if self._source.has_new:
            self.schedule(urgent=bool(self._waiters))
        else:
            self._resolve_waiters()

    def _resolve_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def flushed(self) -> None:
        """Wait until everything that was recorded until now is written, within a bound."""
        if self._task is None and not self._source.has_new:
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        if self._task is None:
            self.schedule(urgent=True)
        # Readers see what is stored so far if the store cannot write.
        await asyncio.wait([waiter], timeout=FLUSHED_S)

    async def close(self, within_s: float) -> bool:
        """Write what is left, if that takes no longer than this time. Returns whether it was."""
        self._source.follow_new(math.inf)
        is_written = True
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        try:
            async with asyncio.timeout(within_s):
                if self._task is not None:
                    await asyncio.wait([self._task])
                if (flush := self._source.prepare()) is not None:
                    self._source.on_flushed(flush, await self.writer.write_once(flush))
        except (TimeoutError, PlexusError) as error:
            is_written = False
            reason = (
                error.message if isinstance(error, PlexusError) else "the store does not answer"
            )
            logger.warning("the last items were not recorded: %s", reason)
        self._closed = self.writer.is_closed = True
        if self._task is not None:
            self._task.cancel()
        return is_written
