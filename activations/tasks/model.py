"""The words and the limits of tasks, and the values that the store passes around."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias

from annotated_types import Ge, Le, MaxLen

__all__ = (
    "ACCEPTANCE_BYTES",
    "ACCEPTANCE_ITEMS",
    "CHANGES_KEPT",
    "CLOSED",
    "DESCRIPTION_BYTES",
    "ID_PREFIX",
    "IMPORT_LINES",
    "KEY_BYTES",
    "KINDS",
    "LABELS",
    "LABEL_CHARACTERS",
    "LINKS",
    "LINK_KINDS",
    "LOST_LIMIT",
    "NORMAL",
    "NOTES",
    "NOTE_BYTES",
    "OPEN",
    "PAGE_ITEMS",
    "PROJECT_BYTES",
    "REASON_BYTES",
    "REFS",
    "TASKS",
    "URI_BYTES",
    "Caller",
    "Filter",
    "FilterText",
    "Kind",
    "Labels",
    "LinkKind",
    "Listed",
    "PageSize",
    "Priority",
    "Process",
    "Seq",
    "Status",
    "TaskLink",
)

KIB: Final = 1024

#: Maximum size of a description, as UTF-8. Longer material belongs in a file that it names.
DESCRIPTION_BYTES: Final = 32 * KIB
#: Maximum size of a note, and of the reason for closing a task.
NOTE_BYTES: Final = 16 * KIB
REASON_BYTES: Final = 4 * KIB
#: Maximum size of an idempotency key, a URI and a project.
KEY_BYTES: Final = 200
URI_BYTES: Final = 2 * KIB
PROJECT_BYTES: Final = 4 * KIB
#: Maximum number and length of the labels of a task.
LABELS: Final = 20
LABEL_CHARACTERS: Final = 40
#: Maximum number of acceptance criteria, and the size of each.
ACCEPTANCE_ITEMS: Final = 50
ACCEPTANCE_BYTES: Final = 2 * KIB
#: Maximum number of notes, of links to other tasks and of references of a task.
NOTES: Final = 1_000
LINKS: Final = 1_000
REFS: Final = 200
#: Maximum number of tasks of a principal. Past it, old ones must be deleted.
TASKS: Final = 100_000
#: Maximum number of entries in the history of a task. Past it, the oldest are removed.
CHANGES_KEPT: Final = 1_000
#: Maximum number of items on a page.
PAGE_ITEMS: Final = 500
#: Maximum number of lines in an import, which is one transaction.
IMPORT_LINES: Final = 5_000
#: A task that this many holders have left unfinished is stuck, and is offered to no other.
LOST_LIMIT: Final = 3

ID_PREFIX: Final = "task_"

Status: TypeAlias = Literal["pending", "in_progress", "done", "cancelled"]
OPEN: Final = ("pending", "in_progress")
CLOSED: Final = ("done", "cancelled")
#: What a list contains.
Listed: TypeAlias = Literal["open", "ready", "blocked", "in_progress", "closed", "all"]
Kind: TypeAlias = Literal["task", "bug", "feature", "epic", "chore"]
KINDS: Final[tuple[Kind, ...]] = ("task", "bug", "feature", "epic", "chore")
#: How a task is linked to another: "blocks" keeps the other from being ready.
LinkKind: TypeAlias = Literal["blocks", "parent", "discovered_from", "related"]
LINK_KINDS: Final[tuple[LinkKind, ...]] = ("blocks", "parent", "discovered_from", "related")

#: From 0, the most urgent, to 4.
Priority: TypeAlias = Annotated[int, Ge(0), Le(4)]
NORMAL: Final = 2
Labels: TypeAlias = Annotated[list[str], MaxLen(LABELS)]
#: The number of a change; JSON readers keep it exact.
Seq: TypeAlias = Annotated[int, Ge(0), Le(2**53 - 1)]
#: A label, or a part of a description, to filter by: SQLite refuses long patterns.
FilterText: TypeAlias = Annotated[str, MaxLen(200)]
PageSize: TypeAlias = Annotated[int, Ge(1), Le(PAGE_ITEMS)]


class Caller(NamedTuple):
    """Who calls, and what a claim of this caller is leased to."""

    principal: str
    #: The name for people: the client.
    name: str
    #: What the lease depends on: "connection" and "run" end with those, "time" expires, and "kept"
    #: stays until it is released.
    lease: Literal["connection", "run", "time", "kept"]
    #: The identity of the holder within its kind of lease.
    ref: str


class Process(NamedTuple):
    """A process that holds leases."""

    id: int
    host: str
    pid: int
    start_ticks: int | None


class Filter(NamedTuple):
    """Which tasks a list contains. A project of None means all projects."""

    project: str | None
    listed: Listed = "open"
    label: str | None = None
    text: str | None = None


class TaskLink(NamedTuple):
    """A link from one task to another: the source blocks, or is the parent of, the target."""

    kind: str
    source: str
    target: str


#: A task as callers see it. It has no class: unset fields are absent.
Task: TypeAlias = dict[str, Any]
