"""The log of one run and its readers: numbered items, cursors over them, and backpressure.

An item is a sequence number, a time, an event and the event's bytes. Items are numbered from 1, and
the newest are kept within a limit. Events and bytes are in parallel lists, because a stream appends
a million of them and an object for each would cost more than the event itself. The pump appends to
the lists directly and calls `trim` periodically, which counts and trims. Items that were appended
within a millisecond share their time.

Rules:
- The pump appends; readers are cursors and take all available items in one batch. Nothing is queued
  for a reader, and no reader has a task.
- The owner applies backpressure: when it is behind by the high-water mark, the pump waits. A
  disconnected owner still blocks the pump, so that it finds all items when it reconnects.
- Watchers never block a run. A reader that is behind the oldest item reads the dropped items from
  the run store; without one, or if they are not stored, it gets a `gap` and continues.
"""

from __future__ import annotations

import asyncio
import bisect
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from plexus.errors import PlexusError, TooBig
from plexus.events import Event, Gap, Terminal
from plexus.limits import Limits
from plexus.rpc import wire

if TYPE_CHECKING:  # imported for annotations only: run imports this module
    from plexus.runtime.run import Run

__all__ = (
    "ITEM_WEIGHT",
    "TAKE_BYTES",
    "TAKE_ITEMS",
    "Batch",
    "DroppedItems",
    "Reader",
    "RunLog",
    "StoredItems",
    "monotonic_at",
    "read_dropped",
    "wall_ms",
)

#: Weight of an item in addition to its bytes: the objects around it, here and on the way out. The
#: high-water mark of 1 MiB is thus reached by a thousand small items as well as by one large one.
ITEM_WEIGHT = 1024
#: Number of items past the limit that are tolerated: trimming a list from the front is linear.
SLACK = 512
#: Maximum batch of a reader: large enough for an efficient write, and small enough that a watcher
#: of a long log does not block the event loop and a write does not need a memory mapping.
TAKE_ITEMS = 512
TAKE_BYTES = 256 * 1024
#: Resolution of the time of an item.
RESOLUTION_S = 0.001
#: Offset of the wall clock from the monotonic clock.
WALL_OFFSET = time.time() - time.monotonic()


def wall_ms(monotonic: float) -> int:
    """Convert a monotonic time to milliseconds since the epoch."""
    return int((WALL_OFFSET + monotonic) * 1000)


class StoredItems(NamedTuple):
    """Consecutive items from the run store; the first has the number `first`."""

    first: int
    events: list[Event]
    payloads: list[bytes]
    #: The time of each item, in milliseconds since the epoch.
    times_ms: list[int]


class DroppedItems(Protocol):
    """Where a log's dropped items can be read."""

    async def read(self, run: int, after: int, before: int) -> StoredItems:
        """Return some of the stored items between these two numbers, the oldest first.

        `first` is greater than `after + 1` if items in between are not stored; without items there
        are none. Raises PlexusError.
        """


def monotonic_at(milliseconds: float) -> float:
    """Convert milliseconds since the epoch to a time of the monotonic clock of this process."""
    return milliseconds / 1000 - WALL_OFFSET


class Batch:
    """Consecutive items; the first has the number `first`."""

    __slots__ = ("events", "first", "log", "payloads", "size", "terminal", "times")

    def __init__(
        self,
        first: int,
        events: list[Event],
        payloads: list[bytes],
        size: int | None = None,
        log: RunLog | None = None,
        times: list[int] | None = None,
    ) -> None:
        self.first = first
        self.events = events
        self.payloads = payloads
        #: Bytes of all items.
        self.size = sum(map(len, payloads)) if size is None else size
        #: The run's terminal, if it is the last item of this batch.
        self.terminal: Terminal | None = None
        if events and events[-1].terminal:
            self.terminal = events[-1]  # type: ignore[assignment]  # only terminals have it set
        #: Source of the items; None for a gap and for items from the run store.
        self.log = log
        #: The times of items from the run store, in milliseconds since the epoch.
        self.times = times

    def times_ms(self) -> list[int]:
        """Return the time of each item, in milliseconds since the epoch."""
        if self.times is not None:
            return self.times
        if self.log is None:
            return [wall_ms(time.monotonic())] * len(self.payloads)
        time_of = self.log.time_of
        return [wall_ms(time_of(seq)) for seq in range(self.first, self.first + len(self.payloads))]


def _number(mark: tuple[int, float]) -> int:
    return mark[0]


