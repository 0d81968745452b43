"""Open questions of runs, and listeners for questions that open and close.

The context of a call asks a question, and its run keeps it in `OpenQuestions`. `Questions` is the
feed of all runs, for components that show all questions in one place.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from plexus.errors import NotFound, PlexusError
from plexus.events import QuestionAnswered, QuestionAsked
from plexus.questions import Question
from plexus.rpc import wire
from plexus.runtime.closed_questions import ClosedQuestions
from plexus.text import shorten

if TYPE_CHECKING:  # imported for annotations only: run imports this module
    from plexus.runtime.run import Run

__all__ = ("OpenQuestion", "OpenQuestions", "QuestionChanged", "Questions", "answered_event")

#: Maximum size of the answer in an event, and maximum characters of a text that is shortened.
ANSWER_BYTES: Final = 4096
ANSWER_CHARS: Final = 1000
#: What the schema or the words of a question contain if its answer may be a secret. An answer that
#: is omitted without need costs less than a password in the history.
SECRET_SCHEMA: Final = (b'"writeOnly":true', b'"format":"password"')
SECRET_WORDS: Final = r"(?i)pass ?-?(word|phrase|code)|secret|token|credential|api.?key|\bpin\b"

#: Receives the run, the number of its question, and whether the question is open now.
QuestionChanged: TypeAlias = Callable[["Run", str, bool], None]


class OpenQuestion(NamedTuple):
    """A question that waits for its answer."""

    question: Question[Any]
    #: The future that the method waits on.
    answer: asyncio.Future[Any]
    #: The event that asked it.
    event: QuestionAsked
    #: When it was asked, on the monotonic clock.
    asked_at: float
    #: Called when it opens and when it closes.
    notify: QuestionChanged | None


class OpenQuestions(dict[str, OpenQuestion]):
    """The open questions of one run, by number."""

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
        """Return the question with this number. Raises NotFound."""
        if request not in self:
            raise NotFound(f"Run {self._run.id} has no open question {request!r}.")
        return self[request]

    def set_answer(self, request: str, outcome: Any) -> None:
        """Close a question with its answer, None or an error. Raises NotFound."""
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
        """Cancel every wait for an answer, because the run has ended."""
        closed = dict(self)
        self.clear()
        for request, asked in closed.items():
            asked.answer.cancel()
            if asked.notify is not None:
                asked.notify(self._run, request, False)


class Questions:
    """Notifies listeners of every question of every run, when it opens and when it closes.

    A question closes when it is answered, declined, refused or withdrawn, when it times out, and
    when its run ends. At the first notification `run.questions` contains it, at the second no
    longer.
    """

    def __init__(self) -> None:
        self._on_change: list[QuestionChanged] = []
        #: Open questions that are not asked of the caller of their run, by run and request id. The
        #: request ids of all other questions are decimal numbers.
        self.separate: dict[tuple[int, str], OpenQuestion] = {}
        #: Those of runs of this process; the answers of others are in their processes.
        self.closed = ClosedQuestions()

    def find(self, run: Run, request: str) -> OpenQuestion | None:
        """Return a question of a run; None if it is not open."""
        separate = self.separate.get((run.id, request))
        if separate is not None or run.questions is None:
            return separate
        return run.questions.get(request)

    def requests(self, run: Run) -> list[str]:
        """Return the numbers of the open questions of a run."""
        return [*(run.questions or ()), *(key[1] for key in self.separate if key[0] == run.id)]

    def open_separate(self, run: Run, request: str, asked: OpenQuestion) -> None:
        """Open a question that is not asked of the caller of its run."""
        self.separate[run.id, request] = asked
        self.notify(run, request, True)

    def close_separate(self, run: Run, request: str) -> None:
        """Close such a question, if it is open."""
        if self.separate.pop((run.id, request), None) is not None:
            self.notify(run, request, False)

    def on_change(self, listener: QuestionChanged) -> Callable[[], None]:
        """Subscribe to all changes. Returns a function that unsubscribes.

        A listener must not raise, and must not answer: it is called during the change.
        """
        self._on_change.append(listener)
        return partial(self._on_change.remove, listener)

    def notify(self, run: Run, request: str, is_open: bool) -> None:
        """Notify the listeners that a question has opened or closed."""
        if not run.is_stored:
            asked = self.find(run, request) if is_open else None
            if asked is not None:
                self.closed.note_open(run, request, asked.event.message)
            elif not is_open:
                self.closed.note_closed(run, request)
        for listener in self._on_change.copy():
            listener(run, request, is_open)


def answered_event(
    asked: QuestionAsked, outcome: Any, answer: Any, by: str | None
) -> QuestionAnswered:
    """Return the event that records how a question was closed.

    `outcome` is what its method receives: the answer, or None or an error if it was declined.
    """
    if outcome is None or isinstance(outcome, PlexusError):
        return QuestionAnswered(asked.request, "declined", None, by)
    return QuestionAnswered(asked.request, "answered", _shown_answer(asked, answer), by)


def _shown_answer(asked: QuestionAsked, answer: Any) -> Any:
    """Return the answer within its limit; None if it may be a secret or cannot be shortened."""
    schema = wire.encode(asked.schema)
    words = " ".join((asked.message, *asked.schema.get("properties", ())))
    if any(mark in schema for mark in SECRET_SCHEMA) or re.search(SECRET_WORDS, words):
        # Yes and no are never secrets, whatever the question is about.
        return answer if isinstance(answer, bool) else None
    if isinstance(answer, str):
        return shorten(answer, ANSWER_CHARS)
    return answer if len(wire.encode(answer)) <= ANSWER_BYTES else None
