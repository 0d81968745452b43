"""The tasks of one connection that wait for the run store or for another process.

Rules:
- Only effects on a run that is not in the memory of this process need a task, so the driver imports
  this module at the first of them.
- Every task has a deadline and reports its outcome exactly once, unless it is cancelled. A request
  of the peer is thus always answered.
- The number of tasks is bounded. The outcome of one too many is an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from plexus.errors import Busy, DeadlineExceeded, Internal, PlexusError
from plexus.rpc.effects import AnswerQuestion, CancelRun, Effect

__all__ = ("DEADLINE_S", "MAX_TASKS", "ConnectionTasks")

#: Maximum duration of a task in seconds. The store answers within milliseconds.
DEADLINE_S: Final = 10.0
#: Maximum number of tasks of one connection.
MAX_TASKS: Final = 64


class ConnectionTasks:
    """The pending effects of a connection."""

    __slots__ = ("_pending", "_wake")

    def __init__(self, wake: Callable[[], None]) -> None:
        """Create an empty set of tasks; `wake` is called when one has reported."""
        self._wake = wake
        self._pending: dict[Effect, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def start(
        self,
        effect: Effect,
        work: Callable[[], Awaitable[Any]],
        report: Callable[[PlexusError | None], None],
    ) -> None:
        """Do this work for an effect and report its error, or None."""
        if len(self._pending) >= MAX_TASKS:
            reason = f"{MAX_TASKS} requests of this connection wait for the run store. Try again."
            report(Busy(reason, data={"limit": MAX_TASKS}))
            return
        loop = asyncio.get_running_loop()
        self._pending[effect] = loop.create_task(self._run(effect, work, report))

    async def _run(
        self,
        effect: Effect,
        work: Callable[[], Awaitable[Any]],
        report: Callable[[PlexusError | None], None],
    ) -> None:
        error: PlexusError | None = None
        try:
            async with asyncio.timeout(DEADLINE_S):
                await work()
        except TimeoutError:
            reason = f"The run store did not answer within {DEADLINE_S:g} s. Try again."
            error = DeadlineExceeded(reason, data={"limit_s": DEADLINE_S})
        except PlexusError as raised:
            error = raised
        except Exception as raised:  # noqa: BLE001 - a defect of the store; the request is answered
            error = Internal.report("the run store", raised)
        del self._pending[effect]
        report(error)
        self._wake()

    def cancel(self, call: Any) -> None:
        """Cancel the tasks of a call that the peer has left; what changes a run is completed."""
        for effect in [each for each in self._pending if getattr(each, "call", None) is call]:
            if not isinstance(effect, AnswerQuestion | CancelRun):
                self._pending.pop(effect).cancel()

    def cancel_all(self) -> list[Effect]:
        """Cancel all tasks and return their effects, which have no outcome."""
        pending, self._pending = self._pending, {}
        for task in pending.values():
            task.cancel()
        return list(pending)
