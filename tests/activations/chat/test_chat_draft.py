"""Drafts: their pieces restore the same messages at any time."""

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
#: Few kinds, so that messages are often continued.
SOME = st.sampled_from(KINDS[1:3])
#: Operations on a draft: append, start a message, take a piece.
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), SOME, TEXTS, METAS),
        st.tuples(st.just("begin"), SOME, TEXTS, METAS),
        st.tuples(st.just("keep"), st.just("user"), st.just(""), st.none()),
    ),
    max_size=25,
)


@given(STEPS)
def test_the_pieces_restore_the_draft_as_of_the_last_piece(steps: list[Any]) -> None:
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
def test_saving_a_draft_costs_no_more_than_its_length(steps: list[Any]) -> None:
    draft = Draft()
    written = 0
    for action, kind, text, _ in steps:
        if action != "keep":
            getattr(draft, action)(kind, text)
        piece = draft.take_piece()
        written += sum(len(m.text) for m in recover_draft([piece])) if piece else 0
    assert written == sum(len(message.text) for message in draft.messages())


def test_a_long_message_continues_in_a_new_message() -> None:
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


def test_a_piece_with_many_brackets_can_be_read() -> None:
    draft = Draft()
    draft.add("assistant", "[{" * 200_000)
    assert recover_draft([draft.take_piece() or ""]) == draft.messages()


def test_unreadable_pieces_are_skipped() -> None:
    draft = Draft()
    draft.add("assistant", "a")
    piece = draft.take_piece() or ""
    assert recover_draft(["", "{", piece[:-3], piece, '[[5,"nonsense","b",null]]']) == [
        Message("assistant", "a")
    ]
