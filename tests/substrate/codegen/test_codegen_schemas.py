"""JSON Schema to code: unusual schemas generate the expected code, and no text escapes."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from odd_schemas import GOLDEN, ODD, WRITERS, written

from substrate.devtools.codegen.interface import BadName, UnknownNamespace
from substrate.devtools.codegen.python import write_python
from substrate.devtools.codegen.text import NameAllocator, comment_lines, pascal, quote_string
from substrate.devtools.codegen.typescript import write_typescript

BOTH = [write_python, write_typescript]


@pytest.mark.parametrize("name", WRITERS)
def test_an_unusual_schema_generates_the_expected_code(name: str) -> None:
    expected = (GOLDEN / name).read_text(encoding="utf-8")
    assert written(name) == expected, "run `python tests/substrate/devtools/codegen/odd_schemas.py`"


def shuffled(value: Any, chance: random.Random) -> Any:
    """Return the same JSON with the members of its objects in another order."""
    if isinstance(value, dict):
        items = list(value.items())
        chance.shuffle(items)
        return {key: shuffled(each, chance) for key, each in items}
    return [shuffled(each, chance) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("write", BOTH)
def test_the_order_of_members_makes_no_difference(write: Any) -> None:
    expected = write(ODD, [], ["x"])
    for seed in range(5):
        assert write(shuffled(ODD, random.Random(seed)), [], ["x"]) == expected


@pytest.mark.parametrize("write", BOTH)
def test_writing_changes_nothing_in_the_schema(write: Any) -> None:
    before = copy.deepcopy(ODD)
    write(ODD, ["odd"], ["x"])
    assert before == ODD


@pytest.mark.parametrize("write", BOTH)
def test_names_are_the_same_for_a_part_as_for_all(write: Any) -> None:
    whole = write(ODD, [], ["x"])
    part = write(ODD, ["odd.class"], ["x"])
    assert "OddClassDefResult" in part
    assert "OddThenAwaitResult" in whole
    assert "OddThenAwaitResult" not in part


@pytest.mark.parametrize("write", BOTH)
def test_an_unknown_namespace_is_reported(write: Any) -> None:
    with pytest.raises(UnknownNamespace) as raised:
        write(ODD, ["odd", "od"], ["x"])
    assert raised.value.name == "od"


@pytest.mark.parametrize("write", BOTH)
@pytest.mark.parametrize(
    "name", ["odd.a b", 'odd."', "odd.x\n", "Odd", "odd..x", "", 5, "odd", "even.x"]
)
def test_a_name_that_would_be_code_is_refused(write: Any, name: Any) -> None:
    schema = copy.deepcopy(ODD)
    schema["activations"][0]["methods"][0]["name"] = name
    with pytest.raises(BadName):
        write(schema, [], ["x"])


@pytest.mark.parametrize("write", BOTH)
def test_an_invalid_hash_is_ignored(write: Any) -> None:
    text = write({**ODD, "hash": '"; process.exit(1); "'}, [], ["x"])
    assert "process.exit(1); " not in text.replace("process.exit(1) /*", "")


def test_each_name_is_allocated_once() -> None:
    names = NameAllocator({"taken"})
    given_names = [
        names.allocate("a"),
        names.allocate("a", "b"),
        names.allocate("a", "b"),
        names.allocate("taken"),
    ]
    assert given_names == ["a", "b", "b2", "taken2"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("node_get.children", "NodeGetChildren"),
        ("HTTPStatus", "HTTPStatus"),
        ("1st", "X1st"),
        ("", "X"),
        ("grüße", "GrE"),
        ("a/b c", "ABC"),
    ],
)
def test_a_type_is_named_after_its_title_or_location(text: str, name: str) -> None:
    assert pascal(text) == name


@given(st.text())
def test_any_text_becomes_a_python_string_literal(text: str) -> None:
    literal = quote_string(text.encode("utf-8", "replace").decode(), "\\U{:08x}")
    assert literal.isprintable()
    assert eval(literal) == text.encode("utf-8", "replace").decode()


@given(st.text())
def test_any_text_becomes_lines_without_invisible_characters(text: str) -> None:
    for line in comment_lines(text):
        assert len(line.splitlines()) <= 1
        assert "\x00" not in line
        assert "\u202e" not in line


@given(st.text())
def test_any_description_stays_in_its_comment(text: str) -> None:
    schema = copy.deepcopy(ODD)
    methods = schema["activations"][0]["methods"]
    del methods[1:], schema["activations"][0]["children"], schema["activations"][1:]
    methods[0]["description"] = text.encode("utf-8", "replace").decode() + "\nMARK"
    module = write_python(schema, [], ["x"])
    compile(module, "client.py", "exec")
    client = write_typescript(schema, [], ["x"])
    before, _, after = client.partition("MARK")
    assert before.rpartition("/**")[2].count("*/") == 0
    assert after.lstrip().startswith("*")
