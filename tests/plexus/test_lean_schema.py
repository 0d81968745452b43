"""Lean schemas: fewer bytes, the same objects."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from plexus.registry.lean_schema import lean_schema


class Colour(Enum):
    RED = "red"


class Inner(BaseModel):
    """An inner object."""

    model_config = ConfigDict(extra="forbid")
    title: str
    note: str | None = None


class Tree(BaseModel):
    """A tree."""

    children: list[Tree] = []


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    colour: Colour
    inner: Inner
    twice: Annotated[list[Inner], Field(max_length=3)] = []
    maybe: int | str | None = None
    tree: Tree | None = None
    anything: dict[str, Any] = {}
    flag: bool = False
    size: int = 5


SCHEMA = TypeAdapter(Outer).json_schema()


def test_titles_null_choices_and_null_defaults_are_left_out() -> None:
    lean = lean_schema(SCHEMA)
    assert "title" not in lean
    assert lean["properties"]["maybe"] == {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    assert lean["properties"]["size"] == {"default": 5, "type": "integer"}
    assert lean["properties"]["anything"] == {"type": "object"}


def test_a_property_that_is_called_title_stays() -> None:
    inner = lean_schema(SCHEMA)["$defs"]["Inner"]
    assert inner["properties"]["title"] == {"type": "string"}
    assert inner["additionalProperties"] is False


def test_a_definition_that_is_used_once_is_inlined_and_others_stay() -> None:
    lean = lean_schema(SCHEMA)
    assert lean["properties"]["colour"] == {"enum": ["red"], "type": "string"}
    assert set(lean["$defs"]) == {"Inner", "Tree"}  # used twice, and recursive
    assert lean["properties"]["twice"]["items"] == {"$ref": "#/$defs/Inner"}


@pytest.mark.parametrize(
    ("name", "description", "kept"),
    [
        ("tree_id", "Id of the tree.", False),
        ("timeout_s", "timeout s", False),
        ("session", "Name of the session.", True),
        ("command", "Command to run.", True),
    ],
)
def test_a_description_that_only_repeats_the_name_is_left_out(
    name: str, description: str, kept: bool
) -> None:
    entry = {"type": "string", "description": description}
    schema = {"type": "object", "properties": {name: entry}, "required": [name]}
    assert ("description" in lean_schema(schema)["properties"][name]) is kept


def test_the_schema_of_a_result_keeps_null() -> None:
    lean = lean_schema(SCHEMA, keeps_null=True)
    assert {"type": "null"} in lean["properties"]["maybe"]["anyOf"]


@pytest.mark.parametrize(
    ("value", "valid"),
    [
        ({"colour": "red", "inner": {"title": "a"}}, True),
        ({"colour": "red", "inner": {"title": "a"}, "tree": {"children": [{}]}}, True),
        ({"colour": "red", "inner": {"title": "a", "other": 1}}, False),
        ({"colour": "blue", "inner": {"title": "a"}}, False),
        ({"colour": "red", "inner": {"title": "a"}, "other": 1}, False),
        ({"colour": "red"}, False),
        ({"colour": "red", "inner": {"title": "a"}, "twice": [{"title": "a"}] * 4}, False),
    ],
)
def test_it_allows_the_same_objects(value: Any, valid: bool) -> None:
    for schema in (SCHEMA, lean_schema(SCHEMA)):
        assert Draft202012Validator(schema).is_valid(value) is valid


def test_it_leaves_the_schema_that_it_is_given_unchanged() -> None:
    before = repr(SCHEMA)
    lean_schema(SCHEMA)
    assert repr(SCHEMA) == before
