"""Unused code of Python files, as vulture finds it: names that no file of the project uses."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

__all__ = ("find_dead_code",)

#: Files that are read between two reports about the progress.
STEP: Final = 100
#: Items of one report.
ITEMS: Final = 500

Report = dict[str, Any]


def find_dead_code(root: Path, files: list[str], confidence: int) -> Iterator[Report]:
    """Yield the progress, the unused items, and the totals."""
    import vulture

    finder = vulture.Vulture()
    unreadable = 0
    for number, path in enumerate(files, 1):
        # It prints what it cannot parse, and counts it nowhere.
        with redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
            unreadable += not _scan(finder, root / path)
        if number % STEP == 0:
            yield {"op": "progress", "done": number}
    finder.scavenge([])  # adds what well-known packages use
    items = [
        {
            "file": Path(item.filename).relative_to(root).as_posix(),
            "line": item.first_lineno,
            "end_line": item.last_lineno,
            "name": str(item.name)[:200],
            "kind": item.typ,
            "message": item.message[:300],
            "confidence": item.confidence,
        }
        for item in finder.get_unused_code(min_confidence=confidence)
        if Path(item.filename).is_relative_to(root)
    ]
    for start in range(0, len(items), ITEMS):
        yield {"op": "items", "items": items[start : start + ITEMS]}
    yield {"op": "totals", "unreadable": unreadable, "version": version("vulture")}


def _scan(finder: Any, path: Path) -> bool:
    """Read a file, and return whether it could be parsed."""
    from vulture import utils

    finder.exit_code = utils.ExitCode.NoDeadCode
    try:
        finder.scan(utils.read_file(path), filename=path)
    except (OSError, RecursionError, MemoryError, utils.VultureInputException):
        finder.reachability.reset()
        return False
    return bool(finder.exit_code != utils.ExitCode.InvalidInput)
