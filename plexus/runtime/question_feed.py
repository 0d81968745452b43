"""The questions that runs have open, and who is told when one opens or closes.

A question is asked by the context of a call and kept by its run. Here is what is known of one
while it waits, and where others listen: whoever shows the questions of all runs in one place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from plexus.events import Request
from plexus.questions import Question

if TYPE_CHECKING:  # a run keeps its questions; here it is only named
    from plexus.runtime.run import Run

__all__ = ("OpenQuestion", "QuestionChanged", "Questions")

#: It is given the run, the number of its question, and whether that is open now.
QuestionChanged: TypeAlias = Callable[["Run", str, bool], None]


class OpenQuestion(NamedTuple):
    """A question that waits for its answer."""

    question: Question[Any]
    #: What whoever asked waits on.
    answer: asyncio.Future[Any]
    #: How it was put.
    event: Request
    #: When that was, on the monotonic clock.
    asked_at: float
    #: Who is told when it opens and when it closes.
    tell: QuestionChanged | None


class Questions:
    """Tells of every question of every run, once when it opens and once when it closes.

    It closes when it is answered, declined, refused or taken back, when nobody answers in time,
    and when its run ends. At the first call `run.questions` has it, at the second no longer.
    """

    def __init__(self) -> None:
        self._on_change: list[QuestionChanged] = []

    def on_change(self, changed: QuestionChanged) -> Callable[[], None]:
        """Be told at once of every change; call what is returned to be told no more.

        What is called must not raise, and must not answer: it is in the middle of the change.
        """
        self._on_change.append(changed)
        return partial(self._on_change.remove, changed)

    def tell(self, run: Run, request: str, is_open: bool) -> None:
        """A question has opened or closed."""
        for changed in self._on_change.copy():
            changed(run, request, is_open)
