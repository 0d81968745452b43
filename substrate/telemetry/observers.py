"""Whoever is told of what a server does: its log and its traces, as far as the settings ask."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from plexus.runtime.hub import Plexus
from substrate.settings import Settings
from substrate.telemetry.refusals import Refusals
from substrate.telemetry.run_log import RunLog
from substrate.telemetry.tracing import is_wanted, open_tracing

__all__ = ("Observers",)


class Observers:
    """What watches one hub. With nothing asked for, nothing does."""

    def __init__(self, hub: Plexus, settings: Settings) -> None:
        self.refusals = Refusals()
        self._closes: list[Callable[[], None]] = []
        #: Whether anybody wants to know which transport and which trace a call comes from.
        self.want_origins = False
        hub.runs.on_refused(self.refusals.call)
        if logging.getLogger("substrate.runs").isEnabledFor(logging.INFO):
            self._watch(RunLog(hub.runs, arguments=settings.log_arguments).stop)
        if is_wanted(os.environ):
            tracing = open_tracing(hub.runs)
            if tracing is not None:
                self._watch(tracing.close)

    def _watch(self, close: Callable[[], None]) -> None:
        self._closes.append(close)
        self.want_origins = True

    def close(self) -> None:
        """Stop watching, and let go of what was collected."""
        for close in self._closes:
            close()
