"""Churn: the figures are those of git, and nothing that a repository configures is executed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from project_kit import analyst, commit, git, write

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.usefixtures("cache")]


def rows(report: Any) -> dict[str, dict[str, Any]]:
    return {each["file"]: each for each in report["files"]}


async def test_a_commit_more_moves_the_churn(tmp_path: Path) -> None:
    write(tmp_path, a_py="x = 1\n", b_py="y = 1\n")
    commit(tmp_path)
    async with analyst() as hub:
        before = await hub.report("analyze_code_churn", project_path=str(tmp_path))
        write(tmp_path, a_py="x = 1\nz = 2\n")
        commit(tmp_path)
        after = await hub.report("analyze_code_churn", project_path=str(tmp_path))
    assert after["summary"]["commits"] == before["summary"]["commits"] + 1
    assert rows(before)["a.py"]["commits"] == 1
    assert rows(after)["a.py"]["commits"] == 2
    assert rows(after)["a.py"]["additions"] == 2
    assert rows(after)["b.py"] == rows(before)["b.py"]
    assert sum(each["commits"] for each in after["over_time"]) == 2
    [measured] = after["metadata"]["measurements"]
    assert (measured["analyser"], measured["count"]) == ("git", 2)
    assert measured["version"] in git(tmp_path, "--version")


async def test_only_the_period_counts(tmp_path: Path) -> None:
    write(tmp_path, a_py="x = 1\n")
    commit(tmp_path, when=f"@{int(time.time()) - 40 * 86_400} +0000")
    write(tmp_path, a_py="x = 2\n")
    commit(tmp_path)
    async with analyst() as hub:
        month = await hub.report("analyze_code_churn", project_path=str(tmp_path))
        more = await hub.report("analyze_code_churn", project_path=str(tmp_path), period_days=50)
        century = await hub.report(
            "analyze_code_churn", project_path=str(tmp_path), period_days=36_500
        )
    assert (month["summary"]["commits"], more["summary"]["commits"]) == (1, 2)
    assert century["summary"]["commits"] == 2
    assert sum(each["commits"] for each in century["over_time"]) == 2


async def test_changes_of_merged_branches_count_in_the_repository_and_in_its_folders(
    tmp_path: Path,
) -> None:
    write(tmp_path, lib__a_py="x = 1\n")
    commit(tmp_path)
    git(tmp_path, "checkout", "-q", "-b", "side")
    write(tmp_path, lib__a_py="x = 2\n")
    commit(tmp_path)
    git(tmp_path, "checkout", "-q", "-")
    git(tmp_path, "merge", "-q", "--no-ff", "-s", "ours", "-m", "merge", "side")
    git(tmp_path, "config", "log.showRoot", "false")
    async with analyst() as hub:
        whole = await hub.report("analyze_code_churn", project_path=str(tmp_path))
        part = await hub.report("analyze_code_churn", project_path=str(tmp_path / "lib"))
    assert {name: row["commits"] for name, row in rows(whole).items()} == {"lib/a.py": 2}
    assert {name: row["commits"] for name, row in rows(part).items()} == {"a.py": 2}


async def test_a_renamed_file_keeps_its_changes(tmp_path: Path) -> None:
    write(tmp_path, old_py="".join(f"line {number}\n" for number in range(20)))
    commit(tmp_path)
    git(tmp_path, "mv", "old.py", "new\nname.py")
    commit(tmp_path)
    async with analyst() as hub:
        report = await hub.report("analyze_code_churn", project_path=str(tmp_path))
    assert {name: row["commits"] for name, row in rows(report).items()} == {"new\nname.py": 2}


async def test_the_figures_are_those_of_git(tmp_path: Path) -> None:
    for number in range(30):
        write(tmp_path, **{f"f{number % 7}_py": f"{number}\n" * (number % 5 + 1)})
        (tmp_path / "binary").write_bytes(bytes([0, number]))
        commit(tmp_path)
    async with analyst() as hub:
        report = await hub.report("analyze_code_churn", project_path=str(tmp_path))
    expected: dict[str, list[int]] = {}
    for line in git(tmp_path, "log", "--numstat", "--format=").splitlines():
        if line:
            added, deleted, name = line.split("\t")
            row = expected.setdefault(name, [0, 0, 0])
            row[0] += 1
            row[1] += int(added.replace("-", "0"))
            row[2] += int(deleted.replace("-", "0"))
    found = {
        name: [row["commits"], row["additions"], row["deletions"]]
        for name, row in rows(report).items()
    }
    assert found == expected
    assert report["summary"]["binary_changes"] == 30


@pytest.mark.parametrize("state", ["no repository", "no commit"])
async def test_without_a_history_there_is_an_error_and_no_figure(
    state: str, tmp_path: Path
) -> None:
    if state == "no commit":
        git(tmp_path, "init", "-q")
    async with analyst() as hub:
        error = await hub.error("analyze_code_churn", project_path=str(tmp_path))
    assert error.code == "no_history"


async def test_programs_that_a_repository_configures_are_not_started(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    write(project, a_py="def f():\n    return 1\n")
    (project / ".gitattributes").write_text("*.py diff=own filter=own\n")
    commit(project)
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\ncat\n")
    trap.chmod(0o755)
    for name in (
        *("core.fsmonitor", "core.pager", "core.sshCommand", "diff.external"),
        *("diff.own.textconv", "diff.own.command", "filter.own.clean", "filter.own.smudge"),
        *("gpg.program", "core.editor", "core.askPass", "credential.helper"),
    ):
        git(project, "config", name, str(trap))
    git(project, "config", "log.showSignature", "true")
    git(project, "config", "core.hooksPath", str(tmp_path))
    write(project, a_py="def f():\n    return 2\n")  # differs from the index
    async with analyst() as hub:
        churn = await hub.report("analyze_code_churn", project_path=str(project))
        complexity = await hub.complexity(project)
    assert churn["summary"]["commits"] == 1
    assert complexity["summary"]["functions"] == 1
    assert not (tmp_path / "sprung").exists()


async def test_working_trees_are_not_counted_twice(tmp_path: Path) -> None:
    write(tmp_path, a_py="def f():\n    return 1\n")
    commit(tmp_path)
    git(tmp_path, "worktree", "add", "-q", "trees/other")
    write(tmp_path, nested__b_py="def g():\n    return 1\n")
    git(tmp_path / "nested", "init", "-q")
    async with analyst() as hub:
        inside = await hub.complexity(tmp_path)
        (tmp_path / ".git").rename(tmp_path / "moved")
        outside = await hub.complexity(tmp_path)
    assert inside["summary"]["functions"] == 1
    skipped = inside["metadata"]["files"]["skipped"]
    assert skipped == {"nested repository or working tree": 2}
    assert outside["summary"]["functions"] == 2  # a folder of projects, without the working tree
