"""Entry points: what installed packages offer by name.

Asking `importlib.metadata` costs 20 ms, most of it for importing it, so the files that it would
read are searched for the group first.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plexus.errors import PluginError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ("PROGRAM", "entry_points_of", "load_program")

#: The group in which the installed program offers what the core calls.
PROGRAM = "plexus.program"


def load_program(name: str) -> Any:
    """Return what the installed program offers under a name. Raises PluginError without one."""
    found = [point for point in entry_points_of(PROGRAM) if point.name == name]
    if not found:
        raise PluginError(f"no installed program offers {name!r}; pip install plexus-substrate")
    return found[0].load()


def entry_points_of(group: str) -> list[EntryPoint]:
    """Return the entry points of a group."""
    if not any(_names_group(entry or ".", group) for entry in sys.path):
        return []
    from importlib.metadata import entry_points

    return list(entry_points(group=group))


def _names_group(folder: str, group: str) -> bool:
    named = f"[{group}]".encode()
    try:
        entries = os.scandir(folder)
    except NotADirectoryError:  # a zip archive on the path: let importlib.metadata look inside
        return True
    except OSError:
        return False
    with entries:
        for entry in entries:
            if entry.name.endswith((".dist-info", ".egg-info")):
                with contextlib.suppress(OSError):
                    if named in Path(entry.path, "entry_points.txt").read_bytes():
                        return True
    return False
