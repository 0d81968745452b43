"""All runs of this process: those in progress, those that ended recently, and who can see them.

Rules:
- The number of a run is random, below 2**53 (which every JSON reader keeps exact), and not a
  secret: another principal that uses it gets the same error as for an unknown run.
- Work, standing watches and control calls have a pool each, and every principal has a share of each
  pool (see `plexus.runtime.shares`). A run that another run started is not counted: an accepted
  caller can finish.
- Finished runs are kept within three limits (count, bytes, age) so that clients can attach to them.
  Finished watches and control calls are kept separately, so that inspecting the server evicts no
  work.
- One timer checks all deadlines; it slows down while only watches are in progress, and stops while
  no run is.
- Listeners for logs, metrics and traces are notified of every start and end, and of every refused
  call. Without listeners that costs one check of an empty list.
"""

from __future__ import annotations

import asyncio
import logging
import os
import struct
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from plexus.caller_environment import agent_session_of
from plexus.errors import Busy, InvalidParams, NotFound, PlexusError
from plexus.limits import Limits
from plexus.principal import Principal
from plexus.registry.signature import Purpose
from plexus.runtime.run import LocalRun, Run, RunRecorder
from plexus.runtime.shares import FairCache, FairPool

if TYPE_CHECKING:  # only a process that reads the run store imports it
    from plexus.runtime.stored_run import StoredRun, StoredRuns

__all__ = (
    "CallRefused",
    "NotLoaded",
    "RunEnded",
    "RunStarted",
    "Runs",
    "random_numbers",
    "unknown_run",
)

logger = logging.getLogger("plexus.runs")

#: Interval of the deadline check. Deadlines are seconds and minutes, so this is exact enough.
TICK_S = 0.25
#: The interval while only standing watches are in progress, which have no deadlines.
WATCH_TICK_S = 1.0

#: Listener for started runs: the run, its arguments, and the trace context of its caller.
RunStarted = Callable[[Run, Mapping[str, Any], Mapping[str, str] | None], None]
#: Listener for ended runs.
RunEnded = Callable[[Run], None]
#: Listener for refused calls: the method, the caller, and the error.
CallRefused = Callable[[str, Principal, PlexusError], None]


def unknown_run(run_id: object) -> NotFound:
    """Return the error for a run that is missing or not visible; callers cannot tell which."""
    return NotFound(f"Unknown run {run_id}. List your runs with plexus.runs.")


class NotLoaded(NotFound):
    """The run is not in memory; whether it exists is known after `Runs.load`.

    `run_id` is its number, or None for the runs with a guaranteed retention.
    """

    def __init__(self, run_id: int | None) -> None:
        super().__init__(unknown_run(run_id).message)
        self.run_id = run_id


def random_numbers() -> Iterator[int]:
    """Yield random numbers of 53 bits, read from the system in blocks."""
    while True:
        for number in struct.unpack("<128Q", os.urandom(1024)):
            yield (number >> 11) or 1


