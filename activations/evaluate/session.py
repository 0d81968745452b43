"""A session: one worker process, one evaluation at a time, and the history of evaluations.

An evaluation that is left early, by a timeout or because its run was cancelled, is interrupted. If
it does not end within the grace period, its process is killed: the variables are then lost, which
the next evaluation reports.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, Literal

from activations.evaluate.events import Cell, SessionInfo
from activations.evaluate.worker_process import Report, WorkerProcess
from plexus import Failed
from plexus.errors import DeadlineExceeded
from plexus.runtime.log import wall_ms

__all__ = ("Session",)

#: Seconds that an interrupted evaluation has to end. Less than what the hub allows a cancelled run.
GRACE_S: Final = 3.0
#: Evaluations in the history of a session, and characters of code in each.
HISTORY_CELLS: Final = 200
CODE_CHARACTERS: Final = 20_000

#: What an evaluation shows first if the process of its session had ended before.
RESTARTED: Final = "[the process of the session had ended; a new one begins without variables]\n"

CellState = Literal["succeeded", "failed", "interrupted"]


class Session:
    """A named worker with its evaluations."""

    def __init__(
        self,
        name: str,
        interpreter: str,
        open_worker: Callable[[], Awaitable[WorkerProcess]],
        on_change: Callable[[SessionInfo | Cell], None],
    ) -> None:
        self.name = name
        self.interpreter = interpreter
        self._open_worker = open_worker
        self._on_change = on_change
        self._worker: WorkerProcess | None = None
        #: One evaluation at a time; a lock serves its waiters in their order.
        self._turn = asyncio.Lock()
        self._number: int | None = None
        self._is_timed_out = False
        self.count = 0
        self.run: int | None = None
        self.started_ms = self.last_used_ms = wall_ms(time.monotonic())
        self.history: deque[Cell] = deque(maxlen=HISTORY_CELLS)

    @property
    def is_busy(self) -> bool:
        """Whether an evaluation is in progress or waits."""
        return self._turn.locked()

    @property
    def is_lost(self) -> bool:
        """Whether the process has ended without being asked to."""
        return self._worker is not None and self._worker.is_lost

    def info(self) -> SessionInfo:
        """Describe the session."""
        facts: Report = {} if self._worker is None else self._worker.facts
        return SessionInfo(
            session=self.name,
            state="busy" if self.run is not None else "idle",
            python=str(facts.get("version", "")),
            interpreter=self.interpreter,
            directory=str(facts.get("cwd", "")),
            executions=self.count,
            started_ms=self.started_ms,
            last_used_ms=self.last_used_ms,
            run=self.run,
        )

    async def evaluate(
        self, code: str, timeout_s: float | None, run: int, client: str | None
    ) -> AsyncGenerator[Report]:
        """Execute code and yield its reports; the first describes the start, the last the end.

        Raises Failed if the process is lost, and DeadlineExceeded after the timeout.
        """
        async with self._turn:
            was_lost = self.is_lost
            worker = await self._ready_worker()
            self.count += 1
            self.run = run
            self.last_used_ms = wall_ms(time.monotonic())
            cell = Cell(
                self.name,
                self.count,
                run,
                code[:CODE_CHARACTERS],
                "running",
                wall_ms(time.monotonic()),
                client,
            )
            self._change(cell)
            state: CellState = "interrupted"
            error: str | None = None
            duration_ms: float | None = None
            reports = worker.begin()
            self._is_timed_out = False
            self._number = await worker.run(code, self.count)
            timer = None
            if timeout_s is not None:
                timer = asyncio.get_running_loop().call_later(timeout_s, self._on_timeout, worker)
            try:
                yield {"op": "start", "count": self.count, "version": worker.facts.get("version")}
                if was_lost:
                    yield {"op": "stderr", "text": RESTARTED}
                while True:
                    report = await reports.get()
                    kind = report.get("op")
                    if kind == "lost":
                        self._number = None
                        state, error = "failed", "the process of the session has ended"
                        await self.close()  # the error reports it, not the next evaluation
                        raise _did_not_stop(timeout_s) if self._is_timed_out else worker.loss()
                    if kind == "error":
                        error = str(report.get("name"))
                        is_interrupt = error == "KeyboardInterrupt"
                        state = "interrupted" if is_interrupt else "failed"
                        if is_interrupt and self._is_timed_out:
                            continue  # the timeout is reported instead
                    if kind != "done":
                        yield report
                        continue
                    self._number = None
                    duration_ms = float(report.get("duration_ms") or 0)
                    await worker.drain_stderr()
                    while not reports.empty():
                        yield reports.get_nowait()
                    if error is None:
                        state = "succeeded"
                    if self._is_timed_out:
                        raise _timed_out(timeout_s)
                    yield report
                    return
            finally:
                if timer is not None:
                    timer.cancel()
                worker.end()
                if self._number is not None:
                    await self._leave(worker)
                self._number = self.run = None
                self.last_used_ms = wall_ms(time.monotonic())
                self._change(
                    Cell(
                        *(self.name, cell.execution, run, cell.code, state, cell.started_ms),
                        client=client,
                        duration_ms=duration_ms,
                        error=error,
                    )
                )

    async def answer(self, text: str | None) -> None:
        """Answer the `input()` of the evaluation in progress."""
        if self._worker is not None:
            await self._worker.answer(text)

    async def interrupt(self) -> bool:
        """Interrupt the evaluation in progress. Returns whether there was one."""
        if self._worker is None or self._number is None:
            return False
        await self._worker.interrupt(self._number)
        self._kill_later(self._worker, self._number)
        return True

    async def ask(self, question: str, **arguments: Any) -> Any:
        """Return the answer of the worker to a question about the variables."""
        if self._worker is None or self._worker.is_lost:
            async with self._turn:
                await self._ready_worker()
        assert self._worker is not None, "it was just opened"
        return await self._worker.ask(question, **arguments)

    async def reset(self) -> None:
        """Forget all variables, after the evaluation in progress."""
        async with self._turn:
            worker = await self._ready_worker()
            await worker.ask("reset")

    async def close(self) -> None:
        """End the process. An evaluation in progress fails."""
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.close()

    async def _ready_worker(self) -> WorkerProcess:
        if self._worker is not None and self._worker.is_lost:
            await self.close()
        if self._worker is None:
            self._worker = await self._open_worker()
        return self._worker

    def _on_timeout(self, worker: WorkerProcess) -> None:
        if self._number is not None:
            self._is_timed_out = True
            worker.interrupt_soon(self._number)
            self._kill_later(worker, self._number)

    def _kill_later(self, worker: WorkerProcess, number: int) -> None:
        def check() -> None:
            if self._number == number and self._worker is worker:
                worker.kill()

        asyncio.get_running_loop().call_later(GRACE_S, check)

    async def _leave(self, worker: WorkerProcess) -> None:
        """Interrupt the evaluation and wait for its end; kill the process after the grace."""
        number = self._number
        assert number is not None, "an evaluation is in progress"
        reports = worker.begin()
        try:
            async with asyncio.timeout(GRACE_S):
                await worker.interrupt(number)
                while (await reports.get()).get("op") not in ("done", "lost"):
                    pass
        except BaseException as error:
            worker.kill()
            if not isinstance(error, TimeoutError):
                raise
        finally:
            worker.end()

    def _change(self, cell: Cell) -> None:
        if self.history and self.history[-1].execution == cell.execution:
            self.history[-1] = cell
        else:
            self.history.append(cell)
        with suppress(Failed):  # a watcher that is gone
            self._on_change(cell)
            self._on_change(self.info())


def _timed_out(timeout_s: float | None) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"the evaluation was interrupted after the timeout of {timeout_s or 0:g} s; the session "
        "keeps its variables",
        data={"limit_s": timeout_s},
    )


def _did_not_stop(timeout_s: float | None) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"the evaluation did not end within {GRACE_S:g} s after the timeout of {timeout_s or 0:g} "
        "s; its process was killed, and the variables of the session are lost",
        data={"limit_s": timeout_s},
    )
