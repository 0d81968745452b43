"""The comparison of two commits: their benchmarks take turns on one machine.

Each round runs the benchmark of both trees, each with its own code and its own bench, in separate
processes. A row has moved if the rounds of the two do not overlap, apart from the most distant
one of each, and their medians differ by more than 3 %; everything else is noise.
"""

from __future__ import annotations

import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from bench.servers import ROOT

__all__ = (
    "MIN_ROUNDS",
    "BenchFailed",
    "Row",
    "changed_files",
    "checked_out",
    "compare_trees",
    "render_rows",
    "verdict",
)

#: Smaller differences are not reported, even if every round shows them.
SMALLEST_CHANGE: Final = 0.03
#: Fewer rounds cannot tell a change from noise.
MIN_ROUNDS: Final = 4
#: Deadline of one measure of one tree.
MEASURE_S: Final = 900.0
GIT_S: Final = 60.0


class BenchFailed(Exception):
    """A tree could not be checked out, or a benchmark failed or exceeded its deadline."""


class Row(NamedTuple):
    """A row of both trees: the values of their rounds, as ratios to the limit if there is one."""

    name: str
    unit: str
    base: tuple[float, ...]
    new: tuple[float, ...]

    @property
    def change(self) -> float:
        """The relative difference of the medians; 0.1 means that the new tree needs 10 % more."""
        before = statistics.median(self.base)
        after = statistics.median(self.new)
        return after / before - 1 if before else math.inf if after else 0.0


def verdict(row: Row) -> str:
    """Return "slower", "faster", "noise", or what is missing."""
    if not row.base:
        return "only here"
    if not row.new:
        return "only in base"
    if min(len(row.base), len(row.new)) < MIN_ROUNDS:
        return "too few rounds"
    if abs(row.change) <= SMALLEST_CHANGE:
        return "noise"
    (low, high), (new_low, new_high) = _range(row.base), _range(row.new)
    if new_low > high:
        return "slower"
    return "faster" if new_high < low else "noise"


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Return the lowest and the highest value, without the one that is farthest from the median."""
    middle = statistics.median(values)
    kept = sorted(values, key=lambda value: abs(value - middle))[:-1]
    return min(kept), max(kept)


@contextmanager
def checked_out(commit: str, repository: Path = ROOT) -> Iterator[Path]:
    """Check a commit out into a temporary folder. Raises BenchFailed."""
    found = _git(repository, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
    with tempfile.TemporaryDirectory(prefix="bench-base-") as folder:
        tree = Path(folder) / "tree"
        _git(repository, "worktree", "add", "--quiet", "--detach", str(tree), found)
        try:
            yield tree
        finally:
            _git(repository, "worktree", "remove", "--force", str(tree))


def changed_files(commit: str, folder: str, repository: Path = ROOT) -> list[str]:
    """Return the files of a folder that differ between a commit and the working tree."""
    return _git(repository, "diff", "--name-only", commit, "--", folder).splitlines()


def _git(repository: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ("git", "-C", str(repository), *arguments),
            capture_output=True,
            text=True,
            timeout=GIT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        shown = (getattr(error, "stderr", "") or str(error)).strip()
        raise BenchFailed(f"git {arguments[0]} {arguments[-1]}: {shown or 'not found'}") from error
    return done.stdout.strip()


def compare_trees(
    base: Path, new: Path, measures: Sequence[str], rounds: int, *, quick: bool
) -> Iterator[Row]:
    """Run each measure of both trees in turn, and yield its rows. Raises BenchFailed."""
    for measure in measures:
        units: dict[str, str] = {}
        taken: dict[str, tuple[list[float], list[float]]] = {}
        for number in range(rounds):
            sides = [(base, 0), (new, 1)]
            for tree, side in sides if number % 2 == 0 else reversed(sides):
                for name, (unit, value) in _measure(tree, measure, quick=quick).items():
                    units[name] = unit
                    taken.setdefault(name, ([], []))[side].append(value)
        for name, (before, after) in taken.items():
            yield Row(name, units[name], tuple(before), tuple(after))


def _measure(tree: Path, measure: str, *, quick: bool) -> Mapping[str, tuple[str, float]]:
    """Run one measure of a tree. Returns unit and value by row; empty if the tree lacks it."""
    with tempfile.NamedTemporaryFile(suffix=".json") as result:
        command = [sys.executable, "-m", "bench", "--only", measure, "--json", result.name]
        code, errors = _run(command + ["--quick"] * quick, tree, measure)
        if code == 2 and "no measure starts with" in errors:
            return {}
        if code != 0:
            raise BenchFailed(f"{measure} failed in {tree}:\n{errors.strip()[-2000:]}")
        figures = json.loads(Path(result.name).read_bytes())["figures"]
    return {figure["name"]: _value(figure) for figure in figures}


def _run(command: Sequence[str], tree: Path, measure: str) -> tuple[int, str]:
    """Run a benchmark with its servers. Returns its exit code and standard error output."""
    with subprocess.Popen(
        command,
        cwd=tree,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            _, errors = process.communicate(timeout=MEASURE_S)
        except subprocess.TimeoutExpired as error:
            raise BenchFailed(f"{measure} took longer than {MEASURE_S:g} s.") from error
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, errors


def _value(figure: Mapping[str, dict[str, float] | None]) -> tuple[str, float]:
    ratio, ours = figure["ratio"], figure["ours"]
    if ratio is not None:
        return "x L", ratio["median"]
    assert ours is not None
    return str(figure["unit"]), ours["median"]


def render_rows(rows: Sequence[Row]) -> str:
    """Return the rows as a table, those that moved first, with the noise of the base's rounds."""
    order = {"slower": 0, "faster": 1}
    judged = sorted(((verdict(row), row) for row in rows), key=lambda each: order.get(each[0], 2))
    lines = [("row", "base", "here", "unit", "change", "rounds", "verdict")]
    lines += [
        (
            row.name,
            _middle(row.base),
            _middle(row.new),
            row.unit,
            f"{row.change:+.1%}" if row.base and row.new else "-",
            _spread(row.base or row.new),
            word,
        )
        for word, row in judged
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def _spread(values: Sequence[float]) -> str:
    """Return how far apart the rounds of one tree are, which is the noise."""
    low, high = _range(values) if len(values) > 1 else (values[0], values[0])
    middle = statistics.median(values)
    return f"{low / middle - 1:+.0%} to {high / middle - 1:+.0%}" if middle else "-"


def _middle(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3g}" if values else "-"
