"""Start of worker processes, and collection of their output."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import IO

__all__ = ("start", "tell")

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def start(
    mode: str, database: Path, *arguments: str, output: IO[str] | int = subprocess.PIPE
) -> subprocess.Popen[str]:
    """Start a worker; depending on the mode it waits for `tell` or begins immediately."""
    return subprocess.Popen(
        [sys.executable, str(HERE / "arbor_worker.py"), mode, str(database), *arguments],
        stdin=subprocess.PIPE,
        stdout=output,
        text=True,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
    )


def tell(workers: list[subprocess.Popen[str]]) -> list[list[str]]:
    """Start all ready workers at the same time, and return the output lines of each."""
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("\n")
        worker.stdin.flush()
    outputs = [worker.communicate(timeout=50)[0].splitlines() for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * len(workers)
    return outputs
