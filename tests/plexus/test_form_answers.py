"""Answers to forms that are described by a JSON Schema."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plexus import InvalidParams
from plexus.questions import read_form

TITLED = [{"const": "r", "title": "Red"}, {"const": "g", "title": "Green"}]
FIELDS: dict[str, Any] = {
    "text": {"type": "string"},
    "count": {"type": "integer"},
    "amount": {"type": "number"},
    "sure": {"type": "boolean"},
    "size": {"type": "string", "enum": ["s", "m"]},
    "colour": {"type": "string", "oneOf": TITLED},
    "either": {"type": "string", "anyOf": TITLED},
    "sizes": {"type": "array", "items": {"type": "string", "enum": ["s", "m"]}},
    "colours": {"type": "array", "items": {"anyOf": TITLED}},
    "words": {"type": "array"},
}


def form(*required: str, **fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields or FIELDS, "required": list(required)}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("text", ""),
        ("text", "a"),
        ("count", -5),
        ("amount", 5),
        ("amount", 5.5),
        ("sure", False),
        ("size", "m"),
        ("colour", "r"),
        ("either", "g"),
        ("sizes", []),
        ("sizes", ["s", "m"]),
        ("colours", ["g"]),
        ("words", ["any", "thing"]),
    ],
)
def test_a_value_of_the_right_type_is_accepted(field: str, value: Any) -> None:
    assert read_form(form(), {field: value}) == {field: value}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("text", 1),
        ("text", ["a"]),
        ("count", "1"),
        ("count", 1.5),
        ("count", True),
        ("amount", "1"),
        ("amount", True),
        ("sure", 1),
        ("sure", "true"),
        ("size", "l"),
        ("size", 1),
        ("colour", "Red"),
        ("either", "b"),
        ("sizes", "s"),
        ("sizes", ["l"]),
        ("sizes", [["s"]]),
        ("colours", ["b"]),
        ("words", [1]),
        ("words", {}),
    ],
)
def test_a_value_of_another_type_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidParams, match=f"'{field}'"):
        read_form(form(), {field: value})


def test_a_whole_number_may_be_written_with_a_point() -> None:
    [count] = read_form(form(), {"count": 5.0}).values()
    assert isinstance(count, int)


@pytest.mark.parametrize("answer", [None, 1, "x", [], [{}]])
def test_an_answer_is_an_object(answer: Any) -> None:
    with pytest.raises(InvalidParams, match="object"):
        read_form(form(), answer)


@pytest.mark.parametrize("answer", [{}, {"text": None}, {"count": 1}])
def test_a_required_field_must_be_present(answer: Any) -> None:
    with pytest.raises(InvalidParams, match="'text'"):
        read_form(form("text"), answer)


def test_an_omitted_field_has_its_default() -> None:
    fields = {"name": {"type": "string", "default": "Ada"}, "age": {"type": "integer"}}
    assert read_form(form(**fields), {}) == {"name": "Ada"}
    assert read_form(form(**fields), {"name": None, "age": 3}) == {"name": "Ada", "age": 3}
    assert read_form(form(**fields), {"name": "Bob"}) == {"name": "Bob"}


def test_an_unknown_field_is_dropped() -> None:
    assert read_form(form(), {"text": "a", "more": 1}) == {"text": "a"}
    assert read_form({"type": "object"}, {"more": 1}) == {}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from([*FIELDS, "other"]), json_values))
def test_any_answer_is_read_or_refused(answer: dict[str, Any]) -> None:
    try:
        fields = read_form(form(), answer)
    except InvalidParams:
        return
    assert fields.keys() <= FIELDS.keys()
