"""Scores, hotspots, hours and recommendations. Each shows its formula, its parts and its weights.

Hours are estimates by a stated rule, not measurements. A score whose parts were not measured is
absent, with the reason.
"""

from __future__ import annotations

import math
from typing import Any, Final

from activations.analysis.complexity import Thresholds

__all__ = (
    "FileRecord",
    "debt_hours",
    "defect_rank",
    "hotspots",
    "maintainability",
    "recommendations",
    "refactoring_hours",
    "scorecard",
)

#: Estimated hours for a function above a threshold: a fixed part, and for each point above it.
FUNCTION_HOURS: Final = 0.5
POINT_HOURS: Final = 0.1
#: Estimated hours for a comment that admits debt, by its severity.
DEBT_HOURS: Final = {"critical": 4.0, "high": 2.0, "medium": 1.0, "low": 0.25}
HEALTH_WEIGHTS: Final = {"complexity_score": 0.5, "maintainability_index": 0.5}
HOURS_FORMULA: Final = (
    f"estimate: {FUNCTION_HOURS} h for each function above a threshold"
    f" + {POINT_HOURS} h for each point above it"
)
RANKED: Final = 50
#: Hours from which the effort of a hotspot has this priority.
PRIORITIES: Final = ((4.0, "High"), (1.0, "Medium"), (0.0, "Low"))
SECONDS: Final = 3600

#: The measurements of one file. What was not measured is absent.
FileRecord = dict[str, Any]


def maintainability(volume: float, cyclomatic: int, nloc: int) -> float | None:
    """Return the maintainability index of a file, from 0 to 100; None if it has no code."""
    if volume <= 0 or nloc <= 0:
        return None
    index = 171 - 5.2 * math.log(volume) - 0.23 * cyclomatic - 16.2 * math.log(nloc)
    return round(max(0.0, index * 100 / 171), 2)


def refactoring_hours(functions: list[dict[str, Any]], thresholds: Thresholds) -> float:
    """Return the estimated hours to bring functions below their thresholds."""
    hours = 0.0
    for each in functions:
        excess = sum(
            max(0, each.get(name, 0) - limit) for name, limit in thresholds._asdict().items()
        )
        if excess:
            hours += FUNCTION_HOURS + POINT_HOURS * excess
    return round(hours, 2)


def debt_hours(severities: dict[str, int]) -> float:
    """Return the estimated hours to resolve comments that admit debt."""
    return sum(DEBT_HOURS[severity] * count for severity, count in severities.items())


def scorecard(
    files: dict[str, FileRecord], totals: dict[str, Any], severities: dict[str, int] | None
) -> dict[str, Any]:
    """Return the scores with their formulas; those that were not measured under `absent`."""
    found: dict[str, Any] = {}
    absent: dict[str, str] = {}
    formulas: dict[str, str] = {}
    if totals.get("functions"):
        share = 1 - totals["functions_above"] / totals["functions"]
        found["complexity_score"] = round(100 * share, 2)
        formulas["complexity_score"] = "100 * functions within both thresholds / functions"
    else:
        absent["complexity_score"] = totals.get("reason") or "no function was measured"
    weights = [
        (record["maintainability_index"], record["nloc"])
        for record in files.values()
        if "maintainability_index" in record
    ]
    if weights:
        total = sum(nloc for _, nloc in weights)
        found["maintainability_index"] = round(sum(mi * n for mi, n in weights) / total, 2)
        formulas["maintainability_index"] = (
            "mean over files, weighted by lines of code, of max(0, (171 - 5.2 ln(Halstead volume)"
            " - 0.23 cyclomatic - 16.2 ln(lines of code)) * 100 / 171)"
        )
    else:
        absent["maintainability_index"] = totals.get("reason") or "no file with functions"
    if all(name in found for name in HEALTH_WEIGHTS):
        health = sum(weight * found[name] for name, weight in HEALTH_WEIGHTS.items())
        found = {"overall_health": round(health, 2), **found}
        terms = (f"{weight} * {name}" for name, weight in HEALTH_WEIGHTS.items())
        formulas["overall_health"] = " + ".join(terms)
    else:
        absent["overall_health"] = "its parts were not measured"
    parts: dict[str, float] = {}
    if totals.get("functions"):
        parts["complexity"] = round(sum(each.get("hours", 0.0) for each in files.values()), 2)
    if severities is not None:
        parts["satd"] = debt_hours(severities)
    if parts:
        found["technical_debt_hours"] = round(sum(parts.values()), 2)
        found["technical_debt_parts"] = parts
        rates = ", ".join(f"{severity} {hours} h" for severity, hours in DEBT_HOURS.items())
        formulas["technical_debt_hours"] = f"{HOURS_FORMULA}; for each SATD comment: {rates}"
    else:
        absent["technical_debt_hours"] = "neither complexity nor satd was measured"
    found["formulas"] = formulas
    return found | {"absent": absent} if absent else found


