"""A line for each run that ends: what was done, by whom, how it went and how much it was.

What was asked for and what came out is in no line: arguments, results, reasons and the texts of
errors may hold anything. Arguments are added only where the settings say so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from plexus.events import ErrorEvent
from plexus.principal import Principal
from plexus.rpc import wire
from plexus.runtime.run import Run
from plexus.runtime.runs import Runs
from plexus.text import shorten
from substrate.telemetry.call_origin import ORIGIN

__all__ = ("RunLog",)

logger = logging.getLogger("substrate.runs")

#: How much of a run's arguments is logged, where they are.
ARGUMENT_CHARS: Final = 2000


class RunLog:
    """Logs the runs of a hub."""

    def __init__(self, runs: Runs, *, arguments: bool = False) -> None:
        self._arguments = arguments
        #: What is known of a run only when it begins.
        self._begun: dict[int, dict[str, Any]] = {}
        self._stops: list[Callable[[], None]] = [
            runs.on_begin(self._began),
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
