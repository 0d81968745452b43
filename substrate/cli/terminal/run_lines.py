"""One line for each run that ends, on the terminal on which a server runs.

Calls that only watch or control the server are left out. Arguments are shown as they are recorded:
in one line and without secrets.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

from plexus.principal import Principal
from plexus.registry.secrets import redact_arguments
from plexus.runtime.hub import Plexus
from plexus.runtime.run import Run
from plexus.text import escape_controls, shorten
from substrate.cli.terminal.display import DIM, coloured
from substrate.cli.terminal.tables import COLOURS, SUMMARY_CHARS, format_duration, state_label
from substrate.run_store.redaction import describe_call
from substrate.telemetry.logging import LogStream

__all__ = ("RunLines",)

#: Columns of the outcome and of the method.
OUTCOME_WIDTH, METHOD_WIDTH = 16, 20


class RunLines:
    """Prints the runs of a hub as they end."""

    def __init__(self, hub: Plexus) -> None:
        """Start printing."""
        self._hub = hub
        # A terminal that is stopped with Ctrl-S must not stop the server.
        self._stream = LogStream(sys.stderr.fileno())
        #: Arguments in one line of the runs in progress.
        self._summaries: dict[int, str] = {}
        self._unsubscribe = [hub.runs.on_start(self._on_start), hub.runs.on_end(self._on_end)]

    def close(self) -> None:
        """Stop printing."""
        for unsubscribe in self._unsubscribe:
            unsubscribe()

    def _on_start(
        self, run: Run, arguments: Mapping[str, Any], _: Mapping[str, str] | None
    ) -> None:
        if run.purpose != "work":
            return
        find = self._hub.find_method
        redacted = redact_arguments(find(run.method), arguments, find)
        own = {name: each for name, each in redacted.items() if not isinstance(each, Principal)}
        self._summaries[run.id] = describe_call(run.method, own, frozenset())[1]

    def _on_end(self, run: Run) -> None:
        summary = self._summaries.pop(run.id, None)
        if summary is not None and run.ended_at is not None:
            line = format_end(run.describe() | {"summary": summary})
            self._stream.write(f"{line}\n")


def format_end(run: Mapping[str, Any]) -> str:
    """Format a run that has ended: time, outcome, method, arguments and duration."""
    outcome = state_label(run)
    colour = COLOURS.get(outcome.partition(" ")[0])
    parts = [
        coloured(time.strftime("%H:%M:%S"), DIM),
        coloured(f"{outcome:<{OUTCOME_WIDTH}}", colour),
        f"{run['method']:<{METHOD_WIDTH}}",
        shorten(escape_controls(str(run["summary"])), SUMMARY_CHARS),
        coloured(format_duration(run.get("duration_ms", 0)), DIM),
    ]
    return "  ".join(part for part in parts if part)
