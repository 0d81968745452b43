"""Looks whether there is a server of the project to tell of the runs of this process.

Rules:
- As long as there is none, that costs one look at a folder when a run begins, and one a second
  while any is under way. Nothing is connected to, and nothing is imported for it.
- Whatever becomes of the server, the runs do not notice. One that is gone is looked for again.
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

__all__ = ("Lookout",)

logger = logging.getLogger("substrate.publishing")

#: How often it is looked for a server while runs are under way.
LOOK_S: Final = 1.0
#: How long one that does not listen is left alone, at most.
LONGEST_S: Final = 30.0
#: How long the last of what there is to say may take when this process ends: hosts kill those
#: that take half a second.
END_S: Final = 0.25
#: A folder that changed so lately may change again without a newer time.
UNSETTLED_NS: Final = 100_000_000

FIND_SERVER: Final = "substrate.security.lockfile:find_by_project"
CHANNEL: Final = "substrate.publishing.channel:Channel"


class Lookout:
    """Has the runs of a hub told to the server of its project, while there is one."""

    def __init__(self, hub: Plexus, project: Path) -> None:
        self._hub = hub
        self._project = project
        self._folder = state_folder() / "servers"
        self._unlisten: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._telling: asyncio.Task[None] | None = None
        self._channel: Any = None
        #: When the folder had changed when it was looked into, and until when it is believed that
        #: nobody there wants to be told.
        self._seen: int | None = None
        self._believed_until = 0.0
        self._patience_s = LOOK_S
        self._listen()

    def look(self) -> None:
        """Look now, unless a server is being told already."""
        self._stop_timer()
        if self._telling is not None:
            return
        try:
            changed = os.stat(self._folder).st_mtime_ns  # noqa: PTH116 - once for every run
        except OSError:
            self._wait()
            return
        if changed == self._seen and time.monotonic() < self._believed_until:
            self._wait()
        else:
            self._seen = changed
            self._telling = asyncio.get_running_loop().create_task(self._tell())
            self._telling.add_done_callback(self._told)

    async def close(self) -> None:
        """Say what is left to a server that listens, and end."""
        self._stop_timer()
        if self._unlisten is not None:
            self._unlisten()
            self._unlisten = None
        telling = self._telling
        if telling is None:
            return
        telling.remove_done_callback(self._told)
        if self._channel is not None:
            self._channel.end()
            await asyncio.wait([telling], timeout=END_S)
        telling.cancel()
        await asyncio.wait([telling])

    # --- waiting ------------------------------------------------------------------------------

    def _listen(self) -> None:
        if self._unlisten is None:
            self._unlisten = self._hub.runs.on_start(self._begun)

    def _begun(self, _: Run, __: Mapping[str, Any], ___: Mapping[str, str] | None) -> None:
        """A run begins after a time when there was none: from here on the clock looks."""
        assert self._unlisten is not None, "whoever is told has listened"
        self._unlisten()
        self._unlisten = None
        self.look()

    def _wait(self) -> None:
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._waited)

    def _waited(self) -> None:
        if self._hub.runs.running():
            self.look()
        else:
            self._listen()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- telling ------------------------------------------------------------------------------

    async def _tell(self) -> None:
        server = resolve(FIND_SERVER)(self._project)
        if server is None:
            settled = time.time_ns() - (self._seen or 0) > UNSETTLED_NS
            self._believe(LONGEST_S if settled else 0.0)
            return
        # Not on the loop: it takes as long as a whole start, and there are runs under way.
        channel = await asyncio.to_thread(resolve, CHANNEL)
        self._channel = channel(self._hub, self._project)
        if await self._channel.run(server):
            self._patience_s = LOOK_S
        else:
            self._patience_s = min(self._patience_s * 2, LONGEST_S)
            self._believe(self._patience_s)

    def _believe(self, for_s: float) -> None:
        """There is nobody to tell for so long, unless the folder changes."""
        self._believed_until = time.monotonic() + for_s

    def _told(self, telling: asyncio.Task[None]) -> None:
        self._telling = self._channel = None
        if telling.cancelled():
            return
        error = telling.exception()
        if error is not None:  # a defect of ours, of which the runs know nothing
            logger.error("runs cannot be told to the server", exc_info=error)
            self._believe(LONGEST_S)
        self._wait()
