"""Schemas of plain types: the same as those of pydantic, without importing it."""

import subprocess
import sys
from enum import StrEnum
from functools import partial, reduce
from operator import or_
from typing import Annotated, Any, Literal

import pydantic
import pytest
from annotated_types import Ge, Gt, Le, Len, Lt, MaxLen, MinLen
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from plexus import Activation
from plexus.registry.activation_tree import read_activation
from plexus.registry.plain_types import core_schema, is_immutable, json_schema
from plexus.registry.schema import parameters_schema
from plexus.registry.secrets import Secret
from plexus.rpc import wire


class Colour(StrEnum):
    """A listed value that is a text in Python."""

    RED = "red"


SCALARS: list[Any] = [str, int, float, bool, type(None), Any, list, dict]
texts = st.text("ab", max_size=2)
bounds = st.integers(-3, 3) | st.sampled_from([0.5, -1.25])
sizes = st.integers(0, 4)
fields = st.builds(lambda text: Field(description=text), texts)


def _annotate(hints: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return types with metadata, on types that allow it."""
    number_marks = st.one_of(
        bounds.map(Ge),
        bounds.map(Gt),
        bounds.map(Le),
        bounds.map(Lt),
        st.builds(lambda low, text: Field(ge=low, description=text), bounds, texts),
    )
    whole_marks = st.one_of(
        sizes.map(Ge), sizes.map(Lt), st.builds(lambda most: Field(le=most), sizes)
    )
    sized = st.sampled_from([str, list[int], dict[str, Any], list, dict])
    size_marks = st.one_of(
        sizes.map(MinLen),
        sizes.map(MaxLen),
        st.builds(lambda most: Field(max_length=most), sizes),
    )
    any_marks = fields | st.just(Secret())
    return st.one_of(
        st.builds(_annotated, st.just(float), st.lists(number_marks, min_size=1, max_size=3)),
        st.builds(_annotated, st.just(int), st.lists(whole_marks, min_size=1, max_size=3)),
        st.builds(_annotated, sized, st.lists(size_marks, min_size=1, max_size=3)),
        st.builds(_annotated, hints, st.lists(any_marks, min_size=1, max_size=2)),
    )


def _annotated(hint: Any, metadata: list[Any]) -> Any:
    return Annotated[(hint, *metadata)]


def _composed(hints: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    unions = st.lists(hints, min_size=1, max_size=3).map(partial(reduce, or_))
    return st.one_of(
        hints.map(list.__class_getitem__),
        hints.map(lambda inner: dict.__class_getitem__((str, inner))),
        unions,
        _annotate(hints),
    )


values = st.lists(texts | st.integers(-2, 2) | st.booleans() | st.none(), min_size=1, max_size=3)
literals = values.map(lambda each: Literal[tuple(each)])
plain_hints = st.recursive(st.sampled_from(SCALARS) | literals, _composed, max_leaves=6)


@settings(deadline=None, max_examples=200)
@given(plain_hints)
def test_the_schema_of_a_plain_type_is_that_of_pydantic_byte_for_byte(hint: Any) -> None:
    own = json_schema(hint)
    if own is None:
        return  # pydantic describes it
    adapter: TypeAdapter[Any] = TypeAdapter(hint)
    for mode in ("validation", "serialization"):
        assert wire.encode(own) == wire.encode(adapter.json_schema(mode=mode))
    shape: Any = TypedDict
    member = TypeAdapter(shape("Shape", {"it": hint})).json_schema()["properties"]["it"]
    member.pop("title", None)
    assert wire.encode(own) == wire.encode(member)


@pytest.mark.parametrize(
    "hint",
    [
        *SCALARS,
        str | None,
        list[dict[str, int | None]],
        Literal["a", "b"],
        Literal[1, "a", None],
        Annotated[int, Ge(1), Lt(9)],
        Annotated[str | None, Field(description="A name.")],
        Annotated[list[Annotated[str, MinLen(1)]], MaxLen(3)],
        Annotated[float, Field(ge=0, le=1, description="A share.")],
        Annotated[str, Secret(), MaxLen(3)],
    ],
)
def test_common_types_need_no_pydantic(hint: Any) -> None:
    own = json_schema(hint)
    assert own is not None
    assert wire.encode(own) == wire.encode(TypeAdapter(hint).json_schema())


@pytest.mark.parametrize(
    "hint",
    [
        Literal[Colour.RED],
        Colour,
        bytes,
        set[int],
        tuple[int, str],
        Annotated[float, Ge(float("inf"))],
        Annotated[int, Ge(0.5)],
        Annotated[list[int], Len(1, 2)],
        Annotated[int, Field(title="A title")],
        Annotated[int, Field(strict=True)],
        Annotated[str, Field(pattern="a+")],
        Annotated[str, Field(alias="other")],
        Annotated[int, Field(json_schema_extra={"x-a": 1})],
        list[Colour],
        int | Colour,
        dict[int, str],
    ],
)
def test_what_only_pydantic_can_describe_is_left_to_it(hint: Any) -> None:
    assert json_schema(hint) is None


@pytest.mark.parametrize(
    ("hint", "right", "wrong"),
    [
        (list, [1, "a", None], {"a": 1}),
        (dict, {"a": [1]}, [1]),
        (Annotated[int, Field(ge=2, description="two")], 2, 1),
        (Annotated[list[int], Field(min_length=1), Field(max_length=2)], [1, 2], [1, 2, 3]),
    ],
)
def test_a_plain_type_accepts_and_refuses_what_pydantic_does(
    hint: Any, right: Any, wrong: Any
) -> None:
    from pydantic_core import SchemaValidator

    described = core_schema(hint)
    assert described is not None
    own = SchemaValidator(described)
    full = TypeAdapter(hint).validator
    for validator in (own, full):
        assert validator.validate_python(right, strict=True) == right
        with pytest.raises(pydantic.ValidationError):
            validator.validate_python(wrong, strict=True)


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (str, True),
        (float | None, True),
        (Annotated[int | str, Field(description="either")], True),
        (Annotated[int, Ge(1)], True),
        (Literal["a", 1, None], True),
        (Any, False),
        (list, False),
        (dict[str, int], False),
        (str | list[str], False),
        (list[str] | None, False),
        (Annotated[str, pydantic.AfterValidator(list)], False),  # its values are lists
        (bytearray, False),
    ],
)
def test_a_type_is_immutable_only_if_no_value_of_it_can_change(hint: Any, expected: bool) -> None:
    assert is_immutable(hint) is expected


def test_the_schema_of_arguments_is_that_of_pydantic_with_descriptions_and_defaults() -> None:
    tools = Activation("tools", version="1", description="Tools.")

    @tools.method
    async def act(
        name: str,
        count: Annotated[int, Ge(1)] = 3,
        notes: Annotated[str | None, Field(description="Free text.")] = None,
    ) -> dict[str, int]:
        """Act.

        Args:
            name: Who acts.
        """
        return {name: count, str(notes): 1}

    @tools.method
    async def rest() -> None:
        """Rest."""

    spec, empty = read_activation(tools).methods
    assert parameters_schema(spec) == {
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "Who acts."},
            "count": {"type": "integer", "minimum": 1, "description": "count", "default": 3},
            "notes": {
                "anyOf": [{"type": "string"}, {"type": "null"}],
                "description": "Free text.",
                "default": None,
            },
        },
        "additionalProperties": False,
        "required": ["name"],
    }
    assert parameters_schema(empty) == {
        "type": "object",
        "properties": {},
        "additionalProperties": False,
    }


def test_tools_with_plain_types_are_listed_without_importing_pydantic() -> None:
    program = """
import sys
from typing import Any, Literal
from mcp_view.catalogue import SPELLINGS, Catalogue
from mcp_view.revisions import REVISIONS
from mcp_view.tool_sets import ALL_TOOLS
from plexus import Activation, Plexus
from plexus.principal import LOCAL

tools = Activation("tools", version="1", description="Tools.")

@tools.method
async def act(name: str, mode: Literal["a", "b"] = "a", more: list[int] | None = None) -> bool:
    "Act."
    return True

hub = Plexus()
hub.register(tools)
lists = Catalogue(hub, SPELLINGS["dot"], lambda spec: 1000)
for revision in REVISIONS.values():
    assert b'"mode":{"enum":["a","b"]' in b"".join(lists.tools(revision, LOCAL, ALL_TOOLS).encoded)
assert "pydantic" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
