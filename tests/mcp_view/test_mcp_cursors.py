"""Pages of a list and the cursors between them."""

from __future__ import annotations

import base64
import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_view.catalogue import cursor_after, cursor_key, page_of
from mcp_view.errors import ProtocolError

KEYS = st.lists(st.text(max_size=8), unique=True).map(sorted)


@given(KEYS, st.integers(1, 7))
def test_all_pages_together_are_the_list_without_repeats(keys: list[str], size: int) -> None:
    walked: list[str] = []
    params: dict[str, Any] = {}
    for _ in range(len(keys) + 1):
        page, cursor = page_of(keys, cursor_key(params), size)
        assert 0 < len(keys[page]) <= size or not keys
        walked += keys[page]
        if cursor is None:
            break
        params = {"cursor": cursor}
    assert walked == keys


@given(KEYS, st.data())
def test_entries_that_remain_in_a_list_are_neither_repeated_nor_skipped(
    keys: list[str], data: st.DataObject
) -> None:
    seen: list[str] = []
    params: dict[str, Any] = {}
    always = set(keys)
    while True:
        page, cursor = page_of(keys, cursor_key(params), 2)
        seen += keys[page]
        if cursor is None:
            break
        params = {"cursor": cursor}
        gone = data.draw(st.sets(st.sampled_from(keys))) if keys else set()
        always -= gone
        come = data.draw(st.sets(st.text(max_size=8), max_size=3))
        keys = sorted(({*keys} - gone) | come)
    assert len(seen) == len(set(seen))
    assert always <= set(seen)


@given(st.text())
def test_a_cursor_contains_its_key(key: str) -> None:
    assert cursor_key({"cursor": cursor_after(key)}) == key


def test_no_cursor_and_a_null_one_mean_the_first_page() -> None:
    assert cursor_key({}) is None
    assert cursor_key({"cursor": None}) is None
    assert page_of(["a", "b"], None, 2) == (slice(0, 2), None)
    assert page_of([], None, 2) == (slice(0, 2), None)


@pytest.mark.parametrize(
    "cursor",
    [
        *("", "x", "1", "\u00e9", "YQ==", "!!!!", 0, 5, 1.5, True, [], {}, ["YWZ0ZXI6"]),
        base64.b64encode(b"after:\xff").decode(),
        base64.b64encode(b"before:x").decode(),
    ],
)
def test_an_unknown_cursor_is_refused(cursor: Any) -> None:
    with pytest.raises(ProtocolError) as caught:
        cursor_key({"cursor": cursor})
    assert caught.value.code == -32602


@given(st.one_of(st.text(), st.binary().map(lambda raw: base64.b64encode(raw).decode())))
def test_any_text_is_a_cursor_or_is_refused(text: str) -> None:
    with contextlib.suppress(ProtocolError):
        assert isinstance(cursor_key({"cursor": text}), str)
