"""Measures of code analysis: a tree of files next to lizard's own command, and a long history.

The files are those of the standard library of this Python, with a different last line in each. The
limit of the complexity is `lizard` on all cores, which measures no cognitive complexity; that of
the history is `git log`, whose output is discarded.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any, Final

from bench.measure import Effort, Figure, Target, compare, single
from bench.servers import ROOT

__all__ = ("complexity", "history", "memory")

#: Sizes of the files that are copied.
SIZES: Final = range(500, 40_000)
CORES: Final = len(os.sched_getaffinity(0))
TIMEOUT_S: Final = 1800
#: Runs a call in a new process, with the cache folder of its environment. Prints what it measured.
PROGRAM: Final = """
import asyncio, json, resource, sys
from bench.analysis import call_once
method, arguments, runs = json.loads(sys.argv[1])
found = asyncio.run(call_once(method, arguments, runs))
whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
print(json.dumps([found, [resource.getrusage(each).ru_maxrss / 1024 for each in whose]]))
"""


def complexity(effort: Effort) -> list[Figure]:
    """Measure the complexity of a tree of files: without a cache, with it, and the first event."""
    ours, limit, cached, first = [], [], [], []
    with _tree(effort.analysed_files) as tree:
        lizard = (sys.executable, "-m", "lizard", "-l", "python", "-t", str(CORES), str(tree))
        arguments = {"project_path": str(tree), "toolchain": "python"}
        for _ in range(effort.analysis_rounds):
            [cold, warm], _ = _measure("analyze_complexity", arguments, runs=2)
            ours.append(cold["seconds"])
            cached.append(warm["seconds"] / cold["seconds"])
            first.append(cold["first_ms"])
            limit.append(_seconds(lizard))
    files = f"{effort.analysed_files:,} Python files"
    return [
        compare(
            "analysis_complexity",
            "s",
            ours,
            limit,
            Target("ratio", round(1 / 0.7, 2)),
            f"{files}; L is `lizard -t {CORES}`, without cognitive complexity",
        ),
        single(
            "analysis_cached",
            "of first",
            cached,
            Target("value", 0.1),
            f"{files}, the second run as a share of the first",
        ),
        single("analysis_first", "ms", first, Target("value", 300), "the first `file` event"),
    ]


def memory(effort: Effort) -> list[Figure]:
    """Measure the peak memory of the server with a tenth of the files, and with all of them."""
    peaks: dict[int, list[list[float]]] = {}
    for count in (effort.analysed_files // 10, effort.analysed_files):
        with _tree(count) as tree:
            arguments = {"project_path": str(tree), "toolchain": "python", "top_files": 10}
            peaks[count] = [
                _measure("analyze_complexity", arguments, runs=1)[1]
                for _ in range(effort.analysis_rounds)
            ]
    few, many = peaks.values()
    note = f"{effort.analysed_files:,} Python files; L is a tenth of them"
    return [
        compare(
            f"analysis_memory_{name}",
            "MiB",
            [each[place] for each in many],
            [each[place] for each in few],
            Target("ratio", 1.1),
            f"peak of {text}, {note}",
        )
        for place, (name, text) in enumerate(
            (("server", "the server"), ("worker", "the largest worker"))
        )
    ]


def history(effort: Effort) -> list[Figure]:
    """Measure the churn of a long history."""
    ours, limit = [], []
    with tempfile.TemporaryDirectory() as folder:
        _write_history(Path(folder), effort.history_commits)
        git = (
            "git",
            "-C",
            folder,
            "log",
            "--numstat",
            "-z",
            "-M",
            "--no-merges",
            "--format=%ct%aE",
        )
        arguments = {"project_path": folder, "period_days": 3650}
        for _ in range(effort.analysis_rounds):
            [found], _ = _measure("analyze_code_churn", arguments, runs=1)
            if found["report"]["summary"]["commits"] != effort.history_commits:
                raise OSError(f"not all commits were counted: {found['report']['summary']}")
            ours.append(found["seconds"])
            limit.append(_seconds(git))
    note = f"{effort.history_commits:,} commits; L is `git log --numstat` into /dev/null"
    return [compare("analysis_history", "s", ours, limit, None, note)]


async def call_once(method: str, arguments: dict[str, Any], runs: int) -> list[dict[str, Any]]:
    """Call a method some times in one hub. Returns the times and the report of each call."""
    # Imported here, because the other measures need no activation in their process.
    from activations.analysis.activation import Analysis
    from plexus import Plexus
    from plexus.events import Data

    hub = Plexus()
    hub.register(Analysis())
    found: list[dict[str, Any]] = []
    try:
        for _ in range(runs):
            started = time.perf_counter()
            first_ms = 0.0
            report: Any = None
            call = hub.call(f"analysis.{method}", arguments)
            async with aclosing(call.run.batches(call.after, owner=call.owned)) as batches:
                async for batch in batches:
                    for event in batch.events:
                        if event.type == "file" and not first_ms:
                            first_ms = (time.perf_counter() - started) * 1000
                        elif isinstance(event, Data):
                            report = event.value
            seconds = time.perf_counter() - started
            if report is None:
                raise OSError(f"{method} ended without a report: {event}")
            found.append({"seconds": seconds, "first_ms": first_ms, "report": report})
    finally:
        await hub.close()
    return found


def _measure(
    method: str, arguments: dict[str, Any], runs: int
) -> tuple[list[dict[str, Any]], list[float]]:
    """Call a method in a new process with an empty cache. Returns the results and the peaks."""
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            (sys.executable, "-c", PROGRAM, json.dumps([method, arguments, runs])),
            cwd=ROOT,
            env={**os.environ, "XDG_CACHE_HOME": cache},
            stdout=subprocess.PIPE,
            timeout=TIMEOUT_S,
            check=True,
        )
    found, peaks = json.loads(done.stdout)
    return found, peaks


def _seconds(command: tuple[str, ...]) -> float:
    started = time.perf_counter()
    # lizard exits with 1 if a function exceeds its thresholds.
    subprocess.run(command, stdout=subprocess.DEVNULL, timeout=TIMEOUT_S, check=False)
    return time.perf_counter() - started


@contextmanager
def _tree(count: int) -> Iterator[Path]:
    """Write a tree of Python files, which all differ."""
    library = Path(sysconfig.get_paths()["stdlib"])
    sources = [
        path.read_bytes()
        for path in sorted(library.rglob("*.py"))
        if not {"site-packages", "test", "tests"} & set(path.parts) and path.stat().st_size in SIZES
    ]
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            path = Path(folder, f"part{number // 100}", f"module{number}.py")
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(sources[number % len(sources)] + f"\nNUMBER = {number}\n".encode())
        yield Path(folder)


def _write_history(folder: Path, commits: int) -> None:
    """Write a repository whose commits each change one of a thousand files, a minute apart."""
    subprocess.run(("git", "init", "-q", str(folder)), check=True, timeout=60)
    begin = int(time.time()) - commits * 60
    with subprocess.Popen(
        ("git", "-C", str(folder), "fast-import", "--quiet"), stdin=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        for number in range(commits):
            content = f"x = {number}\n"
            process.stdin.write(
                f"commit refs/heads/master\n"
                f"committer A <a{number % 50}@example.org> {begin + number * 60} +0000\n"
                f"data 1\nc\nM 100644 inline src/f{number % 1000}.py\n"
                f"data {len(content)}\n{content}\n".encode()
            )
        process.stdin.close()
        if process.wait(TIMEOUT_S) != 0:
            raise OSError("git fast-import has failed")
