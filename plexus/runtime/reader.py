"""Readers of a run: cursors over its log, who waits for more, and backpressure.

Rules:
- The pump appends; readers hold cursors and take everything that is there at once. Nothing is
  queued for a reader and no reader has a task.
- The owner holds the run back: when it is behind by the high-water mark, the pump waits. An
  owner that vanished still holds it, so that it finds everything when it comes back.
- Watchers never hold a run. A watcher that fell off the log's tail gets a `gap` and goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from plexus.events import Gap
from plexus.limits import Limits
from plexus.rpc import wire
from plexus.runtime.log import ITEM_WEIGHT, Batch, ItemLog

if TYPE_CHECKING:  # a run makes its readers; here it is only named
    from plexus.runtime.run import Run

__all__ = ("Reader", "RunLog")

#: How much a reader takes at once: enough to make a good write, and so little that a watcher
#: of a long log does not hold the loop and a write does not need a mapping of its own.
TAKE_ITEMS = 512
TAKE_BYTES = 256 * 1024


class RunLog(ItemLog):
    """The log of a run, the readers that wait for its next item, and the owner that holds it."""

    __slots__ = ("_resume", "owner", "waiting_readers")

    def __init__(self, limits: Limits, started_at: float) -> None:
        super().__init__(limits, started_at)
        #: Readers that have taken everything and wait for more; always the same list.
        self.waiting_readers: list[Reader] = []
        #: The reader that the pump waits for.
        self.owner: Reader | None = None
        #: What the pump waits on while the owner is too far behind.
        self._resume: asyncio.Future[None] | None = None

    # --- waking -------------------------------------------------------------------------------

    def wake_readers(self) -> None:
        """Notify the readers that had taken everything."""
        waiting = self.waiting_readers
        if len(waiting) == 1:
            reader = waiting.pop()
            reader.wake(reader)
            return
        woken = waiting.copy()
        waiting.clear()
        for reader in woken:
            reader.wake(reader)

    def end(self) -> None:
        """Count the terminal, and release the pump and everything that waits for an item."""
        self.trim(None)
        self.ended = True
        # The owner holds nothing back now, and the two would keep each other alive until a
        # collection.
        self.owner = None
        if self.waiting_readers:
            self.wake_readers()
        if self._resume is not None:
            self.release()

    # --- backpressure -------------------------------------------------------------------------

    def trim_read(self) -> None:
        """Count and trim the log; what the owner has not read stays."""
        self.trim(None if self.owner is None else self.owner.seq + 1)

    @property
    def capacity(self) -> int:
        """The weight that may still be appended before the pump must wait for the owner."""
        owner = self.owner
        if owner is None:
            return self.limits.high_water_bytes
        unread = self.total - owner.taken + ITEM_WEIGHT * (self.last - owner.seq)
        return self.limits.high_water_bytes - unread

    async def wait_for_capacity(self) -> None:
        """Wait until the owner has caught up. Ended by reading, by detaching and by cancel."""
        self.trim_read()
        while self.capacity <= 0 and not self.ended:
            self._resume = asyncio.get_running_loop().create_future()
            try:
                await self._resume
            finally:
                self._resume = None

    @property
    def is_held(self) -> bool:
        """Whether the pump waits for the owner."""
        return self._resume is not None

    def release(self) -> None:
        """Have the pump compare again how far behind the owner is."""
        if self._resume is not None and not self._resume.done():
            self._resume.set_result(None)

    # --- owner and watchers -------------------------------------------------------------------

    def set_owner(self, reader: Reader) -> None:
        """Let the pump wait for this reader in place of the owner before."""
        self.owner = reader
        if reader.seq or self.payloads:
            self.trim_read()
            reader.taken = self.total - self.size_after(reader.seq)
        if self._resume is not None:
            self.release()

    def leave(self, reader: Reader) -> None:
        """Remove a reader; if it was the owner, nothing holds the pump any more."""
        self.stop_waiting(reader)
        if self.owner is reader:
            self.owner = None
            self.release()

    def stop_waiting(self, reader: Reader) -> None:
        """Wake this reader no more; an owner keeps its place."""
        if self.waiting_readers and reader in self.waiting_readers:
            self.waiting_readers.remove(reader)


class Reader:
    """A cursor over a run's log. `wake` is called once when there is something new to take."""

    __slots__ = ("log", "run", "seq", "tag", "taken", "wake")

    def __init__(self, run: Run, seq: int, wake: Callable[[Reader], None]) -> None:
        self.run = run
        self.log = run.log
        #: The number of the last item that was taken.
        self.seq = seq
        #: Bytes of all items up to there; used for an owner only.
        self.taken = 0
        self.wake = wake
        #: For the holder of this reader.
        self.tag: Any = None

    def poll(self) -> bool:
        """Return whether there is something to take; if not, call `wake` when there is."""
        log = self.log
        if (log.payloads and log.last > self.seq) or log.ended:
            return True
        log.waiting_readers.append(self)
        return False

    def take(self) -> Batch:
        """Take what is there, within bounds; if nothing is, call `wake` when there is."""
        log = self.log
        if self.seq + 1 < log.first:
            gap = Gap(self.seq + 1, log.first - 1)
            self.seq = log.first - 1
            raw = wire.encode_event(gap)
            return Batch(self.seq, [gap], [raw], len(raw))
        batch = log.read(self.seq, TAKE_ITEMS, TAKE_BYTES)
        if not batch.events:
            if not log.ended:
                log.waiting_readers.append(self)
            return batch
        self.seq += len(batch.events)
        self.taken += batch.size
        if log.is_held:
            log.release()
        return batch
