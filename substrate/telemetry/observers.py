"""Observers of a hub's runs: its log and its traces, as far as the settings ask.

The log has a line for each run that ends: what was done, by whom, how it went and how much it was.
What was asked for and what came out is in no line: arguments, results, reasons and the texts of
errors may hold anything. Arguments are added only where the settings say so.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from plexus.events import ErrorEvent
from plexus.principal import Principal
from plexus.rpc import wire
from plexus.runtime.hub import Plexus
from plexus.runtime.run import Run
from plexus.runtime.runs import Runs
from plexus.text import shorten
from substrate.settings import Settings
from substrate.telemetry.refusals import Refusals
from substrate.telemetry.tracing import ORIGIN, is_wanted, open_tracing

__all__ = ("Observers", "RunLogger")

logger = logging.getLogger("substrate.runs")

#: How much of a run's arguments is logged, where they are.
ARGUMENT_CHARS: Final = 2000


class Observers:
    """What watches one hub. With nothing asked for, nothing does."""

    def __init__(self, hub: Plexus, settings: Settings) -> None:
        self.refusals = Refusals()
        self._closes: list[Callable[[], None]] = []
        #: Whether anybody wants to know which transport and which trace a call comes from.
        self.want_origins = False
        hub.runs.on_refused(self.refusals.call)
        if logging.getLogger("substrate.runs").isEnabledFor(logging.INFO):
            self._watch(RunLogger(hub.runs, arguments=settings.log_arguments).stop)
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


class RunLogger:
    """Logs the runs of a hub."""

    def __init__(self, runs: Runs, *, arguments: bool = False) -> None:
        self._arguments = arguments
        #: What is known of a run only when it begins.
        self._begun: dict[int, dict[str, Any]] = {}
        self._stops: list[Callable[[], None]] = [
            runs.on_start(self._began),
            runs.on_end(self._ended),
        ]

    def stop(self) -> None:
        """Log no more."""
        for stop in self._stops:
            stop()

    def _began(self, run: Run, arguments: Mapping[str, Any], _: Mapping[str, str] | None) -> None:
        known: dict[str, Any] = {}
        if run.parent is not None:
            known["parent"] = run.parent
        else:
            origin = ORIGIN.get()
            if origin is not None:
                known["transport"] = origin.transport
        if self._arguments:
            known["arguments"] = _text(arguments)
        self._begun[run.id] = known

    def _ended(self, run: Run) -> None:
        terminal = run.terminal
        assert terminal is not None, "it has ended"
        assert run.ended_at is not None, "it has ended"
        fields: dict[str, Any] = {
            "principal": run.principal.name,
            "method": run.method,
            "run": run.id,
            "outcome": terminal.type,
        }
        if isinstance(terminal, ErrorEvent):
            fields["code"] = terminal.code
        fields |= {
            "ms": round((run.ended_at - run.started_at) * 1000, 3),
            "items": run.log.last,
            "bytes": run.log.total,
        }
        logger.info("run ended", extra={"fields": fields | self._begun.pop(run.id, {})})


def _text(arguments: Mapping[str, Any]) -> str:
    """Arguments as JSON, cut if they are long; what has no JSON form as Python writes it."""
    given = {name: each for name, each in arguments.items() if not isinstance(each, Principal)}
    try:
        text = wire.encode(given).decode()
    except TypeError:
        text = repr(given)
    return shorten(text, ARGUMENT_CHARS)
