"""Patterns of `.gitignore`: which paths of a workspace git does not track.

git itself is not asked: its configuration in a foreign folder can start programs. Matching takes
time linear in the path for each pattern, whatever the pattern is.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

__all__ = ("IgnoreFile", "is_ignored", "parse_ignore")

#: Patterns that are read of one file, and characters of one pattern.
MAX_PATTERNS: Final = 2000
MAX_CHARACTERS: Final = 500
#: A segment that matches any number of folders.
ANY_DEPTH: Final = None
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


class _Pattern(NamedTuple):
    """One line of a file."""

    #: What the parts of a path must match; None for any number of parts.
    segments: tuple[re.Pattern[str] | None, ...]
    #: It includes again what an earlier pattern excluded.
    negated: bool
    folders_only: bool


class IgnoreFile(NamedTuple):
    """The patterns of one file, and the folder that they are relative to."""

    #: Parts of the folder's path, relative to the workspace.
    folder: tuple[str, ...]
    patterns: tuple[_Pattern, ...]

    def decides(self, parts: Sequence[str], *, is_folder: bool) -> bool | None:
        """Return whether the path is ignored; None if no pattern of this file matches."""
        depth = len(self.folder)
        if tuple(parts[:depth]) != self.folder or len(parts) == depth:
            return None
        for pattern in reversed(self.patterns):
            if (is_folder or not pattern.folders_only) and _matches(
                pattern.segments, parts[depth:]
            ):
                return not pattern.negated
        return None


def parse_ignore(text: str, folder: Sequence[str] = ()) -> IgnoreFile:
    """Read the text of a `.gitignore` in a folder. Lines that are no pattern are skipped."""
    patterns = []
    for line in text.splitlines():
        pattern = _parse_line(line)
        if pattern is not None:
            patterns.append(pattern)
            if len(patterns) == MAX_PATTERNS:
                break
    return IgnoreFile(tuple(folder), tuple(patterns))


def is_ignored(files: Iterable[IgnoreFile], parts: Sequence[str], *, is_folder: bool) -> bool:
    """Return whether git ignores a path. `files` are those of its folders, outermost first.

    A path in an ignored folder is not examined here: the folder is not listed.
    """
    ignored = False
    for each in files:
        decision = each.decides(parts, is_folder=is_folder)
        if decision is not None:
            ignored = decision
    return ignored


def _parse_line(line: str) -> _Pattern | None:
    if len(line) > MAX_CHARACTERS or line.startswith("#"):
        return None
    if not line.endswith("\\ "):
        line = line.rstrip()
    negated = line.startswith("!")
    text = line[1:] if negated else line
    if text.startswith(("\\#", "\\!")):
        text = text[1:]
    folders_only = text.endswith("/")
    text = text.rstrip("/")
    if not text:
        return None
    anchored = "/" in text
    parts = [part for part in text.split("/") if part]
    segments: list[re.Pattern[str] | None] = [] if anchored else [ANY_DEPTH]
    for part in parts:
        if part == "**":
            if not segments or segments[-1] is not ANY_DEPTH:
                segments.append(ANY_DEPTH)
        else:
            plain = _ESCAPED.sub(_unescaped, part.replace("[^", "[!"))
            segments.append(re.compile(fnmatch.translate(plain)))
    if segments and segments[-1] is ANY_DEPTH:  # `a/**` matches what is in a, not a itself
        segments.append(re.compile(".+", re.DOTALL))
    return _Pattern(tuple(segments), negated, folders_only)


def _unescaped(found: re.Match[str]) -> str:
    """Return the form in which fnmatch, which knows no backslash, takes a character literally."""
    return f"[{found[1]}]" if found[1] in "*?[" else found[1]


def _matches(segments: Sequence[re.Pattern[str] | None], parts: Sequence[str]) -> bool:
    """Return whether all parts match all segments. Each pair is compared at most once."""
    #: The numbers of parts that the segments so far can match.
    reached = {0}
    for segment in segments:
        if segment is ANY_DEPTH:
            reached = set(range(min(reached), len(parts) + 1))
        else:
            reached = {
                at + 1 for at in reached if at < len(parts) and segment.match(parts[at]) is not None
            }
        if not reached:
            return False
    return len(parts) in reached
