"""The log of a stored run: items with their numbers, some of which may be missing."""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from plexus.events import Event, Gap
from plexus.limits import Limits
from plexus.rpc import wire
from plexus.runtime.log import Batch, Reader, RunLog

__all__ = ("StoredLog", "StoredReader")


class StoredLog(RunLog):
    """A log of stored items with their numbers. Missing ones are replaced by a `gap`."""

    __slots__ = ("_numbers",)

    def __init__(self, limits: Limits, started_at: float) -> None:
        super().__init__(limits, started_at)
        self._numbers: list[int] = []

    @property
    def last(self) -> int:
        return self._numbers[-1] if self._numbers else self.first - 1

    def begin_at(self, seq: int) -> None:
        """Begin an empty log with this number; the items before it count as dropped."""
        self.first = seq

    def skip_to(self, seq: int) -> None:
        """Continue with this number; the items before it are missing."""
        if not self._numbers:
            self.first = seq
            return
        gap = Gap(self.last + 1, seq - 1)
        self.append(gap, wire.encode_event(gap))
        self._numbers[-1] = seq - 1

    def append(self, event: Event, raw: bytes) -> None:
        self._numbers.append(self.last + 1)
        super().append(event, raw)
        self.size += len(raw)
        self.total += len(raw)

    def trim(self, unread: int | None) -> None:  # noqa: ARG002 - a stored run has no owner
        count = max(len(self.payloads) - self.limits.log_items, 0)
        self.size -= sum(map(len, self.payloads[:count]))
        while self.size > self.limits.log_bytes and count < len(self.payloads) - 1:
            self.size -= len(self.payloads[count])
            count += 1
        if count:
            del self.events[:count], self.payloads[:count], self._numbers[:count]
            self.first = self._numbers[0]
            stale = sum(number < self.first for number, _ in self.marks) - 1
            del self.marks[: max(stale, 0)]

    def size_after(self, seq: int) -> int:
        return sum(map(len, self.payloads[bisect.bisect_right(self._numbers, seq) :]))

    def numbered(self, after: int) -> Iterator[tuple[int, Event]]:
        start = bisect.bisect_right(self._numbers, after)
        return zip(self._numbers[start:], self.events[start:], strict=True)

    def read(self, after: int, max_items: int, max_bytes: int) -> Batch:
        numbers = self._numbers
        start = bisect.bisect_right(numbers, after)
        if start == len(numbers):
            return Batch(after + 1, [], [], 0)
        end = min(start + max_items, len(numbers))
        while numbers[end - 1] - numbers[start] > end - 1 - start:  # up to the first missing item
            end -= 1
        payloads = self.payloads[start:end]
        size = sum(map(len, payloads))
        while size > max_bytes and len(payloads) > 1:
            size -= len(payloads.pop())
        return Batch(
            numbers[start], self.events[start : start + len(payloads)], payloads, size, self
        )


class StoredReader(Reader):
    """A cursor over the log of a stored run, whose numbers may skip."""

    __slots__ = ()

    def take(self) -> Batch:
        if self.log.ended:  # the cursor of a client may be ahead of what was stored
            self.seq = min(self.seq, self.log.last - 1)
        batch = super().take()
        if batch.events:
            self.seq = batch.first + len(batch.events) - 1
        return batch
