"""The tables of docs/analysis.md are those of the program, and a report can be piped."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from child_processes import clean_environment
from documents import ROOT

from activations.analysis import activation, complexity, file_tree, scan, worker_process
from activations.analysis.activation import Analysis
from activations.analysis.worker import cache, debt, file_list, source_file

pytestmark = pytest.mark.timeout(120)

DOCUMENT = (ROOT / "docs" / "analysis.md").read_text()
MIB = 1024 * 1024
LIMITS = {
    "source file": f"{source_file.MAX_FILE_BYTES // MIB} MiB; larger ones are skipped",
    "files of an analysis": f"{file_list.MAX_FILES:,}",
    "time for one file": f"{scan.FILE_S:g} s; past it its worker is killed and the file is skipped",
    "memory of a worker": f"{worker_process.MEMORY_BYTES // (1024 * MIB)} GiB",
    "workers": f"{scan.MAX_WORKERS}",
    "findings in a report": f"{complexity.MAX_FINDINGS:,}; all are counted",
    "nodes of the file tree": f"{file_tree.MAX_NODES:,}",
    "cache": (
        f"{cache.MAX_CACHE_BYTES // MIB} MiB; the entries unused for the longest time are deleted "
        "first"
    ),
    "run": f"{activation.RUN_S / 3600:g} h",
}


def rows(heading: str) -> dict[str, str]:
    """Return the table below a heading."""
    section = re.split(r"^#+ ", DOCUMENT.partition(f" {heading}\n")[2], maxsplit=1, flags=re.M)[0]
    return dict(re.findall(r"^\| (.+?) \| (.+?) \|$", section, re.M))


def test_the_table_of_limits_is_that_of_the_program() -> None:
    assert rows("Know what is skipped") == LIMITS


@pytest.mark.parametrize(
    ("heading", "name"),
    [("Complexity", "analyze_complexity"), ("Deep context", "analyze_deep_context")],
)
def test_the_tables_of_parameters_have_all_of_them(heading: str, name: str) -> None:
    documented = {
        each for names in rows(heading) for each in re.findall(r"`(\w+)`", names) if names != "|"
    }
    expected = inspect.signature(getattr(Analysis, name)).parameters.keys() - {"self", "ctx"}
    assert documented == expected


def test_the_keywords_of_debt_are_those_of_the_program() -> None:
    text = rows("Read the figures")["admitted debt (`satd`)"]
    for severity, words in debt.SEVERITIES.items():
        assert f"{', '.join(words)} " in text, severity


def test_the_report_alone_is_written_to_the_standard_output(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def f(a):\n" + "    if a:\n        a = 1\n" * 20)
    arguments = ("analysis.analyze_complexity", str(tmp_path), "auto")
    done = subprocess.run(
        [sys.executable, "-m", "substrate", "call", "--local", *arguments],
        env=clean_environment(HOME=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    report = json.loads(done.stdout)
    assert report["summary"]["max_cyclomatic"] == 21
    assert "a.py:1: warning: f has a cyclomatic complexity of 21" in done.stderr
