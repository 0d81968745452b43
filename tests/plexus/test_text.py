"""Untrusted text is escaped and shortened."""

from __future__ import annotations

import pytest

from plexus.text import escape_controls, head_and_tail, replace_controls, shorten

NASTY = "a\nb\x1b[31m\x7f\u202e\u2066\u061c\ud800z"


def test_terminal_control_characters_are_escaped() -> None:
    assert escape_controls("plain, naïve 漢字 🙂") == "plain, naïve 漢字 🙂"
    assert escape_controls(NASTY) == ("a\\u000ab\\u001b[31m\\u007f\\u202e\\u2066\\u061c\\ud800z")


def test_control_characters_are_replaced_except_those_to_keep() -> None:
    assert replace_controls(NASTY) == "ab[31mz"
    assert replace_controls("a\r\n\tb", "?", keep="\n\t") == "a?\n\tb"


def test_a_long_text_is_shortened_at_its_end() -> None:
    assert shorten("abc", 3) == "abc"
    assert shorten("abcd", 3) == "abc..."


@pytest.mark.parametrize("limit", [0, 1, 4, 5, 99])
def test_a_long_text_keeps_its_head_and_tail_with_a_note(limit: int) -> None:
    text = "".join(chr(0x4E00 + number) for number in range(100))
    cut = head_and_tail(text, limit)
    head, _, rest = cut.partition("\n[... ")
    note, _, tail = rest.partition(" ...]\n")
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len(head) == len(tail) == limit // 2
    assert note == f"{100 - 2 * (limit // 2)} characters left out"
    assert head_and_tail(text, 100) == text
