"""Runs of other processes: copies that are read like local runs.

Rules:
- A copy has the run's own number and is read with the same cursors. Its log is bounded, and its
  items are numbered as in the run's own process. Items that the process did not send, because they
  were produced faster than it could send them, appear as a `gap`.
- A copy decides nothing. Cancelling and answering are forwarded to the run's process, which reports
  the outcome.
- A copy ends when its run does. When the process is gone, the copy ends with an error.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol

from plexus.errors import NotFound, PlexusError
from plexus.events import ErrorEvent, QuestionAsked, Terminal
from plexus.limits import Limits
from plexus.principal import Principal
from plexus.questions import Question
from plexus.registry.signature import MethodSpec
from plexus.rpc import wire
from plexus.runtime.copied import CopiedLog, CopyReader, read_event
from plexus.runtime.log import WALL_OFFSET, Reader
from plexus.runtime.question_feed import OpenQuestion, OpenQuestions, QuestionChanged
from plexus.runtime.run import Run

__all__ = ("Elsewhere", "HomeProcess", "RunElsewhere")

#: Bytes of a run without followers that are copied nevertheless, so that they can be read after its
#: process has ended.
UNFOLLOWED_BYTES: Final = 1024 * 1024
#: Fields of the summary of a run that lists of runs do not show.
HIDDEN_FIELDS: Final = frozenset({"scope", "terminal"})


class HomeProcess(Protocol):
    """The process that a run belongs to."""

    def describe(self) -> dict[str, Any]:
        """Return the `process` entry of its runs in `plexus.runs`."""

    def request_items(self, run: int, after: int, most_bytes: int | None) -> None:
        """Request the items after this one: at most `most_bytes`, or all until the end."""

    def stop_items(self, run: int) -> None:
        """Stop receiving items of this run."""

    async def call(self, method: str, params: dict[str, Any]) -> Any:
        """Call one of its methods. Raises PlexusError."""


class Elsewhere:
    """The known runs of other processes.

    Finished ones are kept within the same limits as those of this process.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._running: dict[int, RunElsewhere] = {}
        #: Finished runs, the oldest first.
        self._finished: dict[int, RunElsewhere] = {}

    def add(self, run: RunElsewhere) -> None:
        """Add a run; it is evicted automatically some time after it has ended."""
        self._finished.pop(run.id, None)
        self._running[run.id] = run

    def find(self, run_id: int) -> RunElsewhere | None:
        """Return the run with this number, or None."""
        return self._running.get(run_id) or self._finished.get(run_id)

    def running(self) -> list[RunElsewhere]:
        """Return the runs that have not ended here; some may have ended in their own process."""
        return list(self._running.values())

    def all(self) -> list[RunElsewhere]:
        """Return all known runs."""
        self._evict_expired()
        return [*self._finished.values(), *self._running.values()]

    def on_end(self, run: Run) -> None:
        """Move a run that has ended to the finished ones."""
        found = self._running.pop(run.id, None)
        if found is not None:
            self._finished[run.id] = found
        self._evict_expired()

    def close(self) -> None:
        """End all copies because this process stops; the runs continue."""
        for run in self.running():
            run.finish(ErrorEvent("stopping", "the server that shows this run is stopping"))

    def _evict_expired(self) -> None:
        limits, finished = self._limits, self._finished
        oldest = time.monotonic() - limits.finished_s
        size = sum(run.log.size for run in finished.values())
        while finished:
            run = next(iter(finished.values()))
            many = len(finished) > limits.finished_runs or size > limits.finished_bytes
            if not many and (run.ended_at or oldest) >= oldest:
                return
            size -= run.log.size
            del finished[run.id]


