"""A draft: the pieces that are kept of it make the same messages, at any moment."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from activations.chat.message import (
    KINDS,
    MESSAGE_CHARACTERS,
    Draft,
    Message,
    recover_draft,
    replace_unstorable,
)

TEXTS = st.text(max_size=6).map(replace_unstorable)
METAS = st.one_of(
    st.none(), st.dictionaries(st.sampled_from(["a", "b", "model"]), st.integers(0, 9), max_size=2)
)
#: So few that one is often gone on with.
SOME = st.sampled_from(KINDS[1:3])
#: What happens to a draft: it grows, another message begins, or a piece is taken.
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), SOME, TEXTS, METAS),
        st.tuples(st.just("begin"), SOME, TEXTS, METAS),
        st.tuples(st.just("keep"), st.just("user"), st.just(""), st.none()),
    ),
    max_size=25,
)


@given(STEPS)
def test_the_pieces_make_what_the_draft_was_when_the_last_was_taken(steps: list[Any]) -> None:
    draft = Draft()
    pieces: list[str] = []
    for action, kind, text, meta in steps:
        if action == "keep":
            piece = draft.take_piece()
            if piece is not None:
                pieces.append(piece)
            assert recover_draft(pieces) == draft.messages()
            assert draft.take_piece() is None
        else:
            getattr(draft, action)(kind, text, meta)
    piece = draft.take_piece()
    assert recover_draft([*pieces, *([] if piece is None else [piece])]) == draft.messages()
    assert bool(draft) == bool(draft.messages())


@given(STEPS)
def test_keeping_a_draft_costs_no_more_than_its_length(steps: list[Any]) -> None:
    draft = Draft()
    written = 0
    for action, kind, text, _ in steps:
        if action != "keep":
            getattr(draft, action)(kind, text)
        piece = draft.take_piece()
        written += sum(len(m.text) for m in recover_draft([piece])) if piece else 0
    assert written == sum(len(message.text) for message in draft.messages())


def test_a_message_that_has_grown_long_is_gone_on_with_in_another() -> None:
    draft = Draft()
    for _ in range(3):
        draft.add("assistant", "x" * MESSAGE_CHARACTERS)
        draft.add("assistant", "y")
    assert [len(each.text) for each in draft.messages()] == [
        MESSAGE_CHARACTERS + 1,
        MESSAGE_CHARACTERS + 1,
        MESSAGE_CHARACTERS + 1,
    ]
    assert recover_draft([draft.take_piece() or ""]) == draft.messages()


def test_a_piece_of_many_brackets_is_read_again() -> None:
    draft = Draft()
    draft.add("assistant", "[{" * 200_000)
    assert recover_draft([draft.take_piece() or ""]) == draft.messages()


def test_what_is_no_piece_is_left_out() -> None:
    draft = Draft()
    draft.add("assistant", "a")
    piece = draft.take_piece() or ""
    assert recover_draft(["", "{", piece[:-3], piece, '[[5,"nonsense","b",null]]']) == [
        Message("assistant", "a")
    ]
