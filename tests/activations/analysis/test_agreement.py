"""The figures of real projects are those that the analysers print on their own command lines."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from project_kit import analyst
from real_projects import PROJECTS, real_project

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

#: A function: its file, its last name, and a figure of it.
Figures = Counter[tuple[str, str, int]]


@pytest.fixture(params=PROJECTS)
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a copy of a project outside of our repository, whose git would list its files."""
    return Path(shutil.copytree(real_project(request.param), tmp_path / "project"))


def run(*command: str, folder: Path, codes: tuple[int, ...] = (0,)) -> str:
    """Return the output of a command of an analyser in a folder."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode in codes, done.stderr
    return done.stdout


def lizard(project: Path, *extensions: str) -> list[list[str]]:
    names = [
        each.relative_to(project).as_posix() for end in extensions for each in paths(project, end)
    ]
    listed = project.parent / "files"
    listed.write_text("\n".join(names))
    command = (sys.executable, "-m", "lizard", "--csv", "-f", str(listed))
    return list(csv.reader(run(*command, folder=project, codes=(0, 1)).splitlines()))


def paths(project: Path, extension: str) -> list[Path]:
    return sorted(project.rglob(f"*{extension}"))


def figures(report: Any, rule: str) -> Figures:
    return Counter(
        (each["file"], last_name(each["symbol"]), each["value"])
        for each in report["violations"]
        if each["rule"] == rule
    )


def last_name(name: str) -> str:
    return re.split(r"[.:]+", name)[-1]


async def test_complexity_is_that_of_lizard_and_complexipy(project: Path) -> None:
    async with analyst() as hub:
        report = await hub.complexity(
            project, top_files=0, max_cyclomatic=1, max_cognitive=1, max_bytes=1_000_000
        )
    assert "omitted" not in report
    rows = lizard(project, ".py", ".c")
    assert report["summary"]["functions"] == len(rows) > 0
    expected = Counter((row[6], last_name(row[7]), int(row[1])) for row in rows if int(row[1]) > 1)
    assert figures(report, "cyclomatic-complexity") == expected != Counter()
    output = project.parent / "complexipy.json"
    options = ("--no-ignore", "--isolated", "-q", "--max-complexity-allowed", "1000")
    cache = ("--cache-dir", str(project.parent / "cache"))
    output_options = ("--output-format", "json", "--output", str(output))
    program = str(Path(sys.executable).with_name("complexipy"))
    run(program, ".", *options, *cache, *output_options, folder=project)
    reported = [
        (each["path"].removeprefix("./"), last_name(each["function_name"]), each["complexity"])
        for each in json.loads(output.read_text())
    ]
    found = figures(report, "cognitive-complexity")
    python = Counter({key: count for key, count in found.items() if key[0].endswith(".py")})
    assert python == Counter(each for each in reported if each[2] > 1) != Counter()


async def test_unused_code_is_that_of_vulture(project: Path) -> None:
    async with analyst() as hub:
        report = await hub.report(
            "analyze_deep_context",
            project_path=str(project),
            include_analyses=["dead-code"],
            max_bytes=1_000_000,
        )
    command = (sys.executable, "-m", "vulture", "--min-confidence", "60", ".")
    printed = run(*command, folder=project, codes=(0, 3)).splitlines()
    found = report["analyses"]["dead_code"]
    assert found["total"] == len(found["items"]) == len(printed)
    assert sorted(
        f"{each['file']}:{each['line']}: {each['message']} ({each['confidence']}% confidence)"
        for each in found["items"]
    ) == sorted(printed)
