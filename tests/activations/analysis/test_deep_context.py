"""Deep context: each part is measured, or absent with the reason, and moves with the code."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from project_kit import analyst, commit, write

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.usefixtures("cache")]

MAIN = "from pack import used\n\n\ndef main():\n    return used.help_out()\n\n\nmain()\n"
USED = "def help_out():\n    # TODO: test this\n    return 1\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    write(folder, pack__used_py=USED, main_py=MAIN)
    (folder / "pack" / "__init__.py").touch()
    return folder


async def deep(project: Path, **params: Any) -> Any:
    async with analyst() as hub:
        return await hub.report("analyze_deep_context", project_path=str(project), **params)


def measured(report: Any) -> dict[str, Any]:
    return {each["metric"]: each for each in report["metadata"]["measurements"]}


async def test_the_report_has_the_parts_of_the_seed(project: Path) -> None:
    commit(project)
    report = await deep(project)
    assert report["metadata"]["analysis_duration"].keys() == {"secs", "nanos"}
    card = report["quality_scorecard"]
    scores = {"overall_health", "complexity_score", "maintainability_index", "technical_debt_hours"}
    assert scores <= card.keys()
    assert scores == card["formulas"].keys()
    tree = report["file_tree"]
    assert (tree["total_files"], tree["root"]["name"]) == (3, "project")
    assert tree["total_size_bytes"] == len(MAIN) + len(USED)
    assert {"ast_contexts", "complexity_report", "churn_analysis", "satd_results"} <= report[
        "analyses"
    ].keys()
    [first, *_] = report["hotspots"]
    assert first["location"].keys() == {"file", "line"}
    assert first["refactoring_effort"].keys() == {"estimated_hours", "priority"}
    assert "not a probability" in report["analyses"]["defect_probability"]["text"]
    assert report["template_provenance"].keys() == {"absent"}
    assert report["cross_language_references"]["total"] == 0


async def test_what_is_not_included_is_absent(project: Path) -> None:
    report = await deep(project, include_analyses=["satd", "churn"], exclude_analyses=["churn"])
    assert report["analyses"].keys() == {"satd_results"}
    assert report["quality_scorecard"]["absent"]["complexity_score"] == "complexity is not included"
    reasons = {name: each.get("reason") for name, each in measured(report).items()}
    assert reasons["complexity"] == reasons["churn"] == "not included"
    assert reasons["satd"] is None
    assert "overall_health" not in report["summary"]


async def test_without_git_the_churn_is_absent_and_not_zero(project: Path) -> None:
    report = await deep(project)
    assert report["analyses"]["churn_analysis"] == {
        "absent": "the folder is not in a git repository"
    }
    assert "absent" in report["analyses"]["defect_probability"]
    assert all("commits" not in each["parts"] for each in report["hotspots"])
    assert "commits" not in json.dumps(report["file_tree"])


async def test_an_empty_project_has_no_score(tmp_path: Path) -> None:
    report = await deep(tmp_path)
    assert report["summary"] == {"files": 0, "findings": 0, "findings_by_rule": {}}
    assert "overall_health" not in report["quality_scorecard"]
    text = await deep(tmp_path, format="markdown")
    assert "**nothing analysed**" in text


async def test_dead_code_appears_when_the_caller_is_deleted(project: Path) -> None:
    before = await deep(project, include_analyses=["dead-code"])
    write(project, main_py="")
    after = await deep(project, include_analyses=["dead-code"])
    assert before["analyses"]["dead_code"]["items"] == []
    [item] = after["analyses"]["dead_code"]["items"]
    assert (item["file"], item["name"], item["line"]) == ("pack/used.py", "help_out", 1)
    assert item["confidence"] == 60


async def test_a_file_that_is_nested_too_deeply_does_not_hide_the_unused_code(
    project: Path,
) -> None:
    write(project, main_py="", deep_py="x = " + "(" * 5000 + ")" * 5000 + "\n")
    report = await deep(project, include_analyses=["dead-code"])
    assert [each["name"] for each in report["analyses"]["dead_code"]["items"]] == ["help_out"]
    assert measured(report)["dead-code"]["absent"] == {"vulture cannot parse it": 1}


async def test_a_comment_more_is_a_debt_more(project: Path) -> None:
    before = await deep(project, include_analyses=["satd"])
    write(project, main_py=MAIN + "# FIXME slow\nx = 'TODO: no comment'\n")
    after = await deep(project, include_analyses=["satd"])
    assert before["analyses"]["satd_results"]["by_severity"] == {"medium": 1}
    assert after["analyses"]["satd_results"]["by_severity"] == {"high": 1, "medium": 1}
    first = after["analyses"]["satd_results"]["items"][0]
    assert (first["file"], first["line"], first["category"]) == ("main.py", 9, "performance")
    hours = [each["quality_scorecard"]["technical_debt_hours"] for each in (before, after)]
    assert hours == [1.0, 3.0]


@pytest.mark.parametrize(
    ("dag_type", "source", "target"),
    [
        ("import-graph", "main.py", "pack/used.py"),
        ("call-graph", "main.py:main", "pack/used.py:help_out"),
        ("inheritance", "main.py:B", "pack/used.py:A"),
        ("full-dependency", "main.py", "pack/used.py"),
    ],
)
async def test_each_graph_has_its_edges(
    project: Path, dag_type: str, source: str, target: str
) -> None:
    write(project, pack__used_py=USED + "class A: pass\n", main_py=MAIN + "class B(used.A): pass\n")
    report = await deep(project, include_analyses=["dag"], dag_type=dag_type)
    graph = report["analyses"]["dag"]
    edges = {(each["from"], each["to"]) for each in graph["top_edges"]}
    assert (source, target) in edges
    assert graph["mermaid"].startswith("graph TD\n")
    assert f'["{target}"]' in graph["mermaid"]


async def test_an_import_cycle_is_found_and_recommended_to_be_broken(project: Path) -> None:
    write(project, pack__used_py="import pack.other\n", pack__other_py="from . import used\n")
    report = await deep(project, include_analyses=["dag"])
    assert report["analyses"]["dag"]["cycles"] == [["pack/other.py", "pack/used.py"]]
    assert [each["title"] for each in report["recommendations"]] == ["Break import cycles"]
    assert measured(report)["dag (Python imports)"]["analyser"] == "grimp"


async def test_the_folder_of_a_package_has_the_imports_between_its_modules(project: Path) -> None:
    write(
        project,
        pack__sub__a_py="from pack.sub.b import x\nfrom pack import used\nimport json\n",
        pack__sub__b_py="x = 1\n",
    )
    (project / "pack" / "sub" / "__init__.py").touch()
    for folder, expected in (
        ("pack", {("sub/a.py", "sub/b.py"), ("sub/a.py", "used.py")}),
        ("pack/sub", {("a.py", "b.py")}),
    ):
        report = await deep(project / folder, include_analyses=["dag"])
        edges = report["analyses"]["dag"]["top_edges"]
        assert {(each["from"], each["to"]) for each in edges} == expected
        assert measured(report)["dag"]["analyser"] == "tree-sitter"


LANGUAGES = {
    "rust": (
        {"main.rs": "mod b;\nfn main() { b::go(); }\n", "b.rs": "pub fn go() {}\n"},
        "main.rs",
    ),
    "typescript": (
        {
            "a.ts": "import { go } from './b.js';\nfunction main() { go() }\n",
            "b.ts": "export function go() {}\n",
        },
        "a.ts",
    ),
    "javascript": (
        {
            "a.js": "const b = require('./b');\nfunction main() { b.go() }\n",
            "b.js": "function go() {}\n",
        },
        "a.js",
    ),
    "go": (
        {
            "a.go": 'package a\nimport "x/b"\nfunc main() { b.Go() }\n',
            "b/b.go": "package b\nfunc Go() {}\n",
        },
        "a.go",
    ),
    "c": (
        {"a.c": '#include "b.h"\nint main() { go(); }\n', "b.h": "int go() { return 1; }\n"},
        "a.c",
    ),
    "java": (
        {
            "a/A.java": "import b.B;\nclass A { void main() { B.go(); } }\n",
            "b/B.java": "class B { static void go() {} }\n",
        },
        "a/A.java",
    ),
}


@pytest.mark.parametrize("language", LANGUAGES)
async def test_imports_and_calls_are_found_in_each_language(language: str, tmp_path: Path) -> None:
    files, source = LANGUAGES[language]
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    report = await deep(tmp_path, include_analyses=["dag", "ast"], dag_type="full-dependency")
    [target] = files.keys() - {source}
    kinds = {
        each["kind"]
        for each in report["analyses"]["dag"]["top_edges"]
        if (each["from"], each["to"]) == (source, target)
    }
    assert kinds == {"imports", "calls"}
    assert len(report["analyses"]["ast_contexts"]) == 2


async def test_interfaces_to_other_languages_are_listed(project: Path) -> None:
    write(
        project,
        native_rs='#[no_mangle]\npub extern "C" fn add(a: i32) -> i32 { a }\n',
        load_py="import ctypes\n# ctypes.CDLL('no.so')\nlib = ctypes.CDLL('libadd.so')\n",
    )
    report = await deep(project, include_analyses=["ast"])
    found = [
        (each["file"], each["line"], each["name"])
        for each in report["cross_language_references"]["references"]
    ]
    assert found == [("load.py", 3, "libadd.so"), ("native.rs", 2, "add")]


async def test_drift_from_templates_is_measured_by_digests(project: Path) -> None:
    def entry(content: str) -> dict[str, Any]:
        digest = "sha256:" + hashlib.sha256(content.encode()).hexdigest()
        uri = "template://makefile/rust/cli"
        return {"template": uri, "template_hash": "sha256:0", "content_hash": digest}

    record = {
        "format": 1,
        "files": {"main.py": entry(MAIN), "pack/used.py": entry("other"), "gone": entry("x")},
    }
    (project / ".substrate-templates.json").write_text(json.dumps(record))
    drift = (await deep(project, include_analyses=["ast"]))["template_provenance"]
    states = {each["file"]: each["state"] for each in drift["files"]}
    assert states == {"main.py": "unchanged", "pack/used.py": "changed", "gone": "deleted"}
    assert (drift["drifted"], drift["total"]) == (2, 3)
    # The templates are not registered here, so their state is unknown, not "unchanged".
    assert drift["files"][0]["template_state"].startswith("not measured: ")


@pytest.mark.parametrize(
    "record",
    [
        "{",
        '{"format": 2, "files": {}}',
        '{"format": 1, "files": {"../x": {}}}',
        '{"format": 1, "files": {"/etc/passwd": {}}}',
        '{"format": 1, "files": {"a": 3}}',
        '{"format": 1, "files": [1]}',
        "[" * 100_000,
    ],
)
async def test_an_invalid_record_of_templates_is_no_record(project: Path, record: str) -> None:
    (project / ".substrate-templates.json").write_text(record)
    drift = (await deep(project, include_analyses=["ast"]))["template_provenance"]
    assert drift.keys() == {"absent"}
    assert "invalid" in drift["absent"]


async def test_patterns_and_depth_select_files(project: Path) -> None:
    cases: list[tuple[dict[str, Any], set[str]]] = [
        ({"max_depth": 0}, {"main.py"}),
        ({"include_patterns": ["pack/**/*.py"]}, {"pack/__init__.py", "pack/used.py"}),
        ({"exclude_patterns": ["**/pack/**"]}, {"main.py"}),
    ]
    for params, expected in cases:
        report = await deep(project, include_analyses=["ast"], **params)
        assert {each["file"] for each in report["analyses"]["ast_contexts"]} == expected
        assert report["metadata"]["files"]["seen"] == 3


async def test_patterns_and_depth_select_the_files_of_the_churn(project: Path) -> None:
    commit(project)
    write(project, pack__used_py=USED + "x = 1\n")
    commit(project)
    cases: list[tuple[dict[str, Any], dict[str, int], int]] = [
        ({}, {"main.py": 1, "pack/__init__.py": 1, "pack/used.py": 2}, 2),
        ({"max_depth": 0}, {"main.py": 1}, 1),
        ({"include_patterns": ["pack/used.py"]}, {"pack/used.py": 2}, 2),
        ({"exclude_patterns": ["pack/**"]}, {"main.py": 1}, 1),
    ]
    for params, expected, commits in cases:
        report = await deep(project, include_analyses=["churn"], **params)
        churn = report["analyses"]["churn_analysis"]
        assert {each["file"]: each["commits"] for each in churn["files"]} == expected
        assert churn["summary"]["commits"] == commits


async def test_offline_measures_nothing_new(project: Path) -> None:
    unknown = await deep(project, cache_strategy="offline", include_analyses=["complexity"])
    known = await deep(project, include_analyses=["complexity"])
    again = await deep(project, cache_strategy="offline", include_analyses=["complexity"])
    assert unknown["summary"]["files"] == 0
    assert list(unknown["metadata"]["files"]["skipped"].values()) == [3]
    assert again["analyses"] == known["analyses"]


async def test_an_invalid_pattern_and_a_missing_folder_are_reported_together() -> None:
    async with analyst() as hub:
        error = await hub.error(
            "analyze_deep_context",
            project_path="/no/such",
            include_patterns=["!"],
            exclude_patterns=["x" * 501],
        )
    assert isinstance(error.data, dict)
    places = [each["at"] for each in error.data["errors"]]
    assert places == ["include_patterns", "exclude_patterns", "project_path"]
