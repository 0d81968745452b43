"""The run of `analyze_code_churn`: which files change, how often, and by how many authors."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, Final

from activations.analysis.complexity_analysis import Events, report_event
from activations.analysis.environment import Environment
from activations.analysis.events import Finding, Summary
from activations.analysis.formats import Format
from activations.analysis.project import ArgumentErrors
from activations.analysis.report import Measurement, Report
from activations.analysis.worker_process import WorkerLost, WorkerProcess, WorkerSettings
from activations.processes.process import Launcher
from plexus import Failed, Progress

__all__ = ("HISTORY_S", "analyze_churn", "ask_worker", "intervals_of", "period")

#: Seconds for the next part of a history. The first commit may be large.
HISTORY_S: Final = 120.0
#: Files of a report; all are counted.
MAX_ROWS: Final = 1000
#: Files with the most commits, which are findings.
FINDINGS: Final = 20
DAY_S: Final = 24 * 3600


async def ask_worker(
    launcher: Launcher, settings: WorkerSettings, deadline_s: float, **command: Any
) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the reports of one command to a new worker, which ends with the iteration."""
    worker = await WorkerProcess.open(launcher, settings)
    try:
        async with aclosing(worker.ask(deadline_s, **command)) as reports:
            async for report in reports:
                yield report
    except WorkerLost as error:
        text = f"The worker for {command['op']!r} was lost: {error}"
        raise Failed(text, code="analysis_failed") from error
    finally:
        await worker.close()


def period(period_days: int) -> tuple[int, int]:
    """Return the begin and the end of a period of days that ends now.

    It begins with a day of UTC, so that the intervals of a report are whole days.
    """
    until = int(time.time())
    return (until // DAY_S - period_days) * DAY_S, until


async def analyze_churn(
    environment: Environment, project_path: str, period_days: int, form: Format, max_bytes: int
) -> AsyncIterator[Events]:
    """Count the changes of the files of a project. Raises InvalidParams and Failed."""
    started = time.monotonic()
    folder = await environment.folder(project_path, ArgumentErrors())
    environment.boot()
    settings = await environment.settings(folder)
    since, until = period(period_days)
    rows: list[dict[str, Any]] = []
    totals: dict[str, Any] = {}
    asked = ask_worker(
        environment.launcher, settings, HISTORY_S, op="churn", since=since, until=until
    )
    async with aclosing(asked) as reports:
        async for report in reports:
            kind = report.pop("op")
            if kind == "absent":
                raise Failed(
                    f"There is no history to analyse: {report['reason']}.", code="no_history"
                )
            if kind == "progress":
                yield Progress(report["commits"], None, "commits read")
            elif kind == "rows":
                rows += report["rows"][: MAX_ROWS - len(rows)]
            else:
                totals = report
    findings = [_finding(row) for row in rows[:FINDINGS] if "deleted" not in row]
    for finding in findings:
        yield finding
    summary = _summary(totals, period_days, since, until)
    yield Summary("code_churn", summary)
    measurement = Measurement("churn", "git", totals["version"], totals["commits"], "commits")
    sections: dict[str, Any] = {"files": rows, "over_time": intervals_of(totals, since)}
    if totals["files"] > len(rows):
        sections["files_omitted"] = totals["files"] - len(rows)
    yield await report_event(
        Report(
            "code_churn",
            str(folder),
            None,
            [measurement],
            summary,
            findings,
            len(findings),
            sections,
            round((time.monotonic() - started) * 1000),
        ),
        form,
        max_bytes,
    )


def _summary(totals: dict[str, Any], period_days: int, since: int, until: int) -> dict[str, Any]:
    found: dict[str, Any] = {"period_days": period_days, "since": _day(since), "until": _day(until)}
    names = ("commits", "files", "authors", "additions", "deletions", "binary_changes")
    found |= {name: totals[name] for name in names}
    if totals["unreadable_names"]:
        found["skipped"] = {"its name is not UTF-8": totals["unreadable_names"]}
    if totals["shallow"]:
        found["note"] = "The clone is shallow, so older commits are missing."
    return found


def intervals_of(totals: dict[str, Any], since: int) -> list[dict[str, Any]]:
    """Return the changes over time, in intervals of whole days."""
    days = totals["interval_days"]
    return [
        {
            "from": _day(since + number * days * DAY_S),
            "days": days,
            "commits": commits,
            "additions": additions,
            "deletions": deletions,
        }
        for number, (commits, additions, deletions) in enumerate(totals["intervals"])
    ]


def _finding(row: dict[str, Any]) -> Finding:
    authors = f"{row['authors']} author" + "s" * (row["authors"] != 1)
    changed = f"{row['commits']} commit" + "s" * (row["commits"] != 1)
    text = f"Changed in {changed} by {authors}: +{row['additions']} -{row['deletions']} lines."
    return Finding("churn", "note", text, row["file"], 1, "git", value=row["commits"])


def _day(at: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(at))
