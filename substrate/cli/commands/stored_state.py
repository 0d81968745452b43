"""What `substrate doctor` checks of the files: databases, recorded runs and mounts.

Nothing is changed, and no server of a mount is started.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from activations.arbor import Arbor
from activations.gateway.catalogue import Catalogue
from activations.gateway.catalogue_store import CatalogueStore
from activations.gateway.mount_config import MountConfig, expand, unset_variables
from activations.gateway.mount_file import load_mounts
from plexus.errors import PlexusError
from plexus.private_files import data_folder
from plexus.text import escape_controls
from substrate.build_hub import user_mounts
from substrate.cli.event_loop import run_async
from substrate.run_store.announcement import history_file
from substrate.settings import FILE, ProjectFiles, Settings

__all__ = ("Check", "history_check", "mount_checks", "plural", "store_checks")

#: `optional` is a part that is not set up and not needed.
Level = Literal["ok", "optional", "warning", "problem"]

#: Free disk space that the data folder should have.
FREE_BYTES: Final = 200 * 1024 * 1024
MIB: Final = 1024 * 1024
#: The beginning of every SQLite database.
SQLITE_HEADER: Final = b"SQLite format 3\0"


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """Result of a check."""

    check: str
    level: Level
    message: str
    #: What to do next.
    next: str = ""


def plural(number: int, noun: str) -> str:
    """Return a number with its noun, as in "2 tools"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


# --- storage --------------------------------------------------------------------------------------


def store_checks(settings: Settings) -> Iterator[Check]:
    """Check the data folder and the database."""
    folder = data_folder()
    existing = next(each for each in (folder, *folder.parents) if each.exists())
    if not os.access(existing, os.W_OK):
        next_step = f"chown -R $USER {existing}"
        yield Check("data", "problem", f"{existing} is not writable", next_step)
    else:
        free = shutil.disk_usage(existing).free
        level: Level = "ok" if free >= FREE_BYTES else "warning"
        next_step = "" if level == "ok" else "Free some disk space."
        yield Check("data", level, f"{folder}, {free // MIB} MiB free", next_step)
    trees = Arbor(settings.database)
    if trees.is_empty():
        yield Check("store", "ok", "empty")
        return
    try:
        detail, size = run_async(_probe_store(trees))
    except (PlexusError, OSError) as error:
        yield Check(
            "store",
            "problem",
            f"cannot open the database: {error}",
            "Check the file, or use another with `substrate --database FILE`.",
        )
        return
    yield Check("store", "ok", detail + ("" if size is None else f", {size / MIB:.1f} MiB"))


async def _probe_store(trees: Arbor) -> tuple[str, int | None]:
    try:
        return await trees.check_health(), trees.size()
    finally:
        await trees.close()


def history_check(settings: Settings) -> Check:
    """Report whether and where runs are recorded. The database is only looked at, not opened."""
    if settings.record == "off":
        return Check("history", "ok", "runs are not recorded (record is off)")
    file = history_file(settings)
    if file is None:
        place = "the PostgreSQL database"
    else:
        if _size(file) and not _is_sqlite(file):
            return Check(
                "history",
                "problem",
                f"{file} is not a readable SQLite database, so runs cannot be recorded",
                "Move it away: the next start creates a new one.",
            )
        size = sum(_size(file.with_name(file.name + suffix)) for suffix in ("", "-wal"))
        place = f"{file}, {size / MIB:.1f} MiB" if _size(file) else f"{file}, empty"
    rules = len(settings.record_methods) + len(settings.history_methods)
    kept = (
        f"kept for {settings.history_days:g} days and up to {settings.history_bytes / MIB:.0f} MiB"
    )
    return Check(
        "history",
        "ok",
        f"record is {settings.record}, in {place}; {kept}"
        + (f"; rules for methods: {rules}" if rules else ""),
        "Set record to off to switch it off." if settings.record == "all" else "",
    )


def _is_sqlite(file: Path) -> bool:
    try:
        with file.open("rb") as opened:
            return opened.read(len(SQLITE_HEADER)) == SQLITE_HEADER
    except OSError:
        return False


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


# --- mounts ---------------------------------------------------------------------------------------


def mount_checks(settings: Settings, files: ProjectFiles) -> Iterator[Check]:
    """Check the mounted servers by what is stored of them, without starting any."""
    loaded = load_mounts(user_mounts(settings), files.settings, str(Path.cwd() / FILE))
    for name, reason in loaded.broken.items():
        message = f"{name} is not mounted: {escape_controls(reason)}"
        yield Check("mounts", "problem", message, "Correct the file that names it.")
    enabled = [each for each in loaded.mounts.values() if each.enabled]
    if not enabled and not loaded.broken:
        yield Check("mounts", "optional", "no servers are mounted", "substrate mount import")
    for config in enabled:
        yield _mount_check(config, CatalogueStore().read(config))


def _mount_check(config: MountConfig, catalogue: Catalogue | None) -> Check:
    if config.command:
        program = expand(config.command[0], os.environ)
        path = {**os.environ, **config.env}.get("PATH")
        if shutil.which(program, path=expand(path or "", os.environ) or None) is None:
            message = f"{config.name} starts {program!r}, which is not a program on PATH"
            return Check("mounts", "problem", message, "Install it, or change the mount.")
    if unset := unset_variables(config, os.environ):
        message = f"{config.name} needs variables that are not set: {', '.join(unset)}"
        return Check("mounts", "warning", message, "Set them where the server starts.")
    if catalogue is None:
        message = f"{config.name} was never listed"
        return Check("mounts", "warning", message, f"substrate mount refresh {config.name}")
    if catalogue.held:
        message = f"{config.name} has {plural(len(catalogue.held), 'changed tool')} to approve"
        return Check("mounts", "warning", message, f"substrate mount approve {config.name}")
    message = f"{config.name} offers {plural(len(catalogue.tools), 'tool')}"
    return Check("mounts", "ok", f"{message}; `substrate mount doctor {config.name}` starts it")
