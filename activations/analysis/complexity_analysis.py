"""The run of `analyze_complexity`: a stream of files and findings, then the report."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Final

from activations.analysis.complexity import (
    MAX_FINDINGS,
    ComplexityCollector,
    Thresholds,
)
from activations.analysis.environment import Environment
from activations.analysis.events import FileMeasured, Finding, Found, Summary
from activations.analysis.formats import Format, render
from activations.analysis.project import ArgumentErrors, check_toolchain
from activations.analysis.report import FileCounts, Measurement, Report, analyser_version
from activations.analysis.scan import Scan
from activations.analysis.worker_process import WorkerSettings
from plexus import Progress
from plexus.events import Content, Data

__all__ = ("PROGRESS_S", "Events", "analyze_complexity", "cores", "report_event")

Events = Found | FileMeasured | Finding | Progress | Summary | Content | Data
#: Violations of a report that does not ask for all of them.
DEFAULT_VIOLATIONS: Final = 100
#: Files in the ranking if the caller asks for all violations.
ALL_RANKED: Final = 1000
#: Seconds between two events about the progress.
PROGRESS_S: Final = 0.5


def cores() -> int:
    """Return the number of processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


async def analyze_complexity(
    environment: Environment,
    project_path: str,
    toolchain: str,
    form: Format,
    thresholds: Thresholds,
    top_files: int | None,
    max_bytes: int,
) -> AsyncIterator[Events]:
    """Measure the complexity of a project. Raises InvalidParams and Failed."""
    started = time.monotonic()
    errors = ArgumentErrors()
    languages = check_toolchain(toolchain, errors)
    folder = await environment.folder(project_path, errors)
    environment.boot()
    settings = await environment.settings(folder)
    ranked = ALL_RANKED if top_files == 0 else top_files or 0
    collector = ComplexityCollector(thresholds, ranked)
    counts = FileCounts()
    scan = Scan(environment.launcher, settings, cores(), ["complexity"])
    found, shown = 0, started
    try:
        async with aclosing(scan.list_and_measure({"languages": languages})) as reports:
            async for report in reports:
                if report["op"] == "skipped":
                    counts.skip(report["path"], report["reason"])
                elif report["op"] == "listed":
                    found = report["files"]
                    yield Found(found, report["languages"], dict(counts.skipped))
                else:
                    counts.measured += 1
                    counts.languages[report["language"]] += 1
                    metrics, findings = collector.add(report)
                    path, language = report["path"], report["language"]
                    yield FileMeasured(path, language, metrics, report["cached"])
                    for finding in findings:
                        yield finding
                if found and time.monotonic() - shown > PROGRESS_S:
                    shown = time.monotonic()
                    yield Progress(counts.measured, found, "files measured")
    finally:
        await scan.close()
    sections: dict[str, Any] = {}
    measurements = collector.measurements()
    if top_files is not None:
        rows = collector.ranked()
        measurements.append(await _add_effort(environment, settings, rows))
        sections["top_files"] = collector.top_files(rows)
    kept = collector.findings.sorted()
    limit = MAX_FINDINGS if top_files == 0 else DEFAULT_VIOLATIONS
    yield Summary("complexity", collector.summary())
    yield await report_event(
        Report(
            "complexity",
            str(folder),
            counts,
            measurements,
            collector.summary(),
            kept[:limit],
            collector.findings.total,
            sections,
            round((time.monotonic() - started) * 1000),
            "violations",
        ),
        form,
        max_bytes,
    )


async def _add_effort(
    environment: Environment, settings: WorkerSettings, rows: list[dict[str, Any]]
) -> Measurement:
    """Add Halstead's effort to ranked files, the only ones that it is shown for."""
    lizard = analyser_version("lizard")
    if not rows:
        return Measurement("Halstead effort", "lizard", lizard, reason="no file is ranked")
    by_path = {row["file"]: row for row in rows}
    files = [(path, row.pop("language")) for path, row in by_path.items()]
    absent: dict[str, int] = {}
    measured = 0
    scan = Scan(environment.launcher, settings, cores(), ["halstead"])
    try:
        async with aclosing(scan.measure(files)) as reports:
            async for report in reports:
                if report["op"] == "skipped":
                    reason = report["reason"]
                    absent[reason] = absent.get(reason, 0) + 1
                elif "effort" in report["halstead"]:
                    by_path[report["path"]]["halstead_effort"] = report["halstead"]["effort"]
                    measured += 1
    finally:
        await scan.close()
    return Measurement("Halstead effort", "lizard", lizard, measured, "ranked files", absent)


async def report_event(report: Report, form: Format, max_bytes: int) -> Content | Data:
    """Return the report as the last event of a run: text, or a value."""
    # A large report is rendered several times until it fits.
    rendered = await asyncio.to_thread(render, report, form, max_bytes)
    return Content(rendered) if isinstance(rendered, str) else Data(rendered)
