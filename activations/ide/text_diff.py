"""The changes between two texts: hunks of lines, a unified diff, and chosen hunks applied.

The time is bounded: what is equal at both ends is cut off first. If the rest is large, lines that
occur once in both texts divide it; a part that is still large becomes a single hunk.
"""

from __future__ import annotations

import difflib
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
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
    changes: list[Hunk] = []
    budget = MAX_PRODUCT
    for part in _divide(Hunk(0, len(old), 0, len(new)), old, new):
        product = part.old_lines * part.new_lines
        if not product or product > budget:
            changes.append(part)
            continue
        budget -= product
        changes += _compare_part(part, old, new)
    return TextDiff(old, new, changes)


def _compare_part(part: Hunk, old: list[str], new: list[str]) -> Iterator[Hunk]:
    """Yield the changes in a part of both texts."""
    old_part = old[part.old_start : part.old_start + part.old_lines]
    new_part = new[part.new_start : part.new_start + part.new_lines]
    matcher = difflib.SequenceMatcher(None, old_part, new_part, autojunk=True)
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag != "equal":
            yield Hunk(part.old_start + i1, i2 - i1, part.new_start + j1, j2 - j1)


def _divide(whole: Hunk, old: list[str], new: list[str]) -> Iterator[Hunk]:
    """Yield the parts of both texts that differ; one part if they are small."""
    whole = _trim(whole, old, new)
    if whole.old_lines * whole.new_lines <= MAX_PRODUCT:
        if whole.old_lines or whole.new_lines:
            yield whole
        return
    old_end, new_end = whole.old_start + whole.old_lines, whole.new_start + whole.new_lines
    i, j = whole.old_start, whole.new_start
    for next_i, next_j in [*_anchors(whole, old, new), (old_end, new_end)]:
        part = _trim(Hunk(i, next_i - i, j, next_j - j), old, new)
        if part.old_lines or part.new_lines:
            yield part
        i, j = next_i + 1, next_j + 1


def _trim(part: Hunk, old: list[str], new: list[str]) -> Hunk:
    """Return a part without the lines that are equal at its ends."""
    i, j = part.old_start, part.new_start
    old_end, new_end = i + part.old_lines, j + part.new_lines
    while i < old_end and j < new_end and old[i] == new[j]:
        i, j = i + 1, j + 1
    while old_end > i and new_end > j and old[old_end - 1] == new[new_end - 1]:
        old_end, new_end = old_end - 1, new_end - 1
    return Hunk(i, old_end - i, j, new_end - j)


def _anchors(part: Hunk, old: list[str], new: list[str]) -> list[tuple[int, int]]:
    """Return where lines are that occur once in both texts, as many as are in the same order."""
    old_range = range(part.old_start, part.old_start + part.old_lines)
    new_range = range(part.new_start, part.new_start + part.new_lines)
    old_counts = Counter(old[i] for i in old_range)
    new_counts = Counter(new[j] for j in new_range)
    places = {new[j]: j for j in new_range if new_counts[new[j]] == 1}
    pairs = [(i, places[old[i]]) for i in old_range if old_counts[old[i]] == 1 and old[i] in places]
    # The longest increasing sequence: the last pair of the best sequence of each length.
    ends: list[int] = []
    last: list[int] = []
    before: list[int] = []
    for number, (_, j) in enumerate(pairs):
        at = bisect_left(ends, j)
        ends[at : at + 1] = [j]
        last[at : at + 1] = [number]
        before.append(last[at - 1] if at else -1)
    found = []
    number = last[-1] if last else -1
    while number >= 0:
        found.append(pairs[number])
        number = before[number]
    return found[::-1]


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
