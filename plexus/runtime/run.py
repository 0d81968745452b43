"""A run: one call of one method, with its identity and its state.

Rules:
- `Run` is the interface of views and the hub to any run: identity, reading, stopping and answering.
  `LocalRun` is driven by the pump of this process. `plexus.runtime.stored_run` has the runs of
  other processes and of the past.
- The log and its readers are in `plexus.runtime.log`, open questions in
  `plexus.runtime.question_feed`.
- A run ends with exactly one terminal, however often and by whatever it is ended.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, ClassVar, Protocol

from plexus.activation import OnDisconnect
from plexus.caller_connection import CallerConnection
from plexus.caller_environment import CallerEnvironment
from plexus.errors import NotFound, PlexusError
from plexus.events import (
    Cancelled,
    ErrorEvent,
    Event,
    QuestionAnswered,
    Terminal,
    outcome_of,
)
from plexus.limits import Limits
from plexus.principal import Principal
from plexus.questions import Question
from plexus.registry.signature import MethodSpec, Purpose
from plexus.rpc import wire
from plexus.runtime.log import (
    TAKE_BYTES,
    TAKE_ITEMS,
    Batch,
    Reader,
    RunLog,
    read_dropped,
    wall_ms,
)
from plexus.runtime.question_feed import (
    OpenQuestion,
    OpenQuestions,
    QuestionChanged,
    answered_event,
)

__all__ = ("Cancellable", "LocalRun", "Run", "RunRecorder")


class Run(ABC):
    """A call, in this process or another."""

    __slots__ = (
        "agent_session",
        "cancel_reason",
        "client",
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
        "question_kinds",
        "questions",
        "retention_s",
        "started_at",
        "summary",
        "terminal",
        "watchers",
    )

    #: Whether another process executes or has executed the run.
    is_stored: ClassVar[bool] = False

    def __init__(
        self,
        run_id: int,
        method: str,
        principal: Principal,
        log: RunLog,
        started_at: float,
        on_end: Callable[[Any], None],
        parent: int | None = None,
        purpose: Purpose = "work",
    ) -> None:
        self.id = run_id
        self.method = method
        self.principal = principal
        self.parent = parent
        self.purpose: Purpose = purpose
        self.started_at = started_at
        self.log = log
        self.on_end = on_end
        #: Kinds of questions that the caller can answer; None for all.
        self.question_kinds: frozenset[str] | None = None
        #: The name and version of the client that started it, if they are known.
        self.client: str | None = None
        #: The session of the agent that its caller belongs to; empty if it is unknown.
        self.agent_session = ""
        #: One line about its arguments; None until it is recorded.
        self.summary: str | None = None
        #: The caller's idempotency key for this run.
        self.key: str | None = None
        #: Guaranteed retention after the call, in seconds.
        self.retention_s: float | None = None
        self.terminal: Terminal | None = None
        self.ended_at: float | None = None
        #: The clients that follow it without owning it, by their readers; None before the first.
        self.watchers: dict[Reader, str] | None = None
        #: Why it is being cancelled, and after how many seconds if it timed out.
        self.cancel_reason: str | None = None
        self.expired_after: float | None = None
        #: When it is cancelled unless its owner has reconnected.
        self.orphan_deadline: float | None = None
        #: Open questions by number; None before the first.
        self.questions: OpenQuestions | None = None

    # --- identity -----------------------------------------------------------------------------

    @property
    @abstractmethod
    def state(self) -> str:
        """`running`, `asking`, `cancelling`, or the end: `complete`, `error`, `cancelled`."""

    @abstractmethod
    def find_scope(self, methods: Mapping[str, MethodSpec]) -> str | None:
        """Return the scope that is needed to control it; None if it is unknown.

        `methods` are those that are registered here.
        """

    @property
    def last_seq(self) -> int:
        """Number of its newest item; 0 before the first."""
        return self.log.last

    def describe(self) -> dict[str, Any]:
        """Return its entry in `plexus.runs`."""
        described: dict[str, Any] = {
            "run": self.id,
            "method": self.method,
            "state": self.state,
            "started_ms": wall_ms(self.started_at),
            "last_seq": self.log.last,
        }
        if self.parent is not None:
            described["parent"] = self.parent
        if self.summary:
            described["summary"] = self.summary
        if self.client is not None:
            described["client"] = self.client
        if self.agent_session:
            described["agent_session"] = self.agent_session
        if self.purpose != "work":
            described["system"] = True
        if self.ended_at is not None:
            described["duration_ms"] = round((self.ended_at - self.started_at) * 1000, 3)
        if self.terminal is not None:
            described |= outcome_of(self.terminal)
        return described

    def fingerprint(self) -> tuple[object, ...]:
        """Return a value that differs whenever `describe` does, and takes less time."""
        return self.state, self.log.last, self.summary

    # --- reading ------------------------------------------------------------------------------

    @abstractmethod
    def reader(self, after: int, wake: Callable[[Reader], None], *, owner: bool) -> Reader:
        """Return a cursor after this item, but never after the terminal.

        A reader thus always learns that the run has ended. A new owner replaces the previous one.
        """

    def owned_by(self, reader: Reader) -> bool:
        """Return whether this reader is the owner, which applies backpressure."""
        return self.log.owner is reader

    def watch(self, reader: Reader, client: str) -> None:
        """Note which client follows the run with this reader, until the reader leaves."""
        if self.watchers is None:
            self.watchers = {}
        self.watchers[reader] = client

    def leave(self, reader: Reader) -> None:
        """Remove a reader permanently."""
        self.log.leave(reader)
        if self.watchers:
            self.watchers.pop(reader, None)

    def detach(self, reader: Reader, within_s: float | None = None) -> None:
        """Stop waking a reader whose caller disconnected and may reconnect.

        An owner stays the owner for `within_s` seconds, or as long as the limits allow.
        """
        self.log.stop_waiting(reader)
        reader.stop_loading()
        if self.watchers:
            self.watchers.pop(reader, None)
        if self.log.owner is reader and self.terminal is None:
            limit_s = self.log.limits.orphan_s if within_s is None else within_s
            self.orphan_deadline = time.monotonic() + limit_s

    async def batches(self, after: int = 0, *, owner: bool = False) -> AsyncGenerator[Batch]:
        """Yield the items of the run, up to and including its terminal."""
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

    async def available(self, after: int = 0) -> AsyncGenerator[Batch]:
        """Yield the items that exist now, including stored ones, without waiting for new ones."""
        log = self.log
        last = log.last
        seq = max(after, 0)
        while seq < last:
            if seq + 1 < log.first:
                batch = await read_dropped(log.dropped, self.id, seq, log.first)
            else:
                batch = log.read(seq, TAKE_ITEMS, TAKE_BYTES)
            yield batch
            seq = batch.first + len(batch.events) - 1

    # --- stopping -----------------------------------------------------------------------------

    @abstractmethod
    def cancel(self, reason: str) -> None:
        """Cancel the run; the first reason counts."""

    @abstractmethod
    async def stop(self, reason: str) -> bool:
        """Cancel the run, and return whether it was still running. Raises PlexusError."""

    def finish(self, terminal: Terminal, raw: bytes | None = None) -> None:
        """End the run with this terminal, unless it has already ended."""
        if self.terminal is not None:
            return
        log = self.log
        if raw is None:
            raw = wire.encode_event(terminal)
            limits = log.limits
            if terminal.__class__ is ErrorEvent and len(raw) > limits.error_bytes:
                terminal = ErrorEvent(
                    terminal.code,
                    *wire.shorten_error(terminal.message, terminal.data, limits.error_bytes),
                )
                raw = wire.encode_event(terminal)
            if len(raw) > limits.answer_bytes:
                log.check_size(terminal, len(raw))
        self.ended_at = time.monotonic()
        log.append(terminal, raw)
        self.terminal = terminal
        if self.questions is not None:
            self.questions.close_all()
            self.questions = None
        log.end()
        self.on_end(self)

    # --- questions ----------------------------------------------------------------------------

    @abstractmethod
    async def respond(self, request: str, answer: Any, by: str | None = None) -> None:
        """Answer a question and wait until the answer has arrived; raises what `answer` raises."""

    @abstractmethod
    def answer(self, request: str, answer: Any, by: str | None = None) -> None:
        """Answer a question. `by` is the client that answers, for the record.

        Raises NotFound, or InvalidParams, which leaves the question open.
        """

    @abstractmethod
    def refuse(self, request: str, error: PlexusError, by: str | None = None) -> None:
        """Raise an error in the method that asked, instead of an answer. Raises NotFound."""

    def forget_question(self, request: str) -> None:
        """Close a question without an answer, if it is open."""
        if self.questions:
            self.questions.close(request)

    def open_question(self, request: str) -> OpenQuestion:
        """Return the open question with this number. Raises NotFound."""
        if self.questions is None:
            raise NotFound(f"Run {self.id} has no open question {request!r}.")
        return self.questions.find(request)


class RunRecorder(Protocol):
    """The durable record of local runs, as a program provides it."""

    def on_start(self, run: LocalRun, arguments: Mapping[str, Any]) -> None:
        """Record a run that starts with these arguments."""

    def on_end(self, run: LocalRun) -> None:
        """Record that a run has ended; it may have started before the recorder was set."""

    def describe(self, run: LocalRun) -> tuple[str, str]:
        """Return the arguments of a run in progress as recorded JSON, and their summary.

        Both are empty if they are not recorded.
        """

    async def checkpoint(self, run: LocalRun, value: bytes) -> None:
        """Store a checkpoint as JSON; return when it is durable.

        The items before it must be durable then too: a restarted run does not produce them again.
        Raises PlexusError if it cannot be stored.
        """


class Cancellable(Protocol):
    """What a run is executed by."""

    def cancel(self) -> object:
        """Stop the run."""


class LocalRun(Run):
    """A run of this process, created by `plexus.runtime.runs`, driven by `plexus.runtime.pump`."""

    __slots__ = (
        "arguments",
        "caller",
        "cancel_deadline",
        "checkpoint",
        "connection",
        "deadline",
        "epoch",
        "is_moving",
        "on_disconnect",
        "recorder",
        "shows_defects",
        "task",
    )

    def __init__(
        self,
        run_id: int,
        method: str,
        principal: Principal,
        limits: Limits,
        on_end: Callable[[LocalRun], None],
        parent: int | None = None,
        deadline_s: float | None = None,
        purpose: Purpose = "work",
    ) -> None:
        now = time.monotonic()
        super().__init__(
            run_id, method, principal, RunLog(limits, now), now, on_end, parent, purpose
        )
        self.deadline = None if deadline_s is None else now + deadline_s
        self.cancel_deadline: float | None = None
        #: Its arguments while the recorder needs them, which it alone sets and removes.
        self.arguments: Mapping[str, Any] | None = None
        #: The environment of its caller; None for that of the server.
        self.caller: CallerEnvironment | None = None
        #: The connection of its caller; None if its end is not known.
        self.connection: CallerConnection | None = None
        #: The task that steps this run at the moment, set by the pump, or what runs instead of it.
        self.task: Cancellable | None = None
        #: Where it is recorded; None if it is not.
        self.recorder: RunRecorder | None = None
        #: The last value of `Context.checkpoint`, as JSON.
        self.checkpoint: bytes | None = None
        #: How often it was restarted after its process was lost.
        self.epoch = 0
        #: Whether it continues if its caller disconnects; None if its method or the server decides.
        self.on_disconnect: OnDisconnect | None = None
        #: Whether its error has the text of an unexpected exception.
        self.shows_defects = False
        #: Whether it is stopped here because another process continues it.
        self.is_moving = False

    @property
    def state(self) -> str:
        terminal = self.terminal
        if terminal is not None:
            return terminal.type
        if self.cancel_reason is not None:
            return "cancelling"
        return "asking" if self.questions else "running"

    def find_scope(self, methods: Mapping[str, MethodSpec]) -> str | None:
        spec = methods.get(self.method)
        return None if spec is None else spec.scope

    def append(self, event: Event) -> None:
        """Append an event to the log and wake the waiting readers.

        Raises TooBig for an event past its limit and InvalidEvent for one without a JSON form.
        Ignored after the end of the run.
        """
        if self.terminal is not None:
            return
        log = self.log
        raw = wire.encode_event(event)
        log.check_size(event, len(raw))
        log.append(event, raw)
        log.mark(time.monotonic())
        if log.waiting_readers:
            log.wake_readers()

    def reader(self, after: int, wake: Callable[[Reader], None], *, owner: bool) -> Reader:
        log = self.log
        if after:
            newest = log.last if self.terminal is None else log.last - 1
            after = min(max(after, 0), newest)
        reader = Reader(self, after, wake)
        if owner and self.terminal is None:
            log.set_owner(reader)
            self.orphan_deadline = None
        return reader

    def release_owner(self) -> bool:
        """Continue without an owner that disconnected; return whether the run waited for one."""
        owner = self.log.owner
        if owner is None or self.orphan_deadline is None:
            return False
        self.orphan_deadline = None
        self.log.leave(owner)
        return True

    # --- stopping -----------------------------------------------------------------------------

    def cancel(self, reason: str) -> None:
        """Cancel the run; the first reason counts. It ends when its cleanup has finished."""
        if self.terminal is not None or self.cancel_reason is not None:
            return
        self.cancel_reason = reason
        self.cancel_deadline = time.monotonic() + self.log.limits.cancel_s
        if self.task is not None:
            self.task.cancel()

    async def stop(self, reason: str) -> bool:
        was_running = self.terminal is None
        self.cancel(reason)
        return was_running

    def move(self, reason: str) -> None:
        """Stop the run here, because another process continues it."""
        if self.terminal is None and self.cancel_reason is None:
            self.is_moving = True
            self.cancel(reason)

    def expire(self, limit_s: float) -> None:
        """Cancel the run because it timed out."""
        self.expired_after = limit_s
        self.cancel(f"timed out after {limit_s:g} s")

    def abandon(self) -> None:
        """End a run that ignores its cancellation now; its task is left behind."""
        self.finish(self.abandoned())
        self.log.close()

    def abandoned(self) -> Cancelled:
        """Return the terminal of a run whose method ignores its cancellation."""
        return Cancelled(
            f"{self.cancel_reason}; the method ignored the cancellation and was abandoned"
        )

    # --- questions ----------------------------------------------------------------------------

    def ask(
        self,
        question: Question[Any],
        timeout_s: float,
        key: str | None = None,
        notify: QuestionChanged | None = None,
    ) -> tuple[str, asyncio.Future[Any]]:
        """Ask the readers a question; `notify` is called now and when it closes.

        The future gets the validated answer, None if it is declined, or the PlexusError that it is
        refused with.
        """
        if self.questions is None:
            self.questions = OpenQuestions(self)
        return self.questions.ask(question, timeout_s, key, notify, self.append)

    async def respond(self, request: str, answer: Any, by: str | None = None) -> None:
        self.answer(request, answer, by)

    def answer(self, request: str, answer: Any, by: str | None = None) -> None:
        question = self.open_question(request).question
        outcome = None if answer is None else question.read(answer)
        self._set_answer(request, outcome, answer, by)

    def refuse(self, request: str, error: PlexusError, by: str | None = None) -> None:
        self._set_answer(request, error, None, by)

    def _set_answer(self, request: str, outcome: Any, answer: Any, by: str | None) -> None:
        asked = self.open_question(request).event
        assert self.questions is not None, "the question is open"
        self.append(answered_event(asked, outcome, answer, by))
        self.questions.set_answer(request, outcome)

    def expire_question(self, request: str) -> None:
        """Close a question whose time has run out, if it is open."""
        if self.questions and request in self.questions:
            self.append(QuestionAnswered(request, "expired"))
            self.questions.close(request)
