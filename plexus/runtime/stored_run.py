"""Runs of other processes and of the past: read from the run store like local runs.

Rules:
- A stored run has the number of the run and is read with the same cursors. Its log has the newest
  items; older ones are read from the store. Items that are not stored appear as a `gap`.
- A stored run decides nothing. Cancelling and answering are requests to the process that executes
  the run, which reports the outcome.
- A stored run ends when its run does. If the process of the run is gone, the store has ended it.
- This module performs no I/O: `RunSource` is implemented by the program.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, Final, Protocol

from plexus.errors import NotFound, PlexusError
from plexus.events import ErrorEvent, QuestionAsked, Terminal
from plexus.limits import Limits
from plexus.principal import Principal
from plexus.questions import Question
from plexus.registry.signature import MethodSpec
from plexus.runtime.log import WALL_OFFSET, DroppedItems, Reader, StoredItems
from plexus.runtime.question_feed import OpenQuestion, OpenQuestions, Questions
from plexus.runtime.run import Run
from plexus.runtime.run_record import FoundRuns, RunQuery, RunRecord
from plexus.runtime.stored_log import StoredLog, StoredReader

__all__ = (
    "RunSource",
    "StoredRun",
    "StoredRuns",
)

#: How long a run in progress that nothing follows counts as up to date, in seconds.
CURRENT_S: Final = 0.1


class RunSource(DroppedItems, Protocol):
    """The run store, as its runs use it."""

    def follow(self, run: StoredRun) -> None:
        """Add new items to this run and update it, until `unfollow`."""

    def unfollow(self, run: StoredRun) -> None:
        """Stop updating this run."""

    async def request(
        self, run: int, method: str, params: dict[str, Any], client: str | None = None
    ) -> Any:
        """Call a method about this run in the process that executes it, for a client.

        Raises PlexusError.
        """


class StoredRuns(Protocol):
    """The runs of the store, as the table of runs uses them."""

    def find(self, run_id: int) -> StoredRun | None:
        """Return a run that is loaded and up to date, or None."""

    def all(self) -> list[StoredRun]:
        """Return the loaded runs of other processes: in progress, and ended recently."""

    async def load(self, run_id: int, principal: Principal | None = None) -> StoredRun | None:
        """Load a run of this principal, or of any, and bring it up to date.

        Returns None if it is not stored or belongs to another principal. Raises PlexusError.
        """

    def find_kept(self, principal: Principal) -> Sequence[StoredRun] | None:
        """Return this principal's runs with a guaranteed retention; None if not up to date."""

    async def load_kept(self, principal: Principal) -> None:
        """Load this principal's runs with a guaranteed retention. Raises PlexusError."""

    async def refresh(self) -> None:
        """Load the runs of other processes that are in progress, with their questions."""

    def watch(self, listener: Callable[[], None]) -> AbstractContextManager[None]:
        """Keep the runs of other processes up to date and call `listener` after changes."""

    async def hand_over(self, *, only_restarted: bool = False) -> None:
        """Stop the runs that another process can restart, and release them for it.

        `only_restarted` excludes those that were started in this process.
        """

    def close_runs(self) -> None:
        """End all loaded runs because this process stops; the runs themselves continue."""

    async def close(self) -> None:
        """Write what is left of the recorded runs, and close the store."""

    # --- history ------------------------------------------------------------------------------

    async def query(self, principal: Principal, query: RunQuery) -> list[dict[str, Any]]:
        """Return this principal's recorded runs as in `plexus.runs`. Raises PlexusError."""

    def search(self, principal: Principal, query: RunQuery) -> AsyncGenerator[FoundRuns, None]:
        """Yield the runs of a query with a text as they are found. Raises PlexusError."""

    async def counts(self, principal: Principal, since_ms: int) -> dict[str, int]:
        """Count this principal's runs of the project that started since a time.

        Returns the numbers `running`, `asking`, `failed` and `total`. Raises PlexusError.
        """

    async def details(self, run_id: int) -> RunRecord | None:
        """Return what is recorded about a run, or None. Raises PlexusError."""

    async def pin(self, run_id: int, pinned: bool) -> None:
        """Keep a run until it is unpinned, or end that. Raises PlexusError."""

    async def delete(self, run_ids: Sequence[int]) -> int:
        """Delete ended runs, and return how many were. Raises PlexusError."""

    async def prune(self) -> int:
        """Delete the runs whose retention has ended, and return how many. Raises PlexusError."""


