"""Trusted project folders for tests."""

from __future__ import annotations

from pathlib import Path

from substrate.security.folder_trust.decision import real_folder
from substrate.security.folder_trust.records import write_record

__all__ = ("trust_always",)


def trust_always(folder: Path) -> Path:
    """Trust a folder and all its future content, and return it."""
    write_record(real_folder(folder), None)
    return folder
