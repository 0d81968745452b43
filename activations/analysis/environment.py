"""What all analyses of a server share: the starter of workers, the cache, and what is installed."""

from __future__ import annotations

import asyncio
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from activations.analysis.project import ArgumentErrors, project_folder, source_path
from activations.analysis.report import analyser_version
from activations.analysis.worker_process import INSTALL, WorkerSettings
from activations.processes.process import Launcher
from plexus import Failed
from plexus.private_files import cache_folder, make_folders, open_private

__all__ = ("ANALYSERS", "Environment")

#: The packages of the extra `analysis` with the module that shows whether each is installed.
ANALYSERS: Final = {
    "lizard": "lizard",
    "complexipy": "complexipy",
    "grimp": "grimp",
    "pathspec": "pathspec",
    "tree-sitter": "tree_sitter",
    "tree-sitter-c": "tree_sitter_c",
    "tree-sitter-cpp": "tree_sitter_cpp",
    "tree-sitter-go": "tree_sitter_go",
    "tree-sitter-java": "tree_sitter_java",
    "tree-sitter-javascript": "tree_sitter_javascript",
    "tree-sitter-python": "tree_sitter_python",
    "tree-sitter-rust": "tree_sitter_rust",
    "tree-sitter-typescript": "tree_sitter_typescript",
    "vulture": "vulture",
}
CACHE_FILE: Final = "analysis.db"


class Environment:
    """The resources of all analyses. Always await `close()`."""

    def __init__(self, workspace: Path | None) -> None:
        """Set the only folder that may be analysed; None for any."""
        self.launcher = Launcher()
        self._workspace = workspace
        #: The modules of `ANALYSERS` that were found. Looking for all of them takes 0.9 ms, and a
        #: health check would do it each time.
        self._found: set[str] = set()

    def boot(self) -> None:
        """Check that the extra is installed, and start the supervisor. Raises Failed."""
        missing = self._missing_packages()
        if missing:
            raise Failed(
                f"Code analysis needs the extra `analysis`: {INSTALL}. "
                f"Not installed: {', '.join(missing)}.",
                code="extra_missing",
                data={"extra": "analysis", "missing": missing},
            )
        self.launcher.prepare()

    async def folder(self, project_path: str, errors: ArgumentErrors) -> Path:
        """Return the folder of a project, and raise InvalidParams with all errors so far."""
        found = await asyncio.to_thread(project_folder, project_path, errors, self._workspace)
        errors.check()
        return found

    async def file(self, path: str, errors: ArgumentErrors) -> Path:
        """Return the absolute path of a file, and add an error if there is none."""
        return await asyncio.to_thread(source_path, path, errors, self._workspace)

    async def settings(self, folder: Path, strategy: str = "normal") -> WorkerSettings:
        """Return what the workers of a run need."""
        return WorkerSettings(str(folder), await asyncio.to_thread(_cache_path), strategy)

    def check(self) -> str:
        """Return the installed analysers, or how to install them.

        An optional extra that is not installed leaves the server healthy.
        """
        if self._missing_packages():
            return f"not installed: {INSTALL}"
        self.boot()
        return ", ".join(f"{name} {analyser_version(name)}" for name in ANALYSERS)

    def _missing_packages(self) -> list[str]:
        """Return the packages that are not installed. One that was found stays installed."""
        unknown = [package for package, module in ANALYSERS.items() if module not in self._found]
        missing = [package for package in unknown if find_spec(ANALYSERS[package]) is None]
        self._found.update(ANALYSERS[package] for package in unknown if package not in missing)
        return missing

    async def close(self) -> None:
        """End all workers and the supervisor."""
        await self.launcher.close()


def _cache_path() -> str:
    """Return the path of the cache, which only its owner can read; empty if there can be none."""
    try:
        file = cache_folder() / CACHE_FILE
        make_folders(file.parent)
        os.close(open_private(file, os.O_RDWR))
        with file.open("rb") as opened:
            if opened.read(16) not in (b"", b"SQLite format 3\0"):
                file.unlink()  # it is damaged, and derived from files that are still there
                os.close(open_private(file, os.O_RDWR))
    except OSError:
        return ""
    return str(file)
