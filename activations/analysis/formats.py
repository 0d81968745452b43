"""The formats of a report: JSON, Markdown and SARIF 2.1.0, rendered from one model.

A report that is larger than its budget loses the ends of its lists, the longest first; it says how
many entries were left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, Literal
from urllib.parse import quote

from activations.analysis.report import NOTHING, Report
from plexus import __version__
from plexus.errors import TooBig
from plexus.rpc import wire

__all__ = ("FORMATS", "Format", "fit", "render")

Format = Literal["json", "markdown", "sarif"]
FORMATS: Final[tuple[Format, ...]] = ("json", "markdown", "sarif")

#: Where a list is in a report: names of members, and places in other lists.
Path = tuple[str | int, ...]

SARIF_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
#: Descriptions of the rules of findings.
RULES: Final = {
    "cyclomatic-complexity": "A function has more independent paths than the maximum.",
    "cognitive-complexity": "A function is harder to understand than the maximum.",
    "satd": "A comment admits technical debt.",
    "dead-code": "Code that nothing uses.",
    "churn": "A file changes often.",
    "hotspot": "A file is complex and changes often.",
    "template-drift": "A file differs from the template that it was made from.",
}
#: Parts of a report that are never shortened.
KEPT: Final = ("metadata", "summary")
#: Entries that every list keeps.
LEAST: Final = 0


def render(report: Report, form: Format, max_bytes: int) -> str | dict[str, Any]:
    """Return a report in a format, at most this large. Raises TooBig if it cannot fit."""
    value = report.as_object()
    if form == "markdown":
        return str(fit(value, max_bytes, lambda fitted: _markdown(report, fitted)))
    convert = (lambda fitted: fitted) if form == "json" else lambda fitted: _sarif(report, fitted)
    found: dict[str, Any] = fit(value, max_bytes, convert)
    return found


def fit(value: dict[str, Any], max_bytes: int, convert: Callable[[dict[str, Any]], Any]) -> Any:
    """Shorten the longest lists of a value until its conversion has at most this many bytes."""
    while True:
        converted = convert(value)
        text = converted.encode() if isinstance(converted, str) else wire.encode(converted)
        size = len(text)
        if size <= max_bytes:
            return converted
        lists = list(_lists(value, ()))
        none: tuple[int, Path] = (0, ())
        longest = max(lists, key=lambda each: each[0], default=none)
        if longest[0] <= LEAST:
            raise TooBig(
                f"The report has {size:,} bytes, and its parts cannot be shortened to "
                f"{max_bytes:,}. Raise max_bytes.",
                data={"limit": max_bytes},
            )
        # Close to the goal immediately, so that a large report takes few steps.
        keep = max(LEAST, min(longest[0] * 3 // 4, longest[0] * max_bytes // size * 2))
        value = _cut(value, longest[1], keep)
        name = ".".join(each for each in longest[1] if isinstance(each, str))
        omitted = dict(value.get("omitted", {}))
        omitted[name] = omitted.get(name, 0) + longest[0] - keep
        value = value | {"omitted": omitted}


def _lists(value: Any, path: Path) -> Iterator[tuple[int, Path]]:
    """Yield the length and the path of each list that can be shortened."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if path or name not in KEPT:
                yield from _lists(inner, (*path, name))
    elif isinstance(value, list):
        yield len(value), path
        for number, inner in enumerate(value):
            if isinstance(inner, dict | list):
                yield from _lists(inner, (*path, number))


def _cut(value: Any, path: Path, keep: int) -> Any:
    name, *rest = path
    inner = _cut(value[name], tuple(rest), keep) if rest else value[name][:keep]
    if isinstance(value, list):
        return [inner if number == name else each for number, each in enumerate(value)]
    return {**value, name: inner}


# --- Markdown -------------------------------------------------------------------------------------


def _markdown(report: Report, value: dict[str, Any]) -> str:
    title = report.analysis.replace("_", " ").capitalize()
    parts = [f"# {title}: {_text(report.project)}", ""]
    if report.files is not None and not report.files.measured:
        parts += [f"**{NOTHING}**: no source file was measured.", ""]
    for name, part in value.items():
        if name == "metadata":
            continue
        parts += [f"## {name.replace('_', ' ').capitalize()}", "", *_part(part), ""]
    parts += ["## Measurements", "", *_table(value["metadata"]["measurements"]), ""]
    if "files" in value["metadata"]:
        parts += ["## Files", "", *_part(value["metadata"]["files"]), ""]
    return "\n".join(parts)


