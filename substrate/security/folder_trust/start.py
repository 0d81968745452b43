"""The files of the project folder, for a start of the program; imported only if there are any."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from substrate.security.folder_trust.decision import decide
from substrate.security.folder_trust.review import ask, at_terminal
from substrate.settings import ProjectFiles
from substrate.telemetry.logging import announce

__all__ = ("files_at_start",)


def files_at_start(project: Path, *, once: bool, may_ask: bool) -> ProjectFiles:
    """What this start loads from the folder; a person at a terminal is asked if that is allowed."""
    warn = partial(announce, level="WARNING")
    return decide(project, once=once, ask=ask if may_ask and at_terminal() else None, warn=warn)
