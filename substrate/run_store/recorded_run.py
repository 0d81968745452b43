"""A recorded run: its cursor over the log, and what was collected."""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from plexus.rpc import wire
from plexus.runtime.log import Reader, wall_ms
from plexus.runtime.question_feed import Questions
from plexus.runtime.run import LocalRun, Run
from substrate.run_store.flush import Flush, Segment
from substrate.run_store.redaction import describe_call
from substrate.run_store.run_groups import Group
from substrate.run_store.schema import STATE_NUMBERS

if TYPE_CHECKING:  # it imports this module
    from substrate.run_store.recorder import Recorder

__all__ = ("INLINE_BYTES", "MAX_BUFFERED", "RunEntry")

#: Maximum bytes of items that wait to be written, and of descriptions of runs that have ended.
#: 100,000 small events are 8 MB.
MAX_BUFFERED: Final = 16 * 1024 * 1024
#: The same with terminals, which are worth more than other items: a run without one is incomplete.
MAX_WITH_TERMINALS: Final = MAX_BUFFERED + MAX_BUFFERED // 4
#: Maximum size of the items of a run that are stored in its row.
INLINE_BYTES: Final = 4096


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

    def add_ended(self, flush: Flush) -> None:
        """Add the end of the run to a flush, with what was collected."""
        run = self.run
        ended_at = run.ended_at
        assert ended_at is not None, "a run that has ended has a time"
        state, outcome, exit_code, kept_ms = self.group.ending(run)
        if self.inserted:
            flush.update(self, state, outcome, exit_code, ended_at, kept_ms, run.retention_s)
            flush.add_segments(self)
            flush.close_questions(run.id)
            return
        items = None
        if len(self.segments) == 1 and self.size < INLINE_BYTES and self.segments[0].first == 1:
            items = b"\n".join(self.segments[0].pieces).decode()
        flush.insert(self, state, outcome, exit_code, ended_at, kept_ms, run.retention_s, items)
        if items is None:
            flush.add_segments(self)

    def add_active(self, flush: Flush, questions: Questions) -> None:
        """Add the state of the run in progress to a flush, with what was collected."""
        run = self.run
        if run.terminal is not None:
            return  # it is among the ended ones of the next tick
        state = STATE_NUMBERS[run.state]
        if not self.inserted:
            flush.insert(self, state, None, None, None, None, run.retention_s, None)
            self.inserted = True
        else:
            flush.update(self, state, None, None, None, None, run.retention_s)
        flush.add_segments(self)
        if self.questions:
            requests, self.questions = self.questions, None
            for request in requests:
                flush.add_question(run.id, request, _question_row(questions, run, request))

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


def _question_row(questions: Questions, run: Run, request: str) -> tuple[str, int] | None:
    """Return the event and the time of an open question; None if it is closed."""
    asked = questions.find(run, request)
    if asked is None:
        return None
    data = wire.encode_event(asked.event)
    if (run.id, request) in questions.separate and asked.event.details is not None:
        # Not an item of the run: its details are arguments, as those of `approvals.permit`.
        details, _ = describe_call(run.method, asked.event.details, frozenset())
        recorded = {"details": wire.decode_trusted(details.encode())}
        data = wire.encode(wire.decode_trusted(data) | recorded)
    return data.decode(), wall_ms(asked.asked_at)
