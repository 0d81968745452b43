"""Observers of a hub's runs: the run log and tracing, as configured.

The run log has one line for each run that ends: method, principal, outcome, duration and size. It
contains no results, reasons or error texts, because those may contain anything. Arguments are
included only if the settings enable it, and secret ones never.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from plexus.events import ErrorEvent
from plexus.principal import Principal
from plexus.registry.secrets import redact_arguments
from plexus.rpc import wire
from plexus.runtime.hub import Plexus
from plexus.runtime.run import Run
from plexus.text import shorten
from substrate.settings import Settings
from substrate.telemetry.refusals import Refusals
from substrate.telemetry.tracing import ORIGIN, is_enabled, open_tracing

__all__ = ("Observers", "RunLogger")

logger = logging.getLogger("substrate.runs")

#: Maximum characters of logged arguments.
ARGUMENT_CHARS: Final = 2000


class Observers:
    """The observers of one hub. Without a run log and tracing, runs are not observed."""

    def __init__(self, hub: Plexus, settings: Settings) -> None:
        self.refusals = Refusals()
        self._close_callbacks: list[Callable[[], None]] = []
        #: Whether an observer needs the transport and trace of each call.
        self.needs_origins = False
        hub.runs.on_refused(self.refusals.call)
        if logging.getLogger("substrate.runs").isEnabledFor(logging.INFO):
            self._add(RunLogger(hub, arguments=settings.log_arguments).stop)
        if is_enabled(os.environ):
            tracing = open_tracing(hub.runs)
            if tracing is not None:
                self._add(tracing.close)

    def _add(self, close: Callable[[], None]) -> None:
        self._close_callbacks.append(close)
        self.needs_origins = True

    def close(self) -> None:
        """Stop observing and flush collected data."""
        for close in self._close_callbacks:
            close()


class RunLogger:
    """Writes a log line for each run of a hub that ends."""

    def __init__(self, hub: Plexus, *, arguments: bool = False) -> None:
        self._hub = hub
        self._arguments = arguments
        #: Fields that are known only when a run starts, by run id.
        self._start_fields: dict[int, dict[str, Any]] = {}
        self._unsubscribe_callbacks: list[Callable[[], None]] = [
            hub.runs.on_start(self._on_start),
            hub.runs.on_end(self._on_end),
        ]

    def stop(self) -> None:
        """Stop logging."""
        for stop in self._unsubscribe_callbacks:
            stop()

    def _on_start(
        self, run: Run, arguments: Mapping[str, Any], _: Mapping[str, str] | None
    ) -> None:
        fields_at_start: dict[str, Any] = {}
        if run.parent is not None:
            fields_at_start["parent"] = run.parent
        else:
            origin = ORIGIN.get()
            if origin is not None:
                fields_at_start["transport"] = origin.transport
        if self._arguments:
            find = self._hub.find_method
            logged = redact_arguments(find(run.method), arguments, find)
            fields_at_start["arguments"] = _text(logged)
        self._start_fields[run.id] = fields_at_start

    def _on_end(self, run: Run) -> None:
        terminal = run.terminal
        assert terminal is not None, "the run has ended"
        assert run.ended_at is not None, "the run has ended"
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
        logger.info("run ended", extra={"fields": fields | self._start_fields.pop(run.id, {})})


def _text(arguments: Mapping[str, Any]) -> str:
    """Return arguments as shortened JSON, or as a Python representation if not encodable."""
    encodable = {name: each for name, each in arguments.items() if not isinstance(each, Principal)}
    try:
        text = wire.encode(encodable).decode()
    except TypeError:
        text = repr(encodable)
    return shorten(text, ARGUMENT_CHARS)
