"""Finds the server of the project and publishes the runs of this process to it.

Rules:
- Without a server, this costs one stat of a folder when a run starts, and one per second while any
  is running. It opens no connection and imports nothing.
- Runs do not depend on the server. If it is gone, the search starts again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from plexus.private_files import state_folder
from plexus.registry.lazy import resolve
from plexus.runtime.hub import Plexus
from plexus.runtime.run import Run

__all__ = ("Publisher",)

logger = logging.getLogger("substrate.publishing")

#: Seconds between checks for a server while runs are in progress.
POLL_S: Final = 1.0
#: Maximum backoff in seconds after a failed connection.
MAX_BACKOFF_S: Final = 30.0
#: Seconds to send the remaining messages when this process ends. Hosts kill processes that take
#: half a second.
END_S: Final = 0.25
#: A folder that changed this recently may change again without a newer timestamp.
MTIME_RESOLUTION_NS: Final = 100_000_000

FIND_SERVER: Final = "substrate.security.lockfile:find_by_project"
CHANNEL: Final = "substrate.publishing.channel:Channel"


class Publisher:
    """Publishes the runs of a hub to the server of its project, while one is running."""

    def __init__(self, hub: Plexus, project: Path) -> None:
        self._hub = hub
        self._project = project
        self._folder = state_folder() / "servers"
        self._unsubscribe: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._channel: Any = None
        #: The modification time of the folder at the last search, and until when the result of the
        #: search is valid.
        self._seen_mtime: int | None = None
        self._skip_until = 0.0
        self._backoff_s = POLL_S
        self._subscribe()

    def poll(self) -> None:
        """Search for a server now, unless one is connected."""
        self._stop_timer()
        if self._task is not None:
            return
        try:
            changed = os.stat(self._folder).st_mtime_ns  # noqa: PTH116 - once for every run
        except OSError:
            self._start_timer()
            return
        if changed == self._seen_mtime and time.monotonic() < self._skip_until:
            self._start_timer()
        else:
            self._seen_mtime = changed
            self._task = asyncio.get_running_loop().create_task(self._publish())
            self._task.add_done_callback(self._on_published)

    async def close(self) -> None:
        """Send the remaining messages to a connected server, and stop."""
        self._stop_timer()
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        task = self._task
        if task is None:
            return
        task.remove_done_callback(self._on_published)
        if self._channel is not None:
            self._channel.end()
            await asyncio.wait([task], timeout=END_S)
        task.cancel()
        await asyncio.wait([task])

    # --- waiting ------------------------------------------------------------------------------

    def _subscribe(self) -> None:
        if self._unsubscribe is None:
            self._unsubscribe = self._hub.runs.on_start(self._on_start)

    def _on_start(self, _: Run, __: Mapping[str, Any], ___: Mapping[str, str] | None) -> None:
        """Start polling: a run starts after an idle time."""
        assert self._unsubscribe is not None, "only subscribers are notified"
        self._unsubscribe()
        self._unsubscribe = None
        self.poll()

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(POLL_S, self._on_timer)

    def _on_timer(self) -> None:
        if self._hub.runs.running():
            self.poll()
        else:
            self._subscribe()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- publishing ----------------------------------------------------------------------------

    async def _publish(self) -> None:
        server = resolve(FIND_SERVER)(self._project)
        if server is None:
            settled = time.time_ns() - (self._seen_mtime or 0) > MTIME_RESOLUTION_NS
            self._skip_searches(MAX_BACKOFF_S if settled else 0.0)
            return
        # In a thread: the import takes as long as a cold start and would block running calls.
        channel = await asyncio.to_thread(resolve, CHANNEL)
        self._channel = channel(self._hub, self._project)
        if await self._channel.run(server):
            self._backoff_s = POLL_S
        else:
            self._backoff_s = min(self._backoff_s * 2, MAX_BACKOFF_S)
            self._skip_searches(self._backoff_s)

    def _skip_searches(self, for_s: float) -> None:
        """Skip searches for this time, unless the folder changes."""
        self._skip_until = time.monotonic() + for_s

    def _on_published(self, task: asyncio.Task[None]) -> None:
        self._task = self._channel = None
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:  # a defect that does not affect the runs
            logger.error("cannot publish runs to the server", exc_info=error)
            self._skip_searches(MAX_BACKOFF_S)
        self._start_timer()