class Runs:
    """The table of runs."""

    def __init__(self, limits: Limits, new_id: Callable[[], int]) -> None:
        self.limits = limits
        self._new_id = new_id
        self._running: dict[int, LocalRun] = {}
        #: Counts the runs in progress that no other run started, by principal.
        self._pools = _pools(limits)
        self._finished: FairCache[int, LocalRun] = FairCache(
            limits.finished_runs, limits.finished_bytes
        )
        #: Finished runs that did no work: watches and control calls.
        self._finished_control: FairCache[int, LocalRun] = FairCache(
            limits.finished_control_runs, limits.finished_control_bytes
        )
        self._by_key: dict[tuple[Principal, str], LocalRun] = {}
        #: Runs with a guaranteed retention, with the time of its end.
        self._kept: dict[int, tuple[Run, float]] = {}
        self._promises = FairPool(
            "kept_runs", limits.kept_runs, "kept runs", "Wait until one of them expires."
        )
        self._ticking = False
        #: The timer of the next check, if it has the longer interval.
        self._slow_timer: asyncio.TimerHandle | None = None
        self._ended: dict[str, int] = {"complete": 0, "error": 0, "cancelled": 0}
        #: Items of the runs that have ended.
        self._ended_items = 0
        self._abandoned = 0
        #: The session of the agent that started this process; empty if it is unknown.
        self.agent_session = agent_session_of(os.environ)
        #: Whether the local operator gets the text of an unexpected exception. Only a program whose
        #: clients are the operator's own sets it.
        self.shows_defects = False
        #: Whether every other client gets it too. Only a server for development sets it.
        self.shows_defects_to_all = False
        #: Waiters until no run is in progress.
        self._idle: set[asyncio.Event] = set()
        #: The runs of other processes and of the past; None without a run store.
        self.stored: StoredRuns | None = None
        #: Records all runs; None without a run store.
        self._recorder: RunRecorder | None = None
        self._on_start: list[RunStarted] = []
        #: Whether a recorder or a listener for started runs exists.
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
        run_id: int | None = None,
    ) -> LocalRun:
        """Register a new run, or one that continues under its number.

        Raises Busy when its principal has reached its share, which a run that another run starts
        does not count in, and when a run with this number is in progress.
        """
        if run_id is not None and run_id in self._running:
            raise Busy(f"Run {run_id} is in progress in this process.")
        if parent is None and not self._pools[purpose].acquire(principal.name):
            raise self._pools[purpose].refusal(principal.name)
        if run_id is None:
            run_id = self._new_id()
            while run_id in self._running or run_id in self._finished.entries:
                run_id = self._new_id()
        else:
            # It may have ended here before: an owner that lost its lease can take over again.
            self._finished.discard(run_id)
            self._finished_control.discard(run_id)
        run = LocalRun(
            run_id, method, principal, self.limits, self._on_run_end, parent, deadline_s, purpose
        )
        run.shows_defects = self.shows_defects_to_all or (
            self.shows_defects and principal.is_operator
        )
        self._running[run_id] = run
        if key is not None:
            run.key = key
            self._by_key[principal, key] = run
        if not self._ticking or (self._slow_timer is not None and purpose != "watch"):
            self._schedule_tick(slow=False)
        return run

    def find_by_key(self, principal: Principal, key: str, method: str) -> LocalRun | None:
        """Return the run that this caller started with this key, or None.

        Raises InvalidParams if it is a run of another method.
        """
        run = self._by_key.get((principal, key))
        if run is not None and run.method != method:
            raise InvalidParams(
                f"The key {key!r} was already used for {run.method}. Use another key."
            )
        return run

    def find(self, run_id: int, principal: Principal) -> Run:
        """Return the run with this number, if it is in memory.

        Raises NotLoaded if the run store may have it; NotFound if it is missing or not visible.
        """
        run = self._find_local(run_id, principal)
        if run is None and self.stored is not None:
            run = self.stored.find(run_id)
            if run is None or run.principal != principal:
                raise NotLoaded(run_id)
        if run is None:
            raise unknown_run(run_id)
        return run

    def peek(self, run_id: int, principal: Principal) -> Run | None:
        """Return the run with this number if it is in memory."""
        run = self._find_local(run_id, principal)
        return run if run is not None or self.stored is None else self.stored.find(run_id)

    async def fetch(self, run_id: int, principal: Principal) -> Run:
        """Return the run with this number, from memory or from the run store.

        Raises NotFound if it is missing or not visible, and the errors of the store.
        """
        run = self._find_local(run_id, principal)
        if run is None and self.stored is not None:
            run = self.stored.find(run_id)
            if run is None or run.principal != principal:
                run = await self.stored.load(run_id, principal)
        if run is None:
            raise unknown_run(run_id)
        return run

    async def load(self, run_id: int | None, principal: Principal) -> None:
        """Load what a `NotLoaded` names, so that it can be found for a moment.

        Raises NotFound, and the errors of the store.
        """
        if run_id is not None:
            await self.fetch(run_id, principal)
        elif self.stored is not None:
            await self.stored.load_kept(principal)

    def _find_local(self, run_id: int, principal: Principal) -> Run | None:
        """Return a run of this process that the principal can see.

        A run of another principal takes the same way through the store as one that does not exist,
        so that the time of the answer does not tell them apart.
        """
        self._evict_expired(time.monotonic())
        run = (
            self._running.get(run_id)
            or self._finished.get(run_id)
            or self._finished_control.get(run_id)
        )
        found: Run | None = run
        if run is None and run_id in self._kept:
            found = self._kept[run_id][0]
        return None if found is None or found.principal != principal else found

    def keep(self, run: Run, for_s: float) -> None:
        """Retain this run for `for_s` seconds, whatever else is evicted.

        Raises Busy when its principal has reached its share of retained runs.
        """
        self._evict_expired(time.monotonic())
        name = run.principal.name
        if run.id not in self._kept and not self._promises.acquire(name):
            raise self._promises.refusal(name)
        run.retention_s = for_s
        self._kept[run.id] = (run, time.monotonic() + for_s)

    def forget(self, run_ids: Iterable[int]) -> None:
        """Forget ended runs that were deleted from the run store."""
        for run_id in run_ids:
            run = self._finished.get(run_id) or self._finished_control.get(run_id)
            if run is not None:
                self._forget_ended(run)
                continue
            kept = self._kept.get(run_id)
            if kept is not None and kept[0].terminal is not None:
                del self._kept[run_id]
                self._promises.release(kept[0].principal.name)

    def list_kept(self, principal: Principal) -> list[Run]:
        """Return this principal's runs with a guaranteed retention.

        Raises NotLoaded if those of other processes must be loaded first.
        """
        self._evict_expired(time.monotonic())
        kept = {run.id: run for run, _ in self._kept.values() if run.principal == principal}
        if self.stored is not None:
            others = self.stored.find_kept(principal)
            if others is None:
                raise NotLoaded(None)
            kept = {run.id: run for run in others} | kept
        return list(kept.values())

    def list_for(self, principal: Principal, *, system: bool = True) -> list[Run]:
        """Return this principal's runs, including those of other processes, newest first.

        Without `system`, watches and control calls are left out.
        """
        self._evict_expired(time.monotonic())
        mine: list[Run] = [
            run
            for run in self._running.values()
            if run.principal == principal and (system or run.purpose == "work")
        ]
        mine += self._finished.of(principal.name)
        if system:
            mine += self._finished_control.of(principal.name)
        if self.stored is not None:
            mine += self._only_stored(self.stored, principal, {run.id for run in mine})
        return sorted(mine, key=lambda run: run.started_at, reverse=True)

    def forget_moved(self, run: LocalRun) -> None:
        """Forget a run that has ended here and continues in another process."""
        self._forget_ended(run)

    def _forget_ended(self, run: LocalRun) -> None:
        self._finished.discard(run.id)
        self._finished_control.discard(run.id)
        if run.key is not None and self._by_key.get((run.principal, run.key)) is run:
            self._forget_key(run)
        if run.id in self._kept:
            del self._kept[run.id]
            self._promises.release(run.principal.name)

    def running(self) -> list[LocalRun]:
        """Return every run of this process that is in progress."""
        return list(self._running.values())

    def started_after(self, after: float) -> Iterator[LocalRun]:
        """Yield the runs in progress that this process started after a time, newest first.

        The table must not change meanwhile.
        """
        for run in reversed(self._running.values()):
            if run.log.started_at <= after:
                return
            yield run

    def find_running(self, run_id: int) -> LocalRun | None:
        """Return the run of this process with this number if it is in progress."""
        return self._running.get(run_id)

    def list_active(self, principal: Principal) -> list[Run]:
        """Return this principal's runs in progress, including those of other processes."""
        mine: list[Run] = [run for run in self._running.values() if run.principal == principal]
        if self.stored is not None:
            others = self._only_stored(self.stored, principal, self._running.keys())
            mine += [run for run in others if run.terminal is None]
        return mine

    def _only_stored(
        self, stored: StoredRuns, principal: Principal, local: Collection[int]
    ) -> list[StoredRun]:
        """Return this principal's stored runs, without those that are restarted here."""
        return [run for run in stored.all() if run.principal == principal and run.id not in local]

    def counts(self) -> dict[str, int]:
        """Return the number of runs in each state, and of those that ended since the start.

        Watches and control calls are not counted, as they are not listed as runs.
        """
        working = (run for run in self._running.values() if run.purpose == "work")
        in_progress = Counter(run.state for run in working)
        return dict(sorted(in_progress.items())) | self._ended | {"abandoned": self._abandoned}

    def count_work(self) -> tuple[int, int, int]:
        """Return how many runs are in progress, have started so far, and their items so far."""
        working = [run for run in self._running.values() if run.purpose == "work"]
        items = self._ended_items + sum(run.log.last for run in working)
        return len(working), sum(self._ended.values()) + len(working), items

    def cancel_all(self, reason: str) -> None:
        """Cancel every run."""
        for run in self.running():
            run.cancel(reason)

    def credentials(self) -> set[bytes]:
        """Return the credentials that runs in progress were started with."""
        found = {run.principal.credential for run in self._running.values()}
        return {credential for credential in found if credential is not None}

    def revoke(self, credential: bytes, valid: Sequence[Principal], reason: str) -> None:
        """Cancel all runs that were started with this credential, including retained ones.

        Runs that one of the `valid` principals covers continue.
        """
        for run in self.running():
            owner = run.principal
            if owner.credential == credential and not any(each.covers(owner) for each in valid):
                run.cancel(reason)

    async def wait_idle(self, within_s: float) -> bool:
        """Wait until no run is in progress; return False if some still are after that time."""
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

    # --- listeners ----------------------------------------------------------------------------

    def on_start(self, listener: RunStarted) -> Callable[[], None]:
        """Subscribe to started runs. Returns a function that unsubscribes."""
        self._on_start.append(listener)
        self.is_observed = True

        def remove() -> None:
            self._on_start.remove(listener)
            self.is_observed = bool(self._on_start) or self._recorder is not None

        return remove

    def record_with(self, recorder: RunRecorder | None) -> None:
        """Record all runs that start from now on with this recorder, or none."""
        self._recorder = recorder
        self.is_observed = bool(self._on_start) or recorder is not None

    def describe_call(self, run: LocalRun) -> tuple[str, str]:
        """Return the arguments of a run in progress as recorded JSON, and their summary.

        Both are empty if they are not recorded.
        """
        return ("", "") if self._recorder is None else self._recorder.describe(run)

    @property
    def is_recorded(self) -> bool:
        """Whether runs are recorded."""
        return self._recorder is not None

    def on_end(self, listener: RunEnded) -> Callable[[], None]:
        """Subscribe to ended runs. Returns a function that unsubscribes."""
        self._on_end.append(listener)
        return partial(self._on_end.remove, listener)

    def on_refused(self, listener: CallRefused) -> Callable[[], None]:
        """Subscribe to refused calls. Returns a function that unsubscribes."""
        self._on_refused.append(listener)
        return partial(self._on_refused.remove, listener)

    def notify_started(
        self, run: LocalRun, arguments: Mapping[str, Any], trace: Mapping[str, str] | None
    ) -> None:
        """Notify the recorder and the listeners that this run starts with these arguments."""
        # Called directly, because every run has a recorder and few have listeners.
        if self._recorder is not None:
            try:
                self._recorder.on_start(run, arguments)
            except Exception:  # recording must not affect the run
                logger.exception("run %d is not recorded", run.id)
        if self._on_start:
            self._notify(self._on_start, run, arguments, trace)

    def notify_refused(self, method: str, principal: Principal, error: PlexusError) -> None:
        """Notify the listeners that a call of this method was refused."""
        if self._on_refused:
            self._notify(self._on_refused, method, principal, error)

    def _notify(self, listeners: list[Callable[..., None]], *arguments: Any) -> None:
        for listener in listeners.copy():
            try:
                listener(*arguments)
            except Exception:  # a listener must not affect the run
                logger.exception("a listener of runs failed")

    # --- ends ---------------------------------------------------------------------------------

    def _on_run_end(self, run: LocalRun) -> None:
        del self._running[run.id]
        name = run.principal.name
        if run.parent is None:
            self._pools[run.purpose].release(name)
        assert run.terminal is not None, "a run that has ended has a terminal"
        finished = self._finished_control
        if run.purpose == "work":
            self._ended[run.terminal.type] += 1
            self._ended_items += run.log.last
            finished = self._finished
        forget = None if run.key is None else self._forget_key
        finished.add(run.id, name, run, run.log.size, forget)
        if self._idle and not self._running:
            for idle in self._idle:
                idle.set()
        if self._recorder is not None:
            try:
                self._recorder.on_end(run)
            except Exception:  # recording must not affect the run
                logger.exception("the end of run %d is not recorded", run.id)
        if self._on_end:
            self._notify(self._on_end, run)

    def _forget_key(self, run: LocalRun) -> None:
        assert run.key is not None, "only runs with a key are removed here"
        self._by_key.pop((run.principal, run.key), None)

    # --- deadlines ----------------------------------------------------------------------------

    def _schedule_tick(self, *, slow: bool) -> None:
        self._ticking = True
        if self._slow_timer is not None:
            self._slow_timer.cancel()
            self._slow_timer = None
        loop = asyncio.get_running_loop()
        timer = loop.call_later(WATCH_TICK_S if slow else TICK_S, self._tick)
        if slow:
            self._slow_timer = timer

    def _tick(self) -> None:
        self._slow_timer = None
        now = time.monotonic()
        for run in self.running():
            if run.cancel_deadline is not None:
                if now > run.cancel_deadline:
                    logger.error("run %d of %s ignores its cancellation", run.id, run.method)
                    self._abandoned += 1
                    run.abandon()
            elif run.deadline is not None and now > run.deadline:
                run.expire(round(run.deadline - run.log.started_at, 3))
            elif run.orphan_deadline is not None and now > run.orphan_deadline:
                run.cancel("the caller disconnected and did not reconnect")
        self._evict_expired(now)
        self._ticking = bool(self._running)
        if self._ticking:
            self._schedule_tick(slow=all(map(_has_no_deadline, self._running.values())))

    def _evict_expired(self, now: float) -> None:
        limit = now - self.limits.finished_s
        for finished in (self._finished, self._finished_control):
            finished.evict_while(lambda run: (run.ended_at or now) < limit)
        if self._kept:
            over = [run for run, until in self._kept.values() if until < now]
            for run in over:
                del self._kept[run.id]
                self._promises.release(run.principal.name)


def _has_no_deadline(run: LocalRun) -> bool:
    deadlines = (run.deadline, run.cancel_deadline, run.orphan_deadline)
    return run.purpose == "watch" and all(each is None for each in deadlines)


def _pools(limits: Limits) -> dict[Purpose, FairPool]:
    """Return the pools that count runs which no other run started, by purpose."""
    stop = "Stop one with plexus.cancel, or wait until one ends."
    return {
        "work": FairPool("runs_in_flight", limits.runs_in_flight, "runs in progress", stop),
        "watch": FairPool("watches_in_flight", limits.watches_in_flight, "standing watches", stop),
        "control": FairPool(
            "control_in_flight",
            limits.control_in_flight,
            "control calls in progress",
            "Wait until one ends.",
        ),
    }