class RunElsewhere(Run):
    """A run of another process."""

    __slots__ = ("_followers", "_home", "_summary", "_tasks")

    def __init__(
        self,
        summary: dict[str, Any],
        principal: Principal,
        limits: Limits,
        home: HomeProcess,
        on_end: Callable[[Run], None],
    ) -> None:
        started_at = summary["started_ms"] / 1000 - WALL_OFFSET
        log = CopiedLog(limits, started_at)
        super().__init__(
            summary["run"],
            summary["method"],
            principal,
            log,
            started_at,
            on_end,
            summary.get("parent"),
        )
        self.log: CopiedLog = log
        self._home = home
        self._summary = summary
        self._followers: set[Reader] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    # --- identity -----------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """The state in its own process."""
        return self._summary["state"] if self.terminal is None else self.terminal.type

    def find_scope(self, methods: Mapping[str, MethodSpec]) -> str:  # noqa: ARG002
        """Return the scope of its method, which may not be registered here."""
        scope: str = self._summary["scope"]
        return scope

    def describe(self) -> dict[str, Any]:
        shown = {name: value for name, value in self._summary.items() if name not in HIDDEN_FIELDS}
        return shown | {
            "state": self.state,
            "last_seq": max(self._summary["last_seq"], self.log.last),
            "process": self._home.describe(),
        }

    # --- updates from its process -------------------------------------------------------------

    def update(self, summary: dict[str, Any]) -> None:
        """Replace the summary by a newer one from its process."""
        self._summary = summary

    def request_missing_items(self) -> None:
        """Request the missing items, all of them or as many as unfollowed runs keep."""
        if self.terminal is None:
            left = UNFOLLOWED_BYTES - self.log.total
            if self._followers or left > 0:
                self._home.request_items(self.id, self.log.last, None if self._followers else left)

    def add_items(self, first: int, payloads: list[bytes]) -> None:
        """Append received items. Raises ValueError for bytes that are not an event."""
        log = self.log
        for seq, raw in enumerate(payloads, first):
            if seq <= log.last or self.terminal is not None:
                continue
            event = read_event(raw)
            if seq > log.last + 1:
                log.skip_to(seq)
            if isinstance(event, Terminal):
                self._end(event, raw)
            else:
                log.append(event, raw)
        log.mark(time.monotonic())
        log.trim(None)
        if log.waiting_readers:
            log.wake_readers()

    def close_lost(self, reason: str) -> None:
        """End the copy, because no more items will arrive, with the terminal if it is known."""
        if self.terminal is not None:
            return
        last = self._summary["last_seq"]
        known = self._summary.get("terminal")
        if known is None:
            self._end(ErrorEvent("gone", reason))
            return
        if last > self.log.last + 1:
            self.log.skip_to(last)
        raw = wire.encode(known)
        event = read_event(raw)
        self._end(event if isinstance(event, Terminal) else ErrorEvent("gone", reason))

    def _end(self, terminal: Terminal, raw: bytes | None = None) -> None:
        duration_ms = self._summary.get("duration_ms")
        self.finish(terminal, raw)
        if duration_ms is not None:
            self.ended_at = min(self.started_at + duration_ms / 1000, time.monotonic())
        self._followers.clear()

    def open_remote_question(
        self, event: QuestionAsked, asked_ms: int, notify: QuestionChanged
    ) -> None:
        """Open a question of the run; `notify` is called now and when it closes."""
        if self.terminal is not None:
            return
        if self.questions is None:
            self.questions = OpenQuestions(self)
        if event.request in self.questions:
            return
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        question: Question[Any] = Question(event.message)
        asked_at = asked_ms / 1000 - WALL_OFFSET
        self.questions[event.request] = OpenQuestion(question, answer, event, asked_at, notify)
        notify(self, event.request, True)

    # --- readers ------------------------------------------------------------------------------

    def reader(self, after: int, wake: Callable[[Reader], None], *, owner: bool) -> Reader:  # noqa: ARG002
        """Return a cursor. A copy has no owner and no backpressure."""
        newest = max(self._summary["last_seq"], self.log.last)
        if self.terminal is not None:
            newest = self.log.last - 1
        reader = CopyReader(self, min(max(after, 0), newest), wake)
        if self.terminal is None:
            self._followers.add(reader)
            if len(self._followers) == 1:
                self.request_missing_items()
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
                self._home.stop_items(self.id)
                self.request_missing_items()

    # --- forwarded to its process -------------------------------------------------------------

    async def forward(self, method: str, params: dict[str, Any]) -> Any:
        """Call a method of its process about this run. Raises PlexusError."""
        if self.terminal is not None:
            raise NotFound(f"Run {self.id} has ended.")
        return await self._home.call(method, params)

    async def stop(self, reason: str) -> bool:
        if self.terminal is not None:
            return False
        stopped: bool = await self.forward("plexus.cancel", {"run": self.id, "reason": reason})
        return stopped

    async def respond(self, request: str, answer: Any) -> None:
        params = {"run": self.id, "request": request, "answer": answer}
        await self.forward("plexus.respond", params)

    def cancel(self, reason: str) -> None:
        self._forward_soon("plexus.cancel", {"run": self.id, "reason": reason})

    def answer(self, request: str, answer: Any) -> None:
        self.open_question(request)
        params = {"run": self.id, "request": request, "answer": answer}
        self._forward_soon("plexus.respond", params)

    def refuse(self, request: str, error: PlexusError) -> None:  # noqa: ARG002
        self.open_question(request)
        params = {"run": self.id, "request": request, "answer": None}
        self._forward_soon("plexus.respond", params)

    def _forward_soon(self, method: str, params: dict[str, Any]) -> None:
        task = asyncio.get_running_loop().create_task(self._forward_silently(method, params))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forward_silently(self, method: str, params: dict[str, Any]) -> None:
        with suppress(PlexusError):  # no caller waits for the outcome
            await self.forward(method, params)
