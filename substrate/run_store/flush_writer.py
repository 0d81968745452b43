"""Writes flushes one at a time: retries, and one warning for each time that recording stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from plexus.errors import PlexusError
from substrate.run_store.flush import Flush

__all__ = ("FlushWriter",)

logger = logging.getLogger("substrate.run_store")

#: Seconds before a failed flush is repeated.
RETRY_S: Final = 1.0
#: Number of failures after which a flush is given up if the store can write anything else.
MAX_FAILURES: Final = 3


class FlushWriter:
    """Repeats a flush until it is written or given up, and reports what is lost."""

    def __init__(
        self,
        write: Callable[[Flush], asyncio.Future[Collection[int]]],
        is_writable: Callable[[], Awaitable[bool]],
    ) -> None:
        #: Writes a flush; the result has the numbers of runs that another process has taken.
        self.write_once = write
        #: Whether the store can write anything.
        self._is_writable = is_writable
        self._is_failing = False
        self._lost_runs = 0
        #: Why the last flush failed; empty if it did not.
        self.error = ""
        self.is_closed = False

    def on_failure(self, reason: str) -> None:
        """Report that the store cannot write, once until it can."""
        if not self._is_failing:
            self._is_failing = True
            logger.warning("runs are not recorded: %s", reason)

    def on_lost(self, run: int, first: int) -> None:
        """Report that items are not recorded because too much waits to be written."""
        if not self._lost_runs and not self._is_failing:
            logger.warning(
                "items are not recorded because the run store does not keep up; the first is item"
                " %d of run %d",
                first,
                run,
            )
        self._lost_runs += 1

    async def write(self, flush: Flush) -> Collection[int] | None:
        """Write a flush. Returns the runs that another process has taken; None if it is lost."""
        failures = 0
        while True:
            try:
                fenced = await self.write_once(flush)
            except PlexusError as error:
                if self.is_closed:
                    logger.warning("the last items were not recorded: %s", error.message)
                    return ()
                self.error = error.message
                self.on_failure(error.message)
                failures += 1
                # Other codes have a cause outside of the flush, such as a full disk.
                if failures >= MAX_FAILURES and error.code == "storage":
                    if await self._is_writable():
                        self._give_up(flush, error)
                        return None
                    failures = 0
                await asyncio.sleep(RETRY_S)
            except Exception as error:  # noqa: BLE001 - a defect must not end recording
                self._give_up(flush, error)
                return None
            else:
                self._on_written()
                return fenced

    def _on_written(self) -> None:
        if self._is_failing or self._lost_runs:
            logger.warning(
                "runs are recorded again%s",
                "; the history of some has gaps" if self._lost_runs else "",
            )
            self._is_failing, self._lost_runs, self.error = False, 0, ""

    def _give_up(self, flush: Flush, error: Exception) -> None:
        logger.error("items of %d runs are lost: they cannot be stored", flush.runs, exc_info=error)
        self._lost_runs += 1
