"""What a deep context collects from the measurements of each file, and the report of it."""

from __future__ import annotations

import heapq
from collections import Counter
from typing import Any, Final, Literal, NamedTuple

from activations.analysis.complexity import ComplexityCollector, FindingCollector, Thresholds
from activations.analysis.events import Finding, Level
from activations.analysis.formats import Format
from activations.analysis.graphs import DagType, FileSyntax
from activations.analysis.report import FileCounts, Measurement, analyser_version
from activations.analysis.scorecard import FileRecord, maintainability, refactoring_hours

__all__ = ("ANALYSES", "CacheStrategy", "DeepCollector", "DeepOptions", "Name")

Name = Literal["ast", "complexity", "churn", "dag", "dead-code", "satd", "defect-probability"]
ANALYSES: Final[tuple[Name, ...]] = (
    *("ast", "complexity", "churn", "dag", "dead-code", "satd", "defect-probability"),
)
CacheStrategy = Literal["normal", "force-refresh", "offline"]
#: The analyses that need the syntax of files.
SYNTACTIC: Final = frozenset({"ast", "dag", "satd"})
#: Files with their symbols in a report, symbols of each, and entries of other lists.
AST_FILES: Final = 200
AST_SYMBOLS: Final = 50
LISTED: Final = 500
#: Maximum calls and symbols that a graph is built from. Past it, files are left out of it.
GRAPH_ENTRIES: Final = 2_000_000
LEVELS: Final[dict[str, Level]] = {"critical": "error", "high": "warning"}
IMPORTANCE: Final = {"critical": 3.0, "high": 2.0, "medium": 1.0, "low": 0.5}


class DeepOptions(NamedTuple):
    """What a deep context includes, and how it is measured."""

    analyses: frozenset[Name]
    period_days: int
    dag_type: DagType
    max_depth: int | None
    include: list[str]
    exclude: list[str]
    strategy: CacheStrategy
    parallel: int
    form: Format
    max_bytes: int

    @property
    def sections(self) -> list[str]:
        """The measurements of each file."""
        found = ["complexity", "halstead"] if "complexity" in self.analyses else []
        return [*found, "syntax"] if SYNTACTIC & self.analyses else found


