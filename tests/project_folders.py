"""Project folders of tests, whose plugins and settings are to be loaded."""

from __future__ import annotations

from pathlib import Path

from substrate.security.folder_trust.decision import real_folder
from substrate.security.folder_trust.records import write_record

__all__ = ("trust_always",)


def trust_always(folder: Path) -> Path:
    """Trust a folder whatever a test puts into it; returns it."""
    write_record(real_folder(folder), None)
    return folder
