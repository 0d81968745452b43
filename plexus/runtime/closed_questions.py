"""The questions of this process that were closed lately, with their answers.

The record of a run has its own questions, for as long as the run is kept. Here they are together,
for people who were away. There is a limit of entries, and the list begins with the process.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from plexus.events import QuestionAnswered
from plexus.principal import Principal

if TYPE_CHECKING:  # imported for annotations only: run imports the module that imports this one
    from plexus.runtime.run import Run

__all__ = ("MAX_ENTRIES", "ClosedQuestion", "ClosedQuestions")

#: Maximum number of entries, and of characters of a message.
MAX_ENTRIES: Final = 500
MESSAGE_CHARACTERS: Final = 1000


class ClosedQuestion(NamedTuple):
    """A question that was answered, declined or withdrawn, or whose run has ended."""

    run: int
    method: str
    principal: Principal
    request: str
    message: str
    #: How it was closed; None without an answer.
    answered: QuestionAnswered | None
    closed_ms: int


class ClosedQuestions:
    """The last closed questions of all runs of this process."""

    def __init__(self) -> None:
        self._entries: deque[ClosedQuestion] = deque(maxlen=MAX_ENTRIES)
        #: The texts of open questions, which are not available when they have closed.
        self._messages: dict[tuple[int, str], str] = {}

    def note_open(self, run: Run, request: str, message: str) -> None:
        """Note that a question has opened."""
        self._messages[run.id, request] = message[:MESSAGE_CHARACTERS]

    def note_closed(self, run: Run, request: str) -> None:
        """Note that a question has closed."""
        message = self._messages.pop((run.id, request), None)
        if message is None:
            return
        # The run records the answer immediately before the question closes. Without one it has
        # ended.
        last = run.log.events[-1] if run.log.events else None
        known = isinstance(last, QuestionAnswered) and last.request == request
        answered = last if known and isinstance(last, QuestionAnswered) else None
        closed_ms = time.time_ns() // 1_000_000
        entry = ClosedQuestion(
            run.id, run.method, run.principal, request, message, answered, closed_ms
        )
        self._entries.appendleft(entry)

    def latest(self, principal: Principal, limit: int) -> list[ClosedQuestion]:
        """Return the closed questions of a principal's runs, newest first."""
        return [entry for entry in self._entries if entry.principal == principal][: max(limit, 0)]
