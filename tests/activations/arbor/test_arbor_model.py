"""The text form of handles: every value round-trips, and invalid text is refused."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activations.arbor.model import Handle
from plexus.errors import InvalidParams


@given(st.text(), st.text(), st.text(), st.lists(st.text()))
def test_every_handle_round_trips(plugin: str, version: str, method: str, meta: list[str]) -> None:
    handle = Handle(plugin, version, method, tuple(meta))
    assert Handle.parse(str(handle)) == handle


@given(st.text())
def test_any_text_is_a_handle_or_refused(text: str) -> None:
    try:
        handle = Handle.parse(text)
    except InvalidParams:
        return
    assert str(handle) == text


def test_a_simple_handle_is_parsed() -> None:
    handle = Handle("chat", "1.0", "message", ("id:7", "user"))
    assert str(handle) == "chat@1.0::message:id%3A7:user"


@pytest.mark.parametrize(
    "text", ["", "a", "a@b", "a@b:c", "a:b::c", "a@b::c%", "a@b::c%41", "@@::"]
)
def test_an_invalid_handle_is_refused(text: str) -> None:
    with pytest.raises(InvalidParams) as caught:
        Handle.parse(text)
    assert caught.value.code == "bad_handle"


def test_no_database_is_imported_before_a_store_is_opened() -> None:
    program = (
        "import sys, activations.arbor.store\n"
        "print([m for m in ('apsw', 'psycopg', 'sqlite3', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.strip() == "[]"
