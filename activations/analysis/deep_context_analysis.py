"""The run of `analyze_deep_context`: all included analyses, then one report of all of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path, PurePosixPath
from typing import Any, Final

from activations.analysis.churn_analysis import HISTORY_S, ask_worker, intervals_of, period
from activations.analysis.complexity import Thresholds
from activations.analysis.complexity_analysis import PROGRESS_S, Events, report_event
from activations.analysis.deep_context import ANALYSES, DeepCollector, DeepOptions
from activations.analysis.environment import Environment
from activations.analysis.events import FileMeasured, Finding, Found, Summary
from activations.analysis.file_tree import file_tree
from activations.analysis.graphs import DependencyGraph, build_graph
from activations.analysis.languages import ALL
from activations.analysis.project import ArgumentErrors, check_patterns
from activations.analysis.provenance import read_drift, template_provenance
from activations.analysis.report import Measurement, Report, analyser_version
from activations.analysis.scan import Scan
from activations.analysis.scorecard import defect_rank, hotspots, recommendations, scorecard
from activations.analysis.worker_process import WorkerSettings
from plexus import Context, Failed, Progress

__all__ = ("analyze_deep_context",)

#: Confidence of vulture from which code is reported.
CONFIDENCE: Final = 60
#: Hotspots, and entries of other lists of a report.
HOTSPOTS: Final = 50
LISTED: Final = 500
CHURN_ROWS: Final = 500
NOT_INCLUDED: Final = "not included"


async def analyze_deep_context(
    environment: Environment,
    project_path: str,
    options: DeepOptions,
    thresholds: Thresholds,
    ctx: Context,
) -> AsyncIterator[Events]:
    """Measure everything that is included. Raises InvalidParams and Failed."""
    started = time.monotonic()
    errors = ArgumentErrors()
    check_patterns("include_patterns", options.include, errors)
    check_patterns("exclude_patterns", options.exclude, errors)
    folder = await environment.folder(project_path, errors)
    environment.boot()
    settings = await environment.settings(folder, options.strategy)
    collector = DeepCollector(options, thresholds)
    scan = Scan(environment.launcher, settings, options.parallel, options.sections)
    chosen = {
        "languages": ALL,
        "max_depth": options.max_depth,
        "include": options.include,
        "exclude": options.exclude,
    }
    found, shown = 0, started
    try:
        async with aclosing(scan.list_and_measure(chosen)) as reports:
            async for report in reports:
                if report["op"] == "skipped":
                    collector.counts.skip(report["path"], report["reason"])
                elif report["op"] == "listed":
                    found = report["files"]
                    skipped = dict(collector.counts.skipped)
                    yield Found(found, report["languages"], skipped)
                else:
                    metrics, findings = collector.add(report)
                    path, language = report["path"], report["language"]
                    yield FileMeasured(path, language, metrics, report["cached"])
                    for finding in findings:
                        yield finding
                if found and time.monotonic() - shown > PROGRESS_S:
                    shown = time.monotonic()
                    yield Progress(collector.counts.measured, found, "files measured")
    finally:
        await scan.close()
    parts = _Parts(environment, settings, collector)
    for title, step in parts.steps():
        yield Progress(collector.counts.measured, found, title)
        for finding in await step:
            yield finding
    drift = await asyncio.to_thread(read_drift, folder)
    provenance = await template_provenance(drift, ctx)
    result = await asyncio.to_thread(parts.report, folder, provenance, started)
    yield Summary("deep_context", result.summary)
    yield await report_event(result, options.form, options.max_bytes)


class _Parts:
    """The parts of a report that are measured for the whole project."""

    def __init__(
        self, environment: Environment, settings: WorkerSettings, collector: DeepCollector
    ) -> None:
        self._launcher = environment.launcher
        self._settings = settings
        self._collector = collector
        self._options = collector.options
        self._measurements: list[Measurement] = []
        self._analyses: dict[str, Any] = {}
        self._churn: dict[str, Any] | None = None
        self._dead: list[dict[str, Any]] | None = None
        self._graph: DependencyGraph | None = None

    def steps(self) -> Any:
        """Yield each included step with its title, as a coroutine that returns findings."""
        included = self._options.analyses
        if "churn" in included:
            yield "reading the history", self._measure_churn()
        if "dead-code" in included:
            yield "looking for unused code", self._find_dead_code()
        if "dag" in included:
            yield "building the graph", self._build_graph()

    def _absent(self, metric: str, analyser: str, reason: str) -> None:
        version = analyser_version(analyser)
        self._measurements.append(Measurement(metric, analyser, version, reason=reason))
        self._analyses[_KEYS[metric]] = {"absent": reason}

    async def _measure_churn(self) -> list[Finding]:
        since, until = period(self._options.period_days)
        rows: list[dict[str, Any]] = []
        options = self._options
        command: dict[str, Any] = {"op": "churn", "since": since, "until": until}
        command |= {"max_depth": options.max_depth}
        command |= {"include": options.include, "exclude": options.exclude}
        asked = ask_worker(self._launcher, self._settings, HISTORY_S, **command)
        async with aclosing(asked) as reports:
            async for report in reports:
                kind = report.pop("op")
                if kind == "absent":
                    self._absent("churn", "git", report["reason"])
                elif kind == "rows":
                    for row in report["rows"]:
                        record = self._collector.files.get(row["file"])
                        if record is not None:
                            record["commits"] = row["commits"]
                        if len(rows) < CHURN_ROWS:
                            rows.append(row)
                elif kind == "totals":
                    self._churn = report
        if self._churn is not None:
            totals = self._churn
            names = ("commits", "files", "authors", "additions", "deletions")
            summary = {"period_days": self._options.period_days}
            self._analyses["churn_analysis"] = {
                "summary": summary | {name: totals[name] for name in names},
                "files": rows,
                "over_time": intervals_of(totals, since),
            }
            self._measurements.append(
                Measurement("churn", "git", totals["version"], totals["commits"], "commits")
            )
        return []

    async def _find_dead_code(self) -> list[Finding]:
        paths = [
            path for path, each in self._collector.files.items() if each["language"] == "python"
        ]
        if not paths:
            self._absent("dead-code", "vulture", "there is no Python file; vulture reads no other")
            return []
        items: list[dict[str, Any]] = []
        totals: dict[str, Any] = {}
        command = {"op": "dead_code", "files": paths, "confidence": CONFIDENCE}
        try:
            async with aclosing(
                ask_worker(self._launcher, self._settings, HISTORY_S, **command)
            ) as reports:
                async for report in reports:
                    if report["op"] == "items":
                        items += report["items"]
                    elif report["op"] == "totals":
                        totals = report
        except Failed as error:
            self._absent("dead-code", "vulture", error.message)
            return []
        items.sort(key=lambda each: (-each["confidence"], each["file"], each["line"]))
        self._dead = items
        others = len(self._collector.files) - len(paths)
        absent = {"vulture reads Python only": others} if others else {}
        if totals["unreadable"]:
            absent["vulture cannot parse it"] = totals["unreadable"]
        self._measurements.append(
            Measurement(
                "dead-code",
                "vulture",
                totals["version"],
                len(paths) - totals["unreadable"],
                absent=absent,
            )
        )
        shown = items[:LISTED]
        self._analyses["dead_code"] = {
            "total": len(items),
            "least_confidence": CONFIDENCE,
            "items": shown,
        }
        findings = []
        for each in items:
            text = f"{each['message']} ({each['confidence']} % confidence)."
            confidence = each["confidence"]
            finding = Finding(
                "dead-code",
                "warning" if confidence >= 90 else "note",
                text,
                each["file"],
                each["line"],
                "vulture",
                each["end_line"],
                each["name"],
                confidence,
            )
            self._collector.findings.add(finding, confidence / 100)
            findings.append(finding)
        return findings

    async def _build_graph(self) -> list[Finding]:
        syntax = self._collector.syntax
        edges: list[tuple[str, str]] | None = None
        package = await asyncio.to_thread(_package_of, Path(self._settings.root))
        # grimp reads whole packages, so it cannot read a part of one.
        if self._options.dag_type in ("import-graph", "full-dependency") and not package:
            edges = await self._read_python_imports()
        kind = self._options.dag_type
        self._graph = await asyncio.to_thread(build_graph, kind, syntax, edges, package)
        self._analyses["dag"] = self._graph.as_object()
        left_out = self._collector.left_out_of_graph
        absent = {"past the limit of entries of a graph": left_out} if left_out else {}
        version = analyser_version("tree-sitter")
        read = len({source for source, _ in edges or ()})
        if syntax or not self._collector.files:
            reason = "" if syntax else "no source file was measured"
            measured = len(syntax) - read
            self._measurements.append(
                Measurement("dag", "tree-sitter", version, measured, absent=absent, reason=reason)
            )
        return []

    async def _read_python_imports(self) -> list[tuple[str, str]] | None:
        """Return the imports between Python files, each file at least once with no target."""
        files = self._collector.syntax
        packages = _packages(files)
        if not packages:
            return None
        edges: list[tuple[str, str]] = []
        absent: dict[str, int] = {}
        command = {"op": "import_graph", "packages": packages}
        try:
            async with aclosing(
                ask_worker(self._launcher, self._settings, HISTORY_S, **command)
            ) as reports:
                async for report in reports:
                    if report["op"] == "absent":
                        absent[report["reason"]] = absent.get(report["reason"], 0) + 1
                        continue
                    base = report["folder"]
                    for module in report["modules"]:
                        path = _file_of(base, module, files)
                        if path:
                            edges.append((path, ""))
                    for source, target in report["edges"]:
                        start = _file_of(base, source, files)
                        end = _file_of(base, target, files)
                        if start and end:
                            edges.append((start, end))
        except Failed as error:
            absent[error.message] = 1
        version = analyser_version("grimp")
        measured = len({source for source, _ in edges})
        if measured:
            self._measurements.append(
                Measurement("dag (Python imports)", "grimp", version, measured, absent=absent)
            )
        return edges

    def report(self, folder: Path, provenance: dict[str, Any], started: float) -> Report:
        """Return the report of everything that was measured."""
        collector, included = self._collector, self._options.analyses
        severities = dict(collector.severities) if "satd" in included else None
        totals = collector.totals()
        analyses: dict[str, Any] = {}
        if "ast" in included:
            analyses["ast_contexts"] = collector.ast_contexts()
        if "complexity" in included:
            summary = collector.complexity.summary() | {
                "functions_above": collector.functions_above
            }
            analyses["complexity_report"] = {"summary": summary}
        if "satd" in included:
            analyses["satd_results"] = collector.satd_results()
        analyses |= self._analyses
        with_churn = self._churn is not None
        ranked, formula = hotspots(collector.files, with_churn=with_churn)
        for each in ranked:
            collector.files[each["location"]["file"]]["hotspot_score"] = each["composite_score"]
        measurements = collector.measurements() + self._measurements
        if "defect-probability" in included:
            if with_churn and "complexity" in included:
                analyses["defect_probability"] = defect_rank(ranked, formula)
                measurements.append(
                    Measurement("defect rank", "substrate", "", len(ranked), "files")
                )
            else:
                reason = "it needs complexity and churn, which were not both measured"
                measurements.append(Measurement("defect rank", "substrate", "", reason=reason))
                analyses["defect_probability"] = {"absent": reason}
        measurements += [
            Measurement(each, "", "", reason=NOT_INCLUDED)
            for each in ANALYSES
            if each not in included
        ]
        cycles = list(self._graph.cycles()) if self._graph is not None else []
        has_syntax = "syntax" in self._options.sections
        foreign: Any = sorted(collector.foreign, key=lambda each: (each["file"], each["line"]))
        if not has_syntax:
            foreign = {"absent": "it needs one of ast, dag and satd"}
        else:
            foreign = {"total": len(foreign), "references": foreign[:LISTED]}
        card = scorecard(collector.files, totals, severities)
        summary = {"files": collector.counts.measured}
        scores = ("overall_health", "complexity_score", "maintainability_index")
        for name in (*scores, "technical_debt_hours"):
            if name in card and collector.counts.measured:
                summary[name] = card[name]
        summary["findings"] = collector.findings.total
        summary["findings_by_rule"] = dict(sorted(collector.findings.counts.items()))
        findings = collector.findings.sorted()
        advice = recommendations(totals, collector.files, severities, self._dead, cycles, ranked)
        return Report(
            "deep_context",
            str(folder),
            collector.counts,
            measurements,
            summary,
            findings[:LISTED],
            collector.findings.total,
            {
                "quality_scorecard": card,
                "file_tree": file_tree(collector.files, folder.name),
                "analyses": analyses,
                "hotspots": ranked[:HOTSPOTS],
                "hotspot_formula": formula,
                "recommendations": advice,
                "template_provenance": provenance,
                "cross_language_references": foreign,
            },
            round((time.monotonic() - started) * 1000),
        )


#: The names of analyses in a report that may be absent as a whole.
_KEYS: Final = {"churn": "churn_analysis", "dead-code": "dead_code"}


def _package_of(root: Path) -> tuple[str, ...]:
    """Return the name of the Python package that a folder is, as its parts; empty if it is none."""
    names: list[str] = []
    while (root / "__init__.py").is_file() and root.name.isidentifier():
        names.insert(0, root.name)
        root = root.parent
    return tuple(names)


def _packages(files: dict[str, Any]) -> list[list[str]]:
    """Return the outermost Python packages, each with its folder and its name."""
    initial = {
        PurePosixPath(path).parent.as_posix() for path in files if path.endswith("/__init__.py")
    }
    outer = []
    for folder in sorted(initial):
        parent, _, name = folder.rpartition("/")
        if parent not in initial and name.isidentifier():
            outer.append([parent, name])
    return outer


def _file_of(base: str, module: str, files: dict[str, Any]) -> str:
    """Return the file of a module in a folder; empty if it was not measured."""
    stem = (base + "/" if base else "") + module.replace(".", "/")
    return next((each for each in (f"{stem}.py", f"{stem}/__init__.py") if each in files), "")
