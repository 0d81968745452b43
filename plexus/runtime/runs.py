"""All runs of this process: those under way, those that ended lately, and who may see them.

Rules:
- A run's number is random, below 2**53 (every JSON reader keeps such a number exact), and is no
  secret: another principal that knows it is still told that there is no such run.
- Work, standing watches and control calls have a pool each, and every principal a share of each
  (see `plexus.runtime.shares`). A run that another run began takes no place: the caller that was
  let in can finish.
- What has ended is kept within three bounds (count, bytes, age) so that it can be attached to.
  RunEnded watches and control calls are kept apart, so that looking at the server evicts no work.
- One timer serves all deadlines; it stops when nothing is under way and starts with the next run.
- Whoever wants to log, count or trace is told of every beginning and end, and of every call that
  led to no run. With nobody to tell, that costs one look at an empty list.
"""

from __future__ import annotations

import asyncio
import logging
import os
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from plexus.errors import InvalidParams, NotFound, PlexusError
from plexus.limits import Limits
from plexus.principal import Principal
from plexus.registry.signature import Purpose
from plexus.runtime.run import LocalRun, Run
from plexus.runtime.shares import FairCache, FairPool

if TYPE_CHECKING:  # only a server that is told of other processes has use for it
    from plexus.runtime.elsewhere import Elsewhere

__all__ = ("CallRefused", "RunEnded", "RunStarted", "Runs", "random_numbers")

logger = logging.getLogger("plexus.runs")

#: How often deadlines are looked at. They are minutes and seconds, so this is exact enough.
TICK_S = 0.25

#: Told of a run that begins, with its arguments and the trace context that its caller sent.
RunStarted = Callable[[Run, Mapping[str, Any], Mapping[str, str] | None], None]
#: Told of a run that has ended.
RunEnded = Callable[[Run], None]
#: Told of a call that led to no run: the method that was asked for, by whom, and why not.
CallRefused = Callable[[str, Principal, PlexusError], None]


def random_numbers() -> Iterator[int]:
    """Numbers of 53 random bits, fetched from the system by the hundred."""
    while True:
        for number in struct.unpack("<128Q", os.urandom(1024)):
            yield (number >> 11) or 1


