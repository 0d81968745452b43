"""The run of `diagnose`: findings in single files, for an editor that shows them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Final

from activations.analysis.complexity import Thresholds
from activations.analysis.complexity_analysis import cores
from activations.analysis.deep_context import DeepCollector, DeepOptions
from activations.analysis.environment import Environment
from activations.analysis.events import Finding, Summary
from activations.analysis.languages import language_of
from activations.analysis.project import ArgumentErrors
from activations.analysis.scan import Scan

__all__ = ("diagnose",)

OPTIONS: Final = DeepOptions(
    frozenset({"complexity", "satd"}), 1, "import-graph", None, [], [], "normal", 1, "json", 0
)


async def diagnose(
    environment: Environment, paths: list[str], thresholds: Thresholds
) -> AsyncIterator[Finding | Summary]:
    """Yield the findings of files by their absolute paths, then the totals."""
    errors = ArgumentErrors()
    files = list(dict.fromkeys([await environment.file(path, errors) for path in paths]))
    errors.check()
    environment.boot()
    settings = await environment.settings(Path("/"))
    collector = DeepCollector(OPTIONS, thresholds)
    batch = []
    for file in files:
        language = language_of(file.name)
        if language is None:
            collector.counts.skip(str(file), "not a known language")
        else:
            batch.append((str(file), language))
    workers = min(cores(), len(batch)) or 1
    scan = Scan(environment.launcher, settings, workers, OPTIONS.sections)
    try:
        async with aclosing(scan.measure(batch)) as reports:
            async for report in reports:
                if report["op"] == "skipped":
                    collector.counts.skip(report["path"], report["reason"])
                    continue
                _, findings = collector.add(report)
                for finding in findings:
                    yield finding
    finally:
        await scan.close()
    counts = collector.counts.as_object()
    yield Summary("diagnosis", {"findings": collector.findings.total, "files": counts})
