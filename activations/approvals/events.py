"""What the methods of `approvals` give and yield."""

from __future__ import annotations

from typing import Any

from plexus import Event

__all__ = ("Answered", "ApprovalPending", "ApprovalSettled", "Pending")


class ApprovalPending(Event):
    """A question that is open.

    One that is too large for an event has no `details` and no `options` there, and an empty
    `schema`: `cut` says so, and `pending` gives all of it.
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
    cut: bool | None = None

    def as_text(self) -> str:
        return self.as_line() + "\n"

    def as_line(self) -> str:
        return f"{self.approval_id} {self.method} asks: {self.message}"


class ApprovalSettled(Event):
    """A question is open no longer: it was answered or declined, or nobody waits for it."""

    approval_id: str
    run: int
    request: str

    def as_text(self) -> str:
        return self.as_line() + "\n"

    def as_line(self) -> str:
        return f"{self.approval_id} is settled"


class Pending(Event):
    """The questions that are open, the oldest first; `more` is how many are not in the list."""

    approvals: list[ApprovalPending]
    more: int = 0

    def as_text(self) -> str:
        return "".join(approval.as_text() for approval in self.approvals)

    def as_line(self) -> str:
        return f"{len(self.approvals) + self.more} open"


class Answered(Event):
    """A question was answered."""

    approval_id: str
    approved: bool

    def as_text(self) -> str:
        return self.as_line() + "\n"

    def as_line(self) -> str:
        return f"{self.approval_id} is {'approved' if self.approved else 'refused'}"
