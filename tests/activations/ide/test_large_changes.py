"""Changes of large texts are found line by line, in bounded time."""

from __future__ import annotations

import random

import pytest

from activations.ide.text_diff import Hunk, apply_hunks, compare

LINES = [f"value_{number} = {number}\n" for number in range(10_000)]


def test_the_changes_of_a_long_file_are_found_one_by_one() -> None:
    new = list(LINES)
    new[0] = "first\n"
    new[5000:5002] = ["middle\n"]
    new.append("last\n")
    found = compare("".join(LINES), "".join(new))
    assert found.hunks == [Hunk(0, 1, 0, 1), Hunk(5000, 2, 5000, 1), Hunk(10_000, 0, 9999, 1)]
    assert (found.added, found.removed) == (3, 3)
    assert apply_hunks(found, [1]) == "".join([*LINES[:5000], "middle\n", *LINES[5002:]])


def test_a_part_without_lines_in_common_is_one_change() -> None:
    other = [f"other {number}\n" for number in range(5000)]
    found = compare("".join(LINES), "".join([*LINES[:100], *other, *LINES[9000:]]))
    assert found.hunks == [Hunk(100, 8900, 100, 5000)]


@pytest.mark.parametrize("seed", range(20))
def test_all_hunks_give_the_new_text_and_none_the_old_one(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So small that most texts are divided.
    monkeypatch.setattr("activations.ide.text_diff.MAX_PRODUCT", 30)
    chance = random.Random(seed)
    old = [f"{chance.randrange(40)}\n" for _ in range(chance.randrange(80))]
    new = [line for line in old if chance.random() > 0.2]
    for _ in range(chance.randrange(20)):
        new.insert(chance.randrange(len(new) + 1), f"{chance.randrange(60)}\n")
    before, after = "".join(old), "".join(new).removesuffix(chance.choice(["\n", ""]))
    found = compare(before, after)
    assert apply_hunks(found, range(len(found.hunks))) == after
    assert apply_hunks(found, []) == before
    places = [(hunk.old_start, hunk.new_start) for hunk in found.hunks]
    assert places == sorted(places)
