"""The log of one run and its readers: numbered items, cursors over them, and backpressure.

An item is a sequence number, a time, an event and the event's bytes. Items are numbered from 1,
and the newest are kept within a bound. Events and bytes live in parallel lists, because a stream
appends a million of them and an object for each would cost more than the event itself. The pump
appends to the lists directly and calls `trim` now and then, which counts and trims. Items that
were appended within a millisecond share their time.

Rules:
- The pump appends; readers hold cursors and take everything that is there at once. Nothing is
  queued for a reader and no reader has a task.
- The owner holds the run back: when it is behind by the high-water mark, the pump waits. An
  owner that vanished still holds it, so that it finds everything when it comes back.
- Watchers never hold a run. A watcher that fell off the log's tail gets a `gap` and goes on.
"""

from __future__ import annotations

import asyncio
import bisect
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from plexus.errors import TooBig
from plexus.events import Event, Gap, Terminal
from plexus.limits import Limits
from plexus.rpc import wire

if TYPE_CHECKING:  # a run makes its readers; here it is only named
    from plexus.runtime.run import Run

__all__ = ("ITEM_WEIGHT", "Batch", "Reader", "RunLog", "wall_ms")

#: What an item weighs beside its bytes: the objects around it, here and on the way out. So the
#: high-water mark of a mebibyte is reached by a thousand small items as well as by one large.
ITEM_WEIGHT = 1024
#: How many items past the bound are let be: trimming a list from the front is linear.
SLACK = 512
#: How much a reader takes at once: enough to make a good write, and so little that a watcher
#: of a long log does not hold the loop and a write does not need a mapping of its own.
TAKE_ITEMS = 512
TAKE_BYTES = 256 * 1024
#: How exact the time of an item is.
RESOLUTION_S = 0.001
#: What to add to a monotonic time to get the time on the wall.
WALL_OFFSET = time.time() - time.monotonic()


def wall_ms(monotonic: float) -> int:
    """Return a monotonic time in milliseconds since the epoch."""
    return int((WALL_OFFSET + monotonic) * 1000)


class Batch:
    """Consecutive items, bytes_read in one go; the first has the number `first`."""

    __slots__ = ("events", "first", "log", "payloads", "size", "terminal")

    def __init__(
        self,
        first: int,
        events: list[Event],
        payloads: list[bytes],
        size: int | None = None,
        log: RunLog | None = None,
    ) -> None:
        self.first = first
        self.events = events
        self.payloads = payloads
        #: Bytes of all of them.
        self.size = sum(map(len, payloads)) if size is None else size
        #: The run's terminal, if this batch ends with it.
        self.terminal: Terminal | None = None
        if events and events[-1].terminal:
            self.terminal = events[-1]  # type: ignore[assignment]  # only terminals say so
        #: Where the items come from; None for what stands for items that are gone.
        self.log = log

    def times_ms(self) -> list[int]:
        """Return when each item was appended, in milliseconds since the epoch."""
        if self.log is None:
            return [wall_ms(time.monotonic())] * len(self.payloads)
        time_of = self.log.time_of
        return [wall_ms(time_of(seq)) for seq in range(self.first, self.first + len(self.payloads))]


def _number(mark: tuple[int, float]) -> int:
    return mark[0]