class StoredRun(Run):
    """A run of another process, or one that ended earlier."""

    __slots__ = (
        "_answered",
        "_current_until",
        "_feed",
        "_followers",
        "_separate",
        "_source",
        "_tasks",
        "is_loaded",
        "record",
    )

    is_stored = True

    def __init__(
        self,
        record: RunRecord,
        principal: Principal,
        limits: Limits,
        source: RunSource,
        on_end: Callable[[Run], None],
    ) -> None:
        started_at = record.started_ms / 1000 - WALL_OFFSET
        log = StoredLog(limits, started_at)
        log.dropped = source
        super().__init__(
            record.run, record.method, principal, log, started_at, on_end, record.parent
        )
        self.log: StoredLog = log
        self.record = record
        #: Whether its log has its newest items, not only its metadata.
        self.is_loaded = False
        self.retention_s = record.retention_s
        self.client = record.client or None
        self.agent_session = record.agent_session
        self.summary = record.summary
        self._source = source
        self._followers: set[Reader] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        #: Questions that were answered here, with their epoch: the store may still have them open.
        self._answered: set[tuple[int, str]] = set()
        #: The open questions that are not asked of its caller, and the feed that has them.
        self._separate: set[str] = set()
        self._feed: Questions | None = None
        self._current_until = time.monotonic() + CURRENT_S

    # --- identity -----------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """The state in its own process."""
        return self.record.state if self.terminal is None else self.terminal.type

    @property
    def is_current(self) -> bool:
        """Whether it has ended, is being followed, or was loaded just now."""
        if self.terminal is not None or self._followers:
            return True
        return time.monotonic() < self._current_until

    @property
    def is_followed(self) -> bool:
        """Whether a reader waits for its items."""
        return bool(self._followers)

    def find_scope(self, methods: Mapping[str, MethodSpec]) -> str:  # noqa: ARG002
        """Return the scope of its method, which may not be registered here."""
        return self.record.scope

    @property
    def last_seq(self) -> int:
        return max(self.record.last_seq, self.log.last)

    def describe(self) -> dict[str, Any]:
        described = self.record.describe()
        described["state"] = self.state
        described["last_seq"] = self.last_seq
        return described

    def fingerprint(self) -> tuple[object, ...]:
        return self.state, self.log.last, self.record

    # --- updates from the store ---------------------------------------------------------------

    def update(self, record: RunRecord) -> None:
        """Replace the metadata by newer ones."""
        self.record = record
        self.retention_s = record.retention_s
        self.summary = record.summary
        self._current_until = time.monotonic() + CURRENT_S
        if record.state == "cancelling" and self.cancel_reason is None:
            self.cancel_reason = "cancelled by request"

    def add_items(self, items: StoredItems) -> None:
        """Append items from the store; items that the log already has are skipped."""
        log = self.log
        for seq, event, raw, at_ms in zip(
            range(items.first, items.first + len(items.payloads)),
            items.events,
            items.payloads,
            items.times_ms,
            strict=True,
        ):
            if seq <= log.last or self.terminal is not None:
                continue
            if seq > log.last + 1:
                log.skip_to(seq)
            if isinstance(event, Terminal):
                self._end(event, raw)
            else:
                log.append(event, raw)
                log.mark(at_ms / 1000 - WALL_OFFSET)
        log.trim(None)
        if log.waiting_readers:
            log.wake_readers()

    def end_without_items(self, code: str, reason: str) -> None:
        """End a run whose terminal is not stored, or that is no longer stored."""
        if self.terminal is not None:
            return
        if self.record.last_seq > self.log.last + 1:
            self.log.skip_to(self.record.last_seq)
        self._end(ErrorEvent(code, reason))

    def _end(self, terminal: Terminal, raw: bytes | None = None) -> None:
        self.finish(terminal, raw)
        for request in list(self._separate):
            self._close_separate(request)
        if self.record.ended_ms is not None:
            self.ended_at = self.record.ended_ms / 1000 - WALL_OFFSET
        self._followers.clear()

    def set_questions(
        self, asked: Mapping[str, tuple[QuestionAsked, int]], feed: Questions
    ) -> None:
        """Open and close questions, so that exactly these are open, except those answered here.

        Each comes with the time when it was asked, in milliseconds since the epoch. `feed` is
        notified of every question that opens now, and when it closes.
        """
        self._feed = feed
        epoch = self.record.epoch
        asked = {
            request: each
            for request, each in asked.items()
            if self.terminal is None and (epoch, request) not in self._answered
        }
        for request in [each for each in self._open_requests if each not in asked]:
            super().forget_question(request)
            self._close_separate(request)
        for request, (event, asked_ms) in asked.items():
            if request in self._open_requests:
                continue
            answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            question: Question[Any] = Question(event.message)
            asked_at = asked_ms / 1000 - WALL_OFFSET
            opened = OpenQuestion(question, answer, event, asked_at, feed.notify)
            if not request.isdecimal():
                self._separate.add(request)
                feed.open_separate(self, request, opened)
                continue
            if self.questions is None:
                self.questions = OpenQuestions(self)
            self.questions[request] = opened
            feed.notify(self, request, True)

    @property
    def _open_requests(self) -> set[str]:
        return {*(self.questions or ()), *self._separate}

    def _close_separate(self, request: str) -> None:
        if request in self._separate and self._feed is not None:
            self._separate.remove(request)
            self._feed.close_separate(self, request)

    # --- readers ------------------------------------------------------------------------------

    def reader(self, after: int, wake: Callable[[Reader], None], *, owner: bool) -> Reader:
        """Return a cursor. A stored run has no owner and no backpressure.

        With `owner`, the run no longer waits in its process for an owner that disconnected: its
        client reads the run here. The cursor may be ahead of the store, which is written a little
        later than a client of the process has read.
        """
        reader = StoredReader(self, max(after, 0), wake)
        if self.terminal is None:
            self._followers.add(reader)
            if len(self._followers) == 1:
                self._source.follow(self)
            if owner:
                self._request_soon("plexus.release", {"run": self.id})
        return reader

    def leave(self, reader: Reader) -> None:
        super().leave(reader)
        self._unfollow(reader)

    def detach(self, reader: Reader, within_s: float | None = None) -> None:
        super().detach(reader, within_s)
        self._unfollow(reader)

    def _unfollow(self, reader: Reader) -> None:
        if reader in self._followers:
            self._followers.remove(reader)
            if not self._followers:
                self._source.unfollow(self)

    # --- requests to its process --------------------------------------------------------------

    async def request(self, method: str, params: dict[str, Any], client: str | None = None) -> Any:
        """Call a method about this run in its process, for a client. Raises PlexusError."""
        if self.terminal is not None:
            raise NotFound(f"Run {self.id} has ended.")
        return await self._source.request(self.id, method, params, client)

    async def stop(self, reason: str) -> bool:
        if self.terminal is not None:
            return False
        stopped: bool = await self.request("plexus.cancel", {"run": self.id, "reason": reason})
        if stopped and self.cancel_reason is None:
            self.cancel_reason = reason
        return stopped

    async def keep(self, for_s: float) -> None:
        """Retain the run in its process and in the store. Raises PlexusError."""
        await self.request("plexus.keep", {"run": self.id, "for_s": for_s})
        self.retention_s = for_s

    async def respond(self, request: str, answer: Any, by: str | None = None) -> None:
        params = {"run": self.id, "request": request, "answer": answer}
        await self.request("plexus.respond", params, by)
        self.forget_question(request)

    def forget_question(self, request: str) -> None:
        self._answered.add((self.record.epoch, request))
        super().forget_question(request)
        self._close_separate(request)

    def cancel(self, reason: str) -> None:
        self._request_soon("plexus.cancel", {"run": self.id, "reason": reason})

    def answer(self, request: str, answer: Any, by: str | None = None) -> None:
        self.open_question(request)
        params = {"run": self.id, "request": request, "answer": answer}
        self._request_soon("plexus.respond", params, by)

    def refuse(self, request: str, error: PlexusError, by: str | None = None) -> None:  # noqa: ARG002
        self.open_question(request)
        params = {"run": self.id, "request": request, "answer": None}
        self._request_soon("plexus.respond", params, by)

    def _request_soon(self, method: str, params: dict[str, Any], client: str | None = None) -> None:
        requesting = self._request_silently(method, params, client)
        task = asyncio.get_running_loop().create_task(requesting)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _request_silently(
        self, method: str, params: dict[str, Any], client: str | None
    ) -> None:
        with suppress(PlexusError):  # no caller waits for the outcome
            await self.request(method, params, client)
