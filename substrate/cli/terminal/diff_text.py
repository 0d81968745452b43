"""A unified diff on a terminal: coloured, with numbers of its changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from plexus.text import escape_controls
from substrate.cli.terminal.display import DIM, coloured

__all__ = ("diff_lines",)

COLOURS: Final = {"+": "green", "-": "red", "@": "cyan"}


def diff_lines(details: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the diff of a question.

    If it has several changes, the first line of each begins with its number, from 1.
    """
    lines = str(details.get("unified", "")).split("\n")
    if not lines[-1]:
        lines.pop()
    several = int(details.get("hunks") or 0) > 1
    number, in_change = 0, False
    for at, line in enumerate(lines):
        is_header = at < 2 and line.startswith(("--- ", "+++ "))
        is_change = not is_header and line.startswith(("+", "-"))
        if is_change and not in_change:
            number += 1
        margin = ""
        if several:
            margin = f"{number:>3} " if is_change and not in_change else "    "
        # A mark that the last line has no newline is no end of a change.
        in_change = is_change or (in_change and line.startswith("\\"))
        colour = None if is_header else COLOURS.get(line[:1])
        # The server has escaped it, but another server may not have.
        shown = escape_controls(line.replace("\t", "    "))
        yield coloured(margin, DIM) + coloured(shown, colour)
    if details.get("cut"):
        yield coloured("The diff is longer. The page shows all of it.", "yellow")
