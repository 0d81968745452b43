"""What a person sees of a folder before trusting it, and the question.

Everything that comes from the folder is escaped: a name or a setting must not act on the terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import click

from plexus.text import escape_controls
from substrate.security.folder_trust.contents import Contents
from substrate.security.folder_trust.decision import decide
from substrate.settings import FILE, ProjectFiles
from substrate.telemetry.logging import announce

__all__ = ("ask", "at_terminal", "described", "files_at_start")

#: How many files, and lines of settings, are shown.
FILES: Final = 40
LINES: Final = 60
LINE_CHARS: Final = 200


def files_at_start(project: Path, *, once: bool, may_ask: bool) -> ProjectFiles:
    """What this start loads from the folder; a person at a terminal is asked if that is allowed."""
    warn = partial(announce, level="WARNING")
    return decide(project, once=once, ask=ask if may_ask and at_terminal() else None, warn=warn)


def at_terminal() -> bool:
    """Whether a person can be asked: stdin and stderr are terminals."""
    try:
        return sys.stdin.isatty() and sys.stderr.isatty()
    except (AttributeError, ValueError):  # one of them is missing or closed
        return False


def ask(folder: Path, contents: Contents) -> bool:
    """Show what would be loaded, and ask whether to trust it; no is the default."""
    click.echo(f"{escape_controls(str(folder))} is not trusted. Substrate would load:", err=True)
    for line in described(contents):
        click.echo(line, err=True)
    click.echo(
        "These files run as code and settings with your rights. Trust them only if you trust "
        "their authors.",
        err=True,
    )
    return click.confirm("Trust these files as they are now?", default=False, err=True)


def described(contents: Contents) -> Iterator[str]:
    """The files with their sizes, and the lines of `substrate.toml`."""
    names = list(contents.entries)
    width = max((len(escape_controls(name)) for name in names[:FILES]), default=0)
    for name in names[:FILES]:
        yield f"  {escape_controls(name).ljust(width)}  {contents.entries[name].size:,} bytes"
    if len(names) > FILES:
        yield f"  and {len(names) - FILES} more files"
    settings = contents.settings()
    if settings is None:
        return
    lines = settings.decode(errors="replace").split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    yield f"{FILE} holds:"
    for line in lines[:LINES]:
        shown = escape_controls(line.rstrip("\r"))
        cut = " ..." if len(shown) > LINE_CHARS else ""
        yield f"  | {shown[:LINE_CHARS]}{cut}"
    if len(lines) > LINES:
        yield f"  | and {len(lines) - LINES} more lines: read the file before you trust it"
