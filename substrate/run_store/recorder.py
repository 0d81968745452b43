"""Records local runs: cursors over their logs, whose new items are collected at every tick.

Rules:
- Nothing here waits, and nothing is done per event. A recorded run has a cursor over its log; when
  the clock ticks (`substrate.run_store.flush_clock`), the new items of all runs are joined and
  handed to the store in one flush.
- The clock runs only while there is something to record: a run that has nothing new registers its
  cursor as a waiting reader of its log, like any other reader.
- One flush is written at a time. If the store cannot write, flushes wait within a bound. Past it
  items are lost, which the history shows as a gap; runs are never slowed down. Runs that end
  meanwhile are reduced to their rows, so that their logs do not wait with them.
- A flush that fails because of what it contains is given up, and the next one is written.
- Metadata of a run are written when it starts, changes its state, and ends. A run that starts and
  ends between two ticks is a single row. Such runs are the most frequent: they get no cursor, and
  their row is made by the thread that writes it. Until then the recorder only keeps a reference to
  the run and to its arguments, which is half of what a short call would cost otherwise.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final

from plexus.errors import Failed
from plexus.runtime.changes import Change
from plexus.runtime.hub import Plexus
from plexus.runtime.log import WALL_OFFSET, DroppedItems, Reader
from plexus.runtime.run import LocalRun, Run
from substrate.run_store.flush import Flush
from substrate.run_store.flush_clock import FlushClock
from substrate.run_store.policy import RecordPolicy, RetentionPolicy
from substrate.run_store.recorded_run import INLINE_BYTES, MAX_BUFFERED, RunEntry
from substrate.run_store.run_groups import Group, Groups

__all__ = ("Recorder",)

logger = logging.getLogger("substrate.run_store")

#: Seconds that a method waits for its checkpoint: a database can restart in that time.
CHECKPOINT_S: Final = 60.0
#: Maximum number of ended runs that wait to be written.
MAX_ENDED: Final = 20_000
#: Why a run stops here that has another owner by now.
TAKEN: Final = "another process has taken over this run, or ended it"
#: Types whose values cannot change after the call, so that they can be described later.
IMMUTABLE: Final = frozenset({str, int, float, bool, bytes, type(None)})


class Recorder:
    """Collects what the runs of a hub produce, and hands it to the store."""

    def __init__(
        self,
        hub: Plexus,
        record: RecordPolicy,
        retention: RetentionPolicy,
        write: Callable[[Flush], asyncio.Future[Collection[int]]],
        is_watched: Callable[[], bool],
        is_writable: Callable[[], Awaitable[bool]],
        dropped: DroppedItems,
    ) -> None:
        self._hub = hub
        self._clock = FlushClock(self, write, is_watched, is_writable)
        self._dropped = dropped
        self._loop = asyncio.get_running_loop()
        #: Runs without a cursor that have ended since the last flush. Those in progress have their
        #: arguments; the ones that started after this time may be short.
        self._short: list[LocalRun] = []
        self._followed_until = -math.inf
        self._on_trim = self._follow_all  # one object for all runs
        self.active: dict[int, RunEntry] = {}
        #: Runs that ended and whose end was not written yet, and runs with new items.
        self._ended: list[RunEntry] = []
        self._changed: set[RunEntry] = set()
        #: The next flush, with runs that ended while the last one is delayed.
        self._next: Flush | None = None
        self._groups = Groups(hub, record, retention)
        #: Stored bytes of the runs that are being restarted.
        self.claimed: dict[int, int] = {}
        #: Bytes of items that were collected and not written yet.
        self.buffered = 0
        #: Characters of arguments and summaries in the next flush.
        self._described = 0

    def start(self) -> Callable[[], None]:
        """Record the runs of the hub from now on. Returns a function that stops it."""
        runs = self._hub.runs
        runs.record_with(self)
        unsubscribe = self._hub.questions.on_change(self._on_question)
        ignore_changes = self._hub.on_change(self._on_change)

        def stop() -> None:
            unsubscribe()
            ignore_changes()
            runs.record_with(None)

        return stop

    # --- listeners ----------------------------------------------------------------------------

    def on_start(self, run: LocalRun, arguments: Mapping[str, Any]) -> None:
        """Record a run from its first item."""
        if run.method in self._groups.simple and run.purpose == "work":
            run.arguments = arguments
            run.log.on_trim = self._on_trim
        elif not self._start_other(run, arguments):
            return
        if self._clock.timer is None:
            self._clock.schedule()

    def _start_other(self, run: LocalRun, arguments: Mapping[str, Any]) -> bool:
        """Record a run whose method is not known to be simple. Returns whether it is recorded."""
        group = self._groups.of(run)
        if group is None:
            return False
        is_immutable = all(value.__class__ in IMMUTABLE for value in arguments.values())
        if is_immutable and group.has_short_runs and not run.epoch:
            run.arguments = arguments
            run.log.on_trim = self._on_trim
            return True
        entry = self._follow(run, group, arguments)
        if group.restart != "never":
            self._prepare_restart(entry, run)
        if not is_immutable:
            entry.describe()  # the method may change its arguments
        return True

    def _follow(self, run: LocalRun, group: Group, arguments: Mapping[str, Any]) -> RunEntry:
        """Follow a run in progress with a cursor."""
        run.arguments = None
        entry = RunEntry(self, run, group, arguments)
        self.active[run.id] = entry
        log = run.log
        log.on_trim = entry.collect
        log.dropped = self._dropped
        self._changed.add(entry)
        return entry

    def _follow_short(self, run: LocalRun) -> RunEntry | None:
        """Follow a run without a cursor with one; None if it is no longer recorded."""
        arguments, run.arguments = run.arguments, None
        group = self._groups.of(run)
        return None if group is None else self._follow(run, group, arguments or {})

    def _follow_all(self) -> None:
        """Follow all runs in progress with cursors, and take their items."""
        for run in self._hub.runs.running():
            if run.arguments is not None and (entry := self._follow_short(run)) is not None:
                entry.collect()

    def _find_entry(self, run: Run | None) -> RunEntry | None:
        """Return the cursor over a run in progress; None if it is not recorded."""
        if not isinstance(run, LocalRun):
            return None
        if run.arguments is not None and run.terminal is None:
            return self._follow_short(run)
        return self.active.get(run.id)

    def _prepare_restart(self, entry: RunEntry, run: LocalRun) -> None:
        """Record what a restart of this run needs, or that it has happened."""
        if run.epoch:
            entry.inserted = True
            entry.size = self.claimed.get(run.id, 0)
            run.recorder = self
            return
        obstacle = entry.find_obstacle()
        if obstacle is not None:
            logger.debug("run %d of %s cannot be restarted: %s", run.id, run.method, obstacle)
            return
        entry.group = self._groups.find_restartable(entry.group, run)
        run.recorder = self

    def adopt(self, run: LocalRun, arguments: Mapping[str, Any]) -> None:
        """Record a run that started before the recorder; it may have ended."""
        self.on_start(run, arguments)
        if run.arguments is not None:
            self._follow_short(run)
        if (entry := self.active.get(run.id)) is not None:
            entry.collect()  # its log may be about to drop items
        for request in self._hub.questions.requests(run):
            self._on_question(run, request, True)
        if run.terminal is not None:
            self.on_end(run)

    def on_end(self, run: LocalRun) -> None:
        """Record the end of a run."""
        if run.arguments is not None:
            size = run.log.size
            is_short = size < INLINE_BYTES and self.buffered + size <= MAX_BUFFERED
            if is_short and not self._clock.is_delayed:
                self.buffered += size
                self._short.append(run)
                return  # the clock ticks since its start
            self._follow_short(run)
        entry = self.active.pop(run.id, None)
        if entry is not None:
            run.log.on_trim = None  # the reference cycle would last until a collection
            if entry.fenced or entry.held:
                self._hub.runs.forget_moved(run)  # it continues elsewhere
            if entry.held:
                return
            if self._clock.is_delayed:
                self._add_delayed(entry)
            else:
                self._ended.append(entry)
            self._clock.schedule()

    def _add_delayed(self, entry: RunEntry) -> None:
        """Add the row of a run that has ended to the next flush, and release its log."""
        if self._next is None:
            self._next = Flush(WALL_OFFSET)
        self._changed.discard(entry)
        entry.collect()
        if entry.fenced:
            return
        if not entry.inserted:
            size = self._described + sum(map(len, entry.describe()))
            if self._next.runs >= MAX_ENDED or size > MAX_BUFFERED:
                self.on_lost(entry, 1)
                self.buffered -= entry.release()
                return
            self._described = size
        entry.add_ended(self._next)
        if not entry.inserted:
            del self._next.entries[entry.run.id]  # it refers to the log

    def describe(self, run: LocalRun) -> tuple[str, str]:
        """Return the recorded arguments of a run in progress, and their summary."""
        entry = self._find_entry(run)
        return ("", "") if entry is None else entry.describe()

    def on_item(self, reader: Reader) -> None:
        """Handle a new item of a run that had nothing new."""
        assert isinstance(reader, RunEntry), "only entries have this callback"
        self._changed.add(reader)
        self._clock.schedule()

    def _on_question(self, run: Run, request: str, _is_open: bool) -> None:
        entry = self._find_entry(run)
        if entry is not None:
            if entry.questions is None:
                entry.questions = set()
            entry.questions.add(request)
            self._changed.add(entry)
            self._clock.schedule(urgent=True)

    def _on_change(self, change: Change) -> None:
        """Forget the groups when methods change: secrets and types of arguments may differ.

        Runs without a cursor get one first, with the groups of the methods that executed them.
        """
        if change.kind == "resource":
            return
        self._follow_all()
        short, self._short = self._short, []
        for run in short:
            if (entry := self._follow_short(run)) is not None:
                del self.active[run.id]
                self._ended.append(entry)
        self._groups.clear()

    def on_lost(self, entry: RunEntry, first: int) -> None:
        """Report that items are not recorded because too much waits to be written."""
        self._clock.writer.on_lost(entry.run.id, first)

    def on_failure(self, reason: str) -> None:
        """Report that the store cannot write, once until it can."""
        self._clock.writer.on_failure(reason)

    # --- for the clock ------------------------------------------------------------------------

    def follow_new(self, until: float) -> None:
        """Follow the runs in progress that started before this time with cursors."""
        for run in self._hub.runs.started_after(self._followed_until):
            if run.arguments is not None and run.log.started_at <= until:
                self._follow_short(run)
        self._followed_until = max(self._followed_until, until)

    @property
    def burst_size(self) -> int:
        """Number of short runs that are new; 0 if anything else is new."""
        has_others = bool(self._changed or self._ended) or self._next is not None
        return 0 if has_others else len(self._short)

    def prepare(self) -> Flush | None:
        """Collect what is new. Returns None if nothing is."""
        short, self._short = self._short, []
        changed, self._changed = self._changed, set()
        ended, self._ended = self._ended, []
        flush, self._next = self._next or Flush(WALL_OFFSET), None
        flush.add_short(self._groups.sort(short))
        flush.size, self.buffered, self._described = self.buffered, 0, 0
        for entry in ended:
            changed.discard(entry)
            entry.collect()
            if not entry.fenced:
                entry.add_ended(flush)
            flush.add_checkpoints(entry)
        for entry in changed:
            if entry.held:
                continue
            entry.collect()
            flush.add_checkpoints(entry)
            if not entry.fenced:
                entry.add_active(flush, self._hub.questions)
            if entry.log.last == entry.seq and entry not in entry.log.waiting_readers:
                entry.log.waiting_readers.append(entry)
        flush.size += self.buffered
        self.buffered = 0
        return None if flush.is_empty else flush

    def on_flushed(self, flush: Flush, fenced: Collection[int]) -> None:
        """Stop the runs that another process has taken, and wake what waits for checkpoints."""
        for number in fenced:
            entry = self.active.get(number)
            # The run may have been restarted here since, under its number.
            if entry is not None and entry is flush.entries.get(number):
                entry.fenced = True
                entry.run.cancel(TAKEN)
        for entry, waiters in flush.waiting:
            for waiter in waiters:
                if waiter.done():
                    continue
                if entry.fenced:
                    waiter.set_exception(Failed(TAKEN, code="owner_lost"))
                else:
                    waiter.set_result(None)

    def on_given_up(self, flush: Flush) -> None:
        """Record the runs of a flush again without their items, which cannot be written."""
        if self._next is None:
            self._next = Flush(WALL_OFFSET)
        self._next.repeat_short(flush)
        for entry in flush.entries.values():
            # The arguments or the summary may be what cannot be stored.
            is_first = entry.described != ("", "")
            entry.omit_call()
            if entry.run.id in self.active:
                self._changed.add(entry)
            elif is_first and len(self._ended) < MAX_ENDED:
                self._ended.append(entry)

    @property
    def has_new(self) -> bool:
        """Whether there may be something to write."""
        if self._short or self._ended or self._changed or self._next is not None:
            return True
        new = self._hub.runs.started_after(self._followed_until)
        return any(run.arguments is not None for run in new)

    # --- waiting ------------------------------------------------------------------------------

    async def checkpoint(self, run: LocalRun, value: bytes) -> None:
        """Store a checkpoint; return when it and all items before it are durable.

        Raises Failed if that takes too long, or if another process has taken over the run.
        """
        entry = self.active.get(run.id)
        if entry is None:
            return  # it has ended
        if entry.fenced:
            raise Failed(TAKEN, code="owner_lost")
        written: asyncio.Future[None] = self._loop.create_future()
        if entry.checkpoints is None:
            entry.checkpoints = []
        entry.checkpoints.append((value, written))
        self._changed.add(entry)
        self._clock.schedule(urgent=True)
        try:
            async with asyncio.timeout(CHECKPOINT_S):
                await written
        except TimeoutError:
            reason = f"The checkpoint was not stored within {CHECKPOINT_S:g} s"
            raise Failed(
                f"{reason}: {self._clock.writer.error}."
                if self._clock.writer.error
                else f"{reason}.",
                code="checkpoint_not_stored",
            ) from None

    # --- runs that move -----------------------------------------------------------------------

    def hold(self, *, only_restarted: bool) -> list[RunEntry]:
        """Write nothing more of the runs that another process can restart. Returns them.

        `only_restarted` excludes those that were started in this process.
        """
        found = [
            entry
            for entry in self.active.values()
            if isinstance(entry.run, LocalRun)
            and entry.run.recorder is self
            and entry.inserted
            and not entry.fenced
            and entry.run.cancel_reason is None
            and (entry.epoch or not only_restarted)
        ]
        for entry in found:
            entry.held = True
        return found

    def unhold(self, entry: RunEntry) -> None:
        """Record a run again that was held."""
        entry.held = False
        if entry.run.terminal is None:
            self._changed.add(entry)
        else:
            self._ended.append(entry)
        self._clock.schedule(urgent=True)

    def mark_changed(self, run_id: int) -> None:
        """Record the state of a run again at the next tick."""
        entry = self._find_entry(self._hub.runs.find_running(run_id))
        if entry is not None and not entry.fenced:
            self._changed.add(entry)
            self._clock.schedule(urgent=True)

    def mark_all(self) -> None:
        """Record the state of all runs again at the next tick, and learn which were lost."""
        if self.active:
            self._changed.update(self.active.values())
            self._clock.schedule(urgent=True)

    async def flushed(self) -> None:
        """Wait until everything that was recorded until now is written, within a bound."""
        await self._clock.flushed()

    async def close(self, within_s: float) -> bool:
        """Write what is left, if that takes no longer than this time. Returns whether it was."""
        self._changed.update(self.active.values())
        return await self._clock.close(within_s)