class RunLog:
    """The items of a run, the readers that wait for the next item, and the owner."""

    __slots__ = (
        "_counted",
        "_resume",
        "dropped",
        "ended",
        "events",
        "first",
        "limits",
        "marks",
        "on_trim",
        "owner",
        "payloads",
        "size",
        "started_at",
        "total",
        "waiting_readers",
    )

    def __init__(self, limits: Limits, started_at: float) -> None:
        self.events: list[Event] = []
        self.payloads: list[bytes] = []
        #: Monotonic time from an item on; before the first mark, the start time.
        self.marks: list[tuple[int, float]] = []
        self.started_at = started_at
        #: Number of the oldest item.
        self.first = 1
        #: Bytes of the current items, and of all items ever, as counted by `trim`.
        self.size = 0
        self.total = 0
        self._counted = 0
        #: Whether the terminal was appended and counted.
        self.ended = False
        self.limits = limits
        #: Where dropped items can be read; None without a run store.
        self.dropped: DroppedItems | None = None
        #: Called before items are dropped; None unless the run is recorded.
        self.on_trim: Callable[[], None] | None = None
        #: Readers that have taken everything and wait for more; always the same list object.
        self.waiting_readers: list[Reader] = []
        #: The reader that the pump waits for.
        self.owner: Reader | None = None
        #: What the pump waits on while the owner is too far behind.
        self._resume: asyncio.Future[None] | None = None

    @property
    def last(self) -> int:
        """Number of the newest item; 0 before the first."""
        return self.first + len(self.payloads) - 1

    def append(self, event: Event, raw: bytes) -> None:
        """Append an item."""
        self.events.append(event)
        self.payloads.append(raw)

    def check_newest(self) -> None:
        """Remove the newest item and raise TooBig if it is too large."""
        if len(self.payloads[-1]) > self.limits.event_bytes:
            event, raw = self.events.pop(), self.payloads.pop()
            self.check_size(event, len(raw))

    def check_size(self, event: Event, size: int) -> None:
        """Raise TooBig if this event must not have this size."""
        limit = self.limits.answer_bytes if event.terminal else self.limits.event_bytes
        if size > limit:
            raise TooBig(
                f"A {event.type} event of {size} bytes exceeds the limit of {limit} bytes.",
                data={"limit": limit},
            )

    def trim(self, unread: int | None) -> None:
        """Count appended items and drop those past the limits.

        All items from `unread` on are kept: the owner has not read them yet, and they are bounded
        by the high-water mark.
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
        if self.on_trim is not None:
            self.on_trim()
        del self.events[:count], payloads[:count]
        self.first += count
        self._counted = len(payloads)
        stale = bisect.bisect_right(self.marks, self.first, key=_number) - 1
        if stale > 0:
            del self.marks[:stale]

    def close(self) -> None:
        """Detach the lists, so that an abandoned run appends to unused ones."""
        self.events, self.payloads = self.events.copy(), self.payloads.copy()

    def mark(self, at: float) -> None:
        """Record the time of the newest item, unless it has hardly changed."""
        marks = self.marks
        if at - (marks[-1][1] if marks else self.started_at) > RESOLUTION_S:
            marks.append((self.last, at))

    def time_of(self, seq: int) -> float:
        """Return the monotonic time of an item, to a millisecond."""
        index = bisect.bisect_right(self.marks, seq, key=_number)
        return self.marks[index - 1][1] if index else self.started_at

    def size_after(self, seq: int) -> int:
        """Return the bytes of the items after this number."""
        return sum(map(len, self.payloads[max(seq + 1 - self.first, 0) :]))

    def numbered(self, after: int) -> Iterator[tuple[int, Event]]:
        """Yield the events after this number with their numbers; `after` must be in the log."""
        return enumerate(self.events[after + 1 - self.first :], after + 1)

    def read(self, after: int, max_items: int, max_bytes: int) -> Batch:
        """Return a batch of the items after this number; `after` must be in the log."""
        start = after + 1 - self.first
        if not start and self.ended and len(self.payloads) <= max_items and self.size <= max_bytes:
            # The lists no longer change.
            return Batch(after + 1, self.events, self.payloads, self.size, self)
        payloads = self.payloads[start : start + max_items]
        size = sum(map(len, payloads))
        while size > max_bytes and len(payloads) > 1:
            size -= len(payloads.pop())
        return Batch(after + 1, self.events[start : start + len(payloads)], payloads, size, self)

    # --- waiting readers ----------------------------------------------------------------------

    def wake_readers(self) -> None:
        """Wake the readers that wait for an item."""
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
        """Count the terminal, and release the pump and all waiting readers."""
        self.trim(None)
        self.ended = True
        # There is no backpressure any more, and the reference cycle would last until a collection.
        self.owner = None
        if self.waiting_readers:
            self.wake_readers()
        if self._resume is not None:
            self.release()

    # --- backpressure -------------------------------------------------------------------------

    def trim_read(self) -> None:
        """Count and trim the log; items that the owner has not read are kept."""
        self.trim(None if self.owner is None else self.owner.seq + 1)

    @property
    def capacity(self) -> int:
        """Weight that can be appended before the pump must wait for the owner."""
        owner = self.owner
        if owner is None:
            return self.limits.high_water_bytes
        unread = self.total - owner.bytes_read + ITEM_WEIGHT * (self.last - owner.seq)
        return self.limits.high_water_bytes - unread

    async def wait_for_capacity(self) -> None:
        """Wait until the owner has caught up, detached or left, or the run is cancelled."""
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
        """Make the pump check again how far behind the owner is."""
        if self._resume is not None and not self._resume.done():
            self._resume.set_result(None)

    # --- owner and watchers -------------------------------------------------------------------

    def set_owner(self, reader: Reader) -> None:
        """Make this reader the owner instead of the previous one."""
        self.owner = reader
        if reader.seq or self.payloads:
            self.trim_read()
            reader.bytes_read = self.total - self.size_after(reader.seq)
        if self._resume is not None:
            self.release()

    def leave(self, reader: Reader) -> None:
        """Remove a reader; if it was the owner, there is no backpressure any more."""
        self.stop_waiting(reader)
        reader.stop_loading()
        if self.owner is reader:
            self.owner = None
            self.release()

    def stop_waiting(self, reader: Reader) -> None:
        """Stop waking this reader; an owner stays the owner."""
        if self.waiting_readers and reader in self.waiting_readers:
            self.waiting_readers.remove(reader)


class Reader:
    """A cursor over a run's log. `wake` is called once when a new item is available."""

    __slots__ = ("_loaded", "_loading", "bytes_read", "log", "run", "seq", "tag", "wake")

    def __init__(self, run: Run, seq: int, wake: Callable[[Reader], None]) -> None:
        self.run = run
        self.log = run.log
        #: Number of the last item that was taken.
        self.seq = seq
        #: Bytes of all items up to there; maintained for an owner only.
        self.bytes_read = 0
        self.wake = wake
        #: Arbitrary value for the creator of this reader.
        self.tag: Any = None
        #: Dropped items that were read from the store, and the task that reads the next.
        self._loaded: Batch | None = None
        self._loading: asyncio.Task[None] | None = None

    def poll(self) -> bool:
        """Return whether items are available; if not, `wake` is called when they are."""
        log = self.log
        if self._loading is not None:
            return False
        if (log.payloads and log.last > self.seq) or log.ended or self.seq + 1 < log.first:
            return True
        log.waiting_readers.append(self)
        return False

    def take(self) -> Batch:
        """Return available items, within bounds; if there are none, `wake` is called later."""
        log = self.log
        if self.seq + 1 < log.first:
            return self._take_dropped()
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

    # --- dropped items --------------------------------------------------------------------------

    def _take_dropped(self) -> Batch:
        """Return items that the log has dropped; if they must be loaded, `wake` is called later."""
        log = self.log
        if self._loaded is not None:
            batch, self._loaded = self._loaded, None
        elif log.dropped is None:
            batch = _gap(self.seq + 1, log.first - 1)
        else:
            if self._loading is None:
                loop = asyncio.get_running_loop()
                self._loading = loop.create_task(self._load(log.dropped))
            return Batch(self.seq + 1, [], [], 0)
        self.seq = batch.first + len(batch.events) - 1
        if log.is_blocked:
            log.release()
        return batch

    async def _load(self, dropped: DroppedItems) -> None:
        self._loaded = await read_dropped(dropped, self.run.id, self.seq, self.log.first)
        self._loading = None
        self.wake(self)

    def stop_loading(self) -> None:
        """Stop reading dropped items."""
        if self._loading is not None:
            self._loading.cancel()
            self._loading = None


async def read_dropped(dropped: DroppedItems | None, run: int, after: int, before: int) -> Batch:
    """Return some of the items between these two numbers, or a `gap` if they are not stored."""
    if dropped is None:
        return _gap(after + 1, before - 1)
    try:
        found = await dropped.read(run, after, before)
    except PlexusError:  # the store has reported it
        found = StoredItems(before, [], [], [])
    if not found.payloads:
        return _gap(after + 1, before - 1)
    if found.first > after + 1:
        return _gap(after + 1, found.first - 1)
    return Batch(found.first, found.events, found.payloads, times=found.times_ms)


def _gap(first: int, last: int) -> Batch:
    """Return a `gap` for these items; its number is that of the last."""
    gap = Gap(first, last)
    raw = wire.encode_event(gap)
    return Batch(last, [gap], [raw], len(raw))