def hotspots(files: dict[str, FileRecord], *, with_churn: bool) -> tuple[list[FileRecord], str]:
    """Return the files in which complexity and changes meet, and the formula of their score."""
    rows = [(path, each) for path, each in files.items() if each.get("cyclomatic")]
    most_complex = max((each["cyclomatic"] for _, each in rows), default=0)
    most_changed = max((each.get("commits", 0) for _, each in rows), default=0)
    if with_churn and most_changed:
        formula = "(commits / most commits) * (cyclomatic / highest cyclomatic), sums of a file"
    else:
        formula = "cyclomatic / highest cyclomatic, sums of a file; changes were not measured"
    found = []
    for path, each in rows:
        parts = {"cyclomatic": each["cyclomatic"]}
        score = each["cyclomatic"] / most_complex
        if with_churn and most_changed:
            parts["commits"] = each.get("commits", 0)
            score *= parts["commits"] / most_changed
        if not score:
            continue
        hours = each.get("hours", 0.0)
        priority = next(name for least, name in PRIORITIES if hours >= least)
        found.append(
            {
                "location": {"file": path, "line": each["line"]},
                "composite_score": round(score, 4),
                "parts": parts,
                "refactoring_effort": {"estimated_hours": hours, "priority": priority},
            }
        )
    found.sort(key=lambda each: (-each["composite_score"], each["location"]["file"]))
    return found, formula


def defect_rank(ranked: list[FileRecord], formula: str) -> dict[str, Any]:
    """Return the order of files by the risk of defects: an order, not a probability."""
    return {
        "text": "A rank by changes and complexity. It orders files; it is not a probability.",
        "formula": formula,
        "files": len(ranked),
        "ranking": [
            {"rank": number, "file": each["location"]["file"], "score": each["composite_score"]}
            | each["parts"]
            for number, each in enumerate(ranked[:RANKED], 1)
        ],
    }


def recommendations(
    totals: dict[str, Any],
    files: dict[str, FileRecord],
    severities: dict[str, int] | None,
    dead: list[dict[str, Any]] | None,
    cycles: list[list[str]],
    ranked: list[FileRecord],
) -> list[dict[str, Any]]:
    """Return what to do first, by fixed rules from the measurements; each names its evidence."""
    found: list[dict[str, Any]] = []
    if above := totals.get("functions_above"):
        hours = sum(each.get("hours", 0.0) for each in files.values())
        text = f"{above} functions exceed a complexity threshold. Begin with the hotspots."
        worst = sorted(files, key=lambda path: (-files[path].get("hours", 0.0), path))[:5]
        evidence = [path for path in worst if files[path].get("hours")]
        found.append(_advice("Reduce code complexity", text, "High", hours, evidence))
    serious = {name: (severities or {}).get(name, 0) for name in ("critical", "high")}
    if any(serious.values()):
        text = f"{sum(serious.values())} comments admit debt of critical or high severity."
        places = [path for path, each in sorted(files.items()) if each.get("serious_debt")]
        found.append(
            _advice("Resolve admitted debt", text, "High", debt_hours(serious), places[:5])
        )
    if cycles:
        text = f"{len(cycles)} groups of files import each other. Move what they share."
        found.append(_advice("Break import cycles", text, "Medium", None, cycles[0][:5]))
    certain = [each for each in dead or () if each["confidence"] >= 90]
    if certain:
        text = f"{len(certain)} items are unused with a confidence of at least 90 %."
        places = [f"{each['file']}:{each['line']}" for each in certain[:5]]
        found.append(_advice("Delete unused code", text, "Low", None, places))
    if ranked and "commits" in ranked[0]["parts"]:
        place = ranked[0]["location"]
        text = "This file combines the most changes with the highest complexity. Test it first."
        evidence = [f"{place['file']}:{place['line']}"]
        found.append(_advice("Watch the first hotspot", text, "Medium", None, evidence))
    return found


def _advice(
    title: str, text: str, priority: str, hours: float | None, evidence: list[str]
) -> dict[str, Any]:
    found: dict[str, Any] = {"title": title, "description": text, "priority": priority}
    if hours is not None:
        found["estimated_effort"] = {"secs": round(hours * SECONDS)}
    return found | {"impact": priority, "evidence": evidence}
