"""The events of an analysis. The report is the last event before the end.

Only the report is text: a view that shows the output of a run as one text shows the report alone.
"""

from __future__ import annotations

from typing import Any, Literal

from plexus import Event

__all__ = ("FileMeasured", "Finding", "Found", "Level", "Summary")

Level = Literal["error", "warning", "note"]


class Found(Event):
    """The number of files to measure, and of those that are skipped for each reason."""

    files: int
    languages: dict[str, int]
    skipped: dict[str, int]

    def as_line(self) -> str:
        return f"source files found: {self.files}"


class FileMeasured(Event, tag="file"):
    """The measurements of one file. What was not measured is absent."""

    path: str
    language: str
    metrics: dict[str, Any]
    #: Whether they were measured by an earlier analysis of the same content.
    cached: bool

    def as_line(self) -> str:
        return self.path


class Finding(Event):
    """Something that a person may want to change, at a line of a file."""

    rule: str
    level: Level
    message: str
    file: str
    line: int
    analyser: str
    end_line: int | None = None
    symbol: str | None = None
    value: float | None = None
    threshold: float | None = None

    def as_line(self) -> str:
        return f"{self.file}:{self.line}: {self.message}"

    def as_object(self) -> dict[str, Any]:
        """Return the finding as a part of a report."""
        values = {name: getattr(self, name) for name in self.fields}
        return {name: value for name, value in values.items() if value is not None}


class Summary(Event):
    """The totals of an analysis."""

    analysis: str
    summary: dict[str, Any]

    def as_line(self) -> str:
        return f"{self.analysis} finished"
