"""Decision whether the files of a project folder are loaded.

They are loaded if the folder is trusted: as it is now (every digest matches), always (regardless of
its contents), or for this start. Otherwise none of them is executed or read as settings, and the
reason is reported.

Rules:

- Fail closed: files that cannot be read or verified are not loaded.
- Python files are executed from the bytes that were hashed. Files that plugins import or open later
  are read from disk, after they were verified at the start.
- Digests cover everything in the folder of plugins, bytecode included, so none is written there.
- A person may be asked at a terminal. Everything shown that comes from the folder is escaped: a
  name or a setting must not control the terminal.
"""

from __future__ import annotations

import itertools
import os
import stat
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import click

from plexus.text import escape_controls
from substrate.security.folder_trust.contents import (
    Contents,
    Unreadable,
    plugin_folder,
    read_contents,
    read_settings_file,
)
from substrate.security.folder_trust.records import Record, RecordError, read_record, write_record
from substrate.settings import (
    ACTIVATIONS_FOLDER,
    FILE,
    FOLDER_VARIABLE,
    ProjectFiles,
    Skipped,
    files_to_trust,
)
from substrate.telemetry.logging import announce

__all__ = (
    "Ask",
    "ask",
    "can_prompt",
    "changes",
    "decide",
    "files_at_start",
    "format_contents",
    "real_folder",
    "unsafe_reason",
)

#: Asks a person whether to trust a folder with these files.
Ask = Callable[[Path, Contents], bool]

#: Maximum number of names in a report, and maximum characters of each.
DETAILS: Final = 20
DETAIL_CHARS: Final = 120

#: Maximum number of files and lines of settings that are shown.
FILES: Final = 40
LINES: Final = 60
LINE_CHARS: Final = 200

REVIEW: Final = "Run `substrate trust` in this folder to review and load them."


def real_folder(project: Path) -> Path:
    """Return the folder with links resolved: trust belongs to the real folder."""
    return Path(os.path.realpath(project))


def decide(
    project: Path,
    *,
    once: bool = False,
    ask: Ask | None = None,
    warn: Callable[[str], None] | None = None,
) -> ProjectFiles:
    """Return what a start in this folder loads from it.

    With `once` the folder is trusted for this start. `ask` is called if the folder is not trusted,
    and its consent is stored; `warn` is called with a message if that fails.
    """
    folder = real_folder(project)
    if once:
        return _live(folder, project, once=True)
    try:
        record = read_record(folder)
    except RecordError as error:
        return _skip(folder, "record_unreadable", [str(error)])
    if record is not None and record.always:
        reason = unsafe_reason(folder)
        if reason is not None:
            return _skip(folder, "unsafe", [reason])
        return _live(folder, project, once=False)
    differences: list[str] = []
    settings: bytes | None = None
    replaced = () if record is None else record.replaces
    try:
        if record is not None:
            contents = read_contents(folder, may_follow=_is(record.files.get(FILE)))
            differences = changes(record, contents)
            if not differences:
                return _pinned(contents, project)
            # A changed plugin must not switch off a sandbox that unchanged settings require.
            if contents.digests().get(FILE) == record.files.get(FILE):
                settings = contents.settings()
        if ask is not None and ask(folder, contents := read_contents(folder)):
            _remember(folder, contents, warn)
            return _pinned(contents, project)
    except Unreadable as error:
        return _skip(folder, "unreadable", [str(error)], replaced=replaced)
    if record is None:
        return _skip(folder, "untrusted", files_to_trust(folder))
    return _skip(folder, "changed", differences, settings, replaced)


def changes(record: Record, contents: Contents) -> list[str]:
    """Return the differences from the trusted files, as in `changed activations.d/a.py`.

    If `substrate.toml` differs, only that: which other files it names is not known.
    """
    found, trusted = contents.digests(), record.files
    names = sorted(found.keys() | trusted.keys())
    if found.get(FILE) != trusted.get(FILE):
        names = [FILE]
    return [
        f"{_change(name in trusted, name in found)} {name}"
        for name in names
        if found.get(name) != trusted.get(name)
    ]


def unsafe_reason(folder: Path) -> str | None:
    """Return why other users could change the contents of the folder; None if they cannot."""
    plugins = folder / (os.environ.get(FOLDER_VARIABLE) or ACTIVATIONS_FOLDER)
    for path in (folder, folder / FILE, plugins, *itertools.islice(plugins.glob("*.py"), DETAILS)):
        try:
            found = path.stat()
        except OSError:
            continue
        if found.st_uid not in (os.geteuid(), 0):
            return f"{path} belongs to another user"
        if found.st_mode & stat.S_IWOTH:
            return f"{path} is writable by every user"
    for parent in folder.parents:
        try:
            found = parent.stat()
        except OSError as error:
            return f"{parent} cannot be read: {error.strerror}"
        sticky = found.st_mode & stat.S_ISVTX  # only the owner of an entry can rename it
        if found.st_uid not in (os.geteuid(), 0) or (found.st_mode & stat.S_IWOTH and not sticky):
            return f"other users can replace files in {parent}"
    return None


