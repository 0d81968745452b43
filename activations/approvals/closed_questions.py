"""The questions of this process that were closed lately, with their answers.

The record of a run has its own questions, for as long as the run is kept. Here they are together,
for people who were away. There is a limit of entries, and the list begins with the process.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Final

from activations.approvals.events import ApprovalClosed
from plexus import Principal
from plexus.events import QuestionAnswered, QuestionAsked
from plexus.runtime.question_feed import Questions
from plexus.runtime.run import LocalRun, Run

__all__ = ("MAX_ENTRIES", "ClosedQuestions")

#: Maximum number of entries, and of characters of a message.
MAX_ENTRIES: Final = 500
MESSAGE_CHARACTERS: Final = 1000


class ClosedQuestions:
    """Listens to the questions of all runs, and keeps those that were closed."""

    def __init__(self) -> None:
        self._entries: deque[tuple[Principal, ApprovalClosed]] = deque(maxlen=MAX_ENTRIES)
        #: The open questions, whose text is not available when they have closed.
        self._open: dict[tuple[int, str], QuestionAsked] = {}

    def on_change(self, questions: Questions, run: Run, request: str, is_open: bool) -> None:
        """Note that a question has opened or closed."""
        if not isinstance(run, LocalRun):
            return  # the process of the run knows the answer
        if is_open:
            found = questions.find(run, request)
            if found is not None:
                self._open[run.id, request] = found.event
            return
        asked = self._open.pop((run.id, request), None)
        if asked is not None:
            self._entries.appendleft((run.principal, _closed(run, asked)))

    def latest(self, principal: Principal, limit: int) -> list[ApprovalClosed]:
        """Return the closed questions of a principal's runs, newest first."""
        return [entry for owner, entry in self._entries if owner == principal][: max(limit, 0)]


def _closed(run: LocalRun, asked: QuestionAsked) -> ApprovalClosed:
    # The run records the answer immediately before the question closes. Without one it has ended.
    last = run.log.events[-1] if run.log.events else None
    known = isinstance(last, QuestionAnswered) and last.request == asked.request
    answered = last if known and isinstance(last, QuestionAnswered) else None
    return ApprovalClosed(
        approval_id=f"{run.id}.{asked.request}",
        run=run.id,
        method=run.method,
        request=asked.request,
        message=asked.message[:MESSAGE_CHARACTERS],
        outcome="closed" if answered is None else answered.outcome,
        closed_ms=time.time_ns() // 1_000_000,
        answer=None if answered is None else answered.answer,
        by=None if answered is None else answered.by,
    )
