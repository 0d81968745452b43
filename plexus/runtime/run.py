"""A run: one call of one method, seen by any number of readers.

Rules:
- The pump appends; readers hold cursors and take whatever is there in one go. Nothing is queued
  for a reader and no reader has a task.
- The owner holds the run back: when it is behind by the high-water mark, the pump waits. An
  owner that vanished still holds it, so that it finds everything when it comes back.
- Watchers never hold a run. One that fell off the log's tail gets a `gap` and goes on.
- A run ends with exactly one terminal, whatever anybody does and however often they do it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any, Literal

from plexus.errors import NotFound, PlexusError, TooBig
from plexus.events import Cancelled, Error, Event, Gap, Request, Terminal, outcome_of
from plexus.limits import Limits
from plexus.principal import Principal
from plexus.questions import Question
from plexus.rpc import wire
from plexus.runtime.log import ITEM_WEIGHT, Batch, ItemLog, wall_ms
from plexus.runtime.question_feed import OpenQuestion, QuestionChanged

__all__ = ("Purpose", "Reader", "Run")

#: What a run is for: work; a watch, which only reads and goes on until it is stopped; or control,
#: which steers or inspects the server itself. Each has a pool of its own.
Purpose = Literal["work", "watch", "control"]

#: How much a reader takes in one go: enough to make a good write, and so little that a watcher
#: of a long log does not hold the loop and a write does not need a mapping of its own.
TAKE_ITEMS = 512
TAKE_BYTES = 256 * 1024


class Run:
    """One call. Made by `plexus.runs`, driven by `plexus.runtime.pump`, read through `Reader`."""

    __slots__ = (
        "_asked",
        "_limits",
        "_owner",
        "_resume",
        "asks",
        "cancel_deadline",
        "cancel_reason",
        "deadline",
        "ended_at",
        "expired_after",
        "id",
        "key",
        "log",
        "method",
        "on_end",
        "orphan_deadline",
        "parent",
        "principal",
        "purpose",
        "questions",
        "retention_s",
        "started_at",
        "task",
        "terminal",
        "waiting_readers",
    )

    def __init__(
        self,
        run_id: int,
        method: str,
        principal: Principal,
        limits: Limits,
        on_end: Callable[[Run], None],
        parent: int | None = None,
        deadline_s: float | None = None,
        purpose: Purpose = "work",
    ) -> None:
        self.id = run_id
        self.method = method
        self.principal = principal
        self.parent = parent
        self.purpose: Purpose = purpose
        self.started_at = now = time.monotonic()
        self.log = ItemLog(limits, now)
        self.deadline = None if deadline_s is None else now + deadline_s
        self.on_end = on_end
        #: Readers that have taken everything and wait for more; always the same list.
        self.waiting_readers: list[Reader] = []
        #: The kinds of questions that the caller can answer; None for all of them.
        self.asks: frozenset[str] | None = None
        #: The caller's own name for this run.
        self.key: str | None = None
        #: For how long its caller was promised that it would be kept.
        self.retention_s: float | None = None
        self.terminal: Terminal | None = None
        self.ended_at: float | None = None
        self.expired_after: float | None = None
        self.cancel_reason: str | None = None
        self.cancel_deadline: float | None = None
        self.orphan_deadline: float | None = None
        #: The task that steps this run at the moment; set by the pump.
        self.task: asyncio.Task[None] | None = None
        #: The questions that are open, by number.
        self.questions: dict[str, OpenQuestion] | None = None
        self._asked = 0
        self._owner: Reader | None = None
        #: What the pump waits on while the owner is too far behind.
        self._resume: asyncio.Future[None] | None = None
        self._limits = limits

    # --- what it is ---------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """`running`, `asking`, `cancelling`, or how it ended: `complete`, `error`, `cancelled`."""
        terminal = self.terminal
        if terminal is not None:
            return terminal.type
        if self.cancel_reason is not None:
            return "cancelling"
        return "asking" if self.questions else "running"

    @property
    def is_elsewhere(self) -> bool:
        """Whether it is the copy of a run of another process."""
        return False

    @property
    def scope(self) -> str | None:
        """The scope of its method, where only the run's own process may know it."""
        return None

    def described(self) -> dict[str, Any]:
        """What `plexus.runs` says of it."""
        described: dict[str, Any] = {
            "run": self.id,
            "method": self.method,
            "state": self.state,
            "started_ms": wall_ms(self.started_at),
            "last_seq": self.log.last,
        }
        if self.parent is not None:
            described["parent"] = self.parent
        if self.ended_at is not None:
            described["duration_ms"] = round((self.ended_at - self.started_at) * 1000, 3)
        if self.terminal is not None:
            described |= outcome_of(self.terminal)
        return described

    # --- appending ----------------------------------------------------------------------------

    def append(self, event: Event) -> None:
        """Put one event into the log and wake whoever waits for it.

        Raises TooBig for an event past its limit and InvalidEvent for one with no JSON form. A
        run that has ended takes no more.
        """
        if self.terminal is not None:
            return
        raw = wire.encode_event(event)
        self.check_size(event, len(raw))
        self.log.append(event, raw)
        self.log.mark(time.monotonic())
        if self.waiting_readers:
            self.wake_readers()

    def check_newest(self) -> None:
        """Take the newest item out again, and raise TooBig, if it is too large."""
        log = self.log
        if len(log.payloads[-1]) > self._limits.event_bytes:
            event, raw = log.events.pop(), log.payloads.pop()
            self.check_size(event, len(raw))

    def check_size(self, event: Event, size: int) -> None:
        """Raise TooBig for an event of so many bytes if that is too many."""
        limit = self._limits.answer_bytes if event.terminal else self._limits.event_bytes
        if size > limit:
            raise TooBig(
                f"a {event.type} event of {size} bytes is over the limit of {limit}",
                data={"limit": limit},
            )

    def finish(self, terminal: Terminal, raw: bytes | None = None) -> None:
        """End the run with this terminal, unless it has ended already."""
        if self.terminal is not None:
            return
        if raw is None:
            raw = wire.encode_event(terminal)
            if terminal.__class__ is Error and len(raw) > self._limits.error_bytes:
                terminal = Error(
                    terminal.code,
                    *wire.shorten_error(terminal.message, terminal.data, self._limits.error_bytes),
                )
                raw = wire.encode_event(terminal)
            if len(raw) > self._limits.answer_bytes:
                self.check_size(terminal, len(raw))
        self.ended_at = time.monotonic()
        self.log.append(terminal, raw)
        self.terminal = terminal
        # Nobody is held back any more; and the two would keep each other alive until a collection.
        self._owner = None
        if self.questions is not None:
            closed, self.questions = self.questions, None
            for request, asked in closed.items():
                asked.answer.cancel()
                if asked.tell is not None:
                    asked.tell(self, request, False)
        if self.waiting_readers:
            self.wake_readers()
        if self._resume is not None:
            self.release()
        self.on_end(self)

    def wake_readers(self) -> None:
        """Tell those who had taken everything that there is more."""
        waiting_readers = self.waiting_readers
        if len(waiting_readers) == 1:
            reader = waiting_readers.pop()
            reader.wake(reader)
            return
        sleepers = waiting_readers.copy()
        waiting_readers.clear()
        for reader in sleepers:
            reader.wake(reader)

    # --- backpressure -------------------------------------------------------------------------

    def trim(self) -> None:
        """Count and trim the log; what the owner has not read stays."""
        self.log.trim(None if self._owner is None else self._owner.seq + 1)

    @property
    def capacity(self) -> int:
        """How much weight may still be appended before the pump must wait for the owner."""
        owner, log = self._owner, self.log
        if owner is None:
            return self._limits.high_water_bytes
        unread = log.total - owner.taken + ITEM_WEIGHT * (log.last - owner.seq)
        return self._limits.high_water_bytes - unread

    async def wait_for_capacity(self) -> None:
        """Wait until the owner has caught up. Ended by reading, by detaching and by cancel."""
        self.trim()
        while self.capacity <= 0 and self.terminal is None:
            self._resume = asyncio.get_running_loop().create_future()
            try:
                await self._resume
            finally:
                self._resume = None

    @property
    def is_held(self) -> bool:
        """Whether the pump waits for the owner."""
        return self._resume is not None

    def release(self) -> None:
        """Have the pump look again how far the owner is."""
        if self._resume is not None and not self._resume.done():
            self._resume.set_result(None)

    # --- readers ------------------------------------------------------------------------------

    def reader(self, after: int, wake: Callable[[Reader], None], *, owner: bool) -> Reader:
        """A cursor that stands after this item, but never after the terminal: whoever asks is
        told that the run has ended. A new owner takes the place of the old one."""
        if after:
            newest = self.log.last if self.terminal is None else self.log.last - 1
            after = min(max(after, 0), newest)
        reader = Reader(self, after, wake)
        if owner and self.terminal is None:
            self._owner = reader
            if reader.seq or self.log.payloads:
                self.trim()
                reader.taken = self.log.total - self.log.size_after(reader.seq)
            self.orphan_deadline = None
            if self._resume is not None:
                self.release()
        return reader

    def owned_by(self, reader: Reader) -> bool:
        return self._owner is reader

    def leave(self, reader: Reader) -> None:
        """This reader is done with the run."""
        if self.waiting_readers and reader in self.waiting_readers:
            self.waiting_readers.remove(reader)
        if self._owner is reader:
            self._owner = None
            self.release()

    def detach(self, reader: Reader, within_s: float | None = None) -> None:
        """The owner vanished and may come back: hold its place, but not for ever."""
        if reader in self.waiting_readers:
            self.waiting_readers.remove(reader)
        if self._owner is reader and self.terminal is None:
            limit_s = self._limits.orphan_s if within_s is None else within_s
            self.orphan_deadline = time.monotonic() + limit_s

    async def batches(self, after: int = 0, *, owner: bool = False) -> AsyncGenerator[Batch]:
        """Follow the run from inside this process, up to and with its terminal."""
        woken = asyncio.Event()
        reader = self.reader(after, lambda _: woken.set(), owner=owner)
        try:
            while True:
                woken.clear()
                batch = reader.take()
                if batch.events:
                    yield batch
                    if batch.terminal is not None:
                        return
                else:
                    await woken.wait()
        finally:
            self.leave(reader)

    # --- stopping -----------------------------------------------------------------------------

    async def stop(self, reason: str) -> bool:
        """Tell the run to stop, wherever it is; True if it was still running."""
        was_running = self.terminal is None
        self.cancel(reason)
        return was_running

    def cancel(self, reason: str) -> None:
        """Tell the run to stop; the first reason stands. It ends when its cleanup has run."""
        if self.terminal is not None or self.cancel_reason is not None:
            return
        self.cancel_reason = reason
        self.cancel_deadline = time.monotonic() + self._limits.cancel_s
        if self.task is not None:
            self.task.cancel()

    def expire(self, limit_s: float) -> None:
        """Stop the run because it took too long."""
        self.expired_after = limit_s
        self.cancel(f"it ran longer than {limit_s:g} s")

    def abandon(self) -> None:
        """Give up on a run that ignores being cancelled: it ends now, its task is left behind."""
        self.finish(Cancelled(f"{self.cancel_reason}; the method ignored it and was abandoned"))
        self.log.close()

    # --- questions ----------------------------------------------------------------------------

    def ask(
        self,
        question: Question[Any],
        timeout_s: float,
        key: str | None = None,
        tell: QuestionChanged | None = None,
    ) -> tuple[str, asyncio.Future[Any]]:
        """Put a question to whoever reads, and `tell` of it now and when it is closed.

        The future gets the checked answer, None if it is declined, or the PlexusError that it is
        refused with.
        """
        self._asked += 1
        request = str(self._asked)
        event = Request(
            request=request,
            kind=question.kind,
            message=question.message,
            schema=question.schema(),
            timeout_s=timeout_s,
            default=question.default,
            options=question.described_options(),
            key=key,
            details=question.details(),
        )
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.questions is None:
            self.questions = {}
        self.questions[request] = OpenQuestion(question, future, event, time.monotonic(), tell)
        try:
            self.append(event)
        except PlexusError:
            del self.questions[request]
            raise
        if tell is not None:
            tell(self, request, True)
        return request, future

    async def pass_on(self, method: str, params: dict[str, Any]) -> Any:
        """Have the process of a run that is elsewhere call a method; raises PlexusError."""
        raise NotImplementedError

    async def respond(self, request: str, answer: Any) -> None:
        """Answer a question of the run, wherever that is; raises as `answer` does."""
        self.answer(request, answer)

    def answer(self, request: str, answer: Any) -> None:
        """Answer a question; raises NotFound, or InvalidParams and leaves the question open."""
        question = self._open_question(request).question
        self._settle_question(request, None if answer is None else question.read(answer))

    def refuse(self, request: str, error: PlexusError) -> None:
        """Have whoever asked this get an error in place of an answer; raises NotFound."""
        self._open_question(request)
        self._settle_question(request, error)

    def _open_question(self, request: str) -> OpenQuestion:
        if not self.questions or request not in self.questions:
            raise NotFound(f"run {self.id} asks no question {request!r} at the moment")
        return self.questions[request]

    def _settle_question(self, request: str, outcome: Any) -> None:
        asked = self._close_question(request)
        assert asked is not None, "only an open question is settled"
        if not asked.answer.done():
            asked.answer.set_result(outcome)

    def forget_question(self, request: str) -> None:
        """Nobody waits for this answer any more."""
        self._close_question(request)

    def _close_question(self, request: str) -> OpenQuestion | None:
        asked = self.questions.pop(request, None) if self.questions else None
        if asked is not None and asked.tell is not None:
            asked.tell(self, request, False)
        return asked


