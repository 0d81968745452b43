"""The comparison of two commits: it tells changes from noise, and runs the code of each tree."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from bench import commits
from bench.commits import (
    BenchFailed,
    Row,
    changed_files,
    checked_out,
    compare_trees,
    render_rows,
    verdict,
)

#: A bench that reports what the file `speed` of its tree contains, without a limit and with one.
BENCH = """
import json, sys
arguments = sys.argv[1:]
measure = arguments[arguments.index("--only") + 1]
if measure == "fails":
    sys.exit("it broke")
if measure == "new" and not open("speed").read().startswith("2"):
    print("Error: no measure starts with 'new'.", file=sys.stderr)
    sys.exit(2)
value = {"median": float(open("speed").read())}
ratio = {"median": 1.0} if measure == "steady" else None
figures = [{"name": measure, "unit": "us", "ours": value, "ratio": ratio}]
json.dump({"figures": figures}, open(arguments[arguments.index("--json") + 1], "w"))
"""


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(("git", *identity, *arguments), cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Create a repository whose first commit takes 1 us, and whose working tree takes 2."""
    package = tmp_path / "bench"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(BENCH)
    (tmp_path / "speed").write_text("1")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    (tmp_path / "speed").write_text("2")
    return tmp_path


def test_each_tree_runs_its_own_code(repository: Path) -> None:
    with checked_out("HEAD", repository) as base:
        rows = list(compare_trees(base, repository, ["slow", "steady", "new"], 4, quick=True))
    assert [(row.name, row.base, row.new) for row in rows] == [
        ("slow", (1.0,) * 4, (2.0,) * 4),
        ("steady", (1.0,) * 4, (1.0,) * 4),
        ("new", (), (2.0,) * 4),
    ]
    assert [verdict(row) for row in rows] == ["slower", "noise", "only here"]
    assert not base.exists()
    listed = subprocess.run(
        ("git", "worktree", "list"), cwd=repository, check=True, capture_output=True, text=True
    )
    assert len(listed.stdout.splitlines()) == 1


def test_an_unknown_commit_and_a_failing_bench_are_errors(repository: Path) -> None:
    with pytest.raises(BenchFailed, match="nowhere"), checked_out("nowhere", repository):
        pass
    with (
        checked_out("HEAD", repository) as base,
        pytest.raises(BenchFailed, match="it broke"),
    ):
        list(compare_trees(base, repository, ["fails"], 4, quick=True))


@pytest.mark.parametrize(
    ("base", "new", "expected"),
    [
        ((1.0, 1.1, 1.2, 1.0, 9.0), (1.3, 1.4, 1.3, 1.5, 0.1), "slower"),
        ((1.3, 1.4, 1.3, 1.5), (1.0, 1.1, 1.2, 1.0), "faster"),
        ((1.0, 1.1, 1.2, 1.4, 1.3), (1.1, 1.3, 1.5, 1.2, 1.3), "noise"),
        ((1.0, 1.0, 1.0, 1.0), (1.02, 1.02, 1.02, 1.02), "noise"),
        ((1.0, 1.0, 1.0), (2.0, 2.0, 2.0), "too few rounds"),
        ((1.0,), (), "only in base"),
    ],
)
def test_a_row_has_moved_if_the_rounds_do_not_overlap(
    base: tuple[float, ...], new: tuple[float, ...], expected: str
) -> None:
    assert verdict(Row("row", "x L", base, new)) == expected


def test_a_change_of_the_bench_itself_is_named(repository: Path) -> None:
    assert changed_files("HEAD", "bench", repository) == []
    (repository / "bench" / "__init__.py").write_text("# changed")
    assert changed_files("HEAD", "bench", repository) == ["bench/__init__.py"]


def test_the_servers_of_a_benchmark_that_takes_too_long_are_killed(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = repository / "child"
    (repository / "bench" / "__main__.py").write_text(
        "import subprocess, sys, time\n"
        "server = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'])\n"
        f"open({str(child)!r}, 'w').write(str(server.pid))\n"
        "time.sleep(300)\n"
    )
    monkeypatch.setattr(commits, "MEASURE_S", 2.0)
    with pytest.raises(BenchFailed, match="took longer than 2 s"):
        list(compare_trees(repository, repository, ["slow"], 4, quick=True))
    until = time.monotonic() + 30
    while _is_alive(int(child.read_text())):
        assert time.monotonic() < until
        time.sleep(0.01)


def _is_alive(pid: int) -> bool:
    """Return whether a process exists and is no zombie that its new parent has not reaped."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_rows_that_moved_come_first() -> None:
    rows = [
        Row("same", "us", (1.0,) * 4, (1.0,) * 4),
        Row("better", "us", (2.0,) * 4, (1.0,) * 4),
        Row("worse", "us", (1.0,) * 4, (2.0,) * 4),
    ]
    table = render_rows(rows).splitlines()
    assert [line.split()[0] for line in table] == ["row", "worse", "better", "same"]
    assert table[1].split() == ["worse", "1", "2", "us", "+100.0%", "+0%", "to", "+0%", "slower"]
