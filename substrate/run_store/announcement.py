"""The announcement of recording: one line on stderr at the first start that records runs.

A marker file in the state folder stores that it was printed. Of several processes that start
together, the one that creates the file prints the line. If the file cannot be created, every start
prints it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from plexus.private_files import data_folder, make_folders, open_private, state_folder
from plexus.storage.engine import is_postgres
from substrate.build_hub import RECORDING_MARKER
from substrate.settings import Settings
from substrate.telemetry.logging import announce

__all__ = ("announce_recording", "history_file", "recording_notice")

FILE: Final = "runs.db"

#: What is recorded, by the setting `record`.
RECORDED: Final = {
    "all": "Runs are recorded, with their arguments and output but without secrets,",
    "metadata": "Runs are recorded, without their arguments and output,",
}


def history_file(settings: Settings) -> Path | None:
    """Return the file that runs are recorded in. None: in the PostgreSQL database."""
    return None if is_postgres(settings.database) else data_folder() / FILE


def recording_notice(settings: Settings) -> str:
    """Return what is recorded, where, how to list it and how to switch it off."""
    # The URL of a database may contain a password.
    place = history_file(settings) or "the PostgreSQL database"
    return (
        f"{RECORDED[settings.record]} in {place} for {settings.history_days:g} days. List them "
        "with `substrate runs`. To switch recording off, set SUBSTRATE_RECORD=off, or "
        'record = "off" in substrate.toml.'
    )


def announce_recording(settings: Settings) -> None:
    """Announce that runs are recorded, unless this was announced before or recording is off."""
    if settings.record == "off":
        return
    marker = state_folder() / RECORDING_MARKER
    try:
        make_folders(marker.parent)
        os.close(open_private(marker, os.O_WRONLY | os.O_EXCL))
    except OSError:
        # A folder that is read-only must not silence the announcement.
        if os.access(marker, os.F_OK):
            return
    with contextlib.suppress(OSError):  # stderr is closed
        announce(recording_notice(settings), code="recording")
