"""Events and results of the methods of `approvals`."""

from __future__ import annotations

from typing import Any

from plexus import Event

__all__ = ("Answered", "ApprovalClosed", "ApprovalPending", "ApprovalSettled", "Closed", "Pending")


class ApprovalPending(Event):
    """An open question.

    It expires when its own time or that of its run has run out. A question that is too large for an
    event has no `details`, `options` and `arguments` and an empty `schema`; `cut` is then true, and
    `pending` returns it in full.
    """

    approval_id: str
    run: int
    method: str
    request: str
    kind: str
    message: str
    schema: dict[str, Any]
    asked_ms: int
    expires_ms: int
    options: list[dict[str, str]] | None = None
    details: dict[str, Any] | None = None
    #: The arguments of the run as they are recorded, without secrets, and one line about them.
    arguments: Any = None
    summary: str | None = None
    #: The name and version of the client that started the run.
    client: str | None = None
    cut: bool | None = None

    def as_text(self) -> str:
        return self.as_line() + "\n"

    def as_line(self) -> str:
        return f"{self.approval_id} {self.method} asks: {self.message}"


class ApprovalSettled(Event):
    """A question is closed: it was answered or declined, or its run no longer waits."""

    approval_id: str
    run: int
    request: str

    def as_text(self) -> str:
        return self.as_line() + "\n"

    def as_line(self) -> str:
        return f"{self.approval_id} is settled"


class ApprovalClosed(Event):
    """A question that was closed.

    `outcome` is `answered`, `declined`, `expired`, or `closed` if its run has ended. `answer` and
    `by`, the name of the client, are those of the event `answered` of the run.
    """

    approval_id: str
    run: int
    method: str
    request: str
    message: str
    outcome: str
    closed_ms: int
    answer: Any = None
    by: str | None = None

    def as_text(self) -> str:
        return self.as_line() + "\n"

    def as_line(self) -> str:
        by = f" by {self.by}" if self.by else ""
        return f"{self.approval_id} {self.method} asked: {self.message} ({self.outcome}{by})"


class Closed(Event):
    """Closed questions, newest first."""

    approvals: list[ApprovalClosed]

    def as_text(self) -> str:
        return "".join(approval.as_text() for approval in self.approvals)

    def as_line(self) -> str:
        return f"{len(self.approvals)} closed"


class Pending(Event):
    """Open questions, oldest first; `more` is the number of questions not in the list."""

    approvals: list[ApprovalPending]
    more: int = 0

    def as_text(self) -> str:
        return "".join(approval.as_text() for approval in self.approvals)

    def as_line(self) -> str:
        return f"{len(self.approvals) + self.more} open"


class Answered(Event):
    """The answer to a question was accepted."""

    approval_id: str
    approved: bool

    def as_text(self) -> str:
        return self.as_line() + "\n"

    def as_line(self) -> str:
        return f"{self.approval_id} is {'approved' if self.approved else 'refused'}"
