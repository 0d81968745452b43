"""Fair shares of a bounded pool, for principals that compete for it.

Two kinds of pools, each with one rule:

- `FairPool` counts what is in use and cannot be taken back: runs in progress, connections, retained
  runs. A principal gets one more while it holds less than `FACTOR` times what is left. A single
  principal gets seven eighths of the pool; the next one gets seven eighths of the rest, and so on.
  A principal past its share gets no more until it or others release some, so under contention the
  shares become equal.
- `FairCache` keeps what has ended. When it is full, the principal that holds the most loses its
  oldest entry. A principal within an equal share never loses an entry to another.

In both, one part in `RESERVED` is reserved for the local operator. A principal that holds nothing
costs no memory. All methods are synchronous.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from plexus.errors import Busy
from plexus.principal import LOCAL

__all__ = ("FairCache", "FairPool", "connection_full", "watches_full", "weight")

#: A principal may hold at most this many times what is left.
FACTOR: Final = 7
#: The share of a pool that is reserved for the local operator, as one part in this many.
RESERVED: Final = 16
OPERATOR: Final = LOCAL.name

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
#: A cached item: key, name of the principal, item, size, and a callback for its eviction. A plain
#: tuple, because one is created for every run.
Entry = tuple[K, str, T, int, Callable[[T], object] | None]


def weight(name: str, held: int, total: int) -> int:
    """Return the holding of a principal for choosing whose entry is evicted.

    What is reserved for the operator does not count.
    """
    return held - total // RESERVED if name == OPERATOR else held


def connection_full(limit: int) -> Busy:
    """Return the error for a call on a connection that has reached its limit of calls."""
    reason = (
        f"This connection has limits.calls_in_flight = {limit} calls in progress. Wait until one "
        "ends, stop one, or open another connection."
    )
    return Busy(reason, data={"limit": limit, "name": "calls_in_flight"})


def watches_full(limit: int) -> Busy:
    """Return the error for a connection that has reached its limit of standing watches."""
    reason = (
        f"This connection has limits.connection_watches = {limit} standing watches. Stop one with "
        "plexus.unsubscribe or plexus.cancel, or open another connection."
    )
    return Busy(reason, data={"limit": limit, "name": "connection_watches"})


class FairPool:
    """A pool of places, counted by principal.

    For error messages, `limit` is the name of the limit that `total` comes from, `things` describes
    what the places are for, and `remedy` what a principal without a place can do.
    """

    __slots__ = ("_held", "_left_for_all", "_limit", "_remedy", "_reserve", "_things", "total")

    def __init__(self, limit: str, total: int, things: str, remedy: str) -> None:
        self.total = total
        self._limit = limit
        self._things = things
        self._remedy = remedy
        #: Places that only the operator can use.
        self._reserve = total // RESERVED
        #: Other places that are left; negative if the operator uses its reserve.
        self._left_for_all = total - self._reserve
        #: Places of each principal; a principal without places is not listed.
        self._held: dict[str, int] = {}

    def acquire(self, name: str) -> bool:
        """Acquire a place for this principal; return False if it holds its share."""
        held = self._held.get(name, 0)
        if held >= FACTOR * self._left_for_all and not (
            name == OPERATOR and self._has_reserve(held)
        ):
            return False
        self._held[name] = held + 1
        self._left_for_all -= 1
        return True

    def _has_reserve(self, held: int) -> bool:
        """Return whether the operator, with this many places, gets a reserved one."""
        left = self._left_for_all + self._reserve
        return left > 0 and (held < self._reserve or held < FACTOR * left)

    def release(self, name: str) -> None:
        """Release a place of this principal."""
        held = self._held[name] - 1
        if held:
            self._held[name] = held
        else:
            del self._held[name]
        self._left_for_all += 1

    @property
    def used(self) -> int:
        """Number of places in use."""
        return self.total - self._reserve - self._left_for_all

    def held_by(self, name: str) -> int:
        """Return the number of places of this principal."""
        return self._held.get(name, 0)

    @property
    def holders(self) -> int:
        """Number of principals with a place."""
        return len(self._held)

    def refusal(self, name: str) -> Busy:
        """Return the error for a principal that gets no place."""
        held = self.held_by(name)
        limit = f"limits.{self._limit} = {self.total} ({self._things})"
        if held:
            reason = f"Your share of {limit} is used up: you hold {held}. {self._remedy}"
        else:
            reason = f"{limit} is used up by others. Try again in a moment."
        return Busy(reason, data={"limit": self.total, "name": self._limit, "held": held})


class _Holding(deque[Entry[K, T]]):
    """The entries of one principal, the oldest first."""

    __slots__ = ("name", "size")

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        #: Total size of the entries.
        self.size = 0


class FairCache(Generic[K, T]):
    """A cache of ended items, limited in count and size."""

    __slots__ = ("_holdings", "_max_bytes", "_max_items", "entries", "size")

    def __init__(self, max_items: int, max_bytes: int) -> None:
        self._max_items = max_items
        self._max_bytes = max_bytes
        #: All entries by key, the oldest first. For reading only.
        self.entries: dict[K, Entry[K, T]] = {}
        self._holdings: dict[str, _Holding[K, T]] = {}
        #: Total size of all entries.
        self.size = 0

    def add(
        self,
        key: K,
        name: str,
        item: T,
        size: int,
        on_evict: Callable[[T], object] | None = None,
    ) -> None:
        """Add an item of this principal; the key must be new. Evicts what no longer fits."""
        holdings, entries = self._holdings, self.entries
        holding = holdings.get(name)
        if holding is None:
            holding = holdings[name] = _Holding(name)
        entries[key] = entry = (key, name, item, size, on_evict)
        holding.append(entry)
        if len(entries) > self._max_items > 0 and len(holdings) == 1:
            # The common case, a full cache with one principal, needs no search.
            oldest, _, evicted, evicted_size, evict = holding.popleft()
            del entries[oldest]
            size -= evicted_size
            if evict is not None:
                evict(evicted)
        holding.size += size
        self.size += size
        if self.size > self._max_bytes or len(entries) > self._max_items:
            self._trim()

    def get(self, key: K) -> T | None:
        """Return the item with this key, or None."""
        entry = self.entries.get(key)
        return None if entry is None else entry[2]

    def of(self, name: str) -> list[T]:
        """Return all items of this principal, the oldest first."""
        holding = self._holdings.get(name)
        return [] if holding is None else [entry[2] for entry in holding]

    @property
    def holders(self) -> int:
        """Number of principals with an entry."""
        return len(self._holdings)

    def evict_while(self, is_old: Callable[[T], bool]) -> None:
        """Evict the oldest entries of every principal, up to the first that is not old."""
        oldest = next(iter(self.entries.values()), None)
        if oldest is None or not is_old(oldest[2]):
            return  # all others are newer
        for holding in list(self._holdings.values()):
            while holding and is_old(holding[0][2]):
                self._evict_oldest(holding)

    def evict_one(self) -> bool:
        """Evict the oldest entry of the principal that holds the most; False if empty."""
        if not self.entries:
            return False
        self._evict_oldest(self._largest())
        return True

    def discard(self, key: K) -> None:
        """Remove the entry with this key, if it exists; `on_evict` is not called."""
        entry = self.entries.pop(key, None)
        if entry is None:
            return
        _, name, _, size, _ = entry
        holding = self._holdings[name]
        # Principals drop their oldest entries, so this finds it near the beginning.
        holding.remove(entry)
        holding.size -= size
        self.size -= size
        if not holding:
            del self._holdings[name]

    def _trim(self) -> None:
        """Evict entries until the rest fits."""
        while self.size > self._max_bytes or len(self.entries) > self._max_items:
            self._evict_oldest(self._largest())

    def _largest(self) -> _Holding[K, T]:
        """Return the holding to evict from: the largest by the limit that is exceeded."""
        holdings = self._holdings.values()
        if self.size > self._max_bytes:
            return max(holdings, key=lambda each: weight(each.name, each.size, self._max_bytes))
        return max(holdings, key=lambda each: weight(each.name, len(each), self._max_items))

    def _evict_oldest(self, holding: _Holding[K, T]) -> None:
        key, _, item, size, on_evict = holding.popleft()
        del self.entries[key]
        holding.size -= size
        self.size -= size
        if not holding:
            del self._holdings[holding.name]
        if on_evict is not None:
            on_evict(item)
