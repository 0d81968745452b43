"""Findings of code analysis are among the diagnostics that an editor client gets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from editor_client import connected, editor_server

pytestmark = pytest.mark.timeout(180)

#: Sixteen branches, one more than the maximum, below a function without any.
COMPLEX = "def g():\n    return 1\n\n\ndef f(a):\n" + "".join(
    f"    if a == {number}:\n        return {number}\n" for number in range(16)
)
DEBT = "    # FIXME: é too many branches\n    return 0\n"


def test_findings_of_the_analysis_are_diagnostics_of_the_editor(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "a.py").write_text(COMPLEX + DEBT)
    settings = {"SUBSTRATE_IDE_CHECKERS": "analysis", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with editor_server(tmp_path, settings=settings) as server, connected(tmp_path) as peer:
        [text] = peer.tool("getDiagnostics", uri=(work / "a.py").as_uri())
        found = [each for file in json.loads(text) for each in file["diagnostics"]]
        with server.call("ide.status") as response:
            assert json.loads(response.read())["result"]["terminal"]["result"]["checkers"] == [
                "analysis"
            ]
    assert {each["source"] for each in found} == {"analysis"}
    by_code = {each["code"]: each for each in found}
    assert by_code.keys() == {"cyclomatic-complexity", "cognitive-complexity", "satd"}
    assert by_code["cyclomatic-complexity"]["range"]["start"] == {"line": 4, "character": 0}
    assert "complexity of 17; the maximum is 15" in by_code["cyclomatic-complexity"]["message"]
    debt = by_code["satd"]["range"]
    assert debt["start"] == {"line": 37, "character": 0}
    assert debt["end"] == {"line": 37, "character": 4 + len("# FIXME: é too many branches")}


def test_without_the_analysis_there_are_no_findings(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "a.rs").write_text("fn f() {} // FIXME: later\n")
    with editor_server(tmp_path, "--without", "analysis"), connected(tmp_path) as peer:
        [text] = peer.tool("getDiagnostics", uri=(work / "a.rs").as_uri())
    found = [each for file in json.loads(text) for each in file["diagnostics"]]
    assert [each["message"] for each in found] == ["There is no checker for rust files."]
