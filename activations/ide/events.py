"""Events of `ide`: the state of documents, diffs, diagnostics and connections.

Each event carries the whole current state of its subject, so a watcher that misses some of them
still ends with the current state.
"""

from __future__ import annotations

from typing import Any, Literal

from plexus import Event

__all__ = (
    "Comment",
    "DiffClosed",
    "DiffInfo",
    "DiffReview",
    "DocumentClosed",
    "DocumentInfo",
    "FileDiagnostics",
    "IdeStatus",
    "Mentioned",
    "Outcome",
    "Reveal",
    "SnapshotEnd",
)

#: How a diff was closed. `closed`: by the program that asked, which no longer needs the answer.
Outcome = Literal["accepted", "edited", "rejected", "closed"]


class IdeStatus(Event):
    """Whether programs can connect to the editor, and those that are connected."""

    on: bool
    #: Whether this server can be switched on.
    available: bool
    port: int | None
    lock_file: str | None
    workspace: str
    name: str
    connections: list[dict[str, Any]]
    #: Programs that check files, and programs that format them, as far as they are installed.
    checkers: list[str]
    formatters: list[str]
    #: Why it is not on, if it was to be switched on.
    reason: str | None = None

    def as_text(self) -> str:
        return f"{self.as_line()}\n"

    def as_line(self) -> str:
        if not self.on:
            return f"IDE off{f': {self.reason}' if self.reason else ''}"
        count = len(self.connections)
        return f"IDE on port {self.port}, {count} connected"


class DocumentInfo(Event, tag="document"):
    """An open document, without its text."""

    path: str
    language: str
    #: Increased by every change of the text.
    version: int
    dirty: bool
    active: bool
    #: The end of its lines.
    eol: str
    size: int
    lines: int
    #: Whether the file on the disk is still the one that was read.
    disk: Literal["same", "changed", "deleted"]
    #: The selected range, which is empty for a cursor; null if there is none.
    selection: dict[str, Any] | None
    formatter: str | None
    read_only: bool

    def as_line(self) -> str:
        return f"{self.path}{' (unsaved)' if self.dirty else ''}, version {self.version}"


class DocumentClosed(Event):
    """A document is no longer open."""

    path: str

    def as_line(self) -> str:
        return f"{self.path} was closed"


class DiffInfo(Event, tag="diff"):
    """A proposed change of a file that waits for an answer."""

    #: Identifier of the diff: the number of its run.
    diff: str
    path: str
    tab_name: str
    new_file: bool
    language: str
    added: int
    removed: int
    hunks: int
    run: int
    approval_id: str
    client: str | None
    asked_ms: int
    comments: int
    #: The connection that asked; null if it was no editor client.
    connection: int | None

    def as_line(self) -> str:
        return f"{self.path}: +{self.added} -{self.removed} waits for an answer"


class DiffClosed(Event):
    """A proposed change was answered, or is no longer needed."""

    diff: str
    path: str
    outcome: Outcome
    reason: str | None
    #: The client that answered.
    by: str | None
    at_ms: int

    def as_text(self) -> str:
        return f"{self.as_line()}\n"

    def as_line(self) -> str:
        by = f" by {self.by}" if self.by else ""
        why = f": {self.reason}" if self.reason else ""
        return f"{self.path} was {self.outcome}{by}{why}"


class DiffReview(Event):
    """The decision about a proposed change."""

    diff: str
    path: str
    outcome: Outcome
    #: The final text of an accepted change.
    text: str | None = None
    #: Why it was rejected, with the comments on lines.
    reason: str | None = None
    #: The client that answered.
    by: str | None = None

    def as_text(self) -> str:
        return f"{self.as_line()}\n"

    def as_line(self) -> str:
        by = f" by {self.by}" if self.by else ""
        why = f": {self.reason}" if self.reason else ""
        return f"{self.path} was {self.outcome}{by}{why}"


class Comment(Event):
    """A comment on a line of a diff."""

    comment: str
    side: Literal["new", "old"]
    line: int
    text: str
    by: str | None
    at_ms: int

    def as_line(self) -> str:
        return f"line {self.line + 1}: {self.text}"


class FileDiagnostics(Event):
    """What the checkers found in a file."""

    path: str
    #: Whether a check is in progress.
    checking: bool
    diagnostics: list[dict[str, Any]]
    #: How many were found but are not listed.
    more: int = 0
    #: Why there are none, if no checker could run.
    note: str | None = None

    def as_line(self) -> str:
        if self.checking:
            return f"checking {self.path}"
        count = len(self.diagnostics) + self.more
        return f"{self.path}: {count} diagnostic{'' if count == 1 else 's'}"


class Mentioned(Event):
    """A file, or lines of it, was mentioned to the connected programs."""

    path: str
    line_start: int | None
    line_end: int | None
    #: The number of programs that were notified.
    sent: int

    def as_line(self) -> str:
        return f"{self.path} was mentioned to {self.sent}"


class Reveal(Event):
    """A program asked to show a document, and a range of it."""

    path: str
    range: dict[str, Any] | None
    preview: bool

    def as_line(self) -> str:
        return f"show {self.path}"


class SnapshotEnd(Event):
    """The current state is complete; what follows are changes."""

    def as_line(self) -> str:
        return "the current state is complete"
