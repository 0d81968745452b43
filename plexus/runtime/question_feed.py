"""The questions that runs have open, and the listeners for questions that open and close.

A question is asked by the context of a call and kept by its run in `OpenQuestions`. `Questions`
is the feed of all runs, for what shows their questions in one place.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from plexus.errors import NotFound, PlexusError
from plexus.events import QuestionAsked
from plexus.questions import Question

if TYPE_CHECKING:  # a run keeps its questions; here it is only named
    from plexus.runtime.run import Run

__all__ = ("OpenQuestion", "OpenQuestions", "QuestionChanged", "Questions")

#: It is given the run, the number of its question, and whether that is open now.
QuestionChanged: TypeAlias = Callable[["Run", str, bool], None]


class OpenQuestion(NamedTuple):
    """A question that waits for its answer."""

    question: Question[Any]
    #: What the method waits on.
    answer: asyncio.Future[Any]
    #: How it was put.
    event: QuestionAsked
    #: When that was, on the monotonic clock.
    asked_at: float
    #: Notified when it opens and when it closes.
    notify: QuestionChanged | None


class OpenQuestions(dict[str, OpenQuestion]):
    """The questions that one run has open, by number."""

    __slots__ = ("_asked", "_run")

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run
        self._asked = 0

    def ask(
        self,
        question: Question[Any],
        timeout_s: float,
        key: str | None,
        notify: QuestionChanged | None,
        append: Callable[[QuestionAsked], None],
    ) -> tuple[str, asyncio.Future[Any]]:
        """Open a question and append its event. Raises what appending raises."""
        self._asked += 1
        request = str(self._asked)
        event = QuestionAsked(
            request=request,
            kind=question.kind,
            message=question.message,
            schema=question.schema(),
            timeout_s=timeout_s,
            default=question.default,
            options=question.describe_options(),
            key=key,
            details=question.details(),
        )
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self[request] = OpenQuestion(question, future, event, time.monotonic(), notify)
        try:
            append(event)
        except PlexusError:
            del self[request]
            raise
        if notify is not None:
            notify(self._run, request, True)
        return request, future

    def find(self, request: str) -> OpenQuestion:
        """Return the question of this number; raises NotFound."""
        if request not in self:
            raise NotFound(f"run {self._run.id} asks no question {request!r} at the moment")
        return self[request]

    def set_answer(self, request: str, outcome: Any) -> None:
        """Close a question with its answer, None or an error; raises NotFound."""
        answer = self.find(request).answer
        self.close(request)
        if not answer.done():
            answer.set_result(outcome)

    def close(self, request: str) -> None:
        """Close a question without an answer, if it is open."""
        asked = self.pop(request, None)
        if asked is not None and asked.notify is not None:
            asked.notify(self._run, request, False)

    def close_all(self) -> None:
        """Cancel every wait for an answer: the run has ended."""
        closed = dict(self)
        self.clear()
        for request, asked in closed.items():
            asked.answer.cancel()
            if asked.notify is not None:
                asked.notify(self._run, request, False)


class Questions:
    """Notifies of every question of every run, once when it opens and once when it closes.

    It closes when it is answered, declined, refused or taken back, when its time is over, and
    when its run ends. At the first call `run.questions` has it, at the second no longer.
    """

    def __init__(self) -> None:
        self._on_change: list[QuestionChanged] = []

    def on_change(self, changed: QuestionChanged) -> Callable[[], None]:
        """Subscribe to every change. Returns a function that unsubscribes.

        A listener must not raise, and must not answer: it is in the middle of the change.
        """
        self._on_change.append(changed)
        return partial(self._on_change.remove, changed)

    def notify(self, run: Run, request: str, is_open: bool) -> None:
        """Notify the listeners that a question has opened or closed."""
        for changed in self._on_change.copy():
            changed(run, request, is_open)
