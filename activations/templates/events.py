"""Events and results of templates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from plexus import Complete, Event
from plexus.text import replace_controls

__all__ = (
    "Action",
    "FaultInfo",
    "File",
    "Outcome",
    "Scaffolded",
    "SearchResult",
    "TemplateDetails",
    "TemplateInfo",
    "Validation",
)

#: What happened to a file, or what would happen to it: `create` and `ask` only describe it, because
#: the project was not to be written.
Action: TypeAlias = Literal["create", "ask", "created", "replaced", "unchanged", "kept"]
_LABELS = {
    "create": "would be created",
    "ask": "differs; would be replaced if you agree",
}


@dataclass(frozen=True)
class TemplateInfo:
    """A template in a list."""

    uri: str
    name: str
    description: str
    mime_type: str
    #: Where its file belongs in a project.
    path: str
    #: Names of the parameters that must be set.
    required: list[str]
    #: Names of the other parameters.
    optional: list[str]


@dataclass(frozen=True)
class SearchResult:
    """A template that was found, with its relevance from 0 to 1."""

    uri: str
    name: str
    description: str
    relevance: float
    #: The words of the query that it has.
    matched: list[str]


@dataclass(frozen=True)
class FaultInfo:
    """What is wrong with a parameter."""

    parameter: str
    fault: str


@dataclass(frozen=True)
class Validation:
    """Whether parameters are valid, and everything that is wrong with them."""

    valid: bool
    errors: list[FaultInfo]


@dataclass(frozen=True)
class TemplateDetails:
    """A template with the JSON Schema of its parameters, and its text."""

    uri: str
    name: str
    description: str
    category: str
    toolchain: str
    variant: str
    version: str
    #: SHA-256 of everything that its output depends on, other than the parameters.
    hash: str
    #: `built-in`, a package or a folder.
    source: str
    mime_type: str
    path: str
    tags: list[str]
    parameters: dict[str, Any]
    text: str


class File(Event):
    """A file of a project, and what happened to it.

    `diff` is the difference to an existing file, `reason` why it was kept.
    """

    path: str
    content: str
    action: Action
    template: str
    diff: str | None = None
    reason: str | None = None

    def as_text(self) -> str:
        line = self.as_line() + "\n"
        if self.action not in ("create", "ask"):
            return line
        shown = self.content if self.diff is None else self.diff
        shown = replace_controls(shown, "?", "\n\t")
        return f"{line}{shown}{'' if shown.endswith(chr(10)) else chr(10)}\n"

    def as_line(self) -> str:
        label = _LABELS.get(self.action, self.action)
        return f"{self.path}: {label}" + (f", {self.reason}" if self.reason else "")


@dataclass(frozen=True)
class Outcome:
    """A file of a project, without its content."""

    path: str
    action: Action


class Scaffolded(Complete):
    """A project was generated. `files` have no content: that is in the events before."""

    target: str
    #: Whether the files were to be written; otherwise they were only shown.
    write: bool
    files: list[Outcome]
    #: The file that records the templates; omitted if none was written.
    record: str | None = None

    def as_line(self) -> str:
        count = len(self.files)
        files = "1 file" if count == 1 else f"{count} files"
        if not self.write:
            return f"{files} for {self.target}; nothing was written"
        changed = sum(each.action in ("created", "replaced") for each in self.files)
        return f"{changed} of {files} written to {self.target}"
