"""The templates that a server has: the built-in ones, those of packages, those of the operator.

Sources are read at first use, in a worker thread. A template of a later source replaces one with
the same URI: built-in, then installed packages, then the folders of `templates_path` in their
order. Those folders are read again when they have changed, at most once a second.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from activations.templates.errors import (
    unknown_category,
    unknown_template,
    unknown_toolchain,
)
from activations.templates.folder import Folder, read_folder
from activations.templates.model import Template, parse_uri
from plexus.errors import PluginError
from plexus.registry.entry_points import entry_points_of
from plexus.registry.plugins import plugin_errors
from plexus.text import escape_controls, shorten

__all__ = ("GROUP", "Catalogue", "Library")

logger = logging.getLogger(__name__)

#: The group of entry points with which packages offer templates.
GROUP: Final = "plexus.templates"
BUILT_IN: Final = Path(__file__).with_name("built_in")
#: Minimum seconds between two checks of the folders of the operator.
REFRESH_S: Final = 1.0
#: Folders above a template, and entries that are compared to find out whether a folder has changed.
DEPTH: Final = 2
MAX_SIGNED: Final = 10_000
#: Characters of a reason why a source cannot be read.
REASON_CHARACTERS: Final = 300


class Catalogue:
    """All templates at one moment."""

    def __init__(self, folders: Sequence[Folder], failures: dict[str, str]) -> None:
        self._folders = {folder.digest: folder for folder in folders}
        #: Why sources could not be read, by their names.
        self.failures = failures
        by_uri = {each.uri: each for folder in folders for each in folder.templates}
        self.templates = [by_uri[uri] for uri in sorted(by_uri)]
        self._by_uri = by_uri
        #: What could not be used, by source and path.
        self.problems = {
            f"{folder.source}: {path}": problem
            for folder in folders
            for path, problem in folder.problems.items()
        }
        self._broken = {
            f"template://{path.rpartition('.')[0]}": problem
            for folder in folders
            for path, problem in folder.problems.items()
        }

    @property
    def uris(self) -> list[str]:
        """The URIs of all templates, sorted."""
        return [each.uri for each in self.templates]

    @property
    def toolchains(self) -> list[str]:
        """All toolchains, sorted."""
        return sorted({each.toolchain for each in self.templates})

    @property
    def categories(self) -> list[str]:
        """All categories, sorted."""
        return sorted({each.category for each in self.templates})

    def get(self, uri: str) -> Template:
        """Return the template with this URI. Raises InvalidParams and NotFound."""
        parse_uri(uri)
        found = self._by_uri.get(uri)
        if found is None:
            raise unknown_template(uri, self.uris, self._broken.get(uri))
        return found

    def texts_of(self, template: Template) -> dict[str, str]:
        """Return the texts of the folder of a template."""
        return self._folders[template.folder].texts

    def select(self, toolchain: str | None = None, category: str | None = None) -> list[Template]:
        """Return the templates of a toolchain and a category, None for all.

        Raises InvalidParams for unknown ones, with the nearest.
        """
        if toolchain is not None and toolchain not in self.toolchains:
            raise unknown_toolchain(toolchain, self.toolchains)
        if category is not None and category not in self.categories:
            raise unknown_category(category, self.categories)
        return [
            each
            for each in self.templates
            if toolchain in (None, each.toolchain) and category in (None, each.category)
        ]


class Library:
    """The sources of templates, and the catalogue that was read from them."""

    def __init__(self, folders: Iterable[str | Path] = ()) -> None:
        """Set the folders of the operator. Reads nothing."""
        self._paths = [Path(each).absolute() for each in folders]
        self._fixed: list[Folder] = []
        self._fixed_failures: dict[str, str] = {}
        self._catalogue: Catalogue | None = None
        self._signature: object = None
        self._checked_at = 0.0
        self._lock = asyncio.Lock()

    async def catalogue(self) -> tuple[Catalogue, bool]:
        """Return the templates, and whether they differ from those of the last call."""
        async with self._lock:
            now = time.monotonic()
            current = self._catalogue
            if current is not None and (not self._paths or now - self._checked_at < REFRESH_S):
                return current, False
            found = await asyncio.to_thread(self._read)
            self._checked_at = time.monotonic()
            changed = found is not None and current is not None
            if found is not None:
                self._catalogue = current = found
            assert current is not None, "the first read returns a catalogue"
            return current, changed

    def _read(self) -> Catalogue | None:
        """Return the templates; None if nothing has changed since the last read."""
        signature = [_signature(path) for path in self._paths]
        if self._catalogue is not None and signature == self._signature:
            return None
        if not self._fixed:
            self._fixed, self._fixed_failures = _read_fixed()
        folders, failures = list(self._fixed), dict(self._fixed_failures)
        for path in self._paths:
            source = f"folder {path}"
            try:
                folders.append(read_folder(path, source))
            except OSError as error:
                failures[source] = f"it cannot be read: {error.strerror}"
        self._signature = signature
        catalogue = Catalogue(folders, failures)
        for where, reason in {**catalogue.failures, **catalogue.problems}.items():
            logger.warning("templates of %s are not used: %s", where, reason)
        return catalogue


def _read_fixed() -> tuple[list[Folder], dict[str, str]]:
    """Return the built-in templates and those of packages, and why sources could not be read."""
    folders = [read_folder(BUILT_IN, "built-in")]
    failures = {}
    for name, load in _entry_points():
        source = f"package {name}"
        try:
            with plugin_errors():
                folders.append(read_folder(_folder_of(load()), source))
        except PluginError as error:
            failures[source] = escape_controls(shorten(error.message, REASON_CHARACTERS))
    return folders, failures


def _entry_points() -> Iterator[tuple[str, Any]]:
    points = sorted(entry_points_of(GROUP), key=lambda point: point.name)
    return ((point.name, point.load) for point in points)


def _folder_of(value: object) -> Path:
    """Return the folder that an entry point refers to: a path, or a package."""
    if isinstance(value, str | os.PathLike):
        return Path(value)
    if isinstance(value, ModuleType) and getattr(value, "__path__", None):
        return Path(next(iter(value.__path__)))
    raise PluginError("an entry point for templates must be a package, or the path of a folder")


def _signature(path: Path) -> object:
    """Return a value that changes when a folder of templates changes."""
    found: list[tuple[str, int, int, int]] = []
    for folder, folders, files in os.walk(path):
        folders.sort()
        if len(Path(folder).relative_to(path).parts) >= DEPTH:
            folders.clear()
        for name in [".", *sorted(files)]:
            if len(found) >= MAX_SIGNED:
                return found
            try:
                status = os.lstat(f"{folder}/{name}")
            except OSError:
                continue
            found.append((f"{folder}/{name}", status.st_mtime_ns, status.st_size, status.st_ino))
    return found
