"""Locations of an author's activations: a file, a folder, a project with a package, a module.

`substrate dev` and `substrate check` accept the same argument with the same meaning.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from plexus.registry.plugins import GROUP
from substrate.settings import ProjectFiles, Settings, operator_folder

__all__ = ("NoSource", "PluginSources", "find_package", "find_sources", "project_sources")

PROJECT = "pyproject.toml"


class NoSource(Exception):
    """No activation can be loaded. The message says what is possible."""


class PluginSources(NamedTuple):
    """What to load, in the form that `plexus.registry.plugins` accepts."""

    #: `module:Class`, `module`, or paths of Python files.
    names: tuple[str, ...] = ()
    #: Folders whose Python files are all loaded, future ones included.
    folders: tuple[Path, ...] = ()
    #: Folders to prepend to `sys.path`.
    paths: tuple[Path, ...] = ()

    def current(self) -> list[str]:
        """Return all names, including the files that the folders contain now."""
        files = (file for folder in self.folders for file in sorted(folder.glob("*.py")))
        return list(dict.fromkeys([*map(str, files), *self.names]))

    def merged_with(self, other: PluginSources) -> PluginSources:
        """Return these sources and others. The others are loaded later, and so take precedence."""
        return PluginSources(
            self.names + other.names, self.folders + other.folders, self.paths + other.paths
        )

    def add_to_sys_path(self) -> None:
        """Make the modules importable."""
        for path in self.paths:
            if str(path) not in sys.path:
                sys.path.insert(0, str(path))


def project_sources(settings: Settings, files: ProjectFiles) -> PluginSources:
    """Return what a server that is started in this folder would load."""
    folders = tuple(folder for folder in (files.folder, operator_folder()) if folder is not None)
    return PluginSources((*files.plugins, *settings.activation), folders)


def find_package(folder: Path) -> PluginSources | None:
    """Return the package that a project's pyproject.toml names; None if it names none.

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
    """Return the sources that a command-line argument names. Raises NoSource."""
    path = Path(given).absolute()
    if path.is_dir():
        return _folder(path)
    if given.endswith(".py") or "/" in given:
        if not path.is_file():
            raise NoSource(f"{given} is neither a file nor a folder.")
        return PluginSources((str(path),))
    return PluginSources((given,))


def _folder(path: Path) -> PluginSources:
    project = find_package(path)
    if project is not None:
        return project
    if (path / "__init__.py").is_file():
        return PluginSources((path.name,), paths=(path.parent,))
    if not any(path.glob("*.py")):
        raise NoSource(
            f"{path} contains no Python file and no {PROJECT} that names activations. "
            "Create a package with `substrate new NAME`."
        )
    return PluginSources(folders=(path,))
