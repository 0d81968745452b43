"""The loop of a worker: one command per line on standard input, reports on standard output.

A command is an object with `op`. Its reports end with `done`, or with `failed` if the whole command
failed. A file that cannot be measured is a report with the reason.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from activations.analysis.worker.cache import Cache
from activations.analysis.worker.churn import read_churn
from activations.analysis.worker.complexity import (
    measure_complexity,
    measure_halstead,
    prepare,
)
from activations.analysis.worker.dead_code import find_dead_code
from activations.analysis.worker.file_list import ListOptions, Selection, list_files
from activations.analysis.worker.import_graph import read_import_graph
from activations.analysis.worker.source_file import Skipped, SourceFile, read_source
from activations.analysis.worker.syntax import measure_syntax

__all__ = ("SECTIONS", "main")

Report = dict[str, Any]

#: Files in one report of a listing. The first report is small, so that measuring starts early.
LISTED: Final = 200
FIRST_LISTED: Final = 8
#: The packages whose versions decide whether a kept measurement is used.
PACKAGES: Final = ("lizard", "complexipy", "tree-sitter")
#: The measurements of one file.
SECTIONS: Final[dict[str, Callable[[SourceFile], dict[str, Any]]]] = {
    "complexity": measure_complexity,
    "halstead": measure_halstead,
    "syntax": measure_syntax,
}


class Worker:
    """The state of a worker process."""

    def __init__(self, root: str, cache: str, strategy: str) -> None:
        # What an analyser prints must not be read as a report.
        self._reports = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)
        self._root = Path(root)
        self._strategy = strategy
        self._cache = Cache(cache, " ".join(f"{name}={_version(name)}" for name in PACKAGES))

    def run(self) -> None:
        """Execute commands until the end of the input."""
        for line in sys.stdin:
            command = json.loads(line)
            try:
                for report in _OPERATIONS[command.pop("op")](self, **command):
                    self._send(report)
            except OSError as error:
                self._send({"op": "failed", "reason": error.strerror or str(error)})
            except ImportError as error:
                self._send({"op": "failed", "missing": error.name or str(error)})
            else:
                self._send({"op": "done"})
        self._cache.close()

    def _send(self, report: Report | bytes) -> None:
        line = report if isinstance(report, bytes) else _encode(report)
        self._reports.write(line + b"\n")
        self._reports.flush()

    def prepare(self, sections: list[str]) -> Iterator[Report]:
        """Import the analysers before the first file is known, if they will be needed."""
        is_needed = self._cache.is_empty or self._strategy == "force-refresh"
        if "complexity" in sections and is_needed and self._strategy != "offline":
            prepare()
        yield from ()

    def list_files(self, **options: Any) -> Iterator[Report]:
        """Report the files of the project, and those that are skipped."""
        lists = {name: tuple(value) for name, value in options.items() if isinstance(value, list)}
        chosen = ListOptions(**{**options, **lists})
        files: list[tuple[str, str, int]] = []
        size = FIRST_LISTED
        for entry in list_files(self._root, chosen):
            if entry.reason:
                yield {"op": "skipped", "path": entry.path, "reason": entry.reason}
                continue
            files.append((entry.path, entry.language, entry.size))
            if len(files) >= size:
                yield {"op": "files", "files": files}
                files, size = [], LISTED
        yield {"op": "files", "files": files}

    def churn(
        self,
        since: int,
        until: int,
        max_depth: int | None = None,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
    ) -> Iterator[Report]:
        """Report the changes of files between two times, in seconds since 1970."""
        selection = Selection(max_depth, include, exclude)
        yield from read_churn(self._root, since, until, selection)

    def dead_code(self, files: list[str], confidence: int) -> Iterator[Report]:
        """Report unused code of Python files."""
        yield from find_dead_code(self._root, files, confidence)

    def import_graph(self, packages: list[list[str]]) -> Iterator[Report]:
        """Report the imports of Python packages, each a folder with the name of the package."""
        yield from read_import_graph(self._root, packages)

    def measure(self, files: list[list[str]], sections: list[str]) -> Iterator[Report | bytes]:
        """Report the measurements of files, in their order."""
        for path, language in files:
            try:
                source = read_source(self._root, path, language)
                yield self._file(source, sections)
            except Skipped as error:
                yield {"op": "skipped", "path": path, "reason": str(error)}
            except (RecursionError, MemoryError) as error:
                reason = f"too large to parse: {type(error).__name__}"
                yield {"op": "skipped", "path": path, "reason": reason}
        self._cache.flush()

    def _file(self, source: SourceFile, sections: list[str]) -> bytes:
        """Return the report of a file. Measurements are kept and sent in the same form, as JSON."""
        parts: list[bytes] = []
        from_cache = 0
        for section in sections:
            name = f"{section} {source.language}"
            found = None
            if self._strategy != "force-refresh":
                found = self._cache.get(source.digest, name)
            if found is None:
                if self._strategy == "offline":
                    raise Skipped("not in the cache, and cache_strategy is offline")
                found = _encode(SECTIONS[section](source))
                self._cache.put(source.digest, name, found)
            else:
                from_cache += 1
            parts.append(b', "%b": %b' % (section.encode(), found))
        head: Report = {"op": "file", "path": source.path, "language": source.language}
        head |= {"bytes": len(source.content), "lines": _lines(source.content)}
        head |= {"cached": from_cache == len(sections)}
        return _encode(head)[:-1] + b"".join(parts) + b"}"


def _encode(value: Any) -> bytes:
    return json.dumps(value).encode()


def _lines(content: bytes) -> int:
    return content.count(b"\n") + (not content.endswith(b"\n") and bool(content))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


_OPERATIONS: Final[dict[str, Callable[..., Iterator[Report | bytes]]]] = {
    "churn": Worker.churn,
    "list": Worker.list_files,
    "dead_code": Worker.dead_code,
    "import_graph": Worker.import_graph,
    "measure": Worker.measure,
    "prepare": Worker.prepare,
}


def main(root: str, cache: str, strategy: str) -> None:
    """Run a worker. Code that is parsed may nest deeply, within a bound that the stack has."""
    sys.setrecursionlimit(3000)
    Worker(root, cache, strategy).run()
