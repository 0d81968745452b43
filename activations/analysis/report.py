"""The model of a report: what was measured, by what, and what was not, with the reason.

All formats are rendered from it. A figure that was not measured is absent.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from activations.analysis.events import Finding
from plexus import __version__

__all__ = ("FileCounts", "Measurement", "Report", "analyser_version", "now")

#: Skipped files that a report names; the others are only counted.
EXAMPLES: Final = 20
#: What an empty project is called.
NOTHING: Final = "nothing analysed"


#: A version needs up to 0.3 ms, and health checks read all of them. Errors are not kept.
_version = functools.cache(version)


def analyser_version(package: str) -> str:
    """Return the version of an installed analyser; empty if it is not installed."""
    try:
        return _version(package)
    except PackageNotFoundError:
        return ""


def now() -> str:
    """Return the time of a report."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class FileCounts:
    """The files of an analysis: found, measured, and skipped by reason."""

    def __init__(self) -> None:
        self.measured = 0
        self.skipped: Counter[str] = Counter()
        self.languages: Counter[str] = Counter()
        self._examples: list[dict[str, str]] = []

    def skip(self, path: str, reason: str) -> None:
        """Count a skipped file or folder."""
        self.skipped[reason] += 1
        if len(self._examples) < EXAMPLES:
            self._examples.append({"file": path, "reason": reason})

    def as_object(self) -> dict[str, Any]:
        """Return the counts as a part of a report."""
        return {
            "seen": self.measured + self.skipped.total(),
            "measured": self.measured,
            "languages": dict(sorted(self.languages.items())),
            "skipped": dict(sorted(self.skipped.items())),
            "skipped_examples": sorted(self._examples, key=lambda each: each["file"]),
        }


@dataclasses.dataclass(frozen=True, slots=True)
class Measurement:
    """One metric of a report: its analyser, or the reason why it is absent."""

    metric: str
    analyser: str
    version: str
    #: Number of measured items, and their kind, such as "functions".
    count: int = 0
    of: str = "files"
    #: Items without this metric, by reason.
    absent: dict[str, int] = dataclasses.field(default_factory=dict)
    #: Why nothing was measured; empty if it was.
    reason: str = ""

    def as_object(self) -> dict[str, Any]:
        """Return the measurement as a part of a report."""
        found: dict[str, Any] = {
            "metric": self.metric,
            "measured": not self.reason,
            "analyser": self.analyser,
            "version": self.version,
        }
        if self.reason:
            return found | {"reason": self.reason}
        found |= {"count": self.count, "of": self.of}
        return found | {"absent": dict(sorted(self.absent.items()))} if self.absent else found


@dataclasses.dataclass(slots=True)
class Report:
    """A finished analysis."""

    analysis: str
    project: str
    files: FileCounts | None
    measurements: list[Measurement]
    summary: dict[str, Any]
    #: All findings, the most important first, within the bound of their collector.
    findings: list[Finding]
    findings_total: int
    #: Further parts by their names in the JSON format, in their order.
    sections: dict[str, Any]
    duration_ms: int
    #: The name of `findings` in the JSON format.
    findings_name: str = "findings"

    def as_object(self) -> dict[str, Any]:
        """Return the whole report as JSON values."""
        seconds, millis = divmod(self.duration_ms, 1000)
        head: dict[str, Any] = {
            "metadata": {
                "analysis": self.analysis,
                "project": self.project,
                "generated_at": now(),
                "tool": "substrate",
                "tool_version": __version__,
                "analysis_duration": {"secs": seconds, "nanos": millis * 1_000_000},
                "measurements": [each.as_object() for each in self.measurements],
            },
            "summary": self.summary,
        }
        if self.files is not None:
            head["metadata"]["files"] = self.files.as_object()
        findings = [each.as_object() for each in self.findings]
        return head | {self.findings_name: findings} | self.sections | self._omitted()

    def _omitted(self) -> dict[str, Any]:
        left_out = self.findings_total - len(self.findings)
        return {"omitted": {self.findings_name: left_out}} if left_out else {}
