"""Fair shares of a bounded pool: how much one principal may hold while others want some too.

Two kinds of pools, one rule each:

- `FairPool` counts what is in use and cannot be taken back: runs under way, connections, promises.
  A principal gets one more as long as it holds less than `FACTOR` times what is left. Alone it
  gets seven eighths of the pool; the rest is there for the next principal, which gets seven
  eighths of that, and so on. A principal past its share gets no more until others, or it, release
  some, so under contention the shares become equal.
- `FairCache` keeps what has ended. When it is full, the principal that holds the most loses its
  oldest entry. A principal within an equal share never loses an entry to another.

In both, one part in `RESERVED` belongs to the local operator: no other principal can use it.
A principal that holds nothing costs no memory. All methods are synchronous.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from plexus.errors import Busy
from plexus.principal import LOCAL

__all__ = ("FairCache", "FairPool", "connection_full", "watches_full", "weight")

#: How many times what is left one principal may hold.
FACTOR: Final = 7
#: The share of a pool that is reserved for the local operator, as one part in this many.
RESERVED: Final = 16
OPERATOR: Final = LOCAL.name

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
#: Something that is kept: its key, the principal's name, the item, its size, and what to call when
#: it is evicted. A plain tuple, because one is made for every run.
Entry = tuple[K, str, T, int, Callable[[T], object] | None]


def weight(name: str, held: int, total: int) -> int:
    """How much a principal holds when it is decided who loses something to others: what is
    reserved for the operator does not count."""
    return held - total // RESERVED if name == OPERATOR else held


def connection_full(limit: int) -> Busy:
    """The error for a call on a connection that has as many under way as it may."""
    reason = (
        f"This connection has limits.calls_in_flight = {limit} calls under way. Wait until one "
        "ends, stop one, or open another connection."
    )
    return Busy(reason, data={"limit": limit, "name": "calls_in_flight"})


def watches_full(limit: int) -> Busy:
    """The error for a call on a connection that has as many standing watches as it may."""
    reason = (
        f"This connection has limits.connection_watches = {limit} standing watches. Stop one with "
        "plexus.unsubscribe or plexus.cancel, or open another connection."
    )
    return Busy(reason, data={"limit": limit, "name": "connection_watches"})


class FairPool:
    """Places that are in use, counted by principal.

    `limit` is the name of the limit that `total` comes from, `things` says what the places are
    for and `remedy` what a principal without a place can do; all three are for error messages.
    """

    __slots__ = ("_held", "_left_for_all", "_limit", "_remedy", "_reserve", "_things", "total")

    def __init__(self, limit: str, total: int, things: str, remedy: str) -> None:
        self.total = total
        self._limit = limit
        self._things = things
        self._remedy = remedy
        #: How many places are only for the operator.
        self._reserve = total // RESERVED
        #: How many others are left; less than none if the operator uses its reserve.
        self._left_for_all = total - self._reserve
        #: How many of them each principal has; a principal with none is not listed.
        self._held: dict[str, int] = {}

    def acquire(self, name: str) -> bool:
        """Give this principal a place; False if it holds its share."""
        held = self._held.get(name, 0)
        if held >= FACTOR * self._left_for_all and not (
            name == OPERATOR and self._has_reserve(held)
        ):
            return False
        self._held[name] = held + 1
        self._left_for_all -= 1
        return True

    def _has_reserve(self, held: int) -> bool:
        """Whether the operator, who holds this many, gets one of the reserved places."""
        left = self._left_for_all + self._reserve
        return left > 0 and (held < self._reserve or held < FACTOR * left)

    def release(self, name: str) -> None:
        """Take one place back from this principal."""
        held = self._held[name] - 1
        if held:
            self._held[name] = held
        else:
            del self._held[name]
        self._left_for_all += 1

    @property
    def used(self) -> int:
        """How many places are in use."""
        return self.total - self._reserve - self._left_for_all

    def held_by(self, name: str) -> int:
        """How many places this principal has."""
        return self._held.get(name, 0)

    @property
    def holders(self) -> int:
        """How many principals have a place."""
        return len(self._held)

    def refusal(self, name: str) -> Busy:
        """The error for a principal that gets no place."""
        held = self.held_by(name)
        limit = f"limits.{self._limit} = {self.total} ({self._things})"
        if held:
            reason = f"Your share of {limit} is used up: you hold {held}. {self._remedy}"
        else:
            reason = f"{limit} is used up by others. Try again in a moment."
        return Busy(reason, data={"limit": self.total, "name": self._limit, "held": held})


class _Holding(deque[Entry[K, T]]):
    """What is kept for one principal, the oldest first."""

    __slots__ = ("name", "size")

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        #: The sizes of all of it together.
        self.size = 0


class FairCache(Generic[K, T]):
    """What has ended, within a count and a size."""

    __slots__ = ("_holdings", "_most", "_most_bytes", "entries", "size")

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        #: Everything by its key, the oldest first. For reading only.
        self.entries: dict[K, Entry[K, T]] = {}
        self._holdings: dict[str, _Holding[K, T]] = {}
        #: The sizes of all of it together.
        self.size = 0

    def add(
        self,
        key: K,
        name: str,
        item: T,
        size: int,
        on_evict: Callable[[T], object] | None = None,
    ) -> None:
        """Keep this for this principal; the key must be new. What no longer fits is evicted."""
        holdings, entries = self._holdings, self.entries
        holding = holdings.get(name)
        if holding is None:
            holding = holdings[name] = _Holding(name)
        entries[key] = entry = (key, name, item, size, on_evict)
        holding.append(entry)
        if len(entries) > self._most > 0 and len(holdings) == 1:
            # Nearly every run that ends comes here, so one in and one out is done at once.
            oldest, _, evicted, evicted_size, then = holding.popleft()
            del entries[oldest]
            size -= evicted_size
            if then is not None:
                then(evicted)
        holding.size += size
        self.size += size
        if self.size > self._most_bytes or len(entries) > self._most:
            self._trim()

    def get(self, key: K) -> T | None:
        """The item with this key."""
        entry = self.entries.get(key)
        return None if entry is None else entry[2]

    def of(self, name: str) -> list[T]:
        """All items of this principal, the oldest first."""
        holding = self._holdings.get(name)
        return [] if holding is None else [entry[2] for entry in holding]

    @property
    def holders(self) -> int:
        """How many principals hold something."""
        return len(self._holdings)

    def evict_while(self, is_old: Callable[[T], bool]) -> None:
        """Evict of every principal the oldest entries, up to the first that is not old."""
        oldest = next(iter(self.entries.values()), None)
        if oldest is None or not is_old(oldest[2]):
            return  # and no other is older
        for holding in list(self._holdings.values()):
            while holding and is_old(holding[0][2]):
                self._evict_oldest(holding)

    def evict_one(self) -> bool:
        """Evict the oldest entry of the principal that holds the most; False if there is none."""
        if not self.entries:
            return False
        self._evict_oldest(self._largest())
        return True

    def discard(self, key: K) -> None:
        """Drop the entry with this key, if there is one; `on_evict` is not called."""
        entry = self.entries.pop(key, None)
        if entry is None:
            return
        _, name, _, size, _ = entry
        holding = self._holdings[name]
        # Its owner drops its own oldest entries, so this finds it near the beginning.
        holding.remove(entry)
        holding.size -= size
        self.size -= size
        if not holding:
            del self._holdings[name]

    def _trim(self) -> None:
        """Evict until the rest fits."""
        while self.size > self._most_bytes or len(self.entries) > self._most:
            self._evict_oldest(self._largest())

    def _largest(self) -> _Holding[K, T]:
        """The holding to evict from: the one with the most of what there is too much of."""
        holdings = self._holdings.values()
        if self.size > self._most_bytes:
            return max(holdings, key=lambda each: weight(each.name, each.size, self._most_bytes))
        return max(holdings, key=lambda each: weight(each.name, len(each), self._most))

    def _evict_oldest(self, holding: _Holding[K, T]) -> None:
        key, _, item, size, on_evict = holding.popleft()
        del self.entries[key]
        holding.size -= size
        self.size -= size
        if not holding:
            del self._holdings[holding.name]
        if on_evict is not None:
            on_evict(item)
