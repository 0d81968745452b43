"""The changes between two texts: hunks of lines, a unified diff, and chosen hunks applied.

The time is bounded: what is equal at both ends is cut off first, and texts whose rest is still
large become a single hunk.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from plexus import InvalidParams
from plexus.text import escape_controls

__all__ = ("Hunk", "TextDiff", "apply_hunks", "compare")

#: Maximum product of the numbers of different lines on both sides that are compared: about a
#: second in the worst case.
MAX_PRODUCT: Final = 4_000_000
#: Lines around a change in a unified diff.
CONTEXT: Final = 3


class Hunk(NamedTuple):
    """One change: lines of the old text, and those of the new text that replace them."""

    old_start: int
    old_lines: int
    new_start: int
    new_lines: int


class TextDiff(NamedTuple):
    """The changes from one text to another."""

    old: list[str]
    new: list[str]
    hunks: list[Hunk]

    @property
    def added(self) -> int:
        """The number of new lines."""
        return sum(hunk.new_lines for hunk in self.hunks)

    @property
    def removed(self) -> int:
        """The number of old lines that are not in the new text."""
        return sum(hunk.old_lines for hunk in self.hunks)

    def unified(self, path: str, limit: int) -> tuple[str, bool]:
        """Return a unified diff of at most `limit` characters, and whether it was cut.

        Control characters are escaped, because it is printed on terminals.
        """
        parts = [f"--- {escape_controls(path)}\n", f"+++ {escape_controls(path)}\n"]
        size = sum(map(len, parts))
        for group in self._groups():
            for line in self._group_lines(group):
                size += len(line)
                if size > limit:
                    return "".join(parts), True
                parts.append(line)
        return "".join(parts), False

    def _groups(self) -> list[list[Hunk]]:
        """Return the hunks, joined where their contexts overlap."""
        groups: list[list[Hunk]] = []
        for hunk in self.hunks:
            if groups:
                last = groups[-1][-1]
                if hunk.old_start - (last.old_start + last.old_lines) <= 2 * CONTEXT:
                    groups[-1].append(hunk)
                    continue
            groups.append([hunk])
        return groups

    def _group_lines(self, group: Sequence[Hunk]) -> list[str]:
        first, last = group[0], group[-1]
        begin = max(first.old_start - CONTEXT, 0)
        end = min(last.old_start + last.old_lines + CONTEXT, len(self.old))
        new_begin = first.new_start - (first.old_start - begin)
        new_end = last.new_start + last.new_lines + (end - last.old_start - last.old_lines)
        old_span = _span(begin, end - begin)
        lines = [f"@@ -{old_span} +{_span(new_begin, new_end - new_begin)} @@\n"]
        at = begin
        for hunk in group:
            lines += [_shown(" ", line) for line in self.old[at : hunk.old_start]]
            at = hunk.old_start + hunk.old_lines
            lines += [_shown("-", line) for line in self.old[hunk.old_start : at]]
            new_end = hunk.new_start + hunk.new_lines
            lines += [_shown("+", line) for line in self.new[hunk.new_start : new_end]]
        return lines + [_shown(" ", line) for line in self.old[at:end]]


def compare(old_text: str, new_text: str) -> TextDiff:
    """Return the changes from one text to another."""
    old, new = _split(old_text), _split(new_text)
    start = 0
    shorter = min(len(old), len(new))
    while start < shorter and old[start] == new[start]:
        start += 1
    same_end = 0
    while same_end < shorter - start and old[-1 - same_end] == new[-1 - same_end]:
        same_end += 1
    old_part, new_part = old[start : len(old) - same_end], new[start : len(new) - same_end]
    if len(old_part) * len(new_part) > MAX_PRODUCT:
        changes = [Hunk(start, len(old_part), start, len(new_part))]
    else:
        matcher = difflib.SequenceMatcher(None, old_part, new_part, autojunk=True)
        changes = [
            Hunk(start + i1, i2 - i1, start + j1, j2 - j1)
            for tag, i1, i2, j1, j2 in matcher.get_opcodes()
            if tag != "equal"
        ]
    return TextDiff(old, new, changes)


def apply_hunks(diff: TextDiff, chosen: Collection[int]) -> str:
    """Return the old text with these hunks applied, by number from 0. Raises InvalidParams."""
    wrong = [each for each in chosen if not 0 <= each < len(diff.hunks)]
    if wrong:
        raise InvalidParams(
            f"the diff has no hunk {wrong[0]}; its hunks are numbered from 0 to "
            f"{len(diff.hunks) - 1}"
        )
    parts: list[str] = []
    at = 0
    wanted = frozenset(chosen)
    for number, hunk in enumerate(diff.hunks):
        if number in wanted:
            parts += diff.old[at : hunk.old_start]
            parts += diff.new[hunk.new_start : hunk.new_start + hunk.new_lines]
            at = hunk.old_start + hunk.old_lines
    parts += diff.old[at:]
    return "".join(parts)


def _split(text: str) -> list[str]:
    """Return the lines of a text with their ends, which are those of editors only."""
    lines = text.split("\n")
    last = lines.pop()
    return [*(f"{line}\n" for line in lines), *([last] if last else ())]


def _span(start: int, count: int) -> str:
    """Return a part of a file as in unified diffs, which count lines from 1."""
    first = start + 1 if count else start
    return f"{first}" if count == 1 else f"{first},{count}"


def _shown(mark: str, line: str) -> str:
    end = "\n" if line.endswith("\n") else "\n\\ No newline at end of file\n"
    text = line.removesuffix("\n").removesuffix("\r")
    return mark + "\t".join(map(escape_controls, text.split("\t"))) + end
