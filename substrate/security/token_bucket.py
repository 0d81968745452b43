"""How often a client may ask: a token bucket for each, in bounded memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

__all__ = ("Bucket", "Buckets")

#: How many clients are remembered; whoever was silent the longest is forgotten first, and begins
#: anew with a full bucket.
REMEMBERED: Final = 4096


class Bucket:
    """What one client may still ask for. It fills up by itself."""

    __slots__ = ("_burst", "_clock", "_left", "_per_s", "_read_at")

    def __init__(self, burst: int, per_s: float, clock: Callable[[], float]) -> None:
        self._burst = burst
        self._per_s = per_s
        self._clock = clock
        self._left: float = burst
        self._read_at = clock()

    def take(self) -> float:
        """Ask once: 0 if that is granted, else in how many seconds it would be."""
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._read_at) * self._per_s)
        self._read_at = now
        if self._left < 1:
            return (1 - self._left) / self._per_s
        self._left -= 1
        return 0.0

    def owe(self, count: int) -> None:
        """Pay for so many more that were let in already; what is not there is owed."""
        self._left -= count


class Buckets:
    """The buckets of all clients, by who they are and where they come from."""

    def __init__(
        self, burst: int, per_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._burst = burst
        self._per_s = per_s
        self._clock = clock
        #: The one that was silent the longest comes first.
        self._buckets: dict[tuple[str, str], Bucket] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def of(self, principal: str, address: str) -> Bucket:
        """The bucket of this client."""
        key = (principal, address)
        bucket = self._buckets.pop(key, None)
        if bucket is None:
            if len(self._buckets) >= REMEMBERED:
                del self._buckets[next(iter(self._buckets))]
            bucket = Bucket(self._burst, self._per_s, self._clock)
        self._buckets[key] = bucket
        return bucket
