"""Incremental rendering of Markdown, independent of how the input is split."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from substrate.cli.terminal.chat_client import strip_controls
from substrate.cli.terminal.markdown import MarkdownStream


def rendered(*pieces: str) -> list[tuple[str, str]]:
    """Render pieces, and join neighbours of the same style."""
    stream = MarkdownStream()
    styled = [each for piece in pieces for each in stream.feed(piece)]
    styled += stream.flush()
    joined: list[tuple[str, str]] = []
    for text, style in styled:
        if joined and joined[-1][1] == style:
            joined[-1] = (joined[-1][0] + text, style)
        else:
            joined.append((text, style))
    return joined


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain text", [("plain text", "")]),
        ("a **bold** word", [("a ", ""), ("bold", "bold"), (" word", "")]),
        ("use `ls -l` now", [("use ", ""), ("ls -l", "cyan"), (" now", "")]),
        ("# Title\ntext", [("Title", "bold magenta"), ("\ntext", "")]),
        ("#hashtag", [("#hashtag", "")]),
        ("- one\n  * two", [("• ", "dim"), ("one\n  ", ""), ("• ", "dim"), ("two", "")]),
        (
            "```py\na = **b**\n```\nend",
            [
                ("```py", "dim"),
                ("\n", ""),
                ("a = **b**", "cyan"),
                ("\n", ""),
                ("```", "dim"),
                ("\nend", ""),
            ],
        ),
        ("2 * 3 ** 4", [("2 * 3 ** 4", "")]),
        ("`a * b`", [("a * b", "cyan")]),
        ("**never closed\nnext", [("never closed", "bold"), ("\nnext", "")]),
        ("ends with **", [("ends with **", "")]),
    ],
)
def test_markdown_is_rendered(text: str, expected: list[tuple[str, str]]) -> None:
    assert rendered(text) == expected


@given(st.text("ab *`#-\n", max_size=40), st.data())
def test_the_split_into_pieces_makes_no_difference(text: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(text)))
    assert rendered(text[:at], text[at:]) == rendered(text)
    assert rendered(*text) == rendered(text)


@given(st.text("ab *`#-\n", max_size=40))
def test_only_marks_are_removed(text: str) -> None:
    def words(of: str) -> str:
        return "".join(each for each in of if each in "ab\n")

    assert words("".join(piece for piece, _ in rendered(text))) == words(text)


@given(st.text(max_size=60))
def test_few_characters_are_held_back(text: str) -> None:
    stream = MarkdownStream()
    list(stream.feed(text))
    assert len("".join(piece for piece, _ in stream.flush())) <= 16


def test_control_characters_are_removed() -> None:
    assert strip_controls("a\x1b]0;title\x07b\rc\x9b31m\td\n") == "a]0;titlebc31m\td\n"
    assert strip_controls("Zoë 日本 👍") == "Zoë 日本 👍"
