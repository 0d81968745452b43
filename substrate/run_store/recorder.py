"""Records local runs: cursors over their logs, and a clock that collects what is new.

Rules:
- Nothing here waits, and nothing is done per event. A recorded run has a cursor over its log; when
  the clock ticks, the new items of all runs are joined and handed to the store in one flush.
- The clock runs only while there is something to record: a run that has nothing new registers its
  cursor as a waiting reader of its log, like any other reader.
- One flush is written at a time. If the store cannot write, flushes wait within a bound. Past it
  items are lost, which the history shows as a gap; runs are never slowed down. Runs that end
  meanwhile are reduced to their rows, so that their logs do not wait with them.
- A flush that fails because of what it contains is given up, and the next one is written.
- Metadata of a run are written when it starts, changes its state, and ends. A run that starts and
  ends between two ticks is a single row. Such runs are the most frequent: they get no cursor, and
  their row is made by the thread that writes it.
"""

from __future__ import annotations

import asyncio
import bisect
import itertools
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

from plexus.errors import Failed, PlexusError
from plexus.events import Complete, Result, outcome_of
from plexus.registry.signature import MethodSpec
from plexus.rpc import wire
from plexus.runtime.hub import Plexus
from plexus.runtime.log import WALL_OFFSET, DroppedItems, Reader, wall_ms
from plexus.runtime.run import LocalRun, Run
from substrate.run_store.flush import Flush, Segment, ShortRun
from substrate.run_store.policy import RecordPolicy, RetentionPolicy
from substrate.run_store.redaction import describe_call
from substrate.run_store.schema import STATE_NUMBERS, storable_text

if TYPE_CHECKING:  # only named in annotations
    from plexus.runtime.question_feed import OpenQuestion

__all__ = ("Group", "Recorder", "RunEntry")

logger = logging.getLogger("substrate.run_store")

#: Seconds between flushes: while another process watches, and otherwise.
WATCHED_S: Final = 0.01
UNWATCHED_S: Final = 0.05
#: Seconds before a failed flush is repeated.
RETRY_S: Final = 1.0
#: Number of failures after which a flush is given up if the store can write anything else.
MAX_FAILURES: Final = 3
#: Seconds after which a flush counts as delayed.
DELAYED_S: Final = 0.5
#: Seconds that readers wait for the items of this process to be written.
FLUSHED_S: Final = 2.0
#: Seconds that a method waits for its checkpoint: a database can restart in that time.
CHECKPOINT_S: Final = 60.0
#: Maximum bytes of items that wait to be written, and of descriptions of runs that have ended.
#: 100,000 small events are 8 MB.
MAX_BUFFERED: Final = 16 * 1024 * 1024
#: The same with terminals, which are worth more than other items: a run without one is incomplete.
MAX_WITH_TERMINALS: Final = MAX_BUFFERED + MAX_BUFFERED // 4
#: Maximum number of ended runs that wait to be written.
MAX_ENDED: Final = 20_000
#: Maximum size of the items of a run that are stored in its row.
INLINE_BYTES: Final = 4096
#: Why a run stops here that has another owner by now.
TAKEN: Final = "another process has taken over this run, or ended it"
#: Types whose values cannot change after the call, so that they can be described later.
IMMUTABLE: Final = frozenset({str, int, float, bool, bytes, type(None)})
#: Events that end a run successfully and have no exit code.
SUCCESSES: Final = (Result, Complete)