# --- asking at a terminal ---------------------------------------------------------------------


def files_at_start(project: Path, *, once: bool, may_ask: bool) -> ProjectFiles:
    """Return what this start loads from the folder, after asking at a terminal if allowed."""
    warn = partial(announce, level="WARNING")
    return decide(project, once=once, ask=ask if may_ask and can_prompt() else None, warn=warn)


def can_prompt() -> bool:
    """Return whether a person can be asked: stdin and stderr are terminals."""
    try:
        return sys.stdin.isatty() and sys.stderr.isatty()
    except (AttributeError, ValueError):  # one of them is missing or closed
        return False


def ask(folder: Path, contents: Contents) -> bool:
    """Show what would be loaded, and ask whether to trust it. The default is no."""
    click.echo(f"{escape_controls(str(folder))} is not trusted. Substrate would load:", err=True)
    for line in format_contents(contents):
        click.echo(line, err=True)
    click.echo(
        "These files run as code and settings with your rights. Trust them only if you trust "
        "their authors.",
        err=True,
    )
    return click.confirm("Trust these files as they are now?", default=False, err=True)


def format_contents(contents: Contents) -> Iterator[str]:
    """Yield the files with their sizes, and the lines of `substrate.toml`."""
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
    yield f"{FILE} contains:"
    for line in lines[:LINES]:
        shown = escape_controls(line.rstrip("\r"))
        cut = " ..." if len(shown) > LINE_CHARS else ""
        yield f"  | {shown[:LINE_CHARS]}{cut}"
    if len(lines) > LINES:
        yield f"  | and {len(lines) - LINES} more lines: read the file before you trust it"


# --- parts ------------------------------------------------------------------------------------


def _live(folder: Path, project: Path, *, once: bool) -> ProjectFiles:
    """Load everything as it is on disk."""
    try:
        settings = read_settings_file(folder)
    except Unreadable as error:
        return _skip(folder, "unreadable", [str(error)])
    content = None if settings is None else settings.content
    sys.dont_write_bytecode = True
    return ProjectFiles(
        settings=content, folder=project / plugin_folder(content), live=True, once=once
    )


def _pinned(contents: Contents, project: Path) -> ProjectFiles:
    """Load the files as they were read."""
    sys.dont_write_bytecode = True
    sources = {
        path: entry.content
        for name, entry in contents.entries.items()
        if entry.content is not None and name != FILE
        for path in (name, str(project / name))  # relative, as in settings, and absolute
    }
    plugins = tuple(str(project / name) for name in contents.plugins)
    return ProjectFiles(settings=contents.settings(), sources=sources, plugins=plugins)


def _remember(folder: Path, contents: Contents, warn: Callable[[str], None] | None) -> None:
    try:
        write_record(folder, contents.digests(), contents.replaces())
    except RecordError as error:
        if warn is not None:
            warn(f"{error} The files are loaded for this start only.")


def _is(digest: str | None) -> Callable[[str], bool]:
    return lambda found: found == digest


def _change(was: bool, is_there: bool) -> str:
    if not was:
        return "added"
    return "changed" if is_there else "removed"


def _skip(
    folder: Path,
    code: str,
    details: list[str],
    settings: bytes | None = None,
    replaced: tuple[str, ...] = (),
) -> ProjectFiles:
    """Load only settings that are still trusted, and report the rest."""
    there = [name for name in files_to_trust(folder) if settings is None or name != FILE]
    names = " and ".join(there) or f"files that {FILE} names"
    why, cure = {
        "untrusted": ("the folder is not trusted", REVIEW),
        "changed": ("they changed since they were trusted", REVIEW),
        "unsafe": (
            "other users can change the folder, which is trusted always",
            "Make it writable only by you, or run `substrate trust` to trust it as it is now.",
        ),
        "unreadable": (
            "they cannot be read completely",
            "Run `substrate doctor` in this folder: it names the file.",
        ),
        "record_unreadable": (
            "the trust record cannot be used",
            "Run `substrate doctor` in this folder: it names the record.",
        ),
    }[code]
    shown = [escape_controls(each)[:DETAIL_CHARS] for each in details[:DETAILS]]
    if len(details) > DETAILS:
        shown.append(f"and {len(details) - DETAILS} more")
    message = f"Not loaded from the project folder: {names}, because {why}."
    skipped = Skipped(code, message, cure, escape_controls(str(folder)), tuple(shown))
    return ProjectFiles(settings=settings, skipped=skipped, replaced=replaced)
