"""Events of evaluations and of sessions.

Pictures are `image` events, as everywhere. All other forms of values are `display` events.
"""

from __future__ import annotations

from typing import Literal

from plexus import Complete, Event

__all__ = (
    "Cell",
    "Display",
    "Evaluated",
    "SessionClosed",
    "SessionInfo",
    "Start",
    "State",
    "Stderr",
    "Stdout",
    "Value",
)

State = Literal["idle", "busy"]


class Start(Event):
    """The code is executed, after the evaluations of the session before it."""

    session: str
    execution: int
    python: str

    def as_line(self) -> str:
        return f"Evaluation {self.execution} in session {self.session}, Python {self.python}"


class Stdout(Event):
    """A part of what the code has written to its standard output."""

    data: str

    def as_text(self) -> str:
        return self.data


class Stderr(Event):
    """A part of what the code has written to its standard error."""

    data: str

    def as_text(self) -> str:
        return self.data


class Display(Event):
    """A value in a form that is neither a picture nor its plain text, such as HTML or SVG.

    `text` is the beginning of its plain text, for views that cannot show the form.
    """

    mime_type: str
    data: str
    text: str

    def as_text(self) -> str:
        is_readable = self.mime_type in ("text/plain", "text/markdown", "application/json")
        return (self.data if is_readable else self.text) + "\n"


class Value(Event, tag="result"):
    """The value of the last expression, as text; `kind` is its type."""

    text: str
    kind: str

    def as_text(self) -> str:
        return self.text


class Evaluated(Complete):
    """The code was executed."""

    session: str
    execution: int
    duration_ms: float

    def as_line(self) -> str:
        return f"Evaluation {self.execution} took {self.duration_ms:g} ms"


class SessionInfo(Event, tag="session"):
    """A session: where it runs, and what it does."""

    session: str
    state: State
    python: str
    interpreter: str
    directory: str
    executions: int
    started_ms: int
    last_used_ms: int
    #: The run of the evaluation in progress.
    run: int | None = None

    def as_text(self) -> str:
        return (
            f"{self.session}: {self.state}, Python {self.python} ({self.interpreter}), "
            f"{self.executions} evaluations, in {self.directory}\n"
        )


class Cell(Event):
    """An evaluation of a session. Its output is that of its run."""

    session: str
    execution: int
    run: int
    code: str
    state: Literal["running", "succeeded", "failed", "interrupted"]
    started_ms: int
    client: str | None = None
    duration_ms: float | None = None
    #: The exception that ended it.
    error: str | None = None

    def as_line(self) -> str:
        return f"[{self.execution}] {self.state}: {self.code.partition(chr(10))[0]}"


class SessionClosed(Event):
    """A session has ended, and its variables are lost."""

    session: str
    reason: str

    def as_line(self) -> str:
        return f"Session {self.session} has ended: {self.reason}"