class RunLog:
    """The items of a run, the readers that wait for the next one, and the owner that holds it."""

    __slots__ = (
        "_counted",
        "_resume",
        "_started_at",
        "ended",
        "events",
        "first",
        "limits",
        "marks",
        "owner",
        "payloads",
        "size",
        "total",
        "waiting_readers",
    )

    def __init__(self, limits: Limits, started_at: float) -> None:
        self.events: list[Event] = []
        self.payloads: list[bytes] = []
        #: From which item on which monotonic time holds; before the first, the start's does.
        self.marks: list[tuple[int, float]] = []
        self._started_at = started_at
        #: The number of the oldest item kept.
        self.first = 1
        #: Bytes of the items that are kept, and of all there ever were, as far as `trim` has
        #: counted them.
        self.size = 0
        self.total = 0
        self._counted = 0
        #: Whether the terminal is there, and counted.
        self.ended = False
        self.limits = limits
        #: Readers that have bytes_read everything and wait for more; always the same list.
        self.waiting_readers: list[Reader] = []
        #: The reader that the pump waits for.
        self.owner: Reader | None = None
        #: What the pump waits on while the owner is too far behind.
        self._resume: asyncio.Future[None] | None = None

    @property
    def last(self) -> int:
        """The number of the newest item; 0 if there is none yet."""
        return self.first + len(self.payloads) - 1

    def append(self, event: Event, raw: bytes) -> None:
        """Add the next item."""
        self.events.append(event)
        self.payloads.append(raw)

    def check_newest(self) -> None:
        """Take the newest item out again, and raise TooBig, if it is too large."""
        if len(self.payloads[-1]) > self.limits.event_bytes:
            event, raw = self.events.pop(), self.payloads.pop()
            self.check_size(event, len(raw))

    def check_size(self, event: Event, size: int) -> None:
        """Raise TooBig if this is too many bytes for this event."""
        limit = self.limits.answer_bytes if event.terminal else self.limits.event_bytes
        if size > limit:
            raise TooBig(
                f"a {event.type} event of {size} bytes is over the limit of {limit}",
                data={"limit": limit},
            )

    def trim(self, unread: int | None) -> None:
        """Count what was appended and forget what is beyond the bounds.

        From the item `unread` on everything is kept: the owner has not read it yet, and it is
        bounded by the high-water mark.
        """
        payloads, limits = self.payloads, self.limits
        added = sum(map(len, payloads[self._counted :] if self._counted else payloads))
        self.size += added
        self.total += added
        self._counted = len(payloads)
        if len(payloads) <= limits.log_items + SLACK and self.size <= limits.log_bytes:
            return
        count = max(len(payloads) - limits.log_items, 0)
        self.size -= sum(map(len, payloads[:count]))
        while self.size > limits.log_bytes and count < len(payloads) - 1:
            self.size -= len(payloads[count])
            count += 1
        if unread is not None and unread - self.first < count:
            kept = max(unread - self.first, 0)
            self.size += sum(map(len, payloads[kept:count]))
            count = kept
        del self.events[:count], payloads[:count]
        self.first += count
        self._counted = len(payloads)
        stale = bisect.bisect_right(self.marks, self.first, key=_number) - 1
        if stale > 0:
            del self.marks[:stale]

    def close(self) -> None:
        """Keep what there is, and let whoever still holds the lists append to nothing."""
        self.events, self.payloads = self.events.copy(), self.payloads.copy()

    def mark(self, at: float) -> None:
        """From the newest item on, this is the time, unless it has hardly changed."""
        marks = self.marks
        if at - (marks[-1][1] if marks else self._started_at) > RESOLUTION_S:
            marks.append((self.last, at))

    def time_of(self, seq: int) -> float:
        """When this item was appended, to a millisecond."""
        index = bisect.bisect_right(self.marks, seq, key=_number)
        return self.marks[index - 1][1] if index else self._started_at

    def size_after(self, seq: int) -> int:
        """Bytes of the items after this number."""
        return sum(map(len, self.payloads[max(seq + 1 - self.first, 0) :]))

    def numbered(self, after: int) -> Iterator[tuple[int, Event]]:
        """The events after this number, each with its own; `after` must not lie before the log."""
        return enumerate(self.events[after + 1 - self.first :], after + 1)

    def read(self, after: int, max_items: int, max_bytes: int) -> Batch:
        """The items after this number, at most so many; `after` must not lie before the log."""
        start = after + 1 - self.first
        if not start and self.ended and len(self.payloads) <= max_items and self.size <= max_bytes:
            # They change no more.
            return Batch(after + 1, self.events, self.payloads, self.size, self)
        payloads = self.payloads[start : start + max_items]
        size = sum(map(len, payloads))
        while size > max_bytes and len(payloads) > 1:
            size -= len(payloads.pop())
        return Batch(after + 1, self.events[start : start + len(payloads)], payloads, size, self)

    # --- waking -------------------------------------------------------------------------------

    def wake_readers(self) -> None:
        """Notify the readers that had bytes_read everything."""
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
        unread = self.total - owner.bytes_read + ITEM_WEIGHT * (self.last - owner.seq)
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
    def is_blocked(self) -> bool:
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
            reader.bytes_read = self.total - self.size_after(reader.seq)
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

    __slots__ = ("bytes_read", "log", "run", "seq", "tag", "wake")

    def __init__(self, run: Run, seq: int, wake: Callable[[Reader], None]) -> None:
        self.run = run
        self.log = run.log
        #: The number of the last item that was bytes_read.
        self.seq = seq
        #: Bytes of all items up to there; used for an owner only.
        self.bytes_read = 0
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
        self.bytes_read += batch.size
        if log.is_blocked:
            log.release()
        return batch