class Reader:
    """A cursor over a run's log. `wake` is called once when something new is there to take."""

    __slots__ = ("run", "seq", "tag", "taken", "wake")

    def __init__(self, run: Run, seq: int, wake: Callable[[Reader], None]) -> None:
        self.run = run
        #: The number of the last item that was taken.
        self.seq = seq
        #: Bytes of all items up to there; only an owner's are looked at.
        self.taken = 0
        self.wake = wake
        #: Whatever the holder of this reader wants to find on it.
        self.tag: Any = None

    def poll(self) -> bool:
        """Whether there is something to take now; if not, `wake` will be called when there is."""
        run = self.run
        if run.log.payloads or run.terminal is not None:
            return True
        run.waiting_readers.append(self)
        return False

    def take(self) -> Batch:
        """Whatever is there, within reason; if nothing is, `wake` will be called when it is."""
        run = self.run
        log = run.log
        if self.seq + 1 < log.first:
            gap = Gap(self.seq + 1, log.first - 1)
            self.seq = log.first - 1
            raw = wire.encode_event(gap)
            return Batch(self.seq, [gap], [raw], len(raw))
        batch = log.read(self.seq, TAKE_ITEMS, TAKE_BYTES)
        if not batch.events:
            if run.terminal is None:
                run.waiting_readers.append(self)
            return batch
        self.seq += len(batch.events)
        self.taken += batch.size
        if run.is_held:
            run.release()
        return batch