def _part(value: Any, depth: int = 0) -> list[str]:
    """Return a value as lines: a table for objects of one kind, else a list."""
    indent = "  " * depth
    if isinstance(value, list):
        if value and all(isinstance(each, dict) for each in value) and not depth:
            return _table(value)
        return [f"{indent}- {_text(_inline(each))}" for each in value] or [f"{indent}none"]
    if not isinstance(value, dict):
        return _block(value, indent)
    lines: list[str] = []
    for name, each in value.items():
        if isinstance(each, dict | list) and each:
            lines += [f"{indent}- {name}:"]
            if isinstance(each, list) and isinstance(each[0], dict) and not depth:
                lines += ["", *_table(each), ""]
            else:
                lines += _part(each, depth + 1)
        elif isinstance(each, str) and "\n" in each:
            lines += [f"{indent}- {name}:", "", *_block(each, ""), ""]
        else:
            lines += [f"{indent}- {name}: {_text(_inline(each))}"]
    return lines or [f"{indent}none"]


def _block(value: Any, indent: str) -> list[str]:
    text = str(value)
    if "\n" not in text:
        return [indent + _text(text)]
    language = "mermaid" if text.startswith(("graph ", "classDiagram")) else ""
    # A longer fence than any in the text cannot be closed by it.
    fence = "`" * max(3, max((len(run) for run in _ticks(text)), default=0) + 1)
    return [f"{fence}{language}", text.rstrip("\n"), fence]


def _ticks(text: str) -> list[str]:
    return "".join(each if each == "`" else " " for each in text).split()


def _table(rows: list[dict[str, Any]]) -> list[str]:
    if not rows:
        return ["none"]
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = ["| " + " | ".join(names) + " |", "|" + " --- |" * len(names)]
    for row in rows:
        cells = (_text(_inline(row[name])) if name in row else "" for name in names)
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_inline(each)}" for name, each in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(_inline(each) for each in value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _text(text: str) -> str:
    """Return text in one line that no cell and no markup can break."""
    flat = "".join(each if each.isprintable() else " " for each in text)
    for mark in "\\|`<>*_[]":
        flat = flat.replace(mark, f"\\{mark}") if mark in "\\|`<>[]*" else flat
    return flat


# --- SARIF ----------------------------------------------------------------------------------------


def _sarif(report: Report, value: dict[str, Any]) -> dict[str, Any]:
    findings: list[dict[str, Any]] = value[report.findings_name]
    rules = sorted({each["rule"] for each in findings})
    numbers = {rule: number for number, rule in enumerate(rules)}
    skipped = value["metadata"].get("files", {}).get("skipped", {})
    properties = {name: part for name, part in value.items() if name != report.findings_name}
    run: dict[str, Any] = {
        "tool": {
            "driver": {
                "name": "substrate",
                "version": __version__,
                "rules": [
                    {"id": rule, "shortDescription": {"text": RULES.get(rule, rule)}}
                    for rule in rules
                ],
            },
            "extensions": _analysers(value["metadata"]["measurements"]),
        },
        "invocations": [
            {
                "executionSuccessful": True,
                "toolExecutionNotifications": [
                    {"level": "note", "message": {"text": f"{count} skipped: {reason}"}}
                    for reason, count in skipped.items()
                ],
            }
        ],
        "columnKind": "unicodeCodePoints",
        "results": [_result(each, numbers) for each in findings],
        "originalUriBaseIds": {"PROJECT": {"description": {"text": "The analysed folder."}}},
        "properties": properties,
    }
    return {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}


def _analysers(measurements: list[dict[str, Any]]) -> list[dict[str, Any]]:
    unique = {(each["analyser"], each["version"]) for each in measurements}
    return [
        {"name": name} | ({"version": version} if version else {})
        for name, version in sorted(unique)
    ]


def _result(finding: dict[str, Any], numbers: dict[str, int]) -> dict[str, Any]:
    region = {"startLine": finding["line"]}
    if finding.get("end_line", 0) >= finding["line"]:
        region["endLine"] = finding["end_line"]
    place: dict[str, Any] = {
        "physicalLocation": {
            "artifactLocation": {"uri": quote(finding["file"]), "uriBaseId": "PROJECT"},
            "region": region,
        }
    }
    if "symbol" in finding:
        place["logicalLocations"] = [{"name": finding["symbol"]}]
    rest = ("analyser", "value", "threshold")
    return {
        "ruleId": finding["rule"],
        "ruleIndex": numbers[finding["rule"]],
        "level": finding["level"],
        "message": {"text": finding["message"]},
        "locations": [place],
        "properties": {name: finding[name] for name in rest if name in finding},
    }
