"""What a server reports about itself in `health.check`: its process, its project, its run store."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from plexus.process_identity import host_id
from substrate.run_store.announcement import history_file
from substrate.settings import Settings

__all__ = ("server_facts",)


def server_facts(settings: Settings, project: Path, address: str) -> dict[str, Any]:
    """Return the process of a server, its machine, project folder, address and run store.

    The machine is the id that the processes of runs have, which differs after each start of it.
    """
    return {
        "pid": os.getpid(),
        "host": host_id(),
        "project": str(project),
        "address": address,
        "store": _store_facts(settings),
    }


def _store_facts(settings: Settings) -> dict[str, Any]:
    """Return where runs are recorded, how much of them, for how long, and the size of the file.

    The URL of a database may contain a password, so only its kind is reported.
    """
    facts: dict[str, Any] = {
        "recording": settings.record,
        "retention_days": settings.history_days,
        "max_bytes": settings.history_bytes,
    }
    file = history_file(settings)
    if file is None:
        return facts | {"database": "PostgreSQL"}
    size = 0
    for each in (file, file.with_name(f"{file.name}-wal")):
        with suppress(OSError):  # nothing was recorded yet
            size += each.stat().st_size
    return facts | {"path": str(file), "bytes": size}
