"""The load of this process over time: processor, memory, runs, calls and events.

Samples are kept for an hour at a short interval and for a day at a long one. They are taken by one
timer, only while an HTTP server or a client that watches the health needs them. All other
processes, such as a server on stdio that waits for its client, have no timer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:  # imported for annotations only: the hub imports this module
    from plexus.runtime.runs import Runs

__all__ = ("DAY_S", "LoadHistory", "LoadSample")

#: The memory of this process in pages, on Linux.
STATM: Final = Path("/proc/self/statm")
#: Intervals of the samples in seconds, and how long the samples are kept.
SHORT_S: Final = 10.0
HOUR_S: Final = 3600.0
LONG_S: Final = 300.0
DAY_S: Final = 86_400.0


class LoadSample(NamedTuple):
    """The load at one moment; rates are averages since the sample before."""

    #: Milliseconds since the epoch.
    at_ms: int
    #: Processor time as a fraction of one core.
    cpu: float
    rss_bytes: int
    #: Runs in progress, without watches and control calls.
    runs_active: int
    #: Runs that started, and their events, per second.
    calls_per_s: float
    events_per_s: float


class _Counters(NamedTuple):
    """What the rates are computed from."""

    at_s: float
    cpu_s: float
    calls: int
    events: int


class _Samples:
    """The samples of one interval."""

    def __init__(self, interval_s: float, kept_s: float, counters: _Counters) -> None:
        self.interval_s = interval_s
        self.kept: deque[LoadSample] = deque(maxlen=int(kept_s / interval_s))
        self.last = counters

    def add(self, now: _Counters, active: int) -> None:
        """Add a sample."""
        last, self.last = self.last, now
        passed_s = max(now.at_s - last.at_s, 1e-3)
        self.kept.append(
            LoadSample(
                time.time_ns() // 1_000_000,
                round((now.cpu_s - last.cpu_s) / passed_s, 4),
                _rss_bytes(),
                active,
                round((now.calls - last.calls) / passed_s, 3),
                # Runs that another process took over are gone, with their events.
                round(max(now.events - last.events, 0) / passed_s, 3),
            )
        )


class LoadHistory:
    """Takes samples while it is started."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        counters, _ = self._count()
        self._short = _Samples(SHORT_S, HOUR_S, counters)
        self._long = _Samples(LONG_S, DAY_S, counters)
        self._timer: asyncio.TimerHandle | None = None
        #: How many need the samples.
        self._users = 0

    @contextlib.contextmanager
    def sampling(self) -> Iterator[None]:
        """Take samples for the duration of the block."""
        self.start()
        try:
            yield
        finally:
            self.stop()

    def start(self) -> None:
        """Take samples until `stop` is called as often as this."""
        self._users += 1
        if self._timer is None:
            self._schedule()
            # A pause is not part of the first averages after it.
            self._short.last = self._long.last = self._count()[0]

    def stop(self) -> None:
        """End one `start`."""
        self._users -= 1
        if not self._users and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def since(self, since_s: float) -> list[LoadSample]:
        """Return the samples of the last seconds, oldest first.

        Those of the last hour have the short interval, and those before it the long one.
        """
        first_ms = (time.time() - since_s) * 1000
        short = self._short.kept
        oldest_ms = short[0].at_ms if short else sys.maxsize
        older = [each for each in self._long.kept if each.at_ms < oldest_ms]
        return [each for each in (*older, *short) if each.at_ms >= first_ms]

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(SHORT_S, self._tick)

    def _tick(self) -> None:
        self._schedule()
        counters, active = self._count()
        self._short.add(counters, active)
        if counters.at_s - self._long.last.at_s >= LONG_S - SHORT_S / 2:
            self._long.add(counters, active)

    def _count(self) -> tuple[_Counters, int]:
        active, calls, events = self._runs.count_work()
        return _Counters(time.monotonic(), time.process_time(), calls, events), active


def _rss_bytes() -> int:
    """Return the resident memory of this process."""
    try:
        pages = int(STATM.read_bytes().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # not Linux: the maximum so far, in kilobytes or, on macOS, in bytes
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
