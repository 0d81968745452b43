"""A scan of a project: worker processes list and measure its files at the same time.

Each queue has a bound, so a reader that is slow pauses the workers. A worker that does not report
in time is killed and replaced; the file that it was measuring is skipped with that reason.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, Final

from activations.analysis.worker_process import (
    Report,
    WorkerLost,
    WorkerProcess,
    WorkerSettings,
)
from activations.processes.process import Launcher
from plexus import Failed

__all__ = ("FILE_S", "MAX_WORKERS", "Scan")

#: Maximum number of worker processes of a run.
MAX_WORKERS: Final = 16
#: Seconds for the measurement of one file. A parser that hangs is killed.
FILE_S: Final = 20.0
#: Seconds for the next files of a listing, for example from a slow network disk.
LISTING_S: Final = 120.0
#: Seconds for a worker to write its cache at the end.
FINISH_S: Final = 2.0
#: Maximum files in one command to a worker, and their bytes: all workers end at about the same
#: time, and a reader sees files as they are measured.
BATCH_FILES: Final = 24
BATCH_BYTES: Final = 256 * 1024
#: Maximum batches that wait for a worker, and reports that wait for the reader.
QUEUED_BATCHES: Final = 64
QUEUED_REPORTS: Final = 256

Batch = list[tuple[str, str]]


class Scan:
    """The measurements of a project, as a stream of reports. Always await `close()`."""

    def __init__(
        self,
        launcher: Launcher,
        settings: WorkerSettings,
        workers: int,
        sections: Sequence[str],
        file_s: float = FILE_S,
    ) -> None:
        self._launcher = launcher
        self._settings = settings
        self._count = max(1, min(workers, MAX_WORKERS))
        self._sections = list(sections)
        self._file_s = file_s
        self._batches: asyncio.Queue[Batch | None] = asyncio.Queue(QUEUED_BATCHES)
        self._reports: asyncio.Queue[Report | BaseException | None] = asyncio.Queue(QUEUED_REPORTS)
        self._workers: set[WorkerProcess] = set()
        self._tasks: list[asyncio.Task[None]] = []

    def list_and_measure(self, options: dict[str, Any]) -> AsyncGenerator[Report, None]:
        """Yield reports: `skipped`, `file`, and `listed` when all files are known."""
        return self._stream(self._list(options))

    def measure(self, files: Batch) -> AsyncGenerator[Report, None]:
        """Yield the reports of these files only."""
        return self._stream(self._enqueue(files))

    async def _stream(self, source: Coroutine[Any, Any, None]) -> AsyncGenerator[Report, None]:
        self._tasks = [asyncio.create_task(self._guard(source))]
        self._tasks += [
            asyncio.create_task(self._guard(self._measure())) for _ in range(self._count)
        ]
        open_tasks = len(self._tasks)
        while open_tasks:
            report = await self._reports.get()
            if report is None:
                open_tasks -= 1
            elif isinstance(report, BaseException):
                raise report
            else:
                yield report

    async def close(self) -> None:
        """Stop all workers immediately."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._tasks = []

    async def _guard(self, work: Coroutine[Any, Any, None]) -> None:
        """Report the end of a task, or its error to the reader."""
        try:
            await work
        except (Failed, WorkerLost) as error:
            await self._reports.put(error if isinstance(error, Failed) else _lost(error))
        else:
            await self._reports.put(None)

    async def _list(self, options: dict[str, Any]) -> None:
        worker = await WorkerProcess.open(self._launcher, self._settings)
        try:
            batch: Batch = []
            languages: Counter[str] = Counter()
            size, count = 0, 0
            async with aclosing(worker.ask(LISTING_S, op="list", **options)) as reports:
                async for report in reports:
                    if report["op"] == "skipped":
                        await self._reports.put(report)
                        continue
                    for path, language, length in report["files"]:
                        batch.append((path, language))
                        size += length
                        count += 1
                        languages[language] += 1
                        if len(batch) >= BATCH_FILES or size >= BATCH_BYTES or count == 1:
                            await self._batches.put(batch)
                            batch, size = [], 0
            if batch:
                await self._batches.put(batch)
            await self._reports.put({"op": "listed", "files": count, "languages": dict(languages)})
        finally:
            await worker.close()
        await self._end_batches()

    async def _enqueue(self, files: Batch) -> None:
        for start in range(0, len(files), BATCH_FILES):
            await self._batches.put(files[start : start + BATCH_FILES])
        await self._end_batches()

    async def _end_batches(self) -> None:
        for _ in range(self._count):
            await self._batches.put(None)

    async def _measure(self) -> None:
        """Measure batches with one worker, which is replaced when it is lost."""
        worker = await WorkerProcess.open(self._launcher, self._settings)
        try:
            try:
                # While the files are listed, so that the first one is measured soon.
                async with aclosing(
                    worker.ask(LISTING_S, op="prepare", sections=self._sections)
                ) as reports:
                    async for _ in reports:
                        pass
            except WorkerLost:  # nothing depends on it; the next one prepares when it measures
                await worker.close()
                worker = await WorkerProcess.open(self._launcher, self._settings)
            while (batch := await self._batches.get()) is not None:
                while batch:
                    batch, lost = await self._measure_batch(worker, batch)
                    if lost:
                        if batch:
                            path, _ = batch.pop(0)
                            await self._reports.put({"op": "skipped", "path": path, "reason": lost})
                        await worker.close()
                        worker = await WorkerProcess.open(self._launcher, self._settings)
            await worker.finish(FINISH_S)
        finally:
            await worker.close()

    async def _measure_batch(self, worker: WorkerProcess, batch: Batch) -> tuple[Batch, str]:
        """Measure a batch. Returns the rest, and why the worker was lost, if it was."""
        done = 0
        command: dict[str, Any] = {"op": "measure", "files": batch, "sections": self._sections}
        try:
            async with aclosing(worker.ask(self._file_s, **command)) as reports:
                async for report in reports:
                    done += 1
                    await self._reports.put(report)
        except WorkerLost as error:
            return batch[done:], f"the analyser was lost: {error}"[:200]
        return [], ""


def _lost(error: WorkerLost) -> Failed:
    return Failed(f"The files cannot be listed: {error}", code="analysis_failed")
