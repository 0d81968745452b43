"""Totals, rankings and findings of the complexity of a project, collected file by file.

The memory of a collector does not depend on the number of files: sums, and the first places of each
ranking.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from typing import Any, Final, NamedTuple

from activations.analysis.events import Finding, Level
from activations.analysis.report import Measurement, analyser_version

__all__ = ("MAX_FINDINGS", "SCORE", "ComplexityCollector", "FindingCollector", "Thresholds")

#: Parts of the score of a file with their weights, which a report shows.
SCORE: Final = {"max_cyclomatic": 0.4, "avg_cognitive": 0.4, "function_count": 0.2}
FORMULA: Final = "0.4 * max_cyclomatic + 0.4 * avg_cognitive + 0.2 * function_count"
#: Maximum findings of a report. Past it, the least important are only counted.
MAX_FINDINGS: Final = 10_000
#: A figure above this multiple of its threshold is an error, otherwise a warning.
ERROR_FACTOR: Final = 2


class Thresholds(NamedTuple):
    """The figures above which a function is a finding."""

    cyclomatic: int
    cognitive: int


class FindingCollector:
    """The most important findings, and the number of all."""

    def __init__(self, limit: int = MAX_FINDINGS) -> None:
        self.total = 0
        self.counts: Counter[str] = Counter()
        self._limit = limit
        self._heap: list[tuple[float, int, Finding]] = []
        self._order = itertools.count()

    def add(self, finding: Finding, importance: float) -> None:
        """Count a finding, and keep it if it is important enough."""
        self.total += 1
        self.counts[finding.rule] += 1
        entry = (importance, -next(self._order), finding)
        if len(self._heap) < self._limit:
            heapq.heappush(self._heap, entry)
        else:
            heapq.heappushpop(self._heap, entry)

    def sorted(self) -> list[Finding]:
        """Return the kept findings, the most important first, then by place."""
        ordered = sorted(self._heap, key=lambda each: (-each[0], each[2].file, each[2].line))
        return [finding for _, _, finding in ordered]


class ComplexityCollector:
    """Collects the complexity of files."""

    def __init__(self, thresholds: Thresholds, ranked: int) -> None:
        self._thresholds = thresholds
        self._ranked = ranked
        self.findings = FindingCollector()
        self._ranking: list[tuple[float, str, dict[str, Any]]] = []
        self._files = 0
        self._rankable = 0
        self._nloc = 0
        self._functions = 0
        self._without: Counter[str] = Counter()
        self._sums: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._maxima: dict[str, int] = {}
        self._analysers: Counter[str] = Counter()
        self._partial: Counter[str] = Counter()

    def add(self, report: dict[str, Any]) -> tuple[dict[str, Any], list[Finding]]:
        """Add the measurements of a file. Returns its metrics and its findings."""
        path, found = report["path"], report["complexity"]
        functions: list[dict[str, Any]] = found["functions"]
        analyser = "complexipy" if report["language"] == "python" else "lizard"
        metrics: dict[str, Any] = {"nloc": found["nloc"], "functions": len(functions)}
        self._files += 1
        self._nloc += found["nloc"]
        self._functions += len(functions)
        if "partial" in found:
            self._partial[found["partial"]] += 1
        for name in ("cyclomatic", "cognitive"):
            values = [each[name] for each in functions if name in each]
            if values:
                metrics[f"max_{name}"] = max(values)
                metrics[f"avg_{name}"] = round(sum(values) / len(values), 2)
                self._sums[name] += sum(values)
                self._counts[name] += len(values)
                self._maxima[name] = max(self._maxima.get(name, 0), *values)
            if name == "cognitive":
                self._analysers[analyser] += len(values)
                if missing := len(functions) - len(values):
                    nested = "a nested function counts in the function that contains it"
                    self._without[found.get("cognitive_absent", nested)] += missing
        findings = self._findings(path, functions, analyser)
        self._rank(path, report["language"], metrics)
        return metrics, findings

    def _rank(self, path: str, language: str, metrics: dict[str, Any]) -> None:
        if "avg_cognitive" not in metrics or not self._ranked:
            return
        self._rankable += 1
        parts = {**metrics, "function_count": metrics["functions"]}
        score = sum(weight * parts[name] for name, weight in SCORE.items())
        row = {
            "file": path,
            "language": language,
            "function_count": metrics["functions"],
            "max_cyclomatic": metrics["max_cyclomatic"],
            "avg_cognitive": metrics["avg_cognitive"],
            "total_score": round(score, 2),
        }
        entry = (score, path, row)
        if len(self._ranking) < self._ranked:
            heapq.heappush(self._ranking, entry)
        else:
            heapq.heappushpop(self._ranking, entry)

    def _findings(self, path: str, functions: list[dict[str, Any]], analyser: str) -> list[Finding]:
        findings = []
        for each in functions:
            for name, limit in self._thresholds._asdict().items():
                value = each.get(name)
                if value is None or value <= limit:
                    continue
                level: Level = "error" if value > ERROR_FACTOR * limit else "warning"
                finding = Finding(
                    f"{name}-complexity",
                    level,
                    f"{each['name']} has a {name} complexity of {value}; the maximum is {limit}.",
                    path,
                    each["line"],
                    "lizard" if name == "cyclomatic" else analyser,
                    each["end_line"],
                    each["name"],
                    value,
                    limit,
                )
                self.findings.add(finding, value / limit if limit else value)
                findings.append(finding)
        return findings

    def summary(self) -> dict[str, Any]:
        """Return the totals. What was not measured is absent."""
        found: dict[str, Any] = {"files": self._files}
        if not self._files:
            return found
        found |= {"nloc": self._nloc, "functions": self._functions}
        for name, count in sorted(self._counts.items()):
            found[f"max_{name}"] = self._maxima[name]
            found[f"avg_{name}"] = round(self._sums[name] / count, 2)
        found["violations"] = self.findings.total
        found["thresholds"] = {
            "max_cyclomatic": self._thresholds.cyclomatic,
            "max_cognitive": self._thresholds.cognitive,
        }
        return found

    def ranked(self) -> list[dict[str, Any]]:
        """Return the files with the highest scores, the highest first."""
        rows = [row for _, _, row in sorted(self._ranking, key=lambda each: (-each[0], each[1]))]
        return [{"rank": number, **row} for number, row in enumerate(rows, 1)]

    def top_files(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the section `top_files` of a report."""
        return {
            "requested": self._ranked,
            "returned": len(rows),
            "ranked_files": self._rankable,
            "score": {"formula": FORMULA, "weights": SCORE},
            "rankings": rows,
        }

    def measurements(self) -> list[Measurement]:
        """Return by what the complexity was measured."""
        lizard = analyser_version("lizard")
        if not self._files:
            reason = "no source file was measured"
            return [Measurement("cyclomatic complexity", "lizard", lizard, reason=reason)]
        found = [
            Measurement("lines of code", "lizard", lizard, self._files, absent=dict(self._partial)),
            Measurement("cyclomatic complexity", "lizard", lizard, self._functions, "functions"),
        ]
        for analyser, count in sorted(self._analysers.items()):
            is_python = analyser == "complexipy"
            found.append(
                Measurement(
                    "cognitive complexity" + (" (Python)" if is_python else ""),
                    analyser,
                    analyser_version(analyser),
                    count,
                    "functions",
                    dict(self._without) if is_python else {},
                )
            )
        return found