class Runs:
    """The registry of runs."""

    def __init__(self, limits: Limits, new_id: Callable[[], int]) -> None:
        self.limits = limits
        self._new_id = new_id
        self._running: dict[int, LocalRun] = {}
        #: Who has how many runs under way that no other run began.
        self._pools = _pools(limits)
        self._finished: FairCache[int, LocalRun] = FairCache(
            limits.finished_runs, limits.finished_bytes
        )
        #: RunEnded runs that did no work: watches and control calls.
        self._finished_control: FairCache[int, LocalRun] = FairCache(
            limits.finished_control_runs, limits.finished_control_bytes
        )
        self._by_key: dict[tuple[Principal, str], LocalRun] = {}
        #: Runs that somebody was promised would be kept, with the time until which.
        self._kept: dict[int, tuple[Run, float]] = {}
        self._promises = FairPool(
            "kept_runs", limits.kept_runs, "kept runs", "Wait until one of them expires."
        )
        self._ticking = False
        self._ended: dict[str, int] = {"complete": 0, "error": 0, "cancelled": 0}
        self._abandoned = 0
        #: Those who wait until nothing is under way.
        self._idle: set[asyncio.Event] = set()
        #: The runs of other processes, if those tell of them.
        self.elsewhere: Elsewhere | None = None
        self._on_begin: list[RunStarted] = []
        #: Whether there is a listener for runs that begin.
        self.is_observed = False
        self._on_end: list[RunEnded] = []
        self._on_refused: list[CallRefused] = []

    def start(
        self,
        method: str,
        principal: Principal,
        parent: int | None,
        deadline_s: float | None,
        key: str | None,
        purpose: Purpose = "work",
    ) -> LocalRun:
        """Register a new run. Raises Busy when its principal has as many under way as it may;
        a run that another run begins is never refused."""
        if parent is None and not self._pools[purpose].acquire(principal.name):
            raise self._pools[purpose].refusal(principal.name)
        run_id = self._new_id()
        while run_id in self._running or run_id in self._finished.entries:
            run_id = self._new_id()
        run = LocalRun(
            run_id, method, principal, self.limits, self._on_run_end, parent, deadline_s, purpose
        )
        self._running[run_id] = run
        if key is not None:
            run.key = key
            self._by_key[principal, key] = run
        if not self._ticking:
            self._ticking = True
            asyncio.get_running_loop().call_later(TICK_S, self._tick)
        return run

    def find_by_key(self, principal: Principal, key: str, method: str) -> LocalRun | None:
        """The run that this caller began with this key; raises if it was for something else."""
        run = self._by_key.get((principal, key))
        if run is not None and run.method != method:
            raise InvalidParams(f"the key {key!r} was used before, for {run.method}")
        return run

    def find(self, run_id: int, principal: Principal) -> Run:
        """The run of this number; NotFound if there is none or it is somebody else's."""
        self._evict_expired(time.monotonic())
        run: Run | None = (
            self._running.get(run_id)
            or self._finished.get(run_id)
            or self._finished_control.get(run_id)
        )
        if run is None and run_id in self._kept:
            run = self._kept[run_id][0]
        if run is None and self.elsewhere is not None:
            run = self.elsewhere.find(run_id)
        if run is None or run.principal != principal:
            raise NotFound(f"there is no run {run_id}")
        return run

    def keep(self, run: Run, for_s: float) -> None:
        """Promise that this run can be found for so long, whatever else is evicted; raises Busy
        when its principal has as many such promises open as it may."""
        self._evict_expired(time.monotonic())
        name = run.principal.name
        if run.id not in self._kept and not self._promises.acquire(name):
            raise self._promises.refusal(name)
        run.retention_s = for_s
        self._kept[run.id] = (run, time.monotonic() + for_s)

    def list_kept(self, principal: Principal) -> list[Run]:
        """This principal's runs that are kept by promise."""
        self._evict_expired(time.monotonic())
        return [run for run, _ in self._kept.values() if run.principal == principal]

    def list_for(self, principal: Principal) -> list[Run]:
        """This principal's runs, those of other processes too, the newest first."""
        self._evict_expired(time.monotonic())
        known: list[Run] = [*self._running.values()]
        if self.elsewhere is not None:
            known += self.elsewhere.all()
        mine = [run for run in known if run.principal == principal]
        mine += self._finished.of(principal.name) + self._finished_control.of(principal.name)
        return sorted(mine, key=lambda run: run.started_at, reverse=True)

    def running(self) -> list[LocalRun]:
        """Every run of this process under way, whoever began it."""
        return list(self._running.values())

    def list_active(self, principal: Principal) -> list[Run]:
        """This principal's runs that are under way, those of other processes too."""
        known: list[Run] = [*self._running.values()]
        if self.elsewhere is not None:
            known += self.elsewhere.running()
        return [run for run in known if run.principal == principal]

    def counts(self) -> dict[str, int]:
        """How many runs are, or ended, in which state since the start."""
        under_way = Counter(run.state for run in self._running.values())
        return dict(sorted(under_way.items())) | self._ended | {"abandoned": self._abandoned}

    def cancel_all(self, reason: str) -> None:
        """Tell every run to stop."""
        for run in self.running():
            run.cancel(reason)

    def credentials(self) -> set[bytes]:
        """The credentials that runs in progress were begun with."""
        found = {run.principal.credential for run in self._running.values()}
        return {credential for credential in found if credential is not None}

    def revoke(self, credential: bytes, valid: Sequence[Principal], reason: str) -> None:
        """Cancel every run that was begun with this credential, also those kept by promise, except
        those that these principals may go on with."""
        for run in self.running():
            owner = run.principal
            if owner.credential == credential and not any(each.covers(owner) for each in valid):
                run.cancel(reason)

    async def wait_idle(self, within_s: float) -> bool:
        """Wait until no run is under way; False if some still are after that time."""
        if not self._running:
            return True
        idle = asyncio.Event()
        self._idle.add(idle)
        try:
            await asyncio.wait_for(idle.wait(), within_s)
        except TimeoutError:
            return False
        finally:
            self._idle.discard(idle)
        return True

    # --- who is told --------------------------------------------------------------------------

    def on_start(self, began: RunStarted) -> Callable[[], None]:
        """Listen to every run that begins; call what is returned to stop that."""
        self._on_begin.append(began)
        self.is_observed = True

        def remove() -> None:
            self._on_begin.remove(began)
            self.is_observed = bool(self._on_begin)

        return remove

    def on_end(self, ended: RunEnded) -> Callable[[], None]:
        """Be told of every run that has ended; call what is returned to be told no more."""
        self._on_end.append(ended)
        return partial(self._on_end.remove, ended)

    def on_refused(self, refused: CallRefused) -> Callable[[], None]:
        """Be told of every call that leads to no run; call what is returned to be told no more."""
        self._on_refused.append(refused)
        return partial(self._on_refused.remove, refused)

    def notify_started(
        self, run: Run, arguments: Mapping[str, Any], trace: Mapping[str, str] | None
    ) -> None:
        """Tell the listeners that this run begins, with these arguments."""
        self._notify(self._on_begin, run, arguments, trace)

    def notify_refused(self, method: str, principal: Principal, error: PlexusError) -> None:
        """Say that a call of this method was refused."""
        if self._on_refused:
            self._notify(self._on_refused, method, principal, error)

    def _notify(self, listeners: list[Callable[..., None]], *news: Any) -> None:
        for listener in listeners.copy():
            try:
                listener(*news)
            except Exception:  # whoever watches must not change what is watched
                logger.exception("a watcher of runs failed")

    # --- ends ---------------------------------------------------------------------------------

    def _on_run_end(self, run: LocalRun) -> None:
        del self._running[run.id]
        name = run.principal.name
        if run.parent is None:
            self._pools[run.purpose].release(name)
        assert run.terminal is not None, "a run that has ended has a terminal"
        self._ended[run.terminal.type] += 1
        finished = self._finished if run.purpose == "work" else self._finished_control
        forget = None if run.key is None else self._forget_key
        finished.add(run.id, name, run, run.log.size, forget)
        if self._idle and not self._running:
            for idle in self._idle:
                idle.set()
        if self._on_end:
            self._notify(self._on_end, run)

    def _forget_key(self, run: LocalRun) -> None:
        assert run.key is not None, "only runs with a key are forgotten here"
        self._by_key.pop((run.principal, run.key), None)

    # --- deadlines ----------------------------------------------------------------------------

    def _tick(self) -> None:
        now = time.monotonic()
        for run in self.running():
            if run.cancel_deadline is not None:
                if now > run.cancel_deadline:
                    logger.error("run %d of %s ignores its cancellation", run.id, run.method)
                    self._abandoned += 1
                    run.abandon()
            elif run.deadline is not None and now > run.deadline:
                run.expire(round(run.deadline - run.started_at, 3))
            elif run.orphan_deadline is not None and now > run.orphan_deadline:
                run.cancel("its caller vanished and did not come back")
        self._evict_expired(now)
        self._ticking = bool(self._running)
        if self._ticking:
            asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _evict_expired(self, now: float) -> None:
        limit = now - self.limits.finished_s
        for finished in (self._finished, self._finished_control):
            finished.evict_while(lambda run: (run.ended_at or now) < limit)
        if self._kept:
            over = [run for run, until in self._kept.values() if until < now]
            for run in over:
                del self._kept[run.id]
                self._promises.release(run.principal.name)


def _pools(limits: Limits) -> dict[Purpose, FairPool]:
    """Where the runs that no other run began are counted, by what they are for."""
    stop = "Stop one with plexus.cancel, or wait until one ends."
    return {
        "work": FairPool("runs_in_flight", limits.runs_in_flight, "runs under way", stop),
        "watch": FairPool("watches_in_flight", limits.watches_in_flight, "standing watches", stop),
        "control": FairPool(
            "control_in_flight",
            limits.control_in_flight,
            "control calls under way",
            "Wait until one ends.",
        ),
    }
