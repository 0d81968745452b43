"""The formats of a report agree, keep their budget, and SARIF is valid by its official schema."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from project_kit import Analyst, analyst, commit, write

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.usefixtures("cache")]

SCHEMA = json.loads(
    (Path(__file__).parents[2] / "vectors" / "sarif" / "sarif-2.1.0.json").read_text()
)
COMPLEX = "def f{0}(a):\n" + "    if a:\n        a = 1  # TODO: less | of <this>\n" * 20
METHODS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "analyze_complexity": lambda folder: {
        "project_path": str(folder),
        "toolchain": "auto",
        "top_files": 0,
    },
    "analyze_code_churn": lambda folder: {"project_path": str(folder)},
    "analyze_deep_context": lambda folder: {"project_path": str(folder)},
}


def complex_project(folder: Path, files: int) -> Path:
    for number in range(files):
        write(folder, **{f"lib__m{number}_py": COMPLEX.replace("{0}", str(number))})
    (folder / "lib" / "a b\n.py").write_text(COMPLEX)
    commit(folder)
    return folder


async def all_formats(hub: Analyst, method: str, folder: Path, **more: Any) -> tuple[Any, str, Any]:
    params = METHODS[method](folder) | more
    found = [await hub.report(method, format=each, **params) for each in FORMATS]
    return found[0], found[1], found[2]


FORMATS = ("json", "markdown", "sarif")


@pytest.mark.parametrize("method", METHODS)
async def test_the_formats_of_a_report_agree(method: str, tmp_path: Path) -> None:
    complex_project(tmp_path, 3)
    async with analyst() as hub:
        value, text, sarif = await all_formats(hub, method, tmp_path, max_bytes=1_000_000)
    jsonschema.Draft202012Validator(SCHEMA).validate(sarif)
    [run] = sarif["runs"]
    name = "violations" if method == "analyze_complexity" else "findings"
    assert value[name]
    assert [
        (
            each["ruleId"],
            each["level"],
            each["message"]["text"],
            each["locations"][0]["physicalLocation"]["region"]["startLine"],
        )
        for each in run["results"]
    ] == [(each["rule"], each["level"], each["message"], each["line"]) for each in value[name]]
    for part in value.keys() - {"metadata", name, "hotspots"}:
        assert run["properties"][part] == value[part], part
    for name_of, figure in value["summary"].items():
        if isinstance(figure, int | float):
            assert f"- {name_of}: {figure}\n" in text.replace("\\", "")
    rows = re.findall(r"^\| (?:cyclomatic|cognitive|satd|dead|churn)\S* \|.*$", text, re.MULTILINE)
    assert len(rows) >= len(value[name])
    assert "omitted" not in value


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("max_bytes", [10_000, 20_000])
async def test_each_format_keeps_its_budget(method: str, max_bytes: int, tmp_path: Path) -> None:
    complex_project(tmp_path, 120)
    async with analyst() as hub:
        value, text, sarif = await all_formats(hub, method, tmp_path, max_bytes=max_bytes)
        full = await hub.report(method, **METHODS[method](tmp_path), max_bytes=1_000_000)
    jsonschema.Draft202012Validator(SCHEMA).validate(sarif)
    for each in (value, sarif):
        assert (
            len(json.dumps(each, ensure_ascii=False, separators=(",", ":")).encode()) <= max_bytes
        )
    assert len(text.encode()) <= max_bytes
    assert value["omitted"]
    assert value["summary"] == full["summary"]  # totals are never cut
    assert value["summary"] == sarif["runs"][0]["properties"]["summary"]


async def test_diagnose_streams_the_findings_of_files(tmp_path: Path) -> None:
    complex_project(tmp_path, 2)
    (tmp_path / "notes.txt").write_text("TODO: no code\n")
    paths = [str(tmp_path / name) for name in ("lib/m0.py", "lib/m1.py", "notes.txt")]
    async with analyst() as hub:
        *findings, summary, _ = await hub.events("diagnose", paths=paths)
        error = await hub.error("diagnose", paths=["/no/a.py", "/no/b.py"])
    rules = {(each.file, each.rule) for each in findings}  # type: ignore[attr-defined]  # findings
    assert rules == {
        (path, rule)
        for path in paths[:2]
        for rule in ("cyclomatic-complexity", "cognitive-complexity", "satd")
    }
    files = summary.summary["files"]  # type: ignore[attr-defined]  # the summary
    assert (files["measured"], files["skipped"]) == (2, {"not a known language": 1})
    assert isinstance(error.data, dict)
    assert len(error.data["errors"]) == 2


async def test_in_a_sandbox_only_the_workspace_is_analysed(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    inside = complex_project(tmp_path / "inside", 1)
    write(tmp_path, outside_py="def f():\n    return 1\n")
    (tmp_path / "inside" / "link.py").symlink_to(tmp_path / "outside.py")
    async with analyst(sandbox="workspace", workspace=str(inside)) as hub:
        assert (await hub.complexity(inside))["summary"]["files"] == 2
        refused = await hub.error("analyze_deep_context", project_path=str(tmp_path))
        linked = await hub.error("diagnose", paths=[str(tmp_path / "inside" / "link.py")])
    assert "outside the workspace" in refused.message
    assert "outside the workspace" in linked.message
