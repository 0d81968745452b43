"""Hunks and unified diffs: any texts, any choice of hunks, in bounded time."""

from __future__ import annotations

import difflib
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activations.ide.text_diff import MAX_PRODUCT, apply_hunks, compare
from plexus import InvalidParams

LINES = st.lists(st.sampled_from(["a", "b", "c\r", "d\fe", "\N{LINE SEPARATOR}", ""]), max_size=25)
TEXTS = st.builds(lambda lines, end: "\n".join(lines) + end, LINES, st.sampled_from(["", "\n"]))
MANY = 1_000_000


@given(old=TEXTS, new=TEXTS)
def test_all_hunks_lead_to_the_new_text_and_none_to_the_old(old: str, new: str) -> None:
    changes = compare(old, new)
    assert apply_hunks(changes, range(len(changes.hunks))) == new
    assert apply_hunks(changes, ()) == old
    assert (changes.hunks == []) is (old == new)


@given(old=TEXTS, new=TEXTS, data=st.data())
def test_hunks_that_are_not_chosen_are_what_remains(
    old: str, new: str, data: st.DataObject
) -> None:
    changes = compare(old, new)
    numbers = range(len(changes.hunks))
    chosen = data.draw(st.sets(st.sampled_from(numbers)) if numbers else st.just(set()))
    partly = apply_hunks(changes, chosen)
    rest = compare(partly, new)
    assert apply_hunks(rest, range(len(rest.hunks))) == new
    added = sum(changes.hunks[each].new_lines for each in chosen)
    removed = sum(changes.hunks[each].old_lines for each in chosen)
    assert len(changes.old) + added - removed == len(compare("", partly).new)


@given(old=TEXTS, new=TEXTS)
def test_every_change_is_apart_from_the_next_one(old: str, new: str) -> None:
    # The terminal numbers the changes by the blocks of a unified diff.
    changes = compare(old, new)
    for first, second in zip(changes.hunks, changes.hunks[1:], strict=False):
        assert second.old_start > first.old_start + first.old_lines
    lines = changes.unified("a", MANY)[0].split("\n")[2:]
    kinds = [line[:1] in "+-" and line != "" for line in lines if not line.startswith("\\")]
    blocks = sum(now and not before for before, now in zip([False, *kinds], kinds, strict=False))
    assert blocks == len(changes.hunks)


def test_the_unified_diff_is_one_that_git_applies(tmp_path: Path) -> None:
    old = "".join(f"line {number}\n" for number in range(40)) + "no newline"
    new = old.replace("line 3\n", "").replace("line 20\n", "x\ny\n").replace("no newline", "end\n")
    (tmp_path / "a.txt").write_text(old)
    unified, cut = compare(old, new).unified("a.txt", MANY)
    assert not cut
    subprocess.run(
        ["git", "apply", "-p0", "-"], cwd=tmp_path, input=unified, text=True, check=True, timeout=60
    )
    assert (tmp_path / "a.txt").read_text() == new


def test_texts_that_are_too_different_become_one_hunk() -> None:
    side = int(MAX_PRODUCT**0.5) + 1
    old = "same\n" + "".join(f"a{number}\n" for number in range(side)) + "end\n"
    new = "same\n" + "".join(f"b{number}\n" for number in range(side)) + "end\n"
    [hunk] = compare(old, new).hunks
    assert (hunk.old_start, hunk.old_lines, hunk.new_lines) == (1, side, side)
    # Equal ends are cut off first, so a small change of a large file stays small.
    large = "".join(f"line {number}\n" for number in range(50_000))
    [hunk] = compare(large, large.replace("line 25000\n", "changed\n")).hunks
    assert hunk == (25_000, 1, 25_000, 1)


def test_control_characters_of_a_diff_do_not_reach_a_terminal() -> None:
    unified, _ = compare("", "\x1b]0;title\x07\x9b31m\ttab\r\n").unified("a\x1b[2J", MANY)
    assert "\x1b" not in unified
    assert "\x9b" not in unified
    assert "\ttab" in unified


def test_a_long_diff_is_cut_at_a_line() -> None:
    changes = compare("", "".join(f"line {number}\n" for number in range(1000)))
    unified, cut = changes.unified("a", 500)
    assert cut
    assert len(unified) <= 500
    assert unified.endswith("\n")
    whole = list(difflib.unified_diff([], changes.new, "a", "a", n=3))
    assert (
        unified.split("\n")[3:-1]
        == [line.rstrip("\n") for line in whole[3:]][:500][: len(unified.split("\n")) - 4]
    )


@pytest.mark.parametrize("chosen", [[1], [-1], [0, 5]])
def test_an_unknown_hunk_is_refused(chosen: list[int]) -> None:
    with pytest.raises(InvalidParams, match="hunks are numbered from 0 to 0"):
        apply_hunks(compare("a", "b"), chosen)
