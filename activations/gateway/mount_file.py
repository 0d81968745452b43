"""Where mounts are configured: a file of the user, and `substrate.toml` of a trusted project.

A mount of the project takes precedence over one of the user with the same name; entries are taken
as a whole and never merged.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final, NamedTuple

from activations.gateway.mount_config import MountConfig, MountError, parse_mount

__all__ = ("SECTION", "LoadedMounts", "load_mounts", "parse_mounts")

#: The table with the mounts.
SECTION: Final = "mounts"
#: Maximum number of mounts.
MAX_MOUNTS: Final = 100


class LoadedMounts(NamedTuple):
    """The mounts of a server, and the entries that cannot be used, with the reasons."""

    mounts: dict[str, MountConfig]
    broken: dict[str, str]


def load_mounts(user_file: Path | None, project: bytes | None, project_name: str) -> LoadedMounts:
    """Return the mounts of the user's file and of the content of `substrate.toml`.

    An invalid entry does not prevent the others, and neither does a file that is not TOML.
    """
    loaded = LoadedMounts({}, {})
    if user_file is not None:
        try:
            content = user_file.read_bytes()
        except FileNotFoundError:
            content = b""
        except OSError as error:
            loaded.broken[str(user_file)] = f"cannot be read: {error.strerror}"
            content = b""
        _add(loaded, content, str(user_file))
    if project:
        _add(loaded, project, project_name)
    while len(loaded.mounts) > MAX_MOUNTS:
        name, _ = loaded.mounts.popitem()
        loaded.broken[name] = f"more than {MAX_MOUNTS} mounts"
    return loaded


def _add(loaded: LoadedMounts, content: bytes, origin: str) -> None:
    try:
        tables = parse_mounts(content)
    except MountError as error:
        loaded.broken[origin] = str(error)
        return
    for name, table in tables.items():
        loaded.mounts.pop(name, None)
        loaded.broken.pop(name, None)
        try:
            loaded.mounts[name] = parse_mount(name, table, origin)
        except MountError as error:
            loaded.broken[name[:100]] = str(error)


def parse_mounts(content: bytes) -> dict[str, Any]:
    """Return the tables of mounts in a file, unchecked. Raises MountError."""
    try:
        document = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise MountError(f"is not valid TOML: {error}") from error
    mounts = document.get(SECTION, {})
    if not isinstance(mounts, dict):
        raise MountError(f"{SECTION} must be a table. Start each mount with [{SECTION}.NAME].")
    return mounts
