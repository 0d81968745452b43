"""One worker process, seen from the server: a command to it, and its reports.

The process is supervised: it is killed with its children when it is closed, when the run is
cancelled, and when the server is killed.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Final

from activations.processes.process import CannotStart, Command, Launcher, Process
from plexus import Failed
from plexus.caller_environment import caller_variables
from plexus.rpc import wire

__all__ = ("INSTALL", "Report", "WorkerLost", "WorkerProcess", "WorkerSettings")

Report = dict[str, Any]

INSTALL: Final = "pip install 'plexus-substrate[analysis]'"
#: Maximum bytes of one report: a file of a mebibyte has at most some ten thousand functions.
REPORT_BYTES: Final = 16 * 1024 * 1024
#: Seconds for the exit of a process that has closed its output.
EXIT_S: Final = 1.0
#: Characters of the standard error that an error quotes.
COMPLAINT_CHARACTERS: Final = 500
#: Memory that a worker can allocate. Past it, the file is skipped.
MEMORY_BYTES: Final = 2 * 1024**3
_ROOT: Final = Path(__file__).parents[2]
_PROGRAM: Final = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from activations.analysis.worker.program import main; main(*sys.argv[2:])"
)


class WorkerLost(Exception):
    """The process has ended, or has not reported within the deadline."""


class WorkerSettings:
    """What all workers of a run have in common."""

    __slots__ = ("cache", "root", "strategy")

    def __init__(self, root: str, cache: str, strategy: str) -> None:
        self.root = root
        #: The path of the cache; empty if there is none.
        self.cache = cache
        self.strategy = strategy


class WorkerProcess:
    """A running worker. Always await `close()`."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._rest = bytearray()
        self._lines: list[bytes] = []
        self._complaint = ""
        self._stderr = asyncio.create_task(self._read_stderr())

    @classmethod
    async def open(cls, launcher: Launcher, settings: WorkerSettings) -> WorkerProcess:
        """Start a worker. Raises Failed."""
        arguments = (sys.executable, "-I", "-c", _PROGRAM, str(_ROOT))
        command = Command(
            (*arguments, settings.root, settings.cache, settings.strategy),
            "/",
            caller_variables(),
            {"CORE": 0, "DATA": MEMORY_BYTES},
        )
        try:
            return cls(await launcher.start(command, b"", stdin_stays_open=True))
        except (CannotStart, OSError, ValueError) as error:
            raise Failed(f"A worker cannot be started: {error}", code="spawn_failed") from error

    async def ask(self, deadline_s: float, **command: Any) -> AsyncGenerator[Report, None]:
        """Yield the reports of a command. Close the iterator to leave the worker unusable.

        Raises WorkerLost, and Failed if the command failed.
        """
        if self._process.stdin is not None:
            await self._process.stdin.write(wire.encode(command) + b"\n")
        while True:
            report = await self._next(deadline_s)
            kind = report["op"]
            if kind == "done":
                return
            if kind == "failed":
                raise _failure(report)
            yield report

    async def _next(self, deadline_s: float) -> Report:
        """Return the next report. Raises WorkerLost if there is none within the deadline."""
        try:
            async with asyncio.timeout(deadline_s):
                while not self._lines:
                    data = await self._process.stdout.read()
                    if not data:
                        raise WorkerLost(await self._loss())
                    self._rest += data
                    if b"\n" in data:
                        *lines, self._rest = self._rest.split(b"\n")
                        self._lines = [bytes(line) for line in reversed(lines)]
                    elif len(self._rest) > REPORT_BYTES:
                        raise WorkerLost("a report is too large")
        except TimeoutError as error:
            raise WorkerLost(f"no report within {deadline_s:g} s") from error
        report: Report = wire.decode_trusted(self._lines.pop())
        return report

    async def _loss(self) -> str:
        """Return why a worker has ended."""
        self._process.expire_after(EXIT_S)
        await self._process.wait()
        code = self._process.returncode
        if code is None:
            return "it was killed"
        if code < 0:
            return f"it was ended by signal {-code}"
        return f"it exited with code {code}: {self._complaint.strip()}"

    async def close(self) -> None:
        """Kill the process tree and release all resources."""
        self._stderr.cancel()
        await self._process.end()

    async def finish(self, seconds: float) -> None:
        """Close the input, and wait a little until the worker has written its cache."""
        if self._process.stdin is not None:
            self._process.stdin.finish()
        self._process.expire_after(seconds)
        await self._process.wait()

    async def _read_stderr(self) -> None:
        async for data in self._process.stderr:
            text = self._complaint + data.decode(errors="backslashreplace")
            self._complaint = text[-COMPLAINT_CHARACTERS:]


def _failure(report: Report) -> Failed:
    if "missing" in report:
        return Failed(
            f"The package {report['missing']} is not installed. Code analysis needs the extra "
            f"`analysis`: {INSTALL}.",
            code="extra_missing",
            data={"extra": "analysis", "missing": report["missing"]},
        )
    return Failed(str(report["reason"]), code="analysis_failed")