class Group:
    """What the runs of one method, principal and client have in common."""

    __slots__ = (
        "_retention",
        "_success",
        "has_short_runs",
        "hidden",
        "method",
        "mode",
        "number",
        "restart",
        "row",
        "secret_names",
    )

    def __init__(
        self,
        number: int,
        spec: MethodSpec | None,
        run: Run,
        mode: str,
        retention: RetentionPolicy,
        *,
        may_restart: bool = False,
    ) -> None:
        self.number = number
        self.method = run.method
        self.mode = mode
        self.secret_names: frozenset[str] = frozenset() if spec is None else spec.secret_names
        #: The arguments that the hub adds, which are not the caller's.
        added = () if spec is None else (spec.principal_name, spec.context_name)
        self.hidden = frozenset(name for name in added if name is not None)
        scope = run.method.partition(".")[0] if spec is None else spec.scope
        #: Whether its runs can be restarted, as the method declares it.
        self.restart = "never" if spec is None or mode != "all" else spec.restart
        #: Whether its runs need no cursor while they are short.
        self.has_short_runs = mode == "all" and self.restart == "never"
        self._retention = retention
        #: How the end of a run that succeeds is recorded.
        kept_ms = retention.kept_ms(run.method, "succeeded")
        self._success = (STATE_NUMBERS[Complete.type], "succeeded", None, kept_ms)
        scopes = run.principal.scopes
        self.row = [
            number,
            run.method,
            scope,
            run.principal.name,
            storable_text(run.client or ""),
            mode,
            self.restart if may_restart else "never",
            None if scopes is None or not may_restart else " ".join(sorted(scopes)),
        ]

    def own_arguments(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments that are the caller's."""
        if not self.hidden:
            return arguments
        return {name: value for name, value in arguments.items() if name not in self.hidden}

    def describe(self, arguments: Mapping[str, Any]) -> tuple[str, str]:
        """Return the redacted arguments of a call and its summary."""
        return describe_call(self.method, self.own_arguments(arguments), self.secret_names)

    def ending(self, run: Run) -> tuple[int, str, int | None, int]:
        """Return the last state of a run, its outcome, its exit code, and how long it is kept."""
        terminal = run.terminal
        assert terminal is not None, "a run that has ended has a terminal"
        if terminal.__class__ in SUCCESSES:
            return self._success
        found = outcome_of(terminal)
        outcome = found["outcome"]
        kept_ms = self._retention.kept_ms(self.method, outcome)
        return STATE_NUMBERS[terminal.type], outcome, found.get("exit_code"), kept_ms


class RunEntry(Reader):
    """The cursor of the recorder over one run, and what was collected and not written yet."""

    __slots__ = (
        "_recorder",
        "arguments",
        "checkpoints",
        "described",
        "epoch",
        "fenced",
        "group",
        "held",
        "inserted",
        "questions",
        "retention_s",
        "segments",
        "size",
        "state",
    )

    def __init__(
        self, recorder: Recorder, run: LocalRun, group: Group, arguments: Mapping[str, Any]
    ) -> None:
        super().__init__(run, run.log.first - 1, recorder.on_item)
        self._recorder = recorder
        self.group = group
        self.arguments: Mapping[str, Any] | None = arguments
        #: The arguments and the summary, once they are described.
        self.described: tuple[str, str] | None = None
        self.segments: list[Segment] = []
        self.size = 0
        #: Whether the run has a row, and the state and retention that the row shows.
        self.inserted = False
        self.state = ""
        self.retention_s: float | None = None
        self.epoch = run.epoch
        #: Whether another process has ended or taken over the run.
        self.fenced = False
        #: Whether none of it is written for now, because it may be handed over.
        self.held = False
        #: Checkpoints that are not written yet, and what waits for each; None if there are none.
        self.checkpoints: list[tuple[bytes, asyncio.Future[None]]] | None = None
        #: Numbers of questions that were opened or closed; None if there are none.
        self.questions: set[str] | None = None

    def collect(self) -> None:
        """Take the new items of the log. Called before they are dropped, and at every tick."""
        log, recorder = self.log, self._recorder
        start = self.seq + 1 - log.first
        if start < 0:
            self.seq, start = log.first - 1, 0
        payloads = log.payloads[start:] if start else log.payloads
        if not payloads:
            return
        first = self.seq + 1
        self.seq += len(payloads)
        if self.fenced or self.group.mode == "metadata":
            self.size += sum(map(len, payloads))
            return
        piece = b"\n".join(payloads)
        self.size += len(piece)
        if recorder.buffered + len(piece) > MAX_BUFFERED:
            recorder.on_lost(self, first)
            piece, first = payloads[-1], self.seq
            is_terminal = self.run.terminal is not None and len(piece) < INLINE_BYTES
            if not is_terminal or recorder.buffered + len(piece) > MAX_WITH_TERMINALS:
                return
        recorder.buffered += len(piece)
        segments = self.segments
        if not segments or segments[-1].last + 1 != first:
            segments.append(Segment(first))
        segments[-1].add(piece, self.seq, self._marks(first))

    def _marks(self, first: int) -> list[tuple[int, int]]:
        """Return the times of the items from `first` on, as pairs of number and milliseconds."""
        log = self.log
        marks = log.marks
        found = [(first, wall_ms(log.time_of(first)))]
        if marks:
            start = bisect.bisect_right(marks, first, key=_number)
            found += [(seq, wall_ms(at)) for seq, at in marks[start:]]
        return found

    def release(self) -> int:
        """Drop what was collected. Returns its size."""
        segments, self.segments = self.segments, []
        return sum(len(piece) for segment in segments for piece in segment.pieces)

    def describe(self) -> tuple[str, str]:
        """Return the redacted arguments and the summary."""
        if self.described is None:
            self.described = self.group.describe(self.arguments or {})
            self.arguments = None
            self.run.summary = self.described[1]
        return self.described

    def find_obstacle(self) -> str | None:
        """Return why this run of a method that can be restarted cannot; None if it can."""
        if isinstance(self.run, LocalRun) and self.run.caller is not None:
            return "the environment of its caller is not stored"
        if self.run.parent is not None:
            return "the run that called it is not restarted with it"
        if self.group.secret_names:
            return "its secret arguments are not stored"
        try:
            exact = wire.encode(self.group.own_arguments(self.arguments or {})).decode()
        except TypeError:
            return "its arguments have no JSON form"
        return None if self.describe()[0] == exact else "its arguments are not stored completely"

    def omit_call(self) -> None:
        """Record nothing about the call, because it cannot be stored."""
        self.arguments, self.described = None, ("", "")


def _number(mark: tuple[int, float]) -> int:
    return mark[0]


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
        self._record = record
        self._retention = retention
        #: Writes a flush; the result has the numbers of runs that another process has taken.
        self._write = write
        self._is_watched = is_watched
        #: Whether the store can write anything.
        self._is_writable = is_writable
        self._dropped = dropped
        self._loop = asyncio.get_running_loop()
        #: Runs without a cursor: those that have started since the last tick, and those of them
        #: that have ended.
        self._new: dict[int, ShortRun] = {}
        self._short: list[ShortRun] = []
        self._on_trim = self._follow_all  # one object for all runs
        self.active: dict[int, RunEntry] = {}
        #: Runs that ended and whose end was not written yet, and runs with new items.
        self._ended: list[RunEntry] = []
        self._changed: set[RunEntry] = set()
        #: The next flush, with runs that ended while the last one is delayed.
        self._next: Flush | None = None
        self._group_numbers = itertools.count()
        self._groups: dict[tuple[str, str, str | None], Group | None] = {}
        #: Groups of runs that can be restarted: these keep the scopes of their callers too.
        self._restartable: dict[tuple[int, frozenset[str] | None], Group] = {}
        #: Stored bytes of the runs that are being restarted.
        self.claimed: dict[int, int] = {}
        #: Bytes of items that were collected and not written yet.
        self.buffered = 0
        #: Characters of arguments and summaries in the next flush.
        self._described = 0
        self._lost_runs = 0
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._last_flush = 0.0
        self._task: asyncio.Task[None] | None = None
        self._failing = False
        #: Why the last flush failed; empty if it did not.
        self._error = ""
        self._closed = False
        #: Waiters for everything that was recorded until now to be written.
        self._waiters: list[asyncio.Future[None]] = []

    def start(self) -> Callable[[], None]:
        """Listen to the hub. Returns a function that stops listening."""
        runs = self._hub.runs
        stops = [
            runs.on_start(self.on_start),
            runs.on_end(self._on_end),
            self._hub.questions.on_change(self._on_question),
        ]

        def stop() -> None:
            for each in stops:
                each()

        return stop

    # --- listeners ----------------------------------------------------------------------------

    def on_start(
        self, run: Run, arguments: Mapping[str, Any], _trace: Mapping[str, str] | None = None
    ) -> None:
        """Record a run from its first item."""
        key = (run.method, run.principal.name, run.client)
        group = self._groups.get(key) or self._group_of(key, run)
        if group is None or not isinstance(run, LocalRun):
            return
        is_immutable = True
        for value in arguments.values():
            if value.__class__ not in IMMUTABLE:
                is_immutable = False
                break
        if is_immutable and group.has_short_runs and not run.epoch:
            self._new[run.id] = ShortRun(run, group, arguments)
            run.log.on_trim = self._on_trim
        else:
            entry = self._follow(run, group, arguments)
            if group.restart != "never":
                self._prepare_restart(entry, run)
            if not is_immutable:
                entry.describe()  # the method may change its arguments
        if self._timer is None:
            self.schedule()

    def _follow(self, run: LocalRun, group: Group, arguments: Mapping[str, Any]) -> RunEntry:
        """Follow a run in progress with a cursor."""
        entry = RunEntry(self, run, group, arguments)
        self.active[run.id] = entry
        log = run.log
        log.on_trim = entry.collect
        log.dropped = self._dropped
        self._changed.add(entry)
        return entry

    def _follow_all(self) -> None:
        """Follow all runs in progress with cursors, and take their items."""
        new, self._new = self._new, {}
        for each in new.values():
            self._follow(*each).collect()

    def _find_entry(self, run_id: int) -> RunEntry | None:
        """Return the cursor over a run in progress; None if it is not recorded."""
        new = self._new.pop(run_id, None)
        return self.active.get(run_id) if new is None else self._follow(*new)

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
        key = (entry.group.number, run.principal.scopes)
        group = self._restartable.get(key)
        if group is None:
            spec = self._hub.find_method(run.method)
            number = -1 - len(self._restartable)
            mode = entry.group.mode
            group = Group(number, spec, run, mode, self._retention, may_restart=True)
            self._restartable[key] = group
        entry.group = group
        run.recorder = self

    def adopt(self, run: Run, arguments: Mapping[str, Any]) -> None:
        """Record a run that started before the recorder; it may have ended."""
        self.on_start(run, arguments)
        if (entry := self._find_entry(run.id)) is not None:
            entry.collect()  # its log may be about to drop items
        for request in self._hub.questions.requests(run):
            self._on_question(run, request, True)
        if run.terminal is not None:
            self._on_end(run)

    def _group_of(self, key: tuple[str, str, str | None], run: Run) -> Group | None:
        """Return the group of a run; None if it is not recorded."""
        if key in self._groups:
            return None
        if len(self._groups) > MAX_ENDED:  # clients with endless names
            self._groups.clear()
            self._restartable.clear()
        spec = self._hub.find_method(run.method)
        mode = self._record.mode(run.method, None if spec is None else spec.record)
        is_recorded = run.purpose == "work" and mode != "off"
        group = None
        if is_recorded:
            group = Group(next(self._group_numbers), spec, run, mode, self._retention)
        self._groups[key] = group
        return group

    def _on_end(self, run: Run) -> None:
        new = self._new.pop(run.id, None)
        if new is not None:
            size = run.log.size
            is_short = size < INLINE_BYTES and self.buffered + size <= MAX_BUFFERED
            if is_short and not self._is_delayed:
                run.log.on_trim = None
                self.buffered += size
                self._short.append(new)
                return  # the clock ticks since its start
            self._follow(*new)
        entry = self.active.pop(run.id, None)
        if entry is not None:
            run.log.on_trim = None  # the reference cycle would last until a collection
            if entry.fenced or entry.held:
                assert isinstance(run, LocalRun), "only runs of this process are recorded"
                self._hub.runs.forget_moved(run)  # it continues elsewhere
            if entry.held:
                return
            if self._is_delayed:
                self._add_delayed(entry)
            else:
                self._ended.append(entry)
            self.schedule()

    @property
    def _is_delayed(self) -> bool:
        """Whether the flush that is being written takes long."""
        return self._task is not None and self._loop.time() - self._last_flush > DELAYED_S

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
        self._add_ended(self._next, entry)
        if not entry.inserted:
            del self._next.entries[entry.run.id]  # it refers to the log

    def on_item(self, reader: Reader) -> None:
        """Handle a new item of a run that had nothing new."""
        assert isinstance(reader, RunEntry), "only entries have this callback"
        self._changed.add(reader)
        self.schedule()

    def _on_question(self, run: Run, request: str, _is_open: bool) -> None:
        entry = self._find_entry(run.id)
        if entry is not None:
            if entry.questions is None:
                entry.questions = set()
            entry.questions.add(request)
            self._changed.add(entry)
            self.schedule(urgent=True)

    def on_lost(self, entry: RunEntry, first: int) -> None:
        """Report that items are not recorded because too much waits to be written."""
        if not self._lost_runs and not self._failing:
            logger.warning(
                "items are not recorded because the run store does not keep up; the first is item"
                " %d of run %d",
                first,
                entry.run.id,
            )
        self._lost_runs += 1

    # --- the clock ----------------------------------------------------------------------------

    def schedule(self, *, urgent: bool = False) -> None:
        """Make sure that the clock ticks soon."""
        if self._closed or (self._timer is not None and not urgent):
            return
        interval = WATCHED_S if urgent or self._is_watched() else UNWATCHED_S
        now = self._loop.time()
        due = max(now, self._last_flush + interval)
        if self._timer is not None:
            if due >= self._due:
                return
            self._timer.cancel()
        self._due = due
        self._timer = self._loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self._task is not None:
            return  # what is new is collected after the flush
        flush = self._prepare()
        if flush is None:
            self._resolve_waiters()
        else:
            self._last_flush = self._loop.time()
            self._task = self._loop.create_task(self._write_flush(flush))
            self._task.add_done_callback(self._on_written)

    def _prepare(self) -> Flush | None:
        """Collect what is new. Returns None if nothing is."""
        for each in self._new.values():
            self._follow(*each)
        self._new.clear()
        short, self._short = self._short, []
        changed, self._changed = self._changed, set()
        ended, self._ended = self._ended, []
        flush, self._next = self._next or Flush(WALL_OFFSET), None
        flush.add_short(short)
        flush.size, self.buffered, self._described = self.buffered, 0, 0
        for entry in ended:
            changed.discard(entry)
            entry.collect()
            if not entry.fenced:
                self._add_ended(flush, entry)
            flush.add_checkpoints(entry)
        for entry in changed:
            if entry.held:
                continue
            entry.collect()
            flush.add_checkpoints(entry)
            if not entry.fenced:
                self._add_active(flush, entry)
            if entry.log.last == entry.seq and entry not in entry.log.waiting_readers:
                entry.log.waiting_readers.append(entry)
        flush.size += self.buffered
        self.buffered = 0
        return None if flush.is_empty else flush

    def _add_ended(self, flush: Flush, entry: RunEntry) -> None:
        run = entry.run
        ended_at = run.ended_at
        assert ended_at is not None, "a run that has ended has a time"
        state, outcome, exit_code, kept_ms = entry.group.ending(run)
        if entry.inserted:
            flush.update(entry, state, outcome, exit_code, ended_at, kept_ms, _retention_of(run))
            flush.add_segments(entry)
            flush.close_questions(run.id)
            return
        items = None
        if len(entry.segments) == 1 and entry.size < INLINE_BYTES and entry.segments[0].first == 1:
            items = b"\n".join(entry.segments[0].pieces).decode()
        flush.insert(entry, state, outcome, exit_code, ended_at, kept_ms, _retention_of(run), items)
        if items is None:
            flush.add_segments(entry)

    def _add_active(self, flush: Flush, entry: RunEntry) -> None:
        run = entry.run
        if run.terminal is not None:
            return  # it is among the ended ones of the next tick
        state = STATE_NUMBERS[run.state]
        retention_s = _retention_of(run)
        if not entry.inserted:
            flush.insert(entry, state, None, None, None, None, retention_s, None)
            entry.inserted = True
        else:
            flush.update(entry, state, None, None, None, None, retention_s)
        flush.add_segments(entry)
        if entry.questions:
            requests, entry.questions = entry.questions, None
            for request in requests:
                asked = self._hub.questions.find(run, request)
                flush.add_question(run.id, request, _question_row(asked))

    def on_failure(self, reason: str) -> None:
        """Report that the store cannot write, once until it can."""
        if not self._failing:
            self._failing = True
            logger.warning("runs are not recorded: %s", reason)

    async def _write_flush(self, flush: Flush) -> None:
        failures = 0
        while True:
            try:
                fenced = await self._write(flush)
            except PlexusError as error:
                if self._closed:
                    logger.warning("the last items were not recorded: %s", error.message)
                    return
                self._error = error.message
                self.on_failure(error.message)
                failures += 1
                # Other codes have a cause outside of the flush, such as a full disk.
                if failures >= MAX_FAILURES and error.code == "storage":
                    if await self._is_writable():
                        self._give_up(flush, error)
                        return
                    failures = 0
                await asyncio.sleep(RETRY_S)
                continue
            except Exception as error:  # noqa: BLE001 - a defect must not end recording
                self._give_up(flush, error)
                return
            break
        if self._failing or self._lost_runs:
            logger.warning(
                "runs are recorded again%s",
                "; the history of some has gaps" if self._lost_runs else "",
            )
            self._failing, self._lost_runs, self._error = False, 0, ""
        self._on_flushed(flush, fenced)

    def _on_flushed(self, flush: Flush, fenced: Collection[int]) -> None:
        for number in fenced:
            entry = self.active.get(number)
            if entry is not None:
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

    def _give_up(self, flush: Flush, error: Exception) -> None:
        """Lose the items of a flush that cannot be written, and write the rest of its runs."""
        logger.error("items of %d runs are lost: they cannot be stored", flush.runs, exc_info=error)
        self._lost_runs += 1
        for each in flush.short:
            flush.entries[each.run.id] = RunEntry(self, *each)
        for entry in flush.entries.values():
            # The arguments or the summary may be what cannot be stored.
            is_first = entry.described != ("", "")
            entry.omit_call()
            if entry.run.id in self.active:
                self._changed.add(entry)
            elif is_first and len(self._ended) < MAX_ENDED:
                self._ended.append(entry)

    def _on_written(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and task.exception() is not None:
            logger.error("the recorder failed", exc_info=task.exception())
        if self._has_new:
            self.schedule(urgent=bool(self._waiters))
        else:
            self._resolve_waiters()

    @property
    def _has_new(self) -> bool:
        """Whether there may be something to write."""
        has_ended = bool(self._short or self._ended) or self._next is not None
        return has_ended or bool(self._new or self._changed)

    def _resolve_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # --- waiting ------------------------------------------------------------------------------

    async def flushed(self) -> None:
        """Wait until everything that was recorded until now is written, within a bound."""
        if self._task is None and not self._has_new:
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        if self._task is None:
            self.schedule(urgent=True)
        # Readers see what is stored so far if the store cannot write.
        await asyncio.wait([waiter], timeout=FLUSHED_S)

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
        self.schedule(urgent=True)
        try:
            async with asyncio.timeout(CHECKPOINT_S):
                await written
        except TimeoutError:
            reason = f"The checkpoint was not stored within {CHECKPOINT_S:g} s"
            raise Failed(
                f"{reason}: {self._error}." if self._error else f"{reason}.",
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
        self.schedule(urgent=True)

    def mark_changed(self, run_id: int) -> None:
        """Record the state of a run again at the next tick."""
        entry = self._find_entry(run_id)
        if entry is not None and not entry.fenced:
            self._changed.add(entry)
            self.schedule(urgent=True)

    def mark_all(self) -> None:
        """Record the state of all runs again at the next tick, and learn which were lost."""
        if self.active:
            self._changed.update(self.active.values())
            self.schedule(urgent=True)

    async def close(self, within_s: float) -> bool:
        """Write what is left, if that takes no longer than this time. Returns whether it was."""
        for entry in self.active.values():
            self._changed.add(entry)
        is_written = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            async with asyncio.timeout(within_s):
                if self._task is not None:
                    await asyncio.wait([self._task])
                if (flush := self._prepare()) is not None:
                    self._on_flushed(flush, await self._write(flush))
        except (TimeoutError, PlexusError) as error:
            is_written = False
            reason = (
                error.message if isinstance(error, PlexusError) else "the store does not answer"
            )
            logger.warning("the last items were not recorded: %s", reason)
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        return is_written


def _retention_of(run: Run) -> float | None:
    return run.retention_s


def _question_row(asked: OpenQuestion | None) -> tuple[str, int] | None:
    """Return the event and the time of an open question; None if it is closed."""
    if asked is None:
        return None
    return wire.encode_event(asked.event).decode(), wall_ms(asked.asked_at)