class DeepCollector:
    """Collects the measurements of files: one small record for each, and the lists of a report."""

    def __init__(self, options: DeepOptions, thresholds: Thresholds) -> None:
        self.options = options
        self.counts = FileCounts()
        self.files: dict[str, FileRecord] = {}
        self.findings = FindingCollector()
        self.complexity = ComplexityCollector(thresholds, 0)
        self.syntax: FileSyntax = {}
        self.foreign: list[dict[str, Any]] = []
        self.severities: Counter[str] = Counter()
        self.categories: Counter[str] = Counter()
        self.functions_above = 0
        self.left_out_of_graph = 0
        self._thresholds = thresholds
        self._debt: list[tuple[float, int, dict[str, Any]]] = []
        self._ast: list[tuple[int, str, dict[str, Any]]] = []
        self._symbols: Counter[str] = Counter()
        self._syntax_errors = 0
        self._volumes = 0
        self._graph_entries = 0

    def add(self, report: dict[str, Any]) -> tuple[dict[str, Any], list[Finding]]:
        """Add the measurements of a file. Returns its metrics and its findings."""
        path = report["path"]
        self.counts.measured += 1
        self.counts.languages[report["language"]] += 1
        names = ("language", "bytes", "lines")
        record: FileRecord = {name: report[name] for name in names}
        self.files[path] = record
        metrics: dict[str, Any] = {"lines": report["lines"]}
        findings: list[Finding] = []
        if "complexity" in report:
            measured, found = self.complexity.add(report)
            metrics |= measured
            findings += found
            self._add_complexity(record, report)
        if "syntax" in report:
            findings += self._add_syntax(path, record, report)
            metrics["symbols"] = len(report["syntax"]["symbols"])
        for finding in findings:
            severity = finding.value if finding.rule == "satd" else None
            ratio = (finding.value or 1) / (finding.threshold or 1)
            self.findings.add(finding, severity if severity is not None else ratio)
        return metrics, findings

    def _add_complexity(self, record: FileRecord, report: dict[str, Any]) -> None:
        functions = report["complexity"]["functions"]
        record["nloc"] = report["complexity"]["nloc"]
        record["functions"] = len(functions)
        if not functions:
            return
        record["cyclomatic"] = sum(each["cyclomatic"] for each in functions)
        worst = max(functions, key=lambda each: (each["cyclomatic"], -each["line"]))
        record["max_cyclomatic"], record["line"] = worst["cyclomatic"], worst["line"]
        record["hours"] = refactoring_hours(functions, self._thresholds)
        self.functions_above += sum(
            each["cyclomatic"] > self._thresholds.cyclomatic
            or each.get("cognitive", 0) > self._thresholds.cognitive
            for each in functions
        )
        volume = report["halstead"].get("volume", 0.0)
        index = maintainability(volume, record["cyclomatic"], record["nloc"])
        if index is not None:
            self._volumes += 1
            record["maintainability_index"] = index

    def _add_syntax(self, path: str, record: FileRecord, report: dict[str, Any]) -> list[Finding]:
        found = report["syntax"]
        self._syntax_errors += "syntax_errors" in found
        for each in found["foreign"]:
            if len(self.foreign) < LISTED * 10:
                self.foreign.append({"file": path, "language": report["language"], **each})
        if "ast" in self.options.analyses:
            self._add_ast(path, report, found)
        if "dag" in self.options.analyses:
            kept = {name: found[name] for name in ("symbols", "calls", "imports", "bases")}
            self._graph_entries += sum(len(each) for each in kept.values())
            if self._graph_entries <= GRAPH_ENTRIES:
                self.syntax[path] = {"language": report["language"], **kept}
            else:
                self.left_out_of_graph += 1
        if "satd" not in self.options.analyses:
            return []
        return self._add_debt(path, record, found["debt"])

    def _add_ast(self, path: str, report: dict[str, Any], found: dict[str, Any]) -> None:
        kinds = Counter(each["kind"] for each in found["symbols"])
        self._symbols.update(kinds)
        entry: dict[str, Any] = {
            "file": path,
            "language": report["language"],
            "symbols_total": len(found["symbols"]),
            "imports": len(found["imports"]),
            "comment_lines": found["comment_lines"],
            "symbols": [
                f"{each['kind']} {each['name']} {each['line']}-{each['end_line']}"
                for each in found["symbols"][:AST_SYMBOLS]
            ],
        }
        if "syntax_errors" in found:
            entry["syntax_errors"] = True
        _keep(self._ast, AST_FILES, len(found["symbols"]), path, entry)

    def _add_debt(
        self, path: str, record: FileRecord, debts: list[dict[str, Any]]
    ) -> list[Finding]:
        findings = []
        for each in debts:
            severity = each["severity"]
            self.severities[severity] += 1
            self.categories[each["category"]] += 1
            row = {"file": path, **each}
            order = -self.severities.total()
            _keep(self._debt, LISTED, IMPORTANCE[severity], order, row)
            text = f"{each['keyword']} ({severity}, {each['category']}): {each['text']}"
            level = LEVELS.get(severity, "note")
            importance = IMPORTANCE[severity]
            findings.append(
                Finding("satd", level, text, path, each["line"], "tree-sitter", value=importance)
            )
        if debts:
            record["debt"] = len(debts)
        if any(each["severity"] in LEVELS for each in debts):
            record["serious_debt"] = True
        return findings

    def totals(self) -> dict[str, Any]:
        """Return the totals that scores are made of."""
        if "complexity" not in self.options.analyses:
            return {"reason": "complexity is not included"}
        summary = self.complexity.summary()
        return {"functions": summary.get("functions", 0), "functions_above": self.functions_above}

    def ast_contexts(self) -> list[dict[str, Any]]:
        """Return the files with the most symbols."""
        return [entry for _, _, entry in sorted(self._ast, key=lambda each: (-each[0], each[1]))]

    def satd_results(self) -> dict[str, Any]:
        """Return the comments that admit debt, the most severe first."""
        rows = sorted(self._debt, key=lambda each: (-each[0], each[2]["file"], each[2]["line"]))
        return {
            "total": self.severities.total(),
            "by_severity": dict(sorted(self.severities.items())),
            "by_category": dict(sorted(self.categories.items())),
            "items": [row for _, _, row in rows],
        }

    def measurements(self) -> list[Measurement]:
        """Return by what files were measured, for each included analysis of files."""
        found: list[Measurement] = []
        included = self.options.analyses
        tree_sitter = analyser_version("tree-sitter")
        if "complexity" in included:
            found += self.complexity.measurements()
            lizard = analyser_version("lizard")
            found.append(Measurement("Halstead volume", "lizard", lizard, self._volumes))
        if SYNTACTIC & included:
            errors = {"with syntax errors, measured in part": self._syntax_errors}
            measured = self.counts.measured
            absent = errors if self._syntax_errors else {}
            reason = "" if measured else "no source file was measured"
            for name in sorted((SYNTACTIC - {"dag"}) & included):
                found.append(
                    Measurement(
                        name, "tree-sitter", tree_sitter, measured, absent=absent, reason=reason
                    )
                )
        return found


def _keep(heap: list[Any], limit: int, importance: float, order: Any, entry: Any) -> None:
    """Keep the most important entries. `order` is unique, so that entries are not compared."""
    if len(heap) < limit:
        heapq.heappush(heap, (importance, order, entry))
    else:
        heapq.heappushpop(heap, (importance, order, entry))
