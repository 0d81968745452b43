"""Where an author's activations are: a file, a folder, a project that has a package, a module.

`substrate dev` and `substrate check` take the same argument and mean the same by it.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from plexus.registry.plugins import GROUP
from substrate.settings import ProjectFiles, Settings, operator_folder

__all__ = ("NoSource", "PluginSources", "find_sources", "package_of", "sources_here")

PROJECT = "pyproject.toml"


class NoSource(Exception):
    """There is nothing to load; the message says what there could be."""


class PluginSources(NamedTuple):
    """What to load, as `plexus.registry.plugins` takes it."""

    #: `module:Class`, `module`, or paths of Python files.
    names: tuple[str, ...] = ()
    #: Folders in which every Python file is to be loaded, those to come included.
    folders: tuple[Path, ...] = ()
    #: Where modules are to be found, before all other places.
    paths: tuple[Path, ...] = ()

    def current(self) -> list[str]:
        """All names, with those of the files that the folders have now."""
        files = (file for folder in self.folders for file in sorted(folder.glob("*.py")))
        return list(dict.fromkeys([*map(str, files), *self.names]))

    def joined(self, other: PluginSources) -> PluginSources:
        """These and others; the others are loaded later, and so win."""
        return PluginSources(
            self.names + other.names, self.folders + other.folders, self.paths + other.paths
        )

    def make_importable(self) -> None:
        """Have Python find the modules."""
        for path in self.paths:
            if str(path) not in sys.path:
                sys.path.insert(0, str(path))


def sources_here(settings: Settings, files: ProjectFiles) -> PluginSources:
    """What a server that is started in this folder would load."""
    folders = tuple(folder for folder in (files.folder, operator_folder()) if folder is not None)
    return PluginSources((*files.plugins, *settings.activation), folders)


def package_of(folder: Path) -> PluginSources | None:
    """The package of a project, as its pyproject.toml names it; None if it names none.

    Raises NoSource if that file cannot be read.
    """
    file = folder / PROJECT
    if not file.is_file():
        return None
    try:
        described: Any = tomllib.loads(file.read_text())
        points = described.get("project", {}).get("entry-points", {}).get(GROUP, {})
        names = tuple(map(str, points.values()))
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise NoSource(f"{file} cannot be read: {error}") from error
    if not names:
        return None
    inner = folder / "src"
    return PluginSources(names, paths=(inner if inner.is_dir() else folder,))


def find_sources(given: str) -> PluginSources:
    """What a person means by this; raises NoSource."""
    path = Path(given).absolute()
    if path.is_dir():
        return _folder(path)
    if given.endswith(".py") or "/" in given:
        if not path.is_file():
            raise NoSource(f"There is no file and no folder {given}.")
        return PluginSources((str(path),))
    return PluginSources((given,))


def _folder(path: Path) -> PluginSources:
    project = package_of(path)
    if project is not None:
        return project
    if (path / "__init__.py").is_file():
        return PluginSources((path.name,), paths=(path.parent,))
    if not any(path.glob("*.py")):
        raise NoSource(
            f"{path} has no Python file, and no {PROJECT} that names activations. "
            "`substrate new NAME` writes a package."
        )
    return PluginSources(folders=(path,))
