"""What a server says besides results: items of a call, and notices of a connection."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

__all__ = (
    "CallItem",
    "ElicitationComplete",
    "Junk",
    "ListChanged",
    "LogMessage",
    "Notice",
    "Progress",
    "Question",
    "QuestionClosed",
    "QuestionKind",
    "Reinitialized",
    "ResourceUpdated",
    "TaskStatus",
)

QuestionKind: TypeAlias = Literal["form", "url", "sampling", "roots"]


class Progress(NamedTuple):
    """A progress notification."""

    progress: float
    total: float | None = None
    message: str | None = None
    #: The `_meta` as sent.
    meta: dict[str, Any] | None = None


class LogMessage(NamedTuple):
    """A log notification."""

    level: str
    logger: str | None
    data: Any


class Question(NamedTuple):
    """A request for input: a form, a URL to open, a sampling, or the roots."""

    #: Unique in its connection.
    id: int
    kind: QuestionKind
    #: As the server sent them.
    params: dict[str, Any]


class QuestionClosed(NamedTuple):
    """An answer is not wanted any more."""

    question: Question


class TaskStatus(NamedTuple):
    """The status of a task that the server made of a call."""

    task: dict[str, Any]


class ListChanged(NamedTuple):
    """A list has changed."""

    kind: Literal["tools", "resources", "prompts"]


class ResourceUpdated(NamedTuple):
    """A subscribed resource has changed."""

    uri: str


class ElicitationComplete(NamedTuple):
    """What a person was asked to do at a URL is done."""

    elicitation: str


class Junk(NamedTuple):
    """Something that is no valid message, shortened."""

    text: str


class Reinitialized(NamedTuple):
    """The server forgot the session, and a new one was negotiated: its state is lost."""


CallItem: TypeAlias = Progress | LogMessage | Question | QuestionClosed | TaskStatus
Notice: TypeAlias = (
    ListChanged
    | ResourceUpdated
    | LogMessage
    | Question
    | QuestionClosed
    | ElicitationComplete
    | Junk
    | Reinitialized
)
